//! What can be asked of a worker, and what comes back. `docs/worker-protocol.md` describes it.

use std::path::PathBuf;
use std::time::Duration;

use codeagent_common::{
    ErrorCode, ExternalModificationPolicy, RelPathBuf, ResourceLimits, SafeguardConfig,
    SafeguardDecision, SafeguardId, StepId, SymlinkPolicy, path_bytes,
};
use codeagent_interceptor::{
    ClosedStep, Conflict, EngineEvent, RecoveryReport, RollbackOptions, StepRequest, UndoError,
};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Both sides are usually the same binary; a client of another version is told so.
pub(crate) const VERSION: u32 = 8;

/// The first message to a new worker process, with the working directory as a descriptor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// Absolute; a name, because the directory itself comes as a descriptor.
    #[serde(with = "path_bytes")]
    pub working_dir: PathBuf,
    #[serde(with = "path_bytes")]
    pub undo_dir: PathBuf,
    pub read_only: bool,
    /// What clients of the filesystem may keep of files' contents.
    pub cache: codeagent_fs::Cache,
    /// An ambient step ends after this much quiet.
    pub ambient_timeout: Duration,
    pub limits: ResourceLimits,
    pub safeguards: SafeguardConfig,
    pub durable: bool,
    pub gitignore: bool,
    pub external_modifications: ExternalModificationPolicy,
    pub symlinks: SymlinkPolicy,
    /// What the path policy is made of, for whoever reads it in the worker; without it, everything
    /// is allowed.
    pub path_rules: Option<ByteBuf>,
}

impl Settings {
    pub fn new(working_dir: impl Into<PathBuf>, undo_dir: impl Into<PathBuf>) -> Self {
        Self {
            working_dir: working_dir.into(),
            undo_dir: undo_dir.into(),
            read_only: false,
            cache: codeagent_fs::Cache::default(),
            ambient_timeout: Duration::from_secs(5),
            limits: ResourceLimits::default(),
            safeguards: SafeguardConfig::default(),
            durable: false,
            gitignore: false,
            external_modifications: ExternalModificationPolicy::default(),
            symlinks: SymlinkPolicy::default(),
            path_rules: None,
        }
    }
}

/// The answer to [`Settings`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// What was left unfinished, and has been taken back.
    pub recovery: Option<RecoveryReport>,
    pub confinement: Confinement,
    /// Nobody can reach the worker through its undo directory, for this reason.
    pub unreachable: Option<String>,
}

/// What keeps the worker to its two directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// The kernel lets it open nothing else.
    pub landlock: bool,
    /// It makes only the system calls that serving files takes.
    pub seccomp: bool,
    /// It has given up every capability that files do not need.
    pub capabilities: bool,
    /// There is nothing else that it could name.
    pub enclosed: bool,
    /// It has capabilities left, as root has.
    pub privileged: bool,
}

impl Confinement {
    pub fn is_complete(self) -> bool {
        // Without capabilities, what it could name is what its user may change anyway.
        let enclosed = self.enclosed || !self.privileged;
        self.landlock && self.seccomp && self.capabilities && enclosed
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) id: u64,
    pub(crate) request: Request,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromWorker {
    /// The body is what the request promises, in the same encoding.
    Reply {
        id: u64,
        outcome: Result<ByteBuf, Failure>,
    },
    Event(Event),
}

/// A question or an order. Behind each, what comes back.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// Which protocol the caller speaks → [`Greeting`]
    Hello { version: u32 },
    /// → [`StoreStatus`](codeagent_interceptor::StoreStatus)
    Status,
    /// From now on, events are sent on this connection. → nothing
    Subscribe,

    /// Before a step is opened, by whoever may have to wait for others; what this connection leaves
    /// unfinished during its turn is taken back when it breaks → `bool`, `false` if it is somebody
    /// else's turn
    TakeTurn,
    /// → nothing
    EndTurn,
    /// → `Option<bool>`: `None` if it is nobody's, otherwise whether it is the caller's
    WhoseTurn,
    /// → [`StepId`]
    OpenStep(StepRequest),
    /// → [`ClosedStep`]
    CloseStep { exit_code: Option<i32> },
    /// Gives up the open step: what it did is taken back, or kept if it is shared. →
    /// [`AbortedStep`](codeagent_interceptor::AbortedStep)
    AbortStep,
    /// A command begins that may write at any time, through what this connection has attached: steps
    /// that are open meanwhile, whoever has them, are shared. Ends with the connection. → nothing
    BeginBackground,
    /// Nothing of it is left. → nothing
    EndBackground,
    /// → [`Backgrounds`]
    Backgrounds,
    /// Ends the ambient step, if one is open → `Option<ClosedStep>`
    EndAmbientStep,
    /// → [`StepId`]
    BeginTransaction { label: String },
    /// → [`ClosedStep`]
    CommitTransaction,
    /// → [`StepId`]
    RollbackTransaction,
    /// Waits until no mutation has been on its way for as long as `quiet`; whether that was so in
    /// time. → `bool`
    WaitUntilQuiet { quiet: Duration, timeout: Duration },

    /// Waits until the guests that this connection has attached have the answers to all that they have
    /// asked for so far; whether that was so in time. → `bool`
    WaitUntilAnswered { timeout: Duration },

    /// Oldest first. → `Vec<HistoryEntry>`
    History,
    /// → `Vec<StepInfo>`
    Redoable,
    /// → `Vec<Change>`
    Changes { step: StepId },
    /// What a path was before a step, or is now →
    /// [`EntryContent`](codeagent_interceptor::EntryContent)
    Content { before: Option<StepId>, path: RelPathBuf, most_bytes: u64 },
    /// → [`Preview`](codeagent_interceptor::Preview)
    Preview { count: usize },
    /// Undoes the newest steps; with `expect`, only if the newest is that one, once the ambient step has
    /// ended. → [`RollbackReport`](codeagent_interceptor::RollbackReport)
    Undo { count: usize, options: RollbackOptions, expect: Option<StepId> },
    /// → [`RollbackReport`](codeagent_interceptor::RollbackReport)
    Redo { count: usize, options: RollbackOptions },
    /// → [`RestoreReport`](codeagent_interceptor::RestoreReport)
    Restore { step: StepId, paths: Vec<RelPathBuf> },
    /// → nothing
    Pin { step: StepId, pinned: bool },
    /// → `Vec<StepId>`
    DropRedoable,
    /// Throws the history away → nothing
    Discard,

    /// The answer to a safeguard's question → nothing
    Answer { question: SafeguardId, decision: SafeguardDecision },
    /// → nothing
    SetSafeguards(SafeguardConfig),
    /// → nothing
    SetLimits(ResourceLimits),
    /// Somebody saw these paths change on the host; those that we did not change → `Vec<RelPathBuf>`
    /// `passing` ones came and went meanwhile, and matter only if we know them.
    ExternalModification { paths: Vec<RelPathBuf>, passing: Vec<RelPathBuf> },
    /// Whoever looks for that has missed something: everything the history knows is compared; what
    /// we did not change → `Vec<RelPathBuf>`
    WatcherOverflowed,

    /// A change to the working directory, recorded like any other; waits while a safeguard's
    /// question is open. → nothing
    Change(FileChange),

    /// Makes room for the upper layer of an overlay over the working directory →
    /// [`Staging`](codeagent_interceptor::Staging)
    Stage,
    /// Applies what was staged to the open step; waits while a safeguard's question is open →
    /// [`OverlayReport`](codeagent_interceptor::OverlayReport)
    AdoptOverlay { number: u64 },
    /// Both at once: applies what is staged, and closes the step. →
    /// `(`[`OverlayReport`](codeagent_interceptor::OverlayReport)`,` [`ClosedStep`]`)`
    AdoptAndClose { number: u64, exit_code: Option<i32> },
    /// → nothing
    DropStaged { number: u64 },

    /// With a descriptor: serve the filesystem through it, beside those that are served already.
    /// What the options say, and a second descriptor if there is one, is between the two ends of the
    /// front end. → the number of the attachment, `u64`
    Attach { options: ByteBuf },
    /// Waits until the other side has ended an attachment → `bool`, `false` if it has not
    WaitUntilDetached { attachment: u64, timeout: Duration },
    /// From the process that started the worker, or anybody once that has gone: end, once the front
    /// end has ended or `patience` is over → `bool`, `false` if others are at work; then it ends
    /// after them
    Shutdown { patience: Duration },
}

/// What file tools do. Symlinks are not followed, in no part of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileChange {
    /// Makes the file, or replaces what is in it.
    Write {
        path: RelPathBuf,
        content: ByteBuf,
    },
    Append {
        path: RelPathBuf,
        content: ByteBuf,
    },
    /// Makes the directory and those above it; one that exists already will do.
    MakeDir {
        path: RelPathBuf,
    },
    /// A file, a symlink, or an empty directory; with `recursive`, whatever is in it.
    Remove {
        path: RelPathBuf,
        recursive: bool,
    },
    /// Replaces a file that has the name already.
    Rename {
        from: RelPathBuf,
        to: RelPathBuf,
    },
    SetMode {
        path: RelPathBuf,
        mode: u32,
    },
}

/// Commands in the background that somebody has told the worker of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Backgrounds {
    /// Of whoever asks.
    pub own: u32,
    pub others: u32,
}

/// Who answers. Said at once, whatever the engine is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    pub pid: u32,
    #[serde(with = "path_bytes")]
    pub working_dir: PathBuf,
    pub read_only: bool,
    /// Somebody is served: a mount, a guest.
    pub attached: bool,
    /// The process that started the worker has gone, and anybody may end it.
    pub orphaned: bool,
    /// It has rules that protect paths.
    pub guarded: bool,
    /// `None`: the engine runs within the process that asks.
    pub confinement: Option<Confinement>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    Engine(EngineEvent),
    /// An ambient step ended after some quiet.
    AmbientStep(Box<ClosedStep>),
    /// An attachment has ended: somebody unmounted.
    Detached {
        attachment: u64,
    },
    /// So many events are missing here, because too much was left unread.
    Lagged {
        missed: u64,
    },
    /// The worker has gone. It cannot say so itself; its client does.
    Gone,
}

/// Why a request could not be met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub code: ErrorCode,
    pub message: String,
    pub hint: Option<String>,
    pub errno: i32,
    /// With `safeguard_denied`: the question that was answered with no.
    pub asked: Option<Box<str>>,
    /// With `rollback_blocked`.
    pub conflicts: Vec<Conflict>,
    /// Steps that had been undone or redone before it failed.
    pub done: Vec<StepId>,
}

impl Failure {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let message = message.into();
        let errno = libc::EINVAL;
        Self { code, message, hint: None, errno, asked: None, conflicts: vec![], done: vec![] }
    }
}

impl From<UndoError> for Failure {
    fn from(error: UndoError) -> Self {
        let (code, message, hint) = (error.code(), error.to_string(), error.hint());
        let errno = error.errno();
        let (done, cause) = match error {
            UndoError::Partly { done, source } => (done, *source),
            other => (vec![], other),
        };
        let (conflicts, asked) = match cause {
            UndoError::RollbackBlocked(conflicts) => (conflicts, None),
            UndoError::SafeguardDenied { asked, .. } => (vec![], Some(asked.into())),
            _ => (vec![], None),
        };
        Self { code, message, hint, errno, asked, conflicts, done }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Self { errno, ..Self::new(ErrorCode::Io, error.to_string()) }
    }
}
