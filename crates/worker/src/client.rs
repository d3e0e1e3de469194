//! Asking a worker, from any other process.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use codeagent_common::{Change, StepId, StepInfo};
use codeagent_interceptor::{
    AbortedStep, ClosedStep, HistoryEntry, OnConflict, OverlayReport, Preview, RestoreReport,
    RollbackOptions, RollbackReport, SOCKET, Staging, StepRequest, StoreStatus,
};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;
use serde_bytes::ByteBuf;

use crate::link;
use crate::protocol::{
    Backgrounds, Call, Event, Failure, FileChange, FromWorker, Greeting, Request,
};

/// Long enough for a machine that is busy with something else.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a worker did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error("the worker is gone")]
    Gone,
    #[error("the worker does not answer")]
    Silent,
    #[error("what the worker said cannot be understood: {0}")]
    Protocol(io::Error),
}

/// Why there is no worker to ask.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    #[error("no worker holds this undo directory")]
    Nobody,
    #[error("the worker cannot be reached: {0}")]
    Failed(#[from] io::Error),
}

/// A connection to a worker. Any number of threads may use it at once.
pub struct Client {
    /// Locked while a message is written: those of two threads must not mix.
    stream: Mutex<UnixStream>,
    next: AtomicU64,
    calls: Arc<Mutex<Option<Calls>>>,
}

/// Who waits for which reply; there is no such table once the worker has gone.
type Calls = HashMap<u64, Sender<Result<ByteBuf, Failure>>>;

impl Client {
    /// Talks to the worker that holds an undo directory.
    pub fn connect(undo_dir: &Path) -> Result<Self, Unreachable> {
        Self::connect_and_hear(undo_dir, |_| {})
    }

    /// As [`Client::connect`]; events come once they are asked for. `on_event` must not wait for a
    /// call.
    pub fn connect_and_hear(
        undo_dir: &Path,
        on_event: impl Fn(Event) + Send + 'static,
    ) -> Result<Self, Unreachable> {
        // Through a descriptor: the path of a socket may not be long.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = match rustix::fs::open(undo_dir, flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(rustix::io::Errno::NOENT) => return Err(Unreachable::Nobody),
            Err(errno) => return Err(io::Error::from(errno).into()),
        };
        let path = format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd());
        match UnixStream::connect(path) {
            Ok(stream) => Ok(Self::over(stream, on_event)?),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                Err(Unreachable::Nobody)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Talks over a connection that exists already. `on_event` must not wait for a call.
    pub fn over(stream: UnixStream, on_event: impl Fn(Event) + Send + 'static) -> io::Result<Self> {
        let calls = Arc::new(Mutex::new(Some(Calls::new())));
        let (reader, shared) = (stream.try_clone()?, Arc::clone(&calls));
        std::thread::Builder::new().name("worker-replies".into()).spawn(move || {
            while let Ok(Some((message, _))) = link::receive::<FromWorker>(&reader) {
                match message {
                    FromWorker::Event(event) => on_event(event),
                    FromWorker::Reply { id, outcome } => {
                        let caller = shared.lock().as_mut().and_then(|calls| calls.remove(&id));
                        if let Some(caller) = caller {
                            let _ = caller.send(outcome); // who gave up waiting does not care
                        }
                    }
                }
            }
            // Whoever still waits learns that nothing will come.
            *shared.lock() = None;
            on_event(Event::Gone);
        })?;
        Ok(Self { stream: Mutex::new(stream), next: AtomicU64::new(0), calls })
    }

    pub fn is_gone(&self) -> bool {
        self.calls.lock().is_none()
    }

    /// Ends the connection, and with it the thread that reads replies.
    pub fn hang_up(&self) {
        let _ = self.stream.lock().shutdown(std::net::Shutdown::Both);
    }

    pub fn call<T: DeserializeOwned>(&self, request: Request) -> Result<T, WorkerError> {
        self.call_with(request, &[], None)
    }

    pub(crate) fn call_with<T: DeserializeOwned>(
        &self,
        request: Request,
        descriptors: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> Result<T, WorkerError> {
        let (sender, outcome) = channel();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let body = link::encode(&Call { id, request }).map_err(WorkerError::Protocol)?;
        self.calls.lock().as_mut().ok_or(WorkerError::Gone)?.insert(id, sender);
        let sent = {
            let stream = self.stream.lock();
            link::send_bytes(&stream, &body, descriptors)
        };
        if let Err(error) = sent {
            if let Some(calls) = self.calls.lock().as_mut() {
                calls.remove(&id);
            }
            return Err(match error.kind() {
                io::ErrorKind::InvalidInput => WorkerError::Protocol(error),
                _ => WorkerError::Gone,
            });
        }
        let body = match timeout {
            None => outcome.recv().map_err(|_| WorkerError::Gone)??,
            Some(timeout) => outcome.recv_timeout(timeout).map_err(|error| match error {
                RecvTimeoutError::Timeout => WorkerError::Silent,
                RecvTimeoutError::Disconnected => WorkerError::Gone,
            })??,
        };
        link::decode(&body).map_err(WorkerError::Protocol)
    }

    /// Who is there; fails if nobody answers for a while.
    pub fn hello(&self) -> Result<Greeting, WorkerError> {
        let hello = Request::Hello { version: crate::protocol::VERSION };
        self.call_with(hello, &[], Some(GREETING_TIMEOUT))
    }

    pub fn status(&self) -> Result<StoreStatus, WorkerError> {
        self.call(Request::Status)
    }

    pub fn subscribe(&self) -> Result<(), WorkerError> {
        self.call(Request::Subscribe)
    }

    /// Whether nobody else has a step, or is about to; until [`Client::end_turn`] it stays so.
    pub fn take_turn(&self) -> Result<bool, WorkerError> {
        self.call(Request::TakeTurn)
    }

    pub fn end_turn(&self) -> Result<(), WorkerError> {
        self.call(Request::EndTurn)
    }

    /// `None`: nobody's; otherwise whether it is ours.
    pub fn whose_turn(&self) -> Result<Option<bool>, WorkerError> {
        self.call(Request::WhoseTurn)
    }

    pub fn open_step(&self, request: StepRequest) -> Result<StepId, WorkerError> {
        self.call(Request::OpenStep(request))
    }

    /// Room for the upper layer of an overlay over the working directory.
    pub fn stage(&self) -> Result<Staging, WorkerError> {
        self.call(Request::Stage)
    }

    /// Applies what was staged to the open step.
    pub fn adopt_overlay(&self, number: u64) -> Result<OverlayReport, WorkerError> {
        self.call(Request::AdoptOverlay { number })
    }

    /// As [`Client::adopt_overlay`] and then [`Client::close_step`].
    pub fn adopt_and_close(
        &self,
        number: u64,
        exit_code: Option<i32>,
    ) -> Result<(OverlayReport, ClosedStep), WorkerError> {
        self.call(Request::AdoptAndClose { number, exit_code })
    }

    pub fn drop_staged(&self, number: u64) -> Result<(), WorkerError> {
        self.call(Request::DropStaged { number })
    }

    /// Gives up the open step.
    pub fn abort_step(&self) -> Result<AbortedStep, WorkerError> {
        self.call(Request::AbortStep)
    }

    /// Before a command begins that may write at any time.
    pub fn begin_background(&self) -> Result<(), WorkerError> {
        self.call(Request::BeginBackground)
    }

    /// When nothing of it is left.
    pub fn end_background(&self) -> Result<(), WorkerError> {
        self.call(Request::EndBackground)
    }

    pub fn backgrounds(&self) -> Result<Backgrounds, WorkerError> {
        self.call(Request::Backgrounds)
    }

    pub fn close_step(&self, exit_code: Option<i32>) -> Result<ClosedStep, WorkerError> {
        self.call(Request::CloseStep { exit_code })
    }

    pub fn end_ambient_step(&self) -> Result<Option<ClosedStep>, WorkerError> {
        self.call(Request::EndAmbientStep)
    }

    pub fn history(&self) -> Result<Vec<HistoryEntry>, WorkerError> {
        self.call(Request::History)
    }

    pub fn redoable(&self) -> Result<Vec<StepInfo>, WorkerError> {
        self.call(Request::Redoable)
    }

    pub fn changes(&self, step: StepId) -> Result<Vec<Change>, WorkerError> {
        self.call(Request::Changes { step })
    }

    pub fn preview(&self, count: usize) -> Result<Preview, WorkerError> {
        self.call(Request::Preview { count })
    }

    pub fn undo(&self, count: usize, conflicts: OnConflict) -> Result<RollbackReport, WorkerError> {
        let options = RollbackOptions { on_conflict: conflicts };
        self.call(Request::Undo { count, options, expect: None })
    }

    /// Undoes this step if it is the newest; otherwise nothing.
    pub fn undo_newest(
        &self,
        step: StepId,
        conflicts: OnConflict,
    ) -> Result<RollbackReport, WorkerError> {
        let options = RollbackOptions { on_conflict: conflicts };
        self.call(Request::Undo { count: 1, options, expect: Some(step) })
    }

    pub fn redo(&self, count: usize, conflicts: OnConflict) -> Result<RollbackReport, WorkerError> {
        let options = RollbackOptions { on_conflict: conflicts };
        self.call(Request::Redo { count, options })
    }

    pub fn restore(
        &self,
        step: StepId,
        paths: Vec<codeagent_common::RelPathBuf>,
    ) -> Result<RestoreReport, WorkerError> {
        self.call(Request::Restore { step, paths })
    }

    pub fn change(&self, change: FileChange) -> Result<(), WorkerError> {
        self.call(Request::Change(change))
    }

    /// Has the filesystem served through `channel`, and says under which number. `helper` is the
    /// front end's way to what only its owner may do.
    pub fn attach(
        &self,
        channel: impl AsFd,
        helper: Option<BorrowedFd<'_>>,
        options: Vec<u8>,
    ) -> Result<u64, WorkerError> {
        let options = ByteBuf::from(options);
        let descriptors: Vec<_> = [channel.as_fd()].into_iter().chain(helper).collect();
        self.call_with(Request::Attach { options }, &descriptors, None)
    }

    /// Waits until the other side has ended what was attached; `false` if it has not.
    pub fn wait_until_detached(
        &self,
        attachment: u64,
        timeout: Duration,
    ) -> Result<bool, WorkerError> {
        self.call(Request::WaitUntilDetached { attachment, timeout })
    }

    /// Over the connection that the worker was started with, or any once that has ended. `false`:
    /// others are at work, and it ends after them.
    pub fn shut_down(&self, patience: Duration) -> Result<bool, WorkerError> {
        self.call(Request::Shutdown { patience })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.hang_up();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("gone", &self.is_gone()).finish_non_exhaustive()
    }
}
