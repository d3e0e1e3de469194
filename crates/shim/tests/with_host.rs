//! The host's state machine and the real shim: that the two agree on the protocol.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::io;
use std::time::Instant;

use codeagent_common::StepId;
use codeagent_control::{
    Activity, Attribution, ByteString, Cause, CommandId, ControlHost, Event, Exec, ExitStatus,
    HostConfig, Outcome, Stdin, StepSink,
};
use common::{PATIENCE, ShimUnderTest};

/// Says yes to everything.
#[derive(Debug, Default)]
struct Steps(i64);

impl StepSink for Steps {
    type Closed = Option<i32>;
    type Error = io::Error;

    fn open_step(&mut self, _: &str) -> io::Result<StepId> {
        self.0 += 1;
        Ok(StepId(self.0))
    }

    fn close_step(&mut self, _: StepId, exit_code: Option<i32>) -> io::Result<Option<i32>> {
        Ok(exit_code)
    }

    fn close_quiet_ambient_step(&mut self) -> io::Result<Option<Option<i32>>> {
        Ok(None)
    }

    fn activity(&self) -> Activity {
        Activity::default()
    }
}

/// A session in a nutshell: carries messages and time between the two.
struct Session {
    host: ControlHost<Steps>,
    shim: ShimUnderTest,
}

impl Session {
    fn start() -> Self {
        let host = ControlHost::new(Steps::default(), HostConfig::default(), Instant::now());
        let mut session = Self { host, shim: ShimUnderTest::start_silently(&[]) };
        session.events_until(|event| matches!(event, Event::Ready));
        session
    }

    fn exec(&mut self, exec: Exec) -> CommandId {
        self.host.exec(exec, Attribution::OwnStep, Instant::now()).unwrap()
    }

    /// Everything that happens up to the wanted event.
    fn events_until(
        &mut self,
        wanted: impl Fn(&Event<Option<i32>>) -> bool,
    ) -> Vec<Event<Option<i32>>> {
        let mut events = Vec::new();
        let give_up_at = Instant::now() + PATIENCE;
        loop {
            while let Some(message) = self.host.next_message() {
                self.shim.send(message);
            }
            while let Some(event) = self.host.next_event() {
                assert!(!matches!(event, Event::Violation(_)), "{event:?}");
                events.push(event);
                if wanted(&events[events.len() - 1]) {
                    return events;
                }
            }
            assert!(Instant::now() < give_up_at, "never happened; so far: {events:?}");
            if let Some(message) = self.shim.receive_before(self.host.next_deadline()) {
                self.host.receive(Ok(message), Instant::now());
            }
            self.host.advance(Instant::now());
        }
    }

    fn until_closed(&mut self) -> Vec<Event<Option<i32>>> {
        self.events_until(|event| matches!(event, Event::StepClosed { .. }))
    }
}

fn output(events: &[Event<Option<i32>>]) -> Vec<u8> {
    let pieces = events.iter().filter_map(|event| match event {
        Event::Output { data, .. } => Some(data.as_bytes()),
        _ => None,
    });
    pieces.collect::<Vec<_>>().concat()
}

/// CC-08, SH-01
#[test]
fn a_command_becomes_a_closed_step() {
    let mut session = Session::start();
    session.exec(Exec::shell("echo one; exit 3"));
    let events = session.until_closed();
    assert_eq!(output(&events), b"one\n");
    let closed = events.last().unwrap();
    assert!(matches!(closed, Event::StepClosed { closed: Some(3), .. }), "{closed:?}");

    session.exec(Exec::shell("echo two"));
    assert_eq!(output(&session.until_closed()), b"two\n");
}

/// CC-07, SH-06
#[test]
fn a_cancelled_command_becomes_a_closed_step() {
    let mut session = Session::start();
    let id = session.exec(Exec::shell("while :; do sleep 1; done"));
    session.events_until(|event| matches!(event, Event::Started { .. }));
    session.host.cancel(id, Instant::now()).unwrap();
    let events = session.until_closed();
    let (status, cause) = (ExitStatus::Signal(15), Cause::Cancelled);
    let expected = Outcome::Completed { status, cause };
    let is_expected =
        |event: &Event<_>| matches!(event, Event::Ended { outcome, .. } if *outcome == expected);
    assert!(events.iter().any(is_expected), "{events:?}");
}

/// SH-02
#[test]
fn a_command_that_cannot_start_becomes_a_closed_step() {
    let mut session = Session::start();
    session.exec(Exec { cwd: Some("/no/such/dir".into()), ..Exec::shell("true") });
    let events = session.until_closed();
    assert!(matches!(events[0], Event::Ended { outcome: Outcome::NotStarted { .. }, .. }));
}

/// SH-05
#[test]
fn input_flows_as_the_command_takes_it() {
    let mut session = Session::start();
    let id = session.exec(Exec { stdin: Stdin::Stream, ..Exec::shell("wc -c") });
    let mut left = 1_000_000;
    while left > 0 {
        let piece = session.host.stdin_room(id).unwrap().min(left).min(64 * 1024);
        if piece == 0 {
            session.events_until(|event| matches!(event, Event::StdinRoom { .. }));
            continue;
        }
        session.host.send_stdin(id, vec![b'x'; piece].into(), false).unwrap();
        left -= piece;
    }
    session.host.send_stdin(id, ByteString::default(), true).unwrap();
    let text = String::from_utf8(output(&session.until_closed())).unwrap();
    assert_eq!(text.trim(), "1000000");
}
