//! What can go wrong, with a code for programs and a sentence and a hint for people.

use std::io;
use std::path::PathBuf;

use codeagent_common::{ErrorCode, RelPathBuf, SafeguardId, StepId};

use crate::conflict::Conflict;

pub type Result<T, E = UndoError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    #[error("{context}: {source}")]
    Io { context: String, source: io::Error },
    #[error("the undo directory {undo} lies inside the working directory {working}")]
    UndoDirInsideWorkingDir { undo: PathBuf, working: PathBuf },
    #[error("the working directory {working} lies inside the undo directory {undo}")]
    WorkingDirInsideUndoDir { undo: PathBuf, working: PathBuf },
    #[error("the undo directory {path} cannot be used: {source}")]
    UndoDirUnusable { path: PathBuf, source: io::Error },
    #[error("{path} holds files that are not an undo log")]
    NotAnUndoDir { path: PathBuf },
    #[error("the working directory {path} cannot be used: {source}")]
    WorkingDirUnusable { path: PathBuf, source: io::Error },
    #[error("this undo log belongs to the working directory {recorded}, not to {given}")]
    WrongWorkingDir { recorded: PathBuf, given: PathBuf },
    #[error("the undo log has format {found}, this program writes format {expected}")]
    VersionMismatch { found: String, expected: u32 },
    #[error("undo is off because the undo log has another format")]
    UndoDisabled,
    #[error("the undo log is in use by process {pid}")]
    Locked { pid: String },
    #[error("the undo log is damaged: {0}")]
    Corrupt(String),
    #[error("changes made outside the sandbox would be overwritten: {}", list(.0))]
    RollbackBlocked(Vec<Conflict>),
    #[error("step {step} cannot be undone: {reason}")]
    StepUnprotected { step: StepId, reason: String },
    #[error("there is no step {0} in the history")]
    StepNotFound(StepId),
    #[error("step {0} was undone, and is not in the history any more")]
    StepUndone(StepId),
    #[error("step {0} is not the newest one any more")]
    NotNewest(StepId),
    #[error("{} to undo", available_steps(*available))]
    NothingToUndo { available: usize },
    #[error("{} to redo", available_steps(*available))]
    NothingToRedo { available: usize },
    #[error("step {0} is still open")]
    StepOpen(StepId),
    #[error("step {0} is a transaction that is still open")]
    TransactionOpen(StepId),
    #[error("no step is open")]
    NoStepOpen,
    #[error("step {step} was denied by safeguard {safeguard}: {asked}")]
    SafeguardDenied { step: StepId, safeguard: SafeguardId, asked: String },
    #[error("there is no open question {0}")]
    SafeguardUnknown(SafeguardId),
    #[error("too many operations are waiting for an answer to a safeguard")]
    HeldQueueFull,
    #[error("{path} is protected: {rule}")]
    PathProtected { path: RelPathBuf, rule: String },
    #[error("the working directory is read-only")]
    ReadOnly,
    #[error("the step would store more than {limit_bytes} bytes of undo data")]
    LimitExceeded { limit_bytes: u64 },
    #[error("only {free_bytes} bytes are free where the undo log is kept")]
    LowDiskSpace { free_bytes: u64 },
    #[error("step {step} did not touch {path}")]
    PathNotInStep { step: StepId, path: RelPathBuf },
    #[error("what {path} was before step {step} is not known any more: {reason}")]
    NotKept { step: StepId, path: RelPathBuf, reason: String },
    #[error("{0}")]
    InvalidPath(#[from] codeagent_common::InvalidPath),
    /// Of several steps, these were undone or redone; then came an error. The working directory is
    /// at the boundary behind the last of them.
    #[error("{source} ({} of the steps had been dealt with before)", .done.len())]
    Partly { done: Vec<StepId>, source: Box<UndoError> },
}

fn list(conflicts: &[Conflict]) -> String {
    const SHOWN: usize = 5;
    let mut text: Vec<String> =
        conflicts.iter().take(SHOWN).map(|conflict| conflict.path.to_string()).collect();
    if conflicts.len() > SHOWN {
        text.push(format!("and {} more", conflicts.len() - SHOWN));
    }
    text.join(", ")
}

fn available_steps(available: usize) -> String {
    match available {
        0 => "there is nothing".to_owned(),
        1 => "there is only one step".to_owned(),
        more => format!("there are only {more} steps"),
    }
}

impl UndoError {
    /// There was no room on the disk, or none left for this user.
    pub(crate) fn is_out_of_space(&self) -> bool {
        let Self::Io { source, .. } = self else { return false };
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Partly { source, .. } => source.code(),
            Self::Io { .. } => ErrorCode::Io,
            Self::UndoDirInsideWorkingDir { .. } | Self::WorkingDirInsideUndoDir { .. } => {
                ErrorCode::UndoDirInsideWorkingDir
            }
            Self::UndoDirUnusable { .. } | Self::NotAnUndoDir { .. } => ErrorCode::UndoDirUnusable,
            Self::WorkingDirUnusable { .. } => ErrorCode::WorkingDirUnusable,
            Self::WrongWorkingDir { .. } => ErrorCode::WrongWorkingDir,
            Self::VersionMismatch { .. } => ErrorCode::UndoVersionMismatch,
            Self::UndoDisabled => ErrorCode::UndoDisabled,
            Self::Locked { .. } => ErrorCode::UndoLocked,
            Self::Corrupt(_) => ErrorCode::UndoCorrupt,
            Self::RollbackBlocked(_) | Self::NotNewest(_) => ErrorCode::RollbackBlocked,
            Self::StepUnprotected { .. } | Self::NotKept { .. } => ErrorCode::StepUnprotected,
            Self::StepNotFound(_) => ErrorCode::StepNotFound,
            Self::StepUndone(_) => ErrorCode::StepUndone,
            Self::NothingToUndo { .. } => ErrorCode::NothingToUndo,
            Self::NothingToRedo { .. } => ErrorCode::NothingToRedo,
            Self::StepOpen(_) => ErrorCode::StepOpen,
            Self::TransactionOpen(_) => ErrorCode::TransactionOpen,
            Self::NoStepOpen => ErrorCode::NoStepOpen,
            Self::SafeguardDenied { .. } => ErrorCode::SafeguardDenied,
            Self::SafeguardUnknown(_) => ErrorCode::SafeguardUnknown,
            Self::HeldQueueFull => ErrorCode::HeldQueueFull,
            Self::PathProtected { .. } => ErrorCode::PathProtected,
            Self::ReadOnly => ErrorCode::ReadOnly,
            Self::LimitExceeded { .. } => ErrorCode::LimitExceeded,
            Self::LowDiskSpace { .. } => ErrorCode::LowDiskSpace,
            Self::PathNotInStep { .. } => ErrorCode::PathNotInStep,
            Self::InvalidPath(_) => ErrorCode::InvalidPath,
        }
    }

    /// What the process that asked for the mutation gets to see.
    #[cfg(unix)]
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            Self::Io { source, .. } => {
                return source.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
            }
            Self::Partly { source, .. } => return source.errno(),
            Self::SafeguardDenied { .. } | Self::PathProtected { .. } => Errno::PERM,
            Self::ReadOnly => Errno::ROFS,
            Self::HeldQueueFull | Self::LimitExceeded { .. } | Self::LowDiskSpace { .. } => {
                Errno::NOSPC
            }
            Self::InvalidPath(_) => Errno::INVAL,
            _ => Errno::IO,
        };
        errno.raw_os_error()
    }

    /// What a person can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Partly { source, .. } => return source.hint(),
            error if error.is_out_of_space() => {
                "free some disk space, or drop what can be redone; \
                 nothing was changed, and nothing is lost"
                    .into()
            }
            Self::UndoDirInsideWorkingDir { .. } | Self::WorkingDirInsideUndoDir { .. } => {
                "choose an undo directory beside the working directory, not inside it".into()
            }
            Self::UndoDirUnusable { path, .. } => {
                format!("make sure that you may create and write {}", path.display())
            }
            Self::NotAnUndoDir { .. } => "name a new or empty undo directory".into(),
            Self::WorkingDirUnusable { .. } => "name an existing directory you may write to".into(),
            Self::WrongWorkingDir { .. } => {
                "use one undo directory for each working directory".into()
            }
            Self::VersionMismatch { .. } | Self::UndoDisabled => {
                "use the program that wrote it, or discard the old history to start afresh".into()
            }
            Self::Locked { .. } => {
                "stop the other process, or let it do the work: one process writes an undo log"
                    .into()
            }
            Self::Corrupt(_) => "verify names what is damaged; other steps are unaffected".into(),
            Self::RollbackBlocked(_) => {
                "undo with skip_conflicts to keep those files, or with force to overwrite them"
                    .into()
            }
            Self::LimitExceeded { .. } => "raise max_step_bytes, or split the command".into(),
            Self::LowDiskSpace { .. } => "free some disk space (removing files still works), undo \
                 the step and drop what can be redone, or lower min_free_bytes"
                .into(),
            Self::PathProtected { .. } => {
                "allow the path in the configuration if you mean it".into()
            }
            Self::StepNotFound(_) => "the history lists the steps there are".into(),
            Self::StepUndone(_) => "redo brings it back".into(),
            Self::StepOpen(_) => "close or abort the step first".into(),
            Self::TransactionOpen(_) => {
                "whoever began it commits it or rolls it back; if that one is gone, it is rolled \
                 back with the end of its session"
                    .into()
            }
            Self::NotKept { .. } => {
                "files that the step itself removed or rewrote can still be restored, one by one"
                    .into()
            }
            _ => return None,
        })
    }
}

/// For the engine itself.
#[cfg(target_os = "linux")]
impl UndoError {
    pub(crate) fn io(context: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let context = context.into();
        move |source| Self::Io { context, source }
    }

    /// An error of the host operation itself, to be passed on as it is.
    pub(crate) fn host(source: io::Error) -> Self {
        Self::Io { context: "the operation failed".into(), source }
    }

    /// What happened after these steps had been undone or redone.
    pub(crate) fn after(self, done: &[StepId]) -> Self {
        if done.is_empty() {
            return self;
        }
        Self::Partly { done: done.to_vec(), source: Box::new(self) }
    }
}

#[cfg(unix)]
impl From<UndoError> for io::Error {
    fn from(error: UndoError) -> Self {
        match error {
            UndoError::Io { source, .. } => source,
            other => io::Error::from_raw_os_error(other.errno()),
        }
    }
}
