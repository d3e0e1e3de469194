//! Stable error codes: part of every wire protocol, never renamed.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    Io,
    InvalidPath,
    UndoDirInsideWorkingDir,
    UndoDirUnusable,
    WorkingDirUnusable,
    WrongWorkingDir,
    UndoVersionMismatch,
    UndoDisabled,
    UndoLocked,
    UndoCorrupt,
    RollbackBlocked,
    StepUnprotected,
    StepNotFound,
    NothingToUndo,
    NothingToRedo,
    StepOpen,
    NoStepOpen,
    SafeguardDenied,
    SafeguardUnknown,
    HeldQueueFull,
    PathProtected,
    ReadOnly,
    LimitExceeded,
    LowDiskSpace,
    PathNotInStep,
    /// Nothing serves the filesystem here.
    NotServed,
    /// The worker and its client are of different versions.
    WorkerVersion,
    /// The worker finishes what it has begun, and begins nothing more.
    WorkerEnding,
    BadRequest,

    // --- sessions
    /// The configuration file cannot be used.
    ConfigInvalid,
    /// There is no such command running.
    CommandUnknown,
    /// A command whose end nobody knows; nothing of it was kept.
    CommandLost,
    /// The command line is not run.
    CommandRefused,

    // --- the wire protocols
    /// A line that is no JSON.
    MalformedJson,
    /// A line, or a request's answer, past the limit.
    MessageTooLong,
    UnknownOperation,
    MissingField,
    InvalidField,
    UnsupportedVersion,
    /// Another request with this id is still being answered.
    DuplicateRequest,
    /// There is no such request, or it has been answered.
    RequestNotFound,
    /// Too much is waiting already; ask again later.
    Busy,
    Cancelled,
    TimedOut,
    PathOutsideRoot,
    NotFound,
    /// A directory where a file was meant, or the other way round, or something else altogether.
    WrongKind,
    /// The text to be replaced is not there, or more than once.
    NoUniqueMatch,
    NoSession,
    SessionActive,
    /// What was asked for needs a setting that nobody has made.
    NotConfigured,
    IsolationUnavailable,
    CommandNotFound,
    /// A mistake of ours.
    Internal,
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
