//! A working directory of a session, and the worker that holds its history.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use codeagent_common::{ResourceLimits, SafeguardConfig};
use codeagent_interceptor::EngineEvent;
use codeagent_worker::{
    Client, Event as WorkerEvent, Request, Settings, Unreachable, WorkerProcess, WorkerSpec,
    end_orphan,
};
use parking_lot::Mutex;

use super::ask::{Asker, Question};
use super::event::{Bus, Event};
use super::options::{Access, FolderOptions, SessionOptions};
use crate::error::{Result, SandboxError};
use crate::places;

/// How long a worker that is told to end waits for what it serves.
const FAREWELL: Duration = Duration::from_secs(2);

/// Whoever answers questions.
pub(crate) type SharedAsker = Arc<parking_lot::RwLock<Arc<dyn Asker>>>;

#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) label: String,
    /// Canonical.
    pub(crate) path: PathBuf,
    pub(crate) undo_dir: PathBuf,
    pub(crate) access: Access,
    /// As they are now, for the next worker, too.
    settings: Mutex<Settings>,
    share: bool,
    program: Option<PathBuf>,
    keeper: Mutex<Option<Arc<Keeper>>>,
    /// The end of the worker is no news any more.
    is_closing: AtomicBool,
    outlets: Outlets,
}

/// Where what a worker says goes.
#[derive(Clone)]
struct Outlets {
    bus: Bus,
    asker: SharedAsker,
}

impl std::fmt::Debug for Outlets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outlets")
    }
}

const CANNOT_END: &str = "cannot end the worker of a session that is gone";

/// The worker of a folder.
#[derive(Debug)]
pub(crate) enum Keeper {
    Own(WorkerProcess),
    /// That of another session, which the user has as well.
    Other(Client),
}

impl Keeper {
    pub(crate) fn client(&self) -> &Client {
        match self {
            Self::Own(worker) => worker.client(),
            Self::Other(client) => client,
        }
    }
}

impl Folder {
    pub(crate) fn new(
        options: &FolderOptions,
        session: &SessionOptions,
        (bus, asker): (Bus, SharedAsker),
    ) -> Result<Self> {
        let path = places::canonical(&options.path)?;
        let undo_dir = match &options.undo_dir {
            Some(dir) => std::path::absolute(dir)?,
            None => places::undo_dir_of(&path)?,
        };
        if codeagent_mount::is_ours(&path)? {
            // Of a session that was killed, or of one that lives; then the folder is shared.
            end_orphan(&undo_dir).map_err(SandboxError::doing(CANNOT_END))?;
            codeagent_mount::recover(&path)?;
        }
        if !codeagent_mount::is_ours(&path)? {
            check_filesystem(&path, &undo_dir)?;
        }
        let label = match &options.label {
            Some(label) => label.clone(),
            None => path.file_name().map_or("/".into(), |name| name.to_string_lossy().into_owned()),
        };
        let mut settings = Settings::new(&path, &undo_dir);
        settings.read_only = options.access == Access::ReadOnly;
        settings.limits = session.limits;
        settings.safeguards = session.safeguards;
        settings.durable = session.durable;
        settings.gitignore = session.gitignore;
        settings.external_modifications = session.external_modifications;
        settings.symlinks = session.symlinks;
        let rules = session.rules.to_bytes().map_err(std::io::Error::other)?;
        settings.path_rules = Some(serde_bytes::ByteBuf::from(rules));
        Ok(Self {
            label,
            path,
            undo_dir,
            access: options.access,
            settings: Mutex::new(settings),
            share: session.share,
            program: session.program.clone(),
            keeper: Mutex::new(None),
            is_closing: AtomicBool::new(false),
            outlets: Outlets { bus, asker },
        })
    }

    /// The worker; one that has died is replaced.
    pub(crate) fn keeper(self: &Arc<Self>) -> Result<Arc<Keeper>> {
        let mut keeper = self.keeper.lock();
        if let Some(keeper) = keeper.as_ref().filter(|keeper| !keeper.client().is_gone()) {
            return Ok(Arc::clone(keeper));
        }
        *keeper = None; // the old one is waited for before its log is opened again
        let new = Arc::new(self.open()?);
        *keeper = Some(Arc::clone(&new));
        Ok(new)
    }

    fn open(self: &Arc<Self>) -> Result<Keeper> {
        if self.share
            && let Some(client) = self.neighbour()?
        {
            let message =
                "another process holds this folder; its safeguards and protected paths apply"
                    .into();
            self.tell(&Event::Warning { directory: Some(self.label.clone()), message });
            return Ok(Keeper::Other(client));
        }
        let what = || format!("cannot use the undo directory {}", self.undo_dir.display());
        places::make_parent(&self.undo_dir).map_err(SandboxError::doing(what()))?;
        end_orphan(&self.undo_dir).map_err(SandboxError::doing(CANNOT_END))?;
        let mut spec = WorkerSpec::new(self.settings.lock().clone())
            .map_err(|source| SandboxError::WorkingDir { path: self.path.clone(), source })?;
        if let Some(program) = &self.program {
            spec.program.clone_from(program);
        }
        let folder = Arc::downgrade(self);
        let worker = WorkerProcess::start(&spec, move |event| hear(&folder, event))
            .map_err(SandboxError::doing("cannot start the process that keeps the history"))??;
        if let Some(report) = worker.ready().recovery.clone() {
            self.tell(&Event::Recovery { directory: self.label.clone(), report });
        }
        worker.client().subscribe()?;
        Ok(Keeper::Own(worker))
    }

    /// The worker of another session in this folder.
    fn neighbour(&self) -> Result<Option<Client>> {
        let client = match Client::connect(&self.undo_dir) {
            Ok(client) => client,
            Err(Unreachable::Nobody) => return Ok(None),
            Err(Unreachable::Failed(error)) => return Err(error.into()),
        };
        let greeting = client.hello()?;
        if greeting.orphaned {
            return Ok(None);
        }
        // Commands would do there what they may not do anywhere else.
        if !greeting.guarded {
            return Err(SandboxError::usage(
                format!("process {} holds this folder and protects no paths in it", greeting.pid),
                "end it first; a mount ends with umount",
            ));
        }
        Ok(Some(client))
    }

    /// Ends the worker, and waits until it has gone.
    pub(crate) fn close(&self) -> Result<()> {
        self.is_closing.store(true, Ordering::SeqCst);
        match self.keeper.lock().take().and_then(Arc::into_inner) {
            Some(Keeper::Own(worker)) => Ok(worker.end(FAREWELL).map(drop)?),
            Some(Keeper::Other(_)) | None => Ok(()),
        }
    }

    pub(crate) fn limits(&self) -> ResourceLimits {
        self.settings.lock().limits
    }

    pub(crate) fn set_limits(self: &Arc<Self>, limits: ResourceLimits) -> Result<()> {
        self.keeper()?.client().call::<()>(Request::SetLimits(limits))?;
        self.settings.lock().limits = limits;
        Ok(())
    }

    pub(crate) fn set_safeguards(self: &Arc<Self>, config: SafeguardConfig) -> Result<()> {
        self.keeper()?.client().call::<()>(Request::SetSafeguards(config))?;
        self.settings.lock().safeguards = config;
        Ok(())
    }

    fn tell(&self, event: &Event) {
        self.outlets.bus.tell(event);
    }

    /// On a thread of its own: whoever is asked may take his time.
    fn ask(self: &Arc<Self>, request: codeagent_common::SafeguardRequest) {
        let folder = Arc::clone(self);
        let timeout = folder.settings.lock().safeguards.timeout;
        let asking = std::thread::Builder::new().name("safeguard".into());
        let asked = asking.spawn(move || {
            let id = request.id;
            let question = Question { directory: folder.label.clone(), request, timeout };
            let asker = Arc::clone(&folder.outlets.asker.read());
            if let Some(decision) = asker.ask(&question) {
                // Too late, and it has been denied.
                let _ = folder.answer(id, decision);
            }
        });
        drop(asked); // without a thread nobody is asked, and it is denied in time
    }

    pub(crate) fn answer(
        self: &Arc<Self>,
        question: codeagent_common::SafeguardId,
        decision: codeagent_common::SafeguardDecision,
    ) -> Result<()> {
        let keeper = self.keeper()?;
        keeper.client().call::<()>(Request::Answer { question, decision })?;
        let directory = self.label.clone();
        self.tell(&Event::SafeguardAnswered { directory, question, decision });
        Ok(())
    }
}

fn check_filesystem(working_dir: &Path, undo_dir: &Path) -> Result<()> {
    let there = undo_dir.ancestors().find_map(|path| std::fs::metadata(path).ok());
    let same = there.is_none_or(|there| {
        std::fs::metadata(working_dir).is_ok_and(|here| here.dev() == there.dev())
    });
    if same {
        return Ok(());
    }
    Err(SandboxError::OtherFilesystem {
        undo_dir: undo_dir.into(),
        working_dir: working_dir.into(),
    })
}

/// What the worker says, on the thread that reads its replies: nothing here may wait for one.
fn hear(folder: &Weak<Folder>, event: WorkerEvent) {
    let Some(folder) = folder.upgrade() else { return };
    let directory = folder.label.clone();
    let event = match event {
        WorkerEvent::Engine(EngineEvent::SafeguardTriggered(request)) => {
            folder.tell(&Event::SafeguardTriggered { directory, request: request.clone() });
            folder.ask(request);
            return;
        }
        WorkerEvent::Engine(event) => match event {
            EngineEvent::ExternalModification { paths, barrier } => {
                Event::ExternalModification { directory, paths, barrier }
            }
            EngineEvent::Evicted { steps } => Event::Evicted { directory, steps },
            EngineEvent::StepUnprotected { step, reason } => {
                Event::StepUnprotected { directory, step, reason }
            }
            EngineEvent::VersionMismatch { found, expected } => {
                Event::VersionMismatch { directory, found, expected }
            }
            EngineEvent::Warning(message) => Event::Warning { directory: Some(directory), message },
            EngineEvent::SafeguardTriggered(_) => return,
        },
        WorkerEvent::AmbientStep(closed) => Event::AmbientStep { directory, closed },
        WorkerEvent::Detached => return,
        WorkerEvent::Lagged { missed } => Event::Warning {
            directory: Some(directory),
            message: format!("{missed} events of the worker were lost"),
        },
        WorkerEvent::Gone if folder.is_closing.load(Ordering::SeqCst) => return,
        WorkerEvent::Gone => Event::WorkerLost { directory },
    };
    folder.tell(&event);
}
