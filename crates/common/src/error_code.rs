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
    /// Another history is kept of it.
    FolderInUse,
    UndoCorrupt,
    RollbackBlocked,
    StepUnprotected,
    StepNotFound,
    /// It can be redone, and is not in the history until then.
    StepUndone,
    NothingToUndo,
    NothingToRedo,
    StepOpen,
    /// Steps are grouped, until whoever began that ends it.
    TransactionOpen,
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

impl ErrorCode {
    /// What to do about it, where whoever says that it happened knows nothing better.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Io => "make sure that it is there, and that you may use it",
            Self::InvalidPath | Self::PathOutsideRoot => "name a path inside the working directory",
            Self::UndoDirInsideWorkingDir => {
                "choose an undo directory beside the working directory, not inside it"
            }
            Self::UndoDirUnusable => {
                "name a new or empty directory outside the working directory, on its filesystem"
            }
            Self::WorkingDirUnusable => "name an existing directory that you may write to",
            Self::WrongWorkingDir => "use one undo directory for each working directory",
            Self::UndoVersionMismatch | Self::UndoDisabled => {
                "use the program that wrote it, or discard the old history to start afresh"
            }
            Self::UndoLocked => "end the process that holds it, or let that one do the work",
            Self::FolderInUse => "end that one first, or use its undo directory",
            Self::UndoCorrupt => "verify names what is damaged; other steps are unaffected",
            Self::RollbackBlocked => {
                "undo with skip_conflicts to keep those files, or with force to overwrite them"
            }
            Self::StepUnprotected => "steps that are newer than it can still be undone",
            Self::StepNotFound | Self::NothingToUndo => "the history lists the steps there are",
            Self::StepUndone => "redo brings it back",
            Self::NothingToRedo => {
                "only what was undone can be redone, and only until the next step"
            }
            Self::StepOpen => "wait until the command in it has ended, or cancel it",
            Self::TransactionOpen => "commit it, or roll it back",
            Self::NoStepOpen => "begin a step first; it may have ended already",
            Self::SafeguardDenied => "say yes when it is asked, if you mean it",
            Self::SafeguardUnknown => "it was answered already, or its time was up",
            Self::HeldQueueFull => "answer the question that is open first",
            Self::PathProtected => "allow the path in the configuration, if you mean it",
            Self::ReadOnly => "start the session with this folder as read_write",
            Self::LimitExceeded => "do it in smaller parts, or raise the limit",
            Self::LowDiskSpace => "free some disk space, then try again",
            Self::PathNotInStep => "name a path that the step changed",
            Self::NotServed => "start a session in this folder first",
            Self::WorkerVersion => "end the other program, or bring both to the same version",
            Self::WorkerEnding => "try again when it has ended",
            Self::BadRequest | Self::MissingField | Self::InvalidField => {
                "the schema says what is wanted there"
            }
            Self::ConfigInvalid => "docs/configuration.md says what it may hold",
            Self::CommandUnknown | Self::CommandNotFound => {
                "it may have ended; the status lists those that run"
            }
            Self::CommandLost => "nothing of it was kept; try again",
            Self::CommandRefused => "write it in another way",
            Self::MalformedJson => "write one JSON object a line",
            Self::MessageTooLong => "ask for less at once",
            Self::UnknownOperation => "the schema lists those there are",
            Self::UnsupportedVersion => "ask in a version that is spoken here",
            Self::DuplicateRequest => "give each request an id of its own",
            Self::RequestNotFound => "it may have been answered already",
            Self::Busy => "wait for what is under way, then ask again",
            Self::Cancelled => "ask for it again, if it is still wanted",
            Self::TimedOut => "give it more time",
            Self::NotFound => "list the directory to see what there is",
            Self::WrongKind => "list the directory to see what it is",
            Self::NoUniqueMatch => {
                "read the file, and give the text as it stands there, with enough around it"
            }
            Self::NoSession => "start a session first",
            Self::SessionActive => "stop the session first",
            Self::NotConfigured => "docs/configuration.md says how it is set",
            Self::IsolationUnavailable => {
                "`sandbox doctor` says what this machine lacks, and the command that brings it"
            }
            Self::Internal => "this is a mistake of ours: please report it",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
