//! What goes wrong, in one sentence, with a hint.

use std::io;
use std::path::PathBuf;

use codeagent_common::ErrorCode;
use codeagent_interceptor::UndoError;
use codeagent_worker::{Failure, WorkerError};

pub(crate) type Result<T, E = SandboxError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error("there is no undo log in {}", .0.display())]
    NoLog(PathBuf),
    #[error("nothing serves this undo directory, so nothing is being recorded")]
    NotServed,
    #[error("the process that holds the undo log ended before it answered")]
    WorkerGone,
    #[error("the process that holds the undo log does not answer")]
    WorkerSilent,
    #[error("the message on standard input is not what a hook gets: {0}")]
    Hook(serde_json::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl SandboxError {
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::Failed(failure) => failure.code,
            Self::NoLog(_) => ErrorCode::UndoDirUnusable,
            Self::NotServed | Self::WorkerGone | Self::WorkerSilent => ErrorCode::NotServed,
            Self::Hook(_) => ErrorCode::BadRequest,
            Self::Io(_) => ErrorCode::Io,
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Failed(failure) if failure.code == ErrorCode::RollbackBlocked => {
                "undo with --skip-conflicts to keep those files, or with --force to overwrite them"
                    .into()
            }
            Self::Failed(failure) => failure.hint.clone()?,
            Self::NoLog(_) => "name the directory that was given as --undo-dir".into(),
            Self::NotServed => "start codeagent-mount with this undo directory first".into(),
            Self::WorkerGone => {
                "look at `sandbox history` before you try again: it may have been done".into()
            }
            Self::Hook(_) => {
                "it is meant to be called by an agent client, see docs/agent-hooks.md".into()
            }
            Self::WorkerSilent => "stop that process, and start it again".into(),
            Self::Io(_) => return None,
        })
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
