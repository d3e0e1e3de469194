//! What goes wrong, in one sentence, with a hint.

use std::io;
use std::path::PathBuf;

use codeagent_common::ErrorCode;
use codeagent_control::LineError;
use codeagent_interceptor::UndoError;
use codeagent_namespace::{KeptStep, RunError, StartError};
use codeagent_worker::{Failure, WorkerError};
use rustix::io::Errno;

use crate::executor::Isolation;

pub type Result<T, E = SandboxError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error("there is no undo log in {}", .0.display())]
    NoLog(PathBuf),
    #[error("nothing has been recorded for {} yet", .0.display())]
    NoHistory(PathBuf),
    #[error("nothing serves this undo directory, so nothing is being recorded")]
    NotServed,
    #[error("the process that holds the undo log ended before it answered")]
    WorkerGone,
    #[error("the process that holds the undo log does not answer")]
    WorkerSilent,
    #[error("the message on standard input is not what a hook gets: {0}")]
    Hook(serde_json::Error),
    #[error("{} cannot be worked in: {source}", path.display())]
    WorkingDir { path: PathBuf, source: io::Error },
    #[error("{} lies where histories are kept", .0.display())]
    AmongHistories(PathBuf),
    #[error("no undo directory on the filesystem of {} can be found for it", working_dir.display())]
    NoPlace { working_dir: PathBuf },
    #[error("the undo directory {} is on another filesystem than {}", undo_dir.display(), working_dir.display())]
    OtherFilesystem { undo_dir: PathBuf, working_dir: PathBuf },
    #[error("the home directory is not known")]
    NoHome,
    #[error("{isolation} isolation cannot be had: {reason}")]
    Isolation { isolation: Isolation, reason: String, hint: String },
    #[error("{message}")]
    Usage { message: String, hint: String },
    #[error("the session has not been started")]
    NotRunning,
    #[error("the session runs already")]
    AlreadyRunning,
    #[error("there is no working directory {0:?} in this session")]
    UnknownDirectory(String),
    #[error("there is no command {0} running")]
    UnknownCommand(u64),
    #[error("there is no question {0:?} that waits for an answer")]
    UnknownQuestion(String),
    #[error("another program serves the socket {}", .0.display())]
    SocketInUse(PathBuf),
    #[error("another command is still running in this folder")]
    Busy,
    #[error("command {0} runs in the background, and a transaction would take its changes along")]
    InBackground(u64),
    #[error("it was cancelled before it began")]
    Cancelled,
    #[error("{} is read-only in this session", .0.display())]
    ReadOnly(PathBuf),
    #[error("{0:?} names nothing inside a working directory of this session")]
    OutsidePath(PathBuf),
    #[error("{}: {message}", place(file, *line))]
    Config { file: PathBuf, line: Option<usize>, message: String, hint: String },
    #[error("the command could not be started: {0}")]
    NotStarted(String),
    #[error("the command did not run to its end, and nothing of it was kept: {0}")]
    CommandLost(String),
    #[error(
        "the command ended, and nothing of what it did was kept, because this was denied: {asked}"
    )]
    Denied { exit_code: Option<i32>, asked: String },
    /// A command in the background wrote in these folders, too; or they could not be brought back.
    #[error("{}; what had been done in {} was kept", reason.cause(), listed(kept))]
    PartlyKept { kept: Vec<KeptStep>, reason: Box<SandboxError> },
    /// No room for it, for example: the folders are as before.
    #[error("the command ended, and nothing of what it did was kept: {reason}")]
    NotKept { exit_code: Option<i32>, reason: Box<SandboxError> },
    #[error("this command is refused: {reason}")]
    Refused { reason: String },
    #[error("{what}: {source}")]
    Doing { what: String, source: io::Error },
    #[error("{0}")]
    Io(#[from] io::Error),
}

fn listed(kept: &[KeptStep]) -> String {
    kept.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn place(file: &std::path::Path, line: Option<usize>) -> String {
    match line {
        Some(line) => format!("line {line} of {}", file.display()),
        None => file.display().to_string(),
    }
}

impl SandboxError {
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: hint.into() }
    }

    pub fn doing(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Doing { what, source }
    }

    /// The same, of a command of which something was kept.
    pub(crate) fn but_kept(self, kept: Vec<KeptStep>) -> Self {
        match kept.is_empty() {
            true => self,
            false => Self::PartlyKept { kept, reason: Box::new(self) },
        }
    }

    /// What went wrong, without what became of the folders.
    fn cause(&self) -> String {
        match self {
            Self::CommandLost(reason) => format!("the command did not run to its end: {reason}"),
            Self::Denied { asked, .. } => format!("this was denied: {asked}"),
            Self::NotKept { reason, .. } => reason.to_string(),
            other => other.to_string(),
        }
    }

    /// What was asked of the process that keeps a history may have been done or not.
    pub(crate) fn is_lost_worker(&self) -> bool {
        matches!(self, Self::WorkerGone | Self::WorkerSilent)
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Failed(failure) => failure.code,
            Self::NoLog(_) | Self::NoHistory(_) | Self::NoPlace { .. } => {
                ErrorCode::UndoDirUnusable
            }
            Self::OtherFilesystem { .. } => ErrorCode::UndoDirUnusable,
            Self::NotServed | Self::WorkerGone | Self::WorkerSilent => ErrorCode::NotServed,
            Self::Hook(_) | Self::Usage { .. } => ErrorCode::BadRequest,
            Self::WorkingDir { .. } | Self::AmongHistories(_) => ErrorCode::WorkingDirUnusable,
            Self::Isolation { .. } => ErrorCode::IsolationUnavailable,
            Self::NotRunning => ErrorCode::NoSession,
            Self::AlreadyRunning => ErrorCode::SessionActive,
            Self::UnknownDirectory(_) | Self::OutsidePath(_) => ErrorCode::InvalidPath,
            Self::UnknownCommand(_) => ErrorCode::CommandUnknown,
            Self::UnknownQuestion(_) => ErrorCode::SafeguardUnknown,
            Self::SocketInUse(_) => ErrorCode::Busy,
            Self::Busy => ErrorCode::StepOpen,
            Self::InBackground(_) => ErrorCode::Busy,
            Self::Cancelled => ErrorCode::Cancelled,
            Self::ReadOnly(_) => ErrorCode::ReadOnly,
            Self::Config { .. } => ErrorCode::ConfigInvalid,
            Self::CommandLost(_) | Self::NotStarted(_) => ErrorCode::CommandLost,
            Self::Denied { .. } => ErrorCode::SafeguardDenied,
            Self::NotKept { reason, .. } | Self::PartlyKept { reason, .. } => reason.code(),
            Self::Refused { .. } => ErrorCode::CommandRefused,
            Self::NoHome | Self::Doing { .. } | Self::Io(_) => ErrorCode::Io,
        }
    }

    /// What a person can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Failed(failure) if failure.code == ErrorCode::RollbackBlocked => {
                "--skip-conflicts keeps those files as they are, --force overwrites them".into()
            }
            Self::Failed(failure) if failure.code == ErrorCode::StepOpen => {
                "a command still runs in this folder: wait until it has ended; a step that was \
                 begun by hand ends with `sandbox step end`"
                    .into()
            }
            Self::Failed(failure) => match &failure.hint {
                Some(hint) => hint.clone(),
                None => hint_for(failure).into(),
            },
            Self::NoLog(_) => "name the directory that was given as --undo-dir".into(),
            Self::NoHistory(dir) => {
                format!(
                    "run something first: sandbox run --working-dir {} -- COMMAND",
                    dir.display()
                )
            }
            Self::NotServed => "start codeagent-mount with this undo directory first".into(),
            Self::WorkerGone => {
                "look at `sandbox history` before you try again: it may have been done".into()
            }
            Self::Hook(_) => {
                "it is meant to be called by an agent client, see docs/agent-hooks.md".into()
            }
            Self::WorkerSilent => "stop that process, and start it again".into(),
            Self::WorkingDir { .. } => {
                "name an existing directory that you may write to with --working-dir".into()
            }
            Self::AmongHistories(_) => {
                "name a folder of your own with --working-dir: what is kept here is what undo needs"
                    .into()
            }
            Self::NoPlace { working_dir } if working_dir.parent().is_none() => {
                "nothing lies outside it, where a history could be kept: name a folder below it \
                 with --working-dir"
                    .into()
            }
            Self::NoPlace { .. } | Self::OtherFilesystem { .. } => {
                "name one outside the folder and on its filesystem with --undo-dir".into()
            }
            Self::NoHome => "set HOME, or CODEAGENT_HOME to a directory of your own".into(),
            Self::Isolation { hint, .. } | Self::Config { hint, .. } | Self::Usage { hint, .. } => {
                hint.clone()
            }
            Self::UnknownDirectory(_) => "the status of the session lists their names".into(),
            Self::UnknownCommand(_) => "it may have ended; the status lists those that run".into(),
            Self::OutsidePath(_) => "name a path inside the folder".into(),
            Self::NotStarted(_) => {
                "commands find what is installed for everybody, and the usual toolchains of your home; \
                 commands.readable in the configuration shows them more"
                    .into()
            }
            Self::CommandLost(_) => "the folder is as it was before; try again".into(),
            Self::Refused { .. } => "write it in another way".into(),
            Self::SocketInUse(_) => "name another one with --mcp-socket, or end that program".into(),
            Self::NotRunning => "start the session first".into(),
            Self::AlreadyRunning => "stop the session first".into(),
            Self::Busy | Self::InBackground(_) => "wait until it has ended, or cancel it".into(),
            Self::ReadOnly(_) => "start the session with this folder as read_write".into(),
            Self::PartlyKept { .. } => {
                "undo these steps if you do not want them; what a background command did in the \
                 same folder meanwhile is in them, too"
                    .into()
            }
            Self::NotKept { reason, .. } if reason.is_lost_worker() => {
                "the folder is as it was before; try again".into()
            }
            Self::NotKept { reason, .. } => return reason.hint(),
            Self::Denied { .. } => {
                "say yes when it is asked, or raise what safeguards.* in the configuration allow"
                    .into()
            }
            Self::UnknownQuestion(_) => "it was answered already, or its time was up".into(),
            Self::Cancelled => "nothing has changed; ask for it again".into(),
            Self::Doing { source, .. } | Self::Io(source) => hint_for_io(source).into(),
        })
    }
}

/// For what the engine says in one sentence only.
fn hint_for(failure: &Failure) -> &'static str {
    match failure.code {
        ErrorCode::Io if failure.errno == Errno::NOENT.raw_os_error() => {
            "make sure that nobody removes the folder, or what is in it, meanwhile"
        }
        ErrorCode::Io => hint_for_io(&io::Error::from_raw_os_error(failure.errno)),
        code => code.hint(),
    }
}

fn hint_for_io(error: &io::Error) -> &'static str {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::NotFound => "make sure that it is still there",
        Kind::PermissionDenied => "make sure that you may; `ls -la` shows whose it is",
        Kind::ReadOnlyFilesystem => "nothing can be written there: choose another place",
        Kind::StorageFull | Kind::QuotaExceeded => "free some disk space, then try again",
        _ => "`sandbox doctor` says what this machine lacks",
    }
}

impl From<WorkerError> for SandboxError {
    fn from(error: WorkerError) -> Self {
        match error {
            WorkerError::Failed(failure) => Self::Failed(failure),
            WorkerError::Gone => Self::WorkerGone,
            WorkerError::Silent => Self::WorkerSilent,
            WorkerError::Protocol(error) => Self::Io(error),
        }
    }
}

impl From<UndoError> for SandboxError {
    fn from(error: UndoError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<StartError> for SandboxError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Impossible(failed) => Self::Isolation {
                isolation: Isolation::Namespace,
                reason: failed.to_string(),
                hint: match failed.view {
                    true => {
                        "`sandbox doctor` says what this machine lacks; in a folder that is not \
                         yours, commands can look around with --read-only"
                    }
                    false => ErrorCode::IsolationUnavailable.hint(),
                }
                .into(),
            },
            StartError::Io(error) => Self::doing("cannot start a sandbox")(error),
        }
    }
}

impl From<RunError> for SandboxError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Start(error) => error.into(),
            RunError::Worker(error) => error.into(),
            RunError::Conversation(LineError::Io(error)) | RunError::Io(error) => {
                Self::doing("the sandbox does not answer")(error)
            }
            RunError::Conversation(error) => Self::CommandLost(error.to_string()),
            RunError::Lost(outcome) => lost(outcome),
            RunError::Denied { outcome, asked } => {
                Self::Denied { exit_code: outcome.exit_code(), asked }
            }
            RunError::PartlyKept { kept, reason } => Self::from(*reason).but_kept(kept),
            RunError::NotKept { outcome, reason } => {
                Self::NotKept { exit_code: outcome.exit_code(), reason: Box::new((*reason).into()) }
            }
        }
    }
}

/// A command whose end nobody knows.
pub(crate) fn lost(outcome: codeagent_control::Outcome) -> SandboxError {
    use codeagent_control::Outcome;
    SandboxError::CommandLost(match outcome {
        Outcome::NotStarted { message, .. } => return SandboxError::NotStarted(message),
        Outcome::ShimLost => "the sandbox was gone".into(),
        Outcome::Unresponsive => "the sandbox did not answer any more".into(),
        Outcome::Completed { .. } => "it completed".into(),
    })
}
