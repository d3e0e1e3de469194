//! Answering.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use codeagent_common::ErrorCode;
use codeagent_interceptor::{EngineEvent, EventSink, UndoEngine};
use parking_lot::Mutex;
use serde::Serialize;
use serde_bytes::ByteBuf;

use crate::link;
use crate::process::WorkerFs;
use crate::protocol::{
    Activity, Call, Confinement, Event, Failure, FileChange, FromWorker, Greeting, Request, VERSION,
};

/// Calls of one connection that may wait at once: for a safeguard's answer, for quiet.
const MAX_WAITING_CALLS: usize = 64;

/// Messages a client may leave unread. One that reads nothing for longer is let go.
const OUTBOX_MESSAGES: usize = 1024;

/// How long to wait after a connection that could not be taken.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// An engine that others can talk to.
pub struct Server {
    pub(crate) engine: Arc<UndoEngine>,
    /// None where nothing is served but questions.
    pub(crate) fs: Option<Arc<WorkerFs>>,
    pub(crate) working_dir: PathBuf,
    pub(crate) read_only: bool,
    pub(crate) confinement: Option<Confinement>,
    pub(crate) listeners: Arc<Listeners>,
    /// What only the process that started this one may ask for.
    pub(crate) owner: Option<Box<dyn Owner>>,
    /// The open step was begun by the owner; nobody else knows when it is complete.
    pub(crate) owners_step: AtomicBool,
}

/// Does what the owner of a worker asks for.
pub(crate) trait Owner: Send + Sync {
    fn attach(&self, channel: OwnedFd, helper: Option<OwnedFd>, options: &[u8]) -> io::Result<()>;
    fn is_attached(&self) -> bool;
    fn is_orphaned(&self) -> bool;
    fn shut_down(&self, patience: Duration);
}

/// Connections that want to hear of events.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    next: AtomicU64,
    outboxes: Mutex<HashMap<u64, Outbox>>,
}

type Outbox = SyncSender<Vec<u8>>;

impl Listeners {
    fn add(&self, outbox: Outbox) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.outboxes.lock().insert(id, outbox);
        id
    }

    pub(crate) fn tell(&self, event: Event) {
        let Ok(message) = link::encode(&FromWorker::Event(event)) else { return };
        // Never waits: it is called in the middle of operations.
        self.outboxes.lock().retain(|_, outbox| outbox.try_send(message.clone()).is_ok());
    }
}

impl EventSink for Listeners {
    fn event(&self, event: EngineEvent) {
        self.tell(Event::Engine(event));
    }
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The process that started this one.
    Owner,
    /// Any other process of the same user.
    Neighbour,
}

impl Server {
    /// Serves an engine within this process.
    pub fn local(engine: Arc<UndoEngine>, working_dir: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            engine,
            fs: None,
            working_dir,
            read_only: false,
            confinement: None,
            listeners: Arc::default(),
            owner: None,
            owners_step: AtomicBool::new(false),
        })
    }

    /// A new connection to this server.
    pub fn connect(self: &Arc<Self>) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        let server = Arc::clone(self);
        std::thread::Builder::new()
            .name("connection".into())
            .spawn(move || server.serve(&ours, Peer::Neighbour))?;
        Ok(theirs)
    }

    /// Takes connections for ever. Only this user and root get in, whatever the permissions of the
    /// socket have become.
    pub(crate) fn accept(self: &Arc<Self>, listener: &UnixListener) {
        loop {
            let Ok((stream, _)) = listener.accept() else {
                // No descriptor is left, or the other end has gone already. Both pass.
                std::thread::sleep(ACCEPT_AGAIN);
                continue;
            };
            let user = rustix::process::geteuid();
            let known = rustix::net::sockopt::socket_peercred(&stream)
                .is_ok_and(|peer| peer.uid == user || peer.uid.is_root());
            if !known {
                continue;
            }
            let server = Arc::clone(self);
            // Without a thread there is no connection, and the other end sees it closed.
            let _ = std::thread::Builder::new()
                .name("connection".into())
                .spawn(move || server.serve(&stream, Peer::Neighbour));
        }
    }

    /// Answers until the other end has had enough.
    pub(crate) fn serve(self: &Arc<Self>, stream: &UnixStream, peer: Peer) {
        let Ok(writer) = stream.try_clone() else { return };
        let (outbox, messages) = sync_channel::<Vec<u8>>(OUTBOX_MESSAGES);
        let writing = std::thread::Builder::new().name("outbox".into()).spawn(move || {
            for message in messages {
                if link::send_bytes(&writer, &message, &[]).is_err() {
                    break;
                }
            }
            // Lets the reader know, too.
            let _ = writer.shutdown(std::net::Shutdown::Both);
        });
        if writing.is_err() {
            return;
        }
        let connection = Connection { server: self, peer, outbox, waiting: Arc::default() };
        let mut subscription = None;
        // What is not a message is the end: nothing behind it could be understood.
        while let Ok(Some((call, descriptors))) = link::receive::<Call>(stream) {
            if matches!(call.request, Request::Subscribe) && subscription.is_none() {
                subscription = Some(self.listeners.add(connection.outbox.clone()));
            }
            connection.take(call, descriptors);
        }
        if let Some(subscription) = subscription {
            self.listeners.outboxes.lock().remove(&subscription);
        }
    }

    fn greeting(&self) -> Greeting {
        Greeting {
            pid: std::process::id(),
            working_dir: self.working_dir.clone(),
            read_only: self.read_only,
            attached: self.owner.as_ref().is_some_and(|owner| owner.is_attached()),
            orphaned: self.owner.as_ref().is_some_and(|owner| owner.is_orphaned()),
            confinement: self.confinement,
        }
    }

    fn answer(
        &self,
        peer: Peer,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<ByteBuf, Failure> {
        let engine = &self.engine;
        match request {
            Request::Hello { version } if version != VERSION => Err(Failure::new(
                ErrorCode::WorkerVersion,
                format!("the worker speaks version {VERSION} of its protocol, not {version}"),
            )),
            Request::Hello { .. } => reply(&self.greeting()),
            Request::Status => reply(&engine.status()?),
            Request::Subscribe => reply(&()),
            Request::Activity => reply(&self.activity()),
            Request::OpenStep(step) => {
                let id = engine.open_step(step)?;
                self.owners_step.store(peer == Peer::Owner, Ordering::SeqCst);
                reply(&id)
            }
            Request::CloseStep { exit_code } => {
                let closed = engine.close_step(exit_code)?;
                self.owners_step.store(false, Ordering::SeqCst);
                reply(&closed)
            }
            Request::AbortStep => {
                let id = engine.abort_step()?;
                self.owners_step.store(false, Ordering::SeqCst);
                reply(&id)
            }
            Request::EndAmbientStep => reply(&engine.end_ambient_step()?),
            Request::BeginTransaction { label } => reply(&engine.begin_transaction(label)?),
            Request::CommitTransaction => reply(&engine.commit_transaction()?),
            Request::RollbackTransaction => reply(&engine.rollback_transaction()?),
            Request::WaitUntilQuiet { timeout } => {
                reply(&self.fs.as_ref().is_none_or(|fs| fs.wait_until_quiet(timeout)))
            }
            Request::History => reply(&engine.history()),
            Request::Redoable => reply(&engine.redoable()),
            Request::Changes { step } => reply(&engine.changes(step)?),
            Request::Preview { count } => reply(&engine.preview(count)?),
            Request::Undo { count, options } => reply(&engine.rollback(count, options)?),
            Request::Redo { count, options } => reply(&engine.redo(count, options)?),
            Request::Restore { step, paths } => reply(&engine.restore(step, &paths)?),
            Request::Pin { step, pinned } => reply(&engine.pin(step, pinned)?),
            Request::DropRedoable => reply(&engine.drop_redoable()?),
            Request::Discard => reply(&engine.discard()?),
            Request::Answer { question, decision } => reply(&engine.confirm(question, decision)?),
            Request::SetSafeguards(config) => reply(&engine.set_safeguards(config)),
            Request::SetLimits(limits) => reply(&engine.set_limits(limits)),
            Request::ExternalModification { paths } => {
                reply(&engine.external_modification(&paths)?)
            }
            Request::Change(change) => {
                let fs = self.fs.as_ref().ok_or_else(|| {
                    Failure::new(ErrorCode::NotServed, "no filesystem is served here")
                })?;
                reply(&apply(fs, &change)?)
            }
            Request::Stage => reply(&engine.stage()?),
            Request::AdoptOverlay { number } => reply(&engine.adopt_overlay(number)?),
            Request::DropStaged { number } => reply(&engine.drop_staged(number)?),
            Request::Attach { options } => {
                let mut descriptors = descriptors.into_iter();
                let channel = descriptors.next().ok_or_else(|| {
                    Failure::new(ErrorCode::BadRequest, "there is no descriptor to serve")
                })?;
                reply(&self.owner(peer)?.attach(channel, descriptors.next(), &options)?)
            }
            Request::Shutdown { patience } => {
                self.owner(peer)?.shut_down(patience);
                reply(&())
            }
        }
    }

    fn owner(&self, peer: Peer) -> Result<&dyn Owner, Failure> {
        let may = |owner: &&dyn Owner| peer == Peer::Owner || owner.is_orphaned();
        let owner = self.owner.as_deref().filter(may);
        owner.ok_or_else(|| {
            Failure::new(ErrorCode::BadRequest, "only the process that started the worker may ask")
        })
    }

    fn activity(&self) -> Activity {
        let Some(fs) = &self.fs else { return Activity::default() };
        Activity { in_flight: fs.in_flight() as u64, begun: fs.begun() }
    }
}

fn apply(fs: &WorkerFs, change: &FileChange) -> io::Result<()> {
    match change {
        FileChange::Write { path, content } => fs.write_file(path.as_path(), content),
        FileChange::Append { path, content } => fs.append_to_file(path.as_path(), content),
        FileChange::MakeDir { path } => fs.make_dirs(path.as_path()),
        FileChange::Remove { path, recursive } => fs.remove_path(path.as_path(), *recursive),
        FileChange::Rename { from, to } => fs.rename_path(from.as_path(), to.as_path()),
        FileChange::SetMode { path, mode } => fs.set_mode(path.as_path(), *mode),
    }
}

fn reply<T: Serialize>(value: &T) -> Result<ByteBuf, Failure> {
    Ok(ByteBuf::from(link::encode(value)?))
}

struct Connection<'a> {
    server: &'a Arc<Server>,
    peer: Peer,
    outbox: Outbox,
    waiting: Arc<AtomicUsize>,
}

impl Connection<'_> {
    /// Each call has a thread of its own: one that waits for the answer to a safeguard must not
    /// keep that answer, which may come on the same connection, from being read.
    fn take(&self, Call { id, request }: Call, descriptors: Vec<OwnedFd>) {
        if self.waiting.fetch_add(1, Ordering::SeqCst) >= MAX_WAITING_CALLS {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            let full = Failure::new(ErrorCode::HeldQueueFull, "too many calls wait already");
            return send(&self.outbox, id, Err(full));
        }
        let (server, peer) = (Arc::clone(self.server), self.peer);
        let (outbox, waiting) = (self.outbox.clone(), Arc::clone(&self.waiting));
        let call = move || {
            let outcome = server.answer(peer, request, descriptors);
            // A call waits until its answer is taken, too: who does not read gets no more threads.
            send(&outbox, id, outcome);
            waiting.fetch_sub(1, Ordering::SeqCst);
        };
        if let Err(error) = std::thread::Builder::new().name("call".into()).spawn(call) {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            send(&self.outbox, id, Err(error.into()));
        }
    }
}

fn send(outbox: &Outbox, id: u64, outcome: Result<ByteBuf, Failure>) {
    let Ok(message) = link::encode(&FromWorker::Reply { id, outcome }) else { return };
    // A client that has gone, or reads nothing any more, gets nothing.
    if let Err(TrySendError::Full(message)) = outbox.try_send(message) {
        let _ = outbox.send(message);
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("working_dir", &self.working_dir).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use codeagent_interceptor::EngineConfig;
    use codeagent_test_support::TempWorkspace;

    use super::*;

    #[test]
    fn a_client_that_reads_nothing_gets_no_more_threads_than_calls_may_wait() {
        let workspace = TempWorkspace::new();
        let config = EngineConfig::new(workspace.working(), workspace.undo());
        let engine = Arc::new(UndoEngine::open(config).unwrap());
        let server = Server::local(engine, workspace.working().into());
        let stream = server.connect().unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        for id in 0..20_000 {
            let call = link::encode(&Call { id, request: Request::Status }).unwrap();
            if link::send_bytes(&stream, &call, &[]).is_err() {
                break; // it takes no more: just as well
            }
        }
        let named_call = |task: &std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "call\n")
        };
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let calls = tasks.filter(named_call).count();
        assert!(calls <= MAX_WAITING_CALLS, "{calls} threads");
    }
}
