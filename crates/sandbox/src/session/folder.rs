//! A working directory of a session, and the worker that holds its history.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use codeagent_common::{
    ErrorCode, Refusal, ResourceLimits, SafeguardConfig, SafeguardDecision, SafeguardId,
    SafeguardRequest, StepId,
};
use codeagent_interceptor::{EngineEvent, UndoError};
use codeagent_worker::{
    Backgrounds, Client, Event as WorkerEvent, Request, Settings, Unreachable, WorkerError,
    WorkerProcess, WorkerSpec, end_orphan,
};
use parking_lot::Mutex;

use super::ask::{Asker, Question};
use super::event::{Bus, Event};
use super::options::{Access, FolderOptions, SessionOptions};
use super::questions::{Fate, Questions};
use crate::error::{Result, SandboxError};
use crate::executor::Executor;
use crate::places;

/// How long a worker that is told to end waits for what it serves.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long one look at what is still to be answered may take.
const ANSWERING: Duration = Duration::from_millis(100);

/// How long another process may take to start its worker, or to end it.
const STARTING: Duration = Duration::from_secs(5);
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// Where commands run: what they are asked about waits there, too.
pub(crate) type SharedExecutor = Arc<parking_lot::RwLock<Option<Weak<dyn Executor>>>>;

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
    /// It was said that another process holds the folder.
    is_shared: AtomicBool,
    /// The end of the worker is no news any more, and there is no other after it. Set before the
    /// keeper is taken away, and looked at by whoever has that locked.
    is_closing: AtomicBool,
    outlets: Outlets,
}

/// Where what a worker says goes.
#[derive(Clone)]
pub(crate) struct Outlets {
    pub(crate) bus: Bus,
    pub(crate) asker: SharedAsker,
    pub(crate) executor: SharedExecutor,
    pub(crate) questions: Arc<Questions>,
    /// All of the session.
    pub(crate) folders: Arc<parking_lot::RwLock<Vec<Weak<Folder>>>>,
}

impl std::fmt::Debug for Outlets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outlets")
    }
}

/// Whose a question may be.
#[derive(Debug, Clone, Copy, Default)]
struct Whose {
    ours: bool,
    /// Another process is asked, too.
    others: bool,
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
        outlets: Outlets,
    ) -> Result<Self> {
        let path = places::canonical(&options.path)?;
        places::must_not_be_ours(&path)?;
        let undo_dir = match &options.undo_dir {
            Some(dir) => std::path::absolute(dir)?,
            None => places::undo_dir_of(&path)?,
        };
        check_apart(&path, &undo_dir)?;
        if codeagent_mount::is_ours(&path)? {
            // Of a session that was killed, or of one that lives; then the folder is shared.
            end_orphan(&undo_dir).map_err(SandboxError::doing(CANNOT_END))?;
            codeagent_mount::recover(&path)?;
        }
        if !codeagent_mount::is_ours(&path)? {
            check_filesystem(&path, &undo_dir)?;
        }
        if options.undo_dir.is_none()
            && !undo_dir.exists()
            && let Some(other) = places::history_of_namesake(&path)
        {
            let message = format!(
                "a new history begins: the one in {} is that of another folder that had this path",
                other.display()
            );
            outlets.bus.tell(&Event::Warning { directory: None, message });
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
            is_shared: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            outlets,
        })
    }

    /// The worker; one that has died is replaced, unless the folder is being closed.
    pub(crate) fn keeper(self: &Arc<Self>) -> Result<Arc<Keeper>> {
        let mut keeper = self.keeper.lock();
        if self.is_closing() {
            return Err(SandboxError::NotRunning);
        }
        if let Some(keeper) = keeper.as_ref().filter(|keeper| !keeper.client().is_gone()) {
            return Ok(Arc::clone(keeper));
        }
        *keeper = None; // the old one is waited for before its log is opened again
        let new = Arc::new(self.open()?);
        *keeper = Some(Arc::clone(&new));
        Ok(new)
    }

    /// Another process may be about to start a worker, or to end one.
    fn open(self: &Arc<Self>) -> Result<Keeper> {
        let since = Instant::now();
        loop {
            match self.try_to_open() {
                Err(error)
                    if self.share
                        && matches!(
                            error.code(),
                            ErrorCode::UndoLocked | ErrorCode::WorkerEnding
                        )
                        && since.elapsed() < STARTING
                        && !self.is_closing() =>
                {
                    std::thread::sleep(ASK_AGAIN);
                }
                outcome => return outcome,
            }
        }
    }

    fn try_to_open(self: &Arc<Self>) -> Result<Keeper> {
        if self.share
            && let Some(client) = self.neighbour()?
        {
            let message =
                "another process holds this folder; its safeguards and protected paths apply"
                    .into();
            // Its worker may end, and the next one be another's as well.
            if !self.is_shared.swap(true, Ordering::SeqCst) {
                self.tell(&Event::Warning { directory: Some(self.label.clone()), message });
            }
            return Ok(Keeper::Other(client));
        }
        let what = || format!("cannot use the undo directory {}", self.undo_dir.display());
        places::make_parent(&self.undo_dir).map_err(SandboxError::doing(what()))?;
        end_orphan(&self.undo_dir).map_err(SandboxError::doing(CANNOT_END))?;
        // The mount of a worker that died leads nowhere, and hides the folder.
        codeagent_mount::recover(&self.path)
            .map_err(SandboxError::doing("cannot take away a mount that nobody serves"))?;
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
    fn neighbour(self: &Arc<Self>) -> Result<Option<Client>> {
        let folder = Arc::downgrade(self);
        let hear = move |event| match event {
            WorkerEvent::Gone => {} // it ends when its session does; then we have our own
            event => hear(&folder, event),
        };
        let client = match Client::connect_and_hear(&self.undo_dir, hear) {
            Ok(client) => client,
            Err(Unreachable::Nobody) => return Ok(None),
            Err(Unreachable::Failed(error)) => return Err(error.into()),
        };
        let greeting = match client.hello() {
            Ok(greeting) => greeting,
            Err(WorkerError::Gone) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // It stays if others are at work there.
        if greeting.orphaned
            && end_orphan(&self.undo_dir).map_err(SandboxError::doing(CANNOT_END))?
        {
            return Ok(None);
        }
        // Commands would do there what they may not do anywhere else.
        if !greeting.guarded {
            return Err(SandboxError::usage(
                format!("process {} holds this folder and protects no paths in it", greeting.pid),
                "end it first; a mount ends with umount",
            ));
        }
        match client.subscribe() {
            Ok(()) => Ok(Some(client)),
            Err(WorkerError::Gone) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whose a question may be: of whoever has a command in the background, if it is about an ambient
    /// or a shared step; about a step that is not ambient, of whoever has the turn. If it can be
    /// nobody's, whoever started the worker asks.
    fn whose(self: &Arc<Self>, request: &SafeguardRequest) -> Whose {
        let Ok(keeper) = self.keeper() else { return Whose::default() };
        let is_ambient = request.step.is_ambient();
        let in_background = match is_ambient || request.shared {
            true => keeper.client().backgrounds().unwrap_or_default(),
            false => Backgrounds::default(),
        };
        let turn = match is_ambient {
            true => None,
            false => keeper.client().whose_turn().ok().flatten(),
        };
        let others = turn == Some(false) || in_background.others > 0;
        let ours = turn == Some(true) || in_background.own > 0;
        Whose { ours: ours || (!others && matches!(*keeper, Keeper::Own(_))), others }
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
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

    /// On a thread of its own, because workers are asked. If the machine stands still meanwhile, it
    /// does so until it is decided, whether or not whoever is asked has answered.
    fn ask(self: &Arc<Self>, request: SafeguardRequest) {
        let folder = Arc::clone(self);
        let timeout = folder.settings.lock().safeguards.timeout;
        let denied_at = Instant::now() + timeout;
        let commands = folder.outlets.questions.open(&folder.label, &request);
        let directory = folder.label.clone();
        let question = Question { directory, request, commands, timeout, asks_others: false };
        let executor = folder.outlets.executor.read().as_ref().and_then(Weak::upgrade);
        if let Some(executor) = &executor {
            executor.asked();
        }
        let at_work = executor.clone();
        let asking = std::thread::Builder::new().name("safeguard".into());
        let asked = asking.spawn(move || {
            folder.wait_for_answer(question, denied_at, at_work.as_deref());
            if let Some(executor) = at_work {
                executor.go_on(&|| folder.is_all_answered());
            }
        });
        // Without a thread nobody is asked, and it is denied in time.
        if let (Err(_), Some(executor)) = (asked, executor) {
            executor.go_on(&|| true);
        }
    }

    fn wait_for_answer(
        self: &Arc<Self>,
        mut question: Question,
        denied_at: Instant,
        executor: Option<&dyn Executor>,
    ) {
        let (id, questions) = (question.request.id, &self.outlets.questions);
        let whose = self.whose(&question.request);
        if !whose.ours {
            questions.settle(&self.label, id);
            return;
        }
        question.asks_others = whose.others;
        if let Some(executor) = executor {
            executor.hold();
        }
        let request = question.request.clone();
        // Another process may have answered meanwhile.
        if questions.is_open(&self.label, id) {
            self.put(question);
        }
        loop {
            match questions.wait(&self.label, id, denied_at) {
                Fate::Answered => return,
                // It may be the command of another process that waits for the answer.
                Fate::AllEnded if self.whose(&request).others => {
                    questions.leave_to_others(&self.label, id);
                }
                Fate::Cancelled | Fate::AllEnded => return self.deny(id),
                Fate::TimeIsUp => {
                    questions.settle(&self.label, id);
                    return;
                }
            }
        }
    }

    fn deny(self: &Arc<Self>, question: SafeguardId) {
        match self.answer(question, SafeguardDecision::Deny) {
            Ok(()) => {}
            // Somebody else has just answered: the worker is about to say what.
            Err(error) if error.code() == ErrorCode::SafeguardUnknown => {}
            Err(_) => drop(self.outlets.questions.settle(&self.label, question)),
        }
    }

    /// A machine that goes on has forgotten what it waits for: it has to be there, in each of its
    /// folders. Waits for that, but not for long.
    fn is_all_answered(&self) -> bool {
        let folders: Vec<_> =
            self.outlets.folders.read().iter().filter_map(Weak::upgrade).collect();
        folders.iter().all(|folder| {
            // One that is not there, or has died, has nothing to answer any more.
            let Some(keeper) = folder.keeper.lock().clone() else { return true };
            let answered = Request::WaitUntilAnswered { timeout: ANSWERING };
            keeper.client().call::<bool>(answered).unwrap_or(true)
        })
    }

    /// On a thread of its own: whoever is asked may take his time.
    fn put(self: &Arc<Self>, question: Question) {
        let folder = Arc::clone(self);
        let asker = Arc::clone(&folder.outlets.asker.read());
        let asking = std::thread::Builder::new().name("asker".into());
        let asked = asking.spawn(move || {
            if let Some(decision) = asker.ask(&question) {
                // If it comes too late, it has been denied.
                let _ = folder.answer(question.request.id, decision);
            }
        });
        drop(asked); // without a thread there is no answer, which means no
    }

    pub(crate) fn answer(
        self: &Arc<Self>,
        question: SafeguardId,
        decision: SafeguardDecision,
    ) -> Result<()> {
        self.keeper()?.client().call::<()>(Request::Answer { question, decision })?;
        self.is_answered(question, decision);
        Ok(())
    }

    /// Told once, whoever has answered.
    fn is_answered(&self, question: SafeguardId, decision: SafeguardDecision) {
        if self.outlets.questions.settle(&self.label, question) {
            let directory = self.label.clone();
            self.tell(&Event::SafeguardAnswered { directory, question, decision });
        }
    }

    /// The worker says so: another process may have answered.
    fn is_decided(
        &self,
        (question, step): (SafeguardId, StepId),
        answer: Option<SafeguardDecision>,
        refused: Option<&Refusal>,
    ) {
        if let Some(refusal) = refused {
            self.outlets.questions.refused(&self.label, step, refusal);
        }
        // Whose time is up is not told: everybody knows when that is.
        match answer {
            Some(decision) => self.is_answered(question, decision),
            None => drop(self.outlets.questions.settle(&self.label, question)),
        }
    }
}

/// Before anything is made of what would be refused in the end.
fn check_apart(working_dir: &Path, undo_dir: &Path) -> Result<()> {
    let (undo, working) = (places::planned(undo_dir)?, working_dir.to_path_buf());
    if undo.starts_with(&working) {
        return Err(UndoError::UndoDirInsideWorkingDir { undo, working }.into());
    }
    if working.starts_with(&undo) {
        return Err(UndoError::WorkingDirInsideUndoDir { undo, working }.into());
    }
    match undo.ancestors().find_map(|there| std::fs::metadata(there).ok()) {
        Some(there) if !there.is_dir() => {
            let source = std::io::ErrorKind::NotADirectory.into();
            Err(UndoError::UndoDirUnusable { path: undo, source }.into())
        }
        _ => Ok(()),
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
            EngineEvent::SafeguardDecided { question, step, decision, in_time, refused } => {
                let answer = in_time.then_some(decision);
                return folder.is_decided((question, step), answer, refused.as_ref());
            }
            EngineEvent::SafeguardTriggered(_) => return,
        },
        WorkerEvent::AmbientStep(closed) => Event::AmbientStep { directory, closed: *closed },
        WorkerEvent::Detached { .. } => return,
        WorkerEvent::Lagged { missed } => Event::Warning {
            directory: Some(directory),
            message: format!("{missed} events of the worker were lost"),
        },
        WorkerEvent::Gone if folder.is_closing() => return,
        WorkerEvent::Gone => Event::WorkerLost { directory },
    };
    folder.tell(&event);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use codeagent_test_support::TempWorkspace;

    use super::*;
    use crate::session::DenyAll;

    #[test]
    fn a_folder_that_was_closed_starts_no_worker() {
        let workspace = TempWorkspace::new();
        let mut options = FolderOptions::new(workspace.working());
        options.undo_dir = Some(workspace.working().with_file_name("history"));
        let asker: Arc<dyn Asker> = Arc::new(DenyAll);
        let outlets = Outlets {
            bus: Bus::default(),
            asker: Arc::new(parking_lot::RwLock::new(asker)),
            executor: SharedExecutor::default(),
            questions: Arc::default(),
            folders: Arc::default(),
        };
        let session = SessionOptions::new(vec![]);
        let folder = Arc::new(Folder::new(&options, &session, outlets).unwrap());
        folder.close().unwrap();
        let refused = folder.keeper();
        assert!(matches!(refused, Err(SandboxError::NotRunning)), "{refused:?}");
        assert!(!folder.undo_dir.exists());
    }
}
