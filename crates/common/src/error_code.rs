//! Stable error codes: part of every wire protocol, never renamed.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// The isolation that was asked for cannot be had on this machine.
    IsolationUnavailable,
    /// The session runs already, or does not.
    SessionState,
    /// No such command is running.
    CommandUnknown,
    /// Nobody knows how the command ended; nothing of it was kept.
    CommandLost,
    /// The command was not run.
    CommandRefused,
    /// A configuration file cannot be used.
    ConfigInvalid,
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
