//! The host's state machine and the real shim: that the two agree on the protocol.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::time::Instant;

use codeagent_control::{
    ByteString, Cause, CommandId, ControlHost, Event, Exec, ExitStatus, Outcome, Stdin,
};
use common::{PATIENCE, ShimUnderTest};

/// A session in a nutshell: carries messages and time between the two.
struct Session {
    host: ControlHost,
    shim: ShimUnderTest,
}

impl Session {
    fn start() -> Self {
        let mut session =
            Self { host: ControlHost::new(), shim: ShimUnderTest::start_silently(&[]) };
        session.events_until(|event| matches!(event, Event::Ready));
        session
    }

    fn exec(&mut self, exec: Exec) -> CommandId {
        self.host.exec(exec, Instant::now()).unwrap()
    }

    /// Everything that happens up to the wanted event.
    fn events_until(&mut self, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
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
            let deadline = self.host.next_deadline().unwrap_or(give_up_at);
            if let Some(message) = self.shim.receive_before(deadline) {
                self.host.receive(Ok(message));
            }
            self.host.advance(Instant::now());
        }
    }

    fn until_ended(&mut self) -> Vec<Event> {
        self.events_until(|event| matches!(event, Event::Ended { .. }))
    }
}

fn output(events: &[Event]) -> Vec<u8> {
    let pieces = events.iter().filter_map(|event| match event {
        Event::Output { data, .. } => Some(data.as_bytes()),
        _ => None,
    });
    pieces.collect::<Vec<_>>().concat()
}

/// CC-08, SH-01
#[test]
fn a_command_runs_and_the_next_one_after_it() {
    let mut session = Session::start();
    session.exec(Exec::shell("echo one; exit 3"));
    let events = session.until_ended();
    assert_eq!(output(&events), b"one\n");
    let ended = events.last().unwrap();
    assert!(
        matches!(ended, Event::Ended { outcome, .. } if outcome.exit_code() == Some(3)),
        "{ended:?}"
    );

    session.exec(Exec::shell("echo two"));
    assert_eq!(output(&session.until_ended()), b"two\n");
}

/// CC-07, SH-06
#[test]
fn a_cancelled_command_ends_and_says_why() {
    let mut session = Session::start();
    let id = session.exec(Exec::shell("while :; do sleep 1; done"));
    session.events_until(|event| matches!(event, Event::Started { .. }));
    session.host.cancel(id, Instant::now()).unwrap();
    let events = session.until_ended();
    let (status, cause) = (ExitStatus::Signal(15), Cause::Cancelled);
    let expected = Outcome::Completed { status, cause };
    let is_expected =
        |event: &Event| matches!(event, Event::Ended { outcome, .. } if *outcome == expected);
    assert!(events.iter().any(is_expected), "{events:?}");
}

/// SH-02
#[test]
fn a_command_that_cannot_start_ends_and_says_so() {
    let mut session = Session::start();
    session.exec(Exec { cwd: Some("/no/such/dir".into()), ..Exec::shell("true") });
    let events = session.until_ended();
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
    let text = String::from_utf8(output(&session.until_ended())).unwrap();
    assert_eq!(text.trim(), "1000000");
}
