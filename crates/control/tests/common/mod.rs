//! What the tests of the state machine share: a host whose clock the test holds.

#![allow(dead_code, reason = "every test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::time::{Duration, Instant};

use codeagent_control::{
    Cause, CommandId, ControlHost, Event, Exec, ExitStatus, HostMessage, Outcome, PROTOCOL_VERSION,
    Result, ShimMessage, Stream,
};

/// A host and its clock, which stands still until [`Desk::advance`].
pub(crate) struct Desk {
    pub(crate) host: ControlHost,
    pub(crate) now: Instant,
}

impl Desk {
    pub(crate) fn new() -> Self {
        Self { host: ControlHost::new(), now: Instant::now() }
    }

    /// A host whose shim has said hello.
    pub(crate) fn ready() -> Self {
        let mut desk = Self::new();
        desk.receive(hello(PROTOCOL_VERSION, 1));
        desk.sent();
        desk.events();
        desk
    }

    pub(crate) fn try_exec(&mut self, line: &str) -> Result<CommandId> {
        self.host.exec(Exec::shell(line), self.now)
    }

    #[track_caller]
    pub(crate) fn exec(&mut self, line: &str) -> CommandId {
        self.try_exec(line).expect("run a command")
    }

    pub(crate) fn receive(&mut self, message: ShimMessage) {
        self.host.receive(Ok(message));
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.now += by;
        self.host.advance(self.now);
    }

    /// Lets time go by as an owner would: from deadline to deadline.
    pub(crate) fn let_pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(next) = self.host.next_deadline().filter(|next| *next <= end) {
            assert!(next > self.now, "a deadline that does not move");
            self.now = next;
            self.host.advance(next);
        }
        self.now = end;
    }

    pub(crate) fn sent(&mut self) -> Vec<HostMessage> {
        std::iter::from_fn(|| self.host.next_message()).collect()
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.host.next_event()).collect()
    }
}

pub(crate) fn hello(version: u32, instance: u64) -> ShimMessage {
    ShimMessage::Hello { version, instance }
}

pub(crate) fn started(id: CommandId) -> ShimMessage {
    ShimMessage::StepStarted { id }
}

pub(crate) fn output(id: CommandId, data: &[u8]) -> ShimMessage {
    ShimMessage::Output { id, stream: Stream::Stdout, data: data.into() }
}

pub(crate) fn completed(id: CommandId, code: i32) -> ShimMessage {
    ShimMessage::StepCompleted { id, status: ExitStatus::ExitCode(code), cause: Cause::Exited }
}

pub(crate) fn exited(code: i32) -> Outcome {
    Outcome::Completed { status: ExitStatus::ExitCode(code), cause: Cause::Exited }
}
