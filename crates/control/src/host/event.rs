//! What the host learns from the control channel.

use codeagent_common::StepId;

use crate::{ByteString, Cause, CommandId, ControlError, ExitStatus, LineFault, ShimErrorCode};
use crate::{ShimMessage, Stream};

#[derive(Debug)]
pub enum Event {
    /// The shim said hello; commands can be run.
    Ready,
    Started {
        id: CommandId,
    },
    Output {
        id: CommandId,
        stream: Stream,
        data: ByteString,
    },
    /// The command reads again: so many bytes of input may follow.
    StdinRoom {
        id: CommandId,
        room_bytes: usize,
    },
    /// The last event of a command.
    Ended {
        id: CommandId,
        outcome: Outcome,
    },
    RollbackNoted {
        step_id: StepId,
    },
    Pong {
        token: u64,
    },
    /// The shim could not do something; the command, if it has started, goes on.
    ShimError {
        id: Option<CommandId>,
        code: ShimErrorCode,
        message: String,
    },
    /// The shim said something it must not say. It was ignored, unless noted otherwise.
    Violation(Violation),
    /// No command can be run any more, or not until a shim says hello.
    Failed(ControlError),
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Completed {
        status: ExitStatus,
        cause: Cause,
    },
    /// The shim could not start it.
    NotStarted {
        code: ShimErrorCode,
        message: String,
    },
    /// The shim, or the channel to it, was gone before the command ended.
    ShimLost,
    /// The shim did not report the end of a command that was cancelled or whose time was up, or said
    /// that it could not end all of it. The command may be running still.
    Unresponsive,
}

impl Outcome {
    /// For the history; `None` if nobody knows.
    pub fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Completed { status, .. } => Some(status.shell_code()),
            _ => None,
        }
    }
}

/// Breaches of the protocol. The guest is not trusted, so each is harmless.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error(transparent)]
    Line(#[from] LineFault),
    #[error("`{message}` names the command {id}, which is not running")]
    UnknownCommand { message: &'static str, id: CommandId },
    #[error("command {id} was reported as started twice")]
    StartedTwice { id: CommandId },
    /// The command counts as completed all the same: nobody must wait for it for ever.
    #[error("command {id} was reported as completed before it was started")]
    CompletedBeforeStart { id: CommandId },
    #[error("command {id} sent output before it was started")]
    OutputBeforeStart { id: CommandId },
    #[error("more input was accepted for command {id} than was sent")]
    AcceptedTooMuch { id: CommandId },
    #[error("`{message}` came before `hello`")]
    BeforeHello { message: &'static str },
}

impl ShimMessage {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::StepStarted { .. } => "step_started",
            Self::Output { .. } => "output",
            Self::StdinAccepted { .. } => "stdin_accepted",
            Self::StepCompleted { .. } => "step_completed",
            Self::RollbackNoted { .. } => "rollback_noted",
            Self::Pong { .. } => "pong",
            Self::Error { .. } => "error",
        }
    }
}
