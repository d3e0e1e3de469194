//! A session: working directories whose changes can be undone, and commands that run in them.
//!
//! ```text
//! MCP, STDIO API, command line ──► Session ──► Executor ──► shim ──► command
//!                                     │                                 │ files
//!                                     └─► Folder ──► worker process ◄───┘
//! ```
//!
//! Everything here may be called from any thread at once, waits until it is done, and prints
//! nothing. Events go to whoever listens ([`Session::listen`]), questions to an [`Asker`].

mod ask;
mod commands;
mod event;
mod files;
mod folder;
mod history;
mod lane;
mod network;
mod options;
mod questions;
mod status;
mod view;
mod watch;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use codeagent_common::{CancelToken, ExternalModificationPolicy, RelPathBuf};
use codeagent_namespace::{Keep, Network, Policy};
use codeagent_network::{Gate, Rule};
use parking_lot::{Condvar, Mutex, RwLock};

pub use ask::{AnsweredElsewhere, Asker, DenyAll, Question};
pub use commands::{CommandReport, CommandRequest, Directory, Running};
pub use event::{Event, Listener};
pub use files::FileChange;
pub use options::{
    Access, FolderInfo, FolderOptions, MAX_FOLDERS, NetworkChoice, SessionOptions, VmOptions,
    WatchOptions,
};
pub use status::{FolderStatus, SessionStatus, State};
pub use view::ViewSetting;

use crate::classify::{Classifier, ReadingJudge};
use crate::error::{Result, SandboxError};
use crate::executor::{
    Chosen, Executor, GuestNetwork, Isolation, SharedFolder, Wanted, choose, forget_guest,
};
use crate::places;
use crate::policy::{BadPattern, Guard};
use commands::Orders;
use event::Bus;
use folder::{Folder, Keeper, Outlets, SharedAsker, SharedExecutor};
use lane::{Lane, Patience, Turn, Workers};
use network::Gateway;
use questions::Questions;
use watch::Watcher;

/// See the module.
#[derive(Debug)]
pub struct Session {
    options: SessionOptions,
    bus: Bus,
    asker: SharedAskerBox,
    /// That of the session while it runs.
    executor: SharedExecutor,
    questions: Arc<Questions>,
    /// The rules that the workers have.
    guard: Guard,
    /// Held for a moment only, so that whoever asks how it is never waits for a start.
    active: RwLock<Option<Arc<Active>>>,
    /// While it starts: the way to end that.
    starting: Mutex<Option<CancelToken>>,
    /// It does not start any more.
    started: Condvar,
    /// Commands that have not ended, with the way to give them orders.
    running: Mutex<HashMap<u64, Orders>>,
    /// One of them has ended.
    ended: Condvar,
    next_command: AtomicU64,
    classifier: Classifier,
    judge: ReadingJudge,
    /// A command that was taken for a reading one was not: none is any more.
    reading_failed: AtomicBool,
}

struct SharedAskerBox(SharedAsker);

impl std::fmt::Debug for SharedAskerBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asker")
    }
}

/// What a running session has.
#[derive(Debug)]
pub(crate) struct Active {
    executor: Arc<dyn Executor>,
    passed_over: Vec<(Isolation, String)>,
    folders: Vec<Arc<Folder>>,
    /// One at a time has a step of its own.
    lane: Lane,
    /// Steps are grouped until it ends.
    in_transaction: AtomicBool,
    /// Held for as long as the session runs.
    _watcher: Option<Watcher>,
    /// Likewise: the way to what may be reached.
    _gateway: Option<Gateway>,
}

impl Session {
    /// A session that has not been started.
    pub fn new(options: SessionOptions) -> Result<Arc<Self>> {
        let count = options.folders.len();
        if count == 0 || count > MAX_FOLDERS {
            return Err(SandboxError::usage(
                format!("a session has 1 to {MAX_FOLDERS} working directories, not {count}"),
                "leave some out",
            ));
        }
        let asker: Arc<dyn Asker> = Arc::new(DenyAll);
        let bad = |error: BadPattern| {
            SandboxError::usage(error.to_string(), "docs/configuration.md says what a pattern is")
        };
        Ok(Arc::new(Self {
            classifier: Classifier::new(&options.lists),
            judge: ReadingJudge::new(&options.lists),
            reading_failed: AtomicBool::new(false),
            guard: Guard::new(&options.rules).map_err(bad)?,
            options,
            bus: Bus::default(),
            asker: SharedAskerBox(Arc::new(RwLock::new(asker))),
            executor: SharedExecutor::default(),
            questions: Arc::default(),
            active: RwLock::new(None),
            starting: Mutex::default(),
            started: Condvar::new(),
            running: Mutex::default(),
            ended: Condvar::new(),
            next_command: AtomicU64::new(1),
        }))
    }

    /// Events go there, too, from now on.
    pub fn listen(&self, listener: impl Fn(&Event) + Send + Sync + 'static) {
        self.bus.add(Box::new(listener));
    }

    /// Who is asked from now on; until then everything is denied.
    pub fn set_asker(&self, asker: Arc<dyn Asker>) {
        *self.asker.0.write() = asker;
    }

    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// Opens the working directories, recovers what was interrupted, and finds out how commands
    /// can run.
    pub fn start(&self) -> Result<()> {
        let cancel = CancelToken::new();
        {
            let mut starting = self.starting.lock();
            if starting.is_some() || self.active.read().is_some() {
                return Err(SandboxError::AlreadyRunning);
            }
            *starting = Some(cancel.clone());
        }
        let made = self.make_active(&cancel);
        let mut starting = self.starting.lock();
        let started = made.and_then(|new| match cancel.is_cancelled() {
            true => {
                new.executor.end();
                Err(SandboxError::Cancelled)
            }
            false => {
                let said = (new.executor.isolation(), new.passed_over.clone());
                *self.active.write() = Some(Arc::new(new));
                Ok(said)
            }
        });
        *starting = None;
        self.started.notify_all();
        drop(starting);
        let (isolation, passed_over) = started?;
        self.bus.tell(&Event::Started { isolation, passed_over });
        Ok(())
    }

    fn make_active(&self, cancel: &CancelToken) -> Result<Active> {
        let all = Arc::<RwLock<Vec<_>>>::default();
        let outlets = || Outlets {
            bus: self.bus.clone(),
            asker: Arc::clone(&self.asker.0),
            executor: Arc::clone(&self.executor),
            questions: Arc::clone(&self.questions),
            folders: Arc::clone(&all),
        };
        let folders = self
            .options
            .folders
            .iter()
            .map(|options| Folder::new(options, &self.options, outlets()).map(Arc::new))
            .collect::<Result<Vec<_>>>()?;
        check_apart(&folders)?;
        *all.write() = folders.iter().map(Arc::downgrade).collect();
        let first = folders.first().ok_or(SandboxError::NotRunning)?;
        let gate = self.gate();
        let wanted = Wanted {
            choice: self.options.isolation,
            vm: self.options.vm.clone(),
            network: match (self.options.network, &gate) {
                (NetworkChoice::Open, _) => GuestNetwork::Open,
                (NetworkChoice::Allowlist, Some(gate)) => GuestNetwork::Filtered(Arc::clone(gate)),
                _ => GuestNetwork::Disabled,
            },
            state_dir: self.state_dir(&first.path)?,
            persistent: self.options.persistent,
            program: self.options.program.clone(),
            folder: &first.path,
            undo_dir: &first.undo_dir,
            cancel,
        };
        // Nothing is made before everything that may be refused has been looked at.
        let Chosen { plan, passed_over } = choose(wanted)?;
        let keepers = keepers_of(&folders)?;
        let gateway = self.gateway(&first.path, gate.as_ref())?;
        let executor = plan.make(self.surroundings(&folders, gateway.as_ref())?)?;
        *self.executor.write() = Some(Arc::downgrade(&executor));
        let warn = |message| self.bus.tell(&Event::Warning { directory: None, message });
        let bus = self.bus.clone();
        executor.tell_of_losses(Arc::new(move |message| {
            bus.tell(&Event::Warning { directory: None, message });
        }));
        executor.weakness().into_iter().for_each(&warn);
        executor.begin(&shared(&folders, &keepers), &warn, cancel)?;
        if executor.isolation() == Isolation::Host && self.options.network != NetworkChoice::Open {
            let message = "on this machine itself, commands reach the network as you do, whatever \
                           sandbox.network says";
            self.bus.tell(&Event::Warning { directory: None, message: message.into() });
        }
        if self.options.external_modifications == ExternalModificationPolicy::Lock {
            let message = "other programs cannot be kept from writing to the folder; their edits \
                           are found, and undo does not overwrite them";
            self.bus.tell(&Event::Warning { directory: None, message: message.into() });
        }
        let watch = &self.options.watch;
        let _watcher = watch.enabled.then(|| Watcher::start(&folders, &self.bus, watch)).flatten();
        Ok(Active {
            executor,
            passed_over,
            folders,
            lane: Lane::default(),
            in_transaction: AtomicBool::new(false),
            _watcher,
            _gateway: gateway,
        })
    }

    fn state_dir(&self, first: &Path) -> Result<PathBuf> {
        match &self.options.state_dir {
            Some(dir) => Ok(dir.clone()),
            None => places::surroundings_of(first),
        }
    }

    /// Who decides what is let through with an allowlist.
    fn gate(&self) -> Option<Arc<Gate>> {
        let is_wanted = self.options.network == NetworkChoice::Allowlist;
        is_wanted.then(|| network::gate(&self.options.allow_hosts, self.bus.clone()))
    }

    /// The proxy of an allowlist.
    fn gateway(&self, first: &Path, gate: Option<&Arc<Gate>>) -> Result<Option<Gateway>> {
        let Some(gate) = gate else { return Ok(None) };
        let opened = Gateway::open(&self.state_dir(first)?, Arc::clone(gate));
        let what = "cannot open the way to the network";
        opened.map(Some).map_err(SandboxError::doing(what))
    }

    fn surroundings(&self, folders: &[Arc<Folder>], gateway: Option<&Gateway>) -> Result<Policy> {
        let options = &self.options;
        let first = folders.first().ok_or(SandboxError::NotRunning)?;
        let mut policy = Policy::new(self.state_dir(&first.path)?);
        policy.keep = if options.persistent { Keep::Persistent } else { Keep::Ephemeral };
        policy.network = match (options.network, gateway) {
            (NetworkChoice::Open, _) => Network::Open,
            (NetworkChoice::Allowlist, Some(gateway)) => Network::Gateway {
                socket: gateway.socket().into(),
                host_loopback: options.allow_hosts.iter().any(Rule::is_loopback),
            },
            (NetworkChoice::Allowlist, None) | (NetworkChoice::Disabled, _) => Network::Disabled,
        };
        policy.limits = options.command_limits;
        policy.nested_namespaces = options.nested_namespaces;
        policy.toolchains.clone_from(&options.toolchains);
        policy.readable.clone_from(&options.readable);
        // The histories of all folders are in there, but for those that have a place of their own.
        policy.hidden.extend(places::own_dir());
        for folder in folders {
            // Under the name that commands could find it by, too.
            policy.hidden.extend([places::planned(&folder.undo_dir)?, folder.undo_dir.clone()]);
        }
        Ok(policy)
    }

    /// Ends all commands and the workers. An open transaction is taken back. A session that is only
    /// starting does not go on with that.
    pub fn stop(&self) -> Result<()> {
        let was_starting = self.end_start();
        let active = match self.active.write().take() {
            Some(active) => active,
            None if was_starting => return Ok(()),
            None => return Err(SandboxError::NotRunning),
        };
        self.end_commands();
        let mut outcome = match active.in_transaction.load(std::sync::atomic::Ordering::SeqCst) {
            true => active.roll_back().map(drop),
            false => Ok(()),
        };
        active.executor.end();
        for folder in &active.folders {
            outcome = outcome.and(folder.close());
        }
        drop(active);
        self.bus.tell(&Event::Stopped);
        outcome
    }

    /// Whether there was a start to end.
    fn end_start(&self) -> bool {
        let mut starting = self.starting.lock();
        let Some(cancel) = &*starting else { return false };
        cancel.cancel();
        while starting.is_some() {
            self.started.wait(&mut starting);
        }
        true
    }

    /// Starts afresh: what commands had installed or left in their home and `/tmp` is gone. The
    /// working directories and their histories stay.
    pub fn reset(&self) -> Result<()> {
        match self.stop() {
            Ok(()) | Err(SandboxError::NotRunning) => {}
            Err(error) => return Err(error),
        }
        let first = self.options.folders.first().ok_or(SandboxError::NotRunning)?;
        let state = self.state_dir(&places::canonical(&first.path)?)?;
        let what = "cannot remove what commands had left";
        codeagent_namespace::forget(&state).map_err(SandboxError::doing(what))?;
        forget_guest(&state).map_err(SandboxError::doing(what))?;
        self.start()
    }

    /// Where commands run.
    pub fn isolation(&self) -> Result<Isolation> {
        Ok(self.active()?.executor.isolation())
    }

    /// The working directories, in their order.
    pub fn folders(&self) -> Result<Vec<FolderInfo>> {
        let info = |folder: &Arc<Folder>| FolderInfo {
            label: folder.label.clone(),
            path: folder.path.clone(),
            access: folder.access,
        };
        Ok(self.active()?.folders.iter().map(info).collect())
    }

    pub(crate) fn active(&self) -> Result<Arc<Active>> {
        self.active.read().clone().ok_or(SandboxError::NotRunning)
    }
}

impl Active {
    /// The folder of that name; the first one if there is none.
    fn folder(&self, label: Option<&str>) -> Result<&Arc<Folder>> {
        match label {
            None => self.folders.first().ok_or(SandboxError::NotRunning),
            Some(label) => self
                .folders
                .iter()
                .find(|folder| folder.label == label || folder.path.as_os_str() == label)
                .ok_or_else(|| SandboxError::UnknownDirectory(label.into())),
        }
    }

    fn keepers(&self) -> Result<Workers> {
        let keeper = |folder: &Arc<Folder>| match folder.access {
            Access::ReadOnly => Ok(None),
            Access::ReadWrite => folder.keeper().map(Some),
        };
        self.folders.iter().map(keeper).collect()
    }

    /// In all folders that can be changed.
    fn take_turn(&self, patience: &Patience<'_>) -> Result<Turn<'_>> {
        self.lane.enter(|| self.keepers(), patience)
    }

    fn take_turn_in(&self, folder: &Arc<Folder>, patience: &Patience<'_>) -> Result<Turn<'_>> {
        self.lane.enter(|| Ok(vec![Some(folder.keeper()?)]), patience)
    }

    /// Which folder a path of the host lies in, and where there. Relative ones count from the
    /// first. What symlinks make of it is not asked here: nobody follows any.
    pub(crate) fn locate(&self, path: &Path) -> Result<(&Arc<Folder>, RelPathBuf)> {
        let outside = || SandboxError::OutsidePath(path.into());
        let first = self.folders.first().ok_or(SandboxError::NotRunning)?;
        let full = lexical(&first.path.join(path)).ok_or_else(outside)?;
        // The innermost, should one lie within another.
        let holds = |folder: &&Arc<Folder>| full.starts_with(&folder.path);
        let folder = self
            .folders
            .iter()
            .filter(holds)
            .max_by_key(|folder| folder.path.as_os_str().len())
            .ok_or_else(outside)?;
        let below = full.strip_prefix(&folder.path).map_err(|_| outside())?;
        use std::os::unix::ffi::OsStrExt;
        let below = RelPathBuf::new(below.as_os_str().as_bytes()).map_err(|_| outside())?;
        Ok((folder, below))
    }
}

/// The workers of all folders, in their order.
fn keepers_of(folders: &[Arc<Folder>]) -> Result<Vec<Arc<Keeper>>> {
    folders.iter().map(Folder::keeper).collect()
}

/// For whoever shows the folders to more than one command.
fn shared<'a>(folders: &'a [Arc<Folder>], keepers: &'a [Arc<Keeper>]) -> Vec<SharedFolder<'a>> {
    let shared = |(folder, keeper): (&'a Arc<Folder>, &'a Arc<Keeper>)| SharedFolder {
        path: &folder.path,
        worker: keeper.client(),
        read_only: folder.access == Access::ReadOnly,
    };
    folders.iter().zip(keepers).map(shared).collect()
}

/// Without `.` and `..`; `None` if it would leave the root.
pub(crate) fn lexical(path: &Path) -> Option<PathBuf> {
    use std::path::Component;
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                if !plain.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    Some(plain)
}

/// Labels and folders have to differ, and no folder may lie in another: a change would belong to
/// two histories.
fn check_apart(folders: &[Arc<Folder>]) -> Result<()> {
    for (nth, folder) in folders.iter().enumerate() {
        for other in &folders[..nth] {
            if folder.label == other.label {
                return Err(SandboxError::usage(
                    format!("two working directories are called {:?}", folder.label),
                    "give one of them another name, as NAME=PATH",
                ));
            }
            if folder.path.starts_with(&other.path) || other.path.starts_with(&folder.path) {
                let (one, two) = (other.path.display(), folder.path.display());
                return Err(SandboxError::usage(
                    format!("of {one} and {two} one lies within the other"),
                    "leave one of them out: a change has to belong to one history",
                ));
            }
        }
    }
    Ok(())
}
