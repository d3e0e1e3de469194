//! What the tests of the state machine share: a host whose clock the test holds.

#![allow(dead_code, reason = "every test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::io;
use std::time::{Duration, Instant};

use codeagent_common::StepId;
use codeagent_control::{
    Activity, Attribution, Cause, CommandId, ControlHost, Event, Exec, ExitStatus, HostConfig,
    HostMessage, Outcome, PROTOCOL_VERSION, Result, ShimMessage, StepSink, Stream,
};

/// A host and its clock, which stands still until [`Desk::advance`].
pub(crate) struct Desk<S: StepSink> {
    pub(crate) host: ControlHost<S>,
    pub(crate) now: Instant,
}

impl<S: StepSink> Desk<S> {
    pub(crate) fn new(sink: S) -> Self {
        let now = Instant::now();
        Self { host: ControlHost::new(sink, HostConfig::default(), now), now }
    }

    /// A host whose shim has said hello.
    pub(crate) fn ready(sink: S) -> Self {
        let mut desk = Self::new(sink);
        desk.receive(hello(PROTOCOL_VERSION, 1));
        desk.sent();
        desk.events();
        desk
    }

    pub(crate) fn try_exec(&mut self, line: &str) -> Result<CommandId> {
        self.host.exec(Exec::shell(line), Attribution::OwnStep, self.now)
    }

    #[track_caller]
    pub(crate) fn exec(&mut self, line: &str) -> CommandId {
        self.try_exec(line).expect("run a command")
    }

    pub(crate) fn receive(&mut self, message: ShimMessage) {
        self.host.receive(Ok(message), self.now);
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.now += by;
        self.host.advance(self.now);
    }

    /// Lets time go by as an owner would: from deadline to deadline.
    pub(crate) fn let_pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.host.next_deadline() <= end {
            let next = self.host.next_deadline();
            assert!(next > self.now, "a deadline that does not move");
            self.now = next;
            self.host.advance(next);
        }
        self.now = end;
    }

    pub(crate) fn sent(&mut self) -> Vec<HostMessage> {
        std::iter::from_fn(|| self.host.next_message()).collect()
    }

    pub(crate) fn events(&mut self) -> Vec<Event<S::Closed>> {
        std::iter::from_fn(|| self.host.next_event()).collect()
    }
}

impl Desk<NoteTaker> {
    pub(crate) fn calls(&self) -> &[Call] {
        &self.host.sink().calls
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Open(String),
    Close(StepId, Option<i32>),
}

/// Writes down what it is asked to do.
#[derive(Debug, Default)]
pub(crate) struct NoteTaker {
    pub(crate) calls: Vec<Call>,
    pub(crate) refuse_to_open: bool,
    /// So many times.
    pub(crate) refuse_to_close: u32,
    pub(crate) activity: Activity,
    pub(crate) opened: i64,
}

impl StepSink for NoteTaker {
    type Closed = Option<i32>;
    type Error = io::Error;

    fn open_step(&mut self, command: &str) -> io::Result<StepId> {
        if self.refuse_to_open {
            return Err(io::Error::other("no"));
        }
        self.calls.push(Call::Open(command.to_owned()));
        self.opened += 1;
        Ok(StepId(self.opened))
    }

    fn close_step(&mut self, step: StepId, exit_code: Option<i32>) -> io::Result<Option<i32>> {
        if self.refuse_to_close > 0 {
            self.refuse_to_close -= 1;
            return Err(io::Error::other("not now"));
        }
        self.calls.push(Call::Close(step, exit_code));
        Ok(exit_code)
    }

    fn close_quiet_ambient_step(&mut self) -> io::Result<Option<Option<i32>>> {
        Ok(None)
    }

    fn activity(&self) -> Activity {
        self.activity
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
