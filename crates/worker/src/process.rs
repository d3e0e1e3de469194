//! The life of a worker process.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use codeagent_common::ErrorCode;
use codeagent_fs::{FsConfig, InterceptedFs, raise_descriptor_limit};
use codeagent_interceptor::{
    AllowAll, EngineConfig, OwnChanges, PathPolicy, SOCKET, UndoEngine, UndoError,
};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags};

use crate::claim::{self, FolderClaim};
use crate::confine;
use crate::enclosure;
use crate::link;
use crate::protocol::{Confinement, Event, Failure, Ready, Settings};
use crate::raw;
use crate::server::{Clients, Owner, Peer, Server};
use crate::system_calls;
use crate::turns::Turns;

/// The only argument of a worker process.
pub(crate) const ARGUMENT: &str = "--codeagent-worker";

/// How long an ending worker waits for calls, and for mutations that are on their way.
const FAREWELL: Duration = Duration::from_secs(10);

/// How long it waits until what it has to say at last is read.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The filesystem of a worker.
pub type WorkerFs = InterceptedFs<UndoEngine>;

/// What is changed by requests, which steps of their own are made of.
pub(crate) type RequestFs = InterceptedFs<OwnChanges>;

/// A way to serve the filesystem: a mount, a guest.
pub trait FrontEnd: Send + Sync {
    /// Begins to serve `fs`, which nobody else is served, through `channel`, and says when the other
    /// side has ended it. The options are what the other end was given; `helper` leads to what only the owner may do.
    fn serve(
        &self,
        fs: Arc<WorkerFs>,
        channel: OwnedFd,
        helper: Option<OwnedFd>,
        options: &[u8],
        ended: Ended,
    ) -> io::Result<()>;
}

/// To be called once, from any thread.
pub type Ended = Box<dyn FnOnce() + Send>;

/// Whether this process was started to be a worker; `main` then calls [`run`] and nothing else.
pub fn is_worker() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == ARGUMENT)
}

/// Makes a path policy of what came with the settings.
pub type ReadPolicy = fn(&[u8]) -> Result<Arc<dyn PathPolicy>, String>;

/// As [`run_with_policy`], in a program that knows of no path policy.
pub fn run(front_end: Box<dyn FrontEnd>) -> ExitCode {
    run_with_policy(front_end, |_| Err("this program knows no rules for paths".into()))
}

/// Is a worker: standard input is the connection to the process that started this one.
#[expect(clippy::print_stderr, reason = "errors that nobody listens to are for people")]
pub fn run_with_policy(front_end: Box<dyn FrontEnd>, read_policy: ReadPolicy) -> ExitCode {
    match live(front_end, read_policy) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn live(front_end: Box<dyn FrontEnd>, read_policy: ReadPolicy) -> io::Result<()> {
    raw::close_what_was_inherited();
    // Each file that a client knows takes one, whoever started us.
    codeagent_fs::raise_descriptor_limit();
    let owner = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let Some((settings, sent)) = link::receive::<Settings>(&owner)? else { return Ok(()) };
    let working_dir = sent.into_iter().next().ok_or(io::ErrorKind::InvalidInput)?;
    let started = path_policy(&settings, read_policy)
        .and_then(|policy| start(settings, working_dir, front_end, policy));
    let answer = match &started {
        Ok((_, ready)) => Ok(ready.clone()),
        Err(failure) => Err(failure.clone()),
    };
    link::send(&owner, &answer)?;
    let Ok((life, _)) = started else { return Ok(()) };
    life.serve(&owner);
    Ok(())
}

/// A worker that is ready to serve.
struct Life {
    server: Arc<Server>,
    attached: Arc<Attached>,
    listener: Option<UnixListener>,
    undo_dir: OwnedFd,
    ambient_timeout: Duration,
    /// Goes before the lock on the undo directory does: who gets that can have the folder, too.
    claim: Option<FolderClaim>,
}

fn start(
    settings: Settings,
    working_dir: OwnedFd,
    front_end: Box<dyn FrontEnd>,
    policy: Arc<dyn PathPolicy>,
) -> Result<(Life, Ready), Failure> {
    raise_descriptor_limit();
    let mut settings = settings;
    let undo_dir = open_undo_dir(&mut settings)?;
    // Before anything is recovered. Of a folder that does not change, there may be many pictures.
    let claim = match settings.read_only {
        false => Some(FolderClaim::take(&working_dir, &undo_dir)?),
        true => None,
    };
    // While there is but one thread: others would keep the freedom they were born with.
    let enclosed = enclosure::enter(working_dir.as_fd(), undo_dir.as_fd())?;
    let is_enclosed = enclosed.is_some();
    let [working_dir, undo_dir] = enclosed.unwrap_or([working_dir, undo_dir]);
    let landlock = confine::to_directories(&[working_dir.as_fd(), undo_dir.as_fd()])?;
    confine::drop_groups();
    let (capabilities, privileged) = confine::drop_capabilities();
    let clients = Arc::new(Clients::default());
    let mut fs_config = FsConfig::new(format!("/proc/self/fd/{}/.", working_dir.as_raw_fd()));
    fs_config.cache = settings.cache;
    fs_config.read_only = settings.read_only;
    let engine = Arc::new(open_engine(&settings, (working_dir, &undo_dir), &clients, policy)?);
    let fs = Arc::new(InterceptedFs::new(&fs_config, Arc::clone(&engine))?);
    let request_fs = Arc::new(fs.another_with(Arc::new(OwnChanges(Arc::clone(&engine)))));
    let (listener, unreachable) = match listen(&undo_dir) {
        Ok(listener) => (Some(listener), None),
        Err(error) => (None, Some(error.to_string())),
    };
    // Last: it forbids making sockets, and much else.
    let seccomp = system_calls::allow_only_what_is_needed();
    let confinement =
        Confinement { landlock, seccomp, capabilities, enclosed: is_enclosed, privileged };
    let attached = Arc::new(Attached {
        front_end,
        fs,
        state: Mutex::new(AttachedState::default()),
        changed: Condvar::new(),
    });
    let recovery = engine.recovery().cloned();
    let server = Server {
        engine,
        fs: Some(request_fs),
        working_dir: settings.working_dir,
        read_only: settings.read_only,
        guarded: settings.path_rules.is_some(),
        confinement: Some(confinement),
        clients,
        ending: AtomicBool::new(false),
        owner: Some(Box::new(Arc::clone(&attached))),
        owners_step: Mutex::default(),
        turns: Turns::default(),
    };
    let ambient_timeout = settings.ambient_timeout;
    let server = Arc::new(server);
    let life = Life { server, attached, listener, undo_dir, ambient_timeout, claim };
    Ok((life, Ready { recovery, confinement, unreachable }))
}

/// Rules that cannot be read protect nothing, so nothing is served then.
fn path_policy(
    settings: &Settings,
    read_policy: ReadPolicy,
) -> Result<Arc<dyn PathPolicy>, Failure> {
    let Some(rules) = &settings.path_rules else { return Ok(Arc::new(AllowAll)) };
    let unreadable = |reason| {
        let message = format!("the rules for protected paths cannot be read: {reason}");
        Failure::new(ErrorCode::BadRequest, message)
    };
    read_policy(rules).map_err(unreadable)
}

/// Opens the undo directory, and makes it first if need be: later that would be outside our reach,
/// and so would be what its name says.
fn open_undo_dir(settings: &mut Settings) -> Result<OwnedFd, Failure> {
    let path = &settings.undo_dir;
    let unusable = |source| UndoError::UndoDirUnusable { path: path.clone(), source };
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(unusable(error).into());
        }
        _ => {}
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| unusable(errno.into()))?;
    let name = path.canonicalize().map_err(unusable)?;
    if settings.durable {
        std::fs::File::open(name.parent().unwrap_or(&name))
            .and_then(|parent| parent.sync_all())
            .map_err(unusable)?;
    }
    settings.undo_dir = name;
    Ok(dir)
}

fn open_engine(
    settings: &Settings,
    (working_dir, undo_dir): (OwnedFd, &OwnedFd),
    clients: &Arc<Clients>,
    policy: Arc<dyn PathPolicy>,
) -> Result<UndoEngine, Failure> {
    let mut config = EngineConfig::new(&settings.working_dir, &settings.undo_dir);
    config.opened = Some(Arc::new(working_dir));
    config.opened_undo = Some(Arc::new(undo_dir.try_clone()?));
    config.read_only = settings.read_only;
    config.ambient_timeout = settings.ambient_timeout;
    config.limits = settings.limits;
    config.safeguards = settings.safeguards;
    config.durable = settings.durable;
    config.gitignore = settings.gitignore;
    config.external_modifications = settings.external_modifications;
    config.symlinks = settings.symlinks;
    config.paths = policy;
    config.events = Arc::clone(clients) as _;
    Ok(claim::despite_lookers(|| UndoEngine::open(config.clone()))?)
}

/// Called with the undo directory locked: a socket that is there already belongs to nobody.
fn listen(undo_dir: &OwnedFd) -> io::Result<UnixListener> {
    remove_socket(undo_dir)?;
    // Through the descriptor: the path of a socket may not be long.
    let path = format!("/proc/self/fd/{}/{SOCKET}", undo_dir.as_raw_fd());
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn remove_socket(undo_dir: &OwnedFd) -> io::Result<()> {
    match rustix::fs::unlinkat(undo_dir, SOCKET, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

impl Life {
    fn serve(self, owner: &UnixStream) {
        let (server, attached) = (&self.server, &self.attached);
        if let Some(listener) = self.listener {
            let server = Arc::clone(server);
            std::thread::spawn(move || server.accept(&listener));
        }
        {
            let (server, attached) = (Arc::clone(server), Arc::clone(attached));
            let Ok(owner) = owner.try_clone() else { return };
            std::thread::spawn(move || {
                let connection = server.serve(&owner, Peer::Owner);
                attached.owner_is_gone();
                // Others may go on to use the worker.
                if let Some(connection) = connection {
                    server.give_up_what_is_unfinished(connection);
                }
            });
        }
        {
            let attached = Arc::clone(attached);
            // Without it the worker dies of a signal, and the next one recovers.
            let _ = ctrlc::set_handler(move || attached.was_told_to_end());
        }
        let interval = (self.ambient_timeout / 4).clamp(MIN_INTERVAL, MAX_INTERVAL);
        while !attached.is_over(interval) || !server.nobody_else_is_at_work() {
            match server.engine.tick() {
                Ok(Some(closed)) => server.clients.tell(Event::AmbientStep(Box::new(closed))),
                Ok(None) => {}
                Err(error) => server.clients.tell(warning(&error)),
            }
            for attachment in attached.take_ended() {
                server.turns.detached(attachment, &server.engine);
                server.clients.tell(Event::Detached { attachment });
            }
            attached.rest();
        }
        attached.wait_for_front_end();
        // One deadline for both: an owner that waits kills who takes much longer.
        let deadline = Instant::now() + FAREWELL;
        server.finish_calls(deadline);
        if let Some(fs) = &server.fs {
            let left = deadline.saturating_duration_since(Instant::now());
            fs.wait_until_quiet(Duration::ZERO, left);
        }
        let unfinished = server.owners_step.lock().filter(|_| attached.was_deserted());
        if let Err(error) = server.engine.retire(unfinished) {
            server.clients.tell(warning(&error));
            server.finish_calls(Instant::now() + LAST_WORDS);
        }
        let _ = remove_socket(&self.undo_dir);
        drop(self.claim);
    }
}

const MIN_INTERVAL: Duration = Duration::from_millis(10);
const MAX_INTERVAL: Duration = Duration::from_secs(1);

fn warning(error: &UndoError) -> Event {
    Event::Engine(codeagent_interceptor::EngineEvent::Warning(error.to_string()))
}

/// The front end with those it serves, and who wants the worker to go on.
struct Attached {
    front_end: Box<dyn FrontEnd>,
    fs: Arc<WorkerFs>,
    state: Mutex<AttachedState>,
    changed: Condvar,
}

#[derive(Default)]
struct AttachedState {
    last: u64,
    served: BTreeMap<u64, Weak<WorkerFs>>,
    /// Nobody has been told of their end yet.
    ended: Vec<u64>,
    owner_gone: bool,
    /// It went without having said that it was done.
    deserted: bool,
    /// For how long to wait for those who are served then.
    shutting_down: Option<Duration>,
}

impl Attached {
    /// Waits for `interval` unless there is no reason to go on. A mount outlives the process that
    /// made it: what is written there is still recorded.
    fn is_over(&self, interval: Duration) -> bool {
        let over = |state: &AttachedState| {
            state.shutting_down.is_some() || (state.owner_gone && state.served.is_empty())
        };
        let mut state = self.state.lock();
        if !over(&state) && state.ended.is_empty() {
            self.changed.wait_for(&mut state, interval);
        }
        over(&state)
    }

    /// While others are still at work, though it would be over.
    fn rest(&self) {
        let mut state = self.state.lock();
        if state.shutting_down.is_some() || state.owner_gone {
            self.changed.wait_for(&mut state, MIN_INTERVAL);
        }
    }

    fn take_ended(&self) -> Vec<u64> {
        std::mem::take(&mut self.state.lock().ended)
    }

    fn owner_is_gone(&self) {
        let mut state = self.state.lock();
        state.owner_gone = true;
        state.deserted = state.shutting_down.is_none();
        drop(state);
        self.changed.notify_all();
    }

    fn was_deserted(&self) -> bool {
        self.state.lock().deserted
    }

    /// By a signal. When a session or the machine ends, everybody gets it: then the owner unmounts
    /// and says so. To die of it would be to leave a step unfinished.
    fn was_told_to_end(&self) {
        let mut state = self.state.lock();
        if state.owner_gone && state.shutting_down.is_none() {
            state.shutting_down = Some(Duration::ZERO);
            drop(state);
            self.changed.notify_all();
        }
    }

    fn wait_for_front_end(&self) {
        let mut state = self.state.lock();
        let deadline = Instant::now() + state.shutting_down.unwrap_or_default();
        while !state.served.is_empty() && !self.changed.wait_until(&mut state, deadline).timed_out()
        {
        }
    }
}

/// Somebody is served for as long as this lives.
struct Served {
    attached: Arc<Attached>,
    attachment: u64,
}

impl Served {
    fn new(attached: &Arc<Attached>, fs: &Arc<WorkerFs>) -> Self {
        let mut state = attached.state.lock();
        state.last += 1;
        let attachment = state.last;
        state.served.insert(attachment, Arc::downgrade(fs));
        Self { attached: Arc::clone(attached), attachment }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let mut state = self.attached.state.lock();
        state.served.remove(&self.attachment);
        state.ended.push(self.attachment);
        drop(state);
        self.attached.changed.notify_all();
    }
}

impl Owner for Arc<Attached> {
    fn attach(&self, channel: OwnedFd, helper: Option<OwnedFd>, options: &[u8]) -> io::Result<u64> {
        // Before it is so: the other side may end it before `serve` returns.
        let fs = Arc::new(self.fs.another());
        let served = Served::new(self, &fs);
        let attachment = served.attachment;
        self.front_end.serve(fs, channel, helper, options, Box::new(|| drop(served)))?;
        Ok(attachment)
    }

    fn wait_until_detached(&self, attachment: u64, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        while state.served.contains_key(&attachment)
            && !self.changed.wait_until(&mut state, deadline).timed_out()
        {}
        !state.served.contains_key(&attachment)
    }

    fn wait_until_answered(&self, attachments: &[u64], timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let served = |attachment| self.state.lock().served.get(attachment).and_then(Weak::upgrade);
        attachments
            .iter()
            .filter_map(served)
            .all(|fs| fs.wait_until_answered(deadline.saturating_duration_since(Instant::now())))
    }

    fn is_attached(&self) -> bool {
        !self.state.lock().served.is_empty()
    }

    fn is_served(&self, attachment: u64) -> bool {
        self.state.lock().served.contains_key(&attachment)
    }

    fn is_orphaned(&self) -> bool {
        self.state.lock().owner_gone
    }

    fn shut_down(&self, patience: Duration) {
        self.state.lock().shutting_down = Some(patience);
        self.changed.notify_all();
    }
}
