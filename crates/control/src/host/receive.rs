//! What the shim says, and what becomes of it.

use super::{ControlHost, Event, Link, Outcome, Violation};
use crate::error::{ControlError, LineFault};
use crate::message::{
    Cause, CommandId, ExitStatus, PROTOCOL_VERSION, ShimErrorCode, ShimMessage, Stream,
};
use crate::{ByteString, STDIN_WINDOW_BYTES};

impl ControlHost {
    /// Takes the next message of the shim, or what was in its place.
    pub fn receive(&mut self, message: Result<ShimMessage, LineFault>) {
        let message = match message {
            Ok(message) => message,
            Err(fault) => return self.violation(fault.into()),
        };
        if let ShimMessage::Hello { version, instance } = message {
            return self.hello(version, instance);
        }
        if !self.is_ready() {
            return self.violation(Violation::BeforeHello { message: message.name() });
        }
        match message {
            ShimMessage::Hello { .. } => {}
            ShimMessage::StepStarted { id } => self.started(id),
            ShimMessage::Output { id, stream, data } => self.output(id, stream, data),
            ShimMessage::StdinAccepted { id, bytes } => self.stdin_accepted(id, bytes),
            ShimMessage::StepCompleted { id, status, cause } => {
                self.completed(id, status, cause);
            }
            ShimMessage::RollbackNoted { step_id } => {
                self.events.push_back(Event::RollbackNoted { step_id });
            }
            ShimMessage::Pong { token } => self.events.push_back(Event::Pong { token }),
            ShimMessage::Error { id, code, message } => self.shim_error(id, code, message),
        }
    }

    /// The stream ended: the shim is gone, and its commands with it.
    pub fn channel_closed(&mut self) {
        if self.link == Link::Closed {
            return;
        }
        self.link = Link::Closed;
        self.outgoing.clear();
        self.lose_commands();
        self.events.push_back(Event::Failed(ControlError::Disconnected));
    }

    fn hello(&mut self, version: u32, instance: u64) {
        match self.link {
            // The answer to our hello, after the one it began with.
            Link::Ready { instance: known } if known == instance => return,
            // The shim was started again; it knows nothing of the commands of the last one.
            Link::Ready { .. } => self.lose_commands(),
            Link::Closed => return,
            Link::AwaitingHello | Link::Incompatible { .. } => {}
        }
        if version == PROTOCOL_VERSION {
            self.link = Link::Ready { instance };
            self.events.push_back(Event::Ready);
        } else {
            self.link = Link::Incompatible { shim: version };
            let error = ControlError::VersionMismatch { host: PROTOCOL_VERSION, shim: version };
            self.events.push_back(Event::Failed(error));
        }
    }

    fn lose_commands(&mut self) {
        let lost: Vec<CommandId> = self.commands.keys().copied().collect();
        for id in lost {
            self.end(id, Outcome::ShimLost);
        }
    }

    fn started(&mut self, id: CommandId) {
        let Some(command) = self.commands.get_mut(&id) else {
            return self.violation(Violation::UnknownCommand { message: "step_started", id });
        };
        if std::mem::replace(&mut command.started, true) {
            return self.violation(Violation::StartedTwice { id });
        }
        self.events.push_back(Event::Started { id });
    }

    fn output(&mut self, id: CommandId, stream: Stream, data: ByteString) {
        match self.commands.get(&id) {
            None => self.violation(Violation::UnknownCommand { message: "output", id }),
            Some(command) if !command.started => {
                self.violation(Violation::OutputBeforeStart { id });
            }
            Some(_) => self.events.push_back(Event::Output { id, stream, data }),
        }
    }

    fn stdin_accepted(&mut self, id: CommandId, bytes: usize) {
        let Some(command) = self.commands.get_mut(&id) else {
            return self.violation(Violation::UnknownCommand { message: "stdin_accepted", id });
        };
        match command.stdin_unaccepted.as_mut().filter(|unaccepted| **unaccepted >= bytes) {
            Some(unaccepted) => {
                *unaccepted -= bytes;
                let room_bytes = STDIN_WINDOW_BYTES.saturating_sub(*unaccepted);
                self.events.push_back(Event::StdinRoom { id, room_bytes });
            }
            None => self.violation(Violation::AcceptedTooMuch { id }),
        }
    }

    fn completed(&mut self, id: CommandId, status: ExitStatus, cause: Cause) {
        let Some(command) = self.commands.get(&id) else {
            let message = "step_completed";
            return self.violation(Violation::UnknownCommand { message, id });
        };
        let cause = match cause {
            Cause::Cancelled if command.timed_out => Cause::TimedOut,
            cause => cause,
        };
        if !command.started {
            self.violation(Violation::CompletedBeforeStart { id });
        }
        self.end(id, Outcome::Completed { status, cause });
    }

    fn shim_error(&mut self, id: Option<CommandId>, code: ShimErrorCode, message: String) {
        let running = id.and_then(|id| Some((id, self.commands.get(&id)?.started)));
        match (running, code) {
            (Some((id, false)), _) => self.end(id, Outcome::NotStarted { code, message }),
            (Some((id, true)), ShimErrorCode::CommandLost) => self.end(id, Outcome::ShimLost),
            // What is left of it may change files at any time, so it has not ended.
            (Some((id, true)), ShimErrorCode::ProcessesRemain) => {
                self.end(id, Outcome::Unresponsive);
            }
            _ => self.events.push_back(Event::ShimError { id, code, message }),
        }
    }
}
