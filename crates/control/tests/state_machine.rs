//! The host's state machine. Time stands still unless told.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use codeagent_control::{
    Cause, CommandId, ControlError, Event, Exec, ExitStatus, HostMessage, LineFault, Outcome,
    PATIENCE, PROTOCOL_VERSION, STDIN_WINDOW_BYTES, ShimErrorCode, ShimMessage, Stdin, Violation,
};
use common::{Desk, completed, exited, hello, output, started};

const UNKNOWN: CommandId = CommandId(99);

fn desk() -> Desk {
    Desk::ready()
}

#[track_caller]
fn assert_violation(events: &[Event], expected: Violation) {
    match events {
        [Event::Violation(violation)] => assert_eq!(*violation, expected),
        other => panic!("no violation: {other:?}"),
    }
}

/// CC-02, CC-03, CC-04
#[test]
fn a_line_that_is_no_message_is_reported_and_the_command_goes_on() {
    let mut desk = desk();
    let id = desk.exec("make");
    desk.receive(started(id));
    desk.events();
    desk.host.receive(Err(LineFault::MissingType));
    assert_violation(&desk.events(), Violation::Line(LineFault::MissingType));

    desk.receive(completed(id, 0));
    assert!(matches!(desk.events()[..], [Event::Ended { .. }]));
}

/// CC-05
#[test]
fn the_end_of_an_unknown_command_is_reported_and_changes_nothing() {
    let mut desk = desk();
    desk.exec("make");
    desk.receive(completed(UNKNOWN, 0));

    let message = "step_completed";
    assert_violation(&desk.events(), Violation::UnknownCommand { message, id: UNKNOWN });
}

/// CC-05
#[test]
fn the_end_of_a_command_that_never_started_is_reported_and_is_its_end() {
    let mut desk = desk();
    let id = desk.exec("make");
    desk.receive(completed(id, 0));
    assert!(matches!(
        desk.events()[..],
        [Event::Violation(Violation::CompletedBeforeStart { .. }), Event::Ended { .. }]
    ));
}

/// CC-06
#[test]
fn a_second_start_is_reported_and_the_command_goes_on() {
    let mut desk = desk();
    let id = desk.exec("make");
    desk.receive(started(id));
    desk.events();
    desk.receive(started(id));

    assert_violation(&desk.events(), Violation::StartedTwice { id });
}

/// CC-06
#[test]
fn a_start_nobody_asked_for_is_reported() {
    let mut desk = desk();
    desk.receive(started(UNKNOWN));
    let message = "step_started";
    assert_violation(&desk.events(), Violation::UnknownCommand { message, id: UNKNOWN });
}

/// CC-07
#[test]
fn a_cancelled_command_goes_on_until_it_has_ended() {
    let mut desk = desk();
    let id = desk.exec("make");
    desk.receive(started(id));
    desk.sent();
    desk.host.cancel(id, desk.now).unwrap();
    assert_eq!(desk.sent(), [HostMessage::Cancel { id }]);
    desk.events();
    desk.advance(Duration::from_millis(100));
    assert!(desk.events().is_empty());

    let (status, cause) = (ExitStatus::Signal(15), Cause::Cancelled);
    desk.receive(ShimMessage::StepCompleted { id, status, cause });
    match &desk.events()[..] {
        [Event::Ended { outcome, .. }] => assert_eq!(outcome.exit_code(), Some(143)),
        other => panic!("{other:?}"),
    }
}

/// CC-07
#[test]
fn a_cancelled_command_that_never_started_ends_too() {
    let mut desk = desk();
    let id = desk.exec("make");
    desk.host.cancel(id, desk.now).unwrap();
    let (code, message) = (ShimErrorCode::SpawnFailed, "cancelled".to_owned());
    desk.receive(ShimMessage::Error { id: Some(id), code, message });
    assert!(matches!(
        desk.events()[..],
        [Event::Ended { outcome: Outcome::NotStarted { .. }, .. }]
    ));
}

/// CC-07
#[test]
fn a_shim_that_does_not_answer_a_cancel_is_given_up() {
    let mut desk = desk();
    let id = desk.exec("make");
    desk.receive(started(id));
    desk.host.cancel(id, desk.now).unwrap();
    desk.events();
    desk.advance(Duration::from_secs(5) + PATIENCE);

    assert!(
        matches!(desk.events()[..], [Event::Ended { outcome: Outcome::Unresponsive, .. }]),
        "given up"
    );
}

#[test]
fn cancelling_an_unknown_command_is_an_error() {
    let mut desk = desk();
    let error = desk.host.cancel(UNKNOWN, desk.now).unwrap_err();
    assert!(matches!(error, ControlError::UnknownCommand { .. }), "{error}");
}

#[test]
fn a_command_that_cannot_be_started_ends() {
    let mut desk = desk();
    let id = desk.exec("nonsense");
    let (code, message) = (ShimErrorCode::SpawnFailed, "no such file".to_owned());
    let error = ShimMessage::Error { id: Some(id), code, message: message.clone() };
    desk.receive(error);
    match &desk.events()[..] {
        [Event::Ended { outcome, .. }] => {
            assert_eq!(*outcome, Outcome::NotStarted { code, message });
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_death_of_the_shim_ends_commands() {
    let mut desk = desk();
    let id = desk.exec("make");
    desk.receive(started(id));
    desk.events();
    desk.host.channel_closed();
    assert!(matches!(
        desk.events()[..],
        [
            Event::Ended { outcome: Outcome::ShimLost, .. },
            Event::Failed(ControlError::Disconnected)
        ]
    ));
    let error = desk.try_exec("make").unwrap_err();
    assert!(matches!(error, ControlError::Disconnected), "{error}");
}

#[test]
fn a_shim_that_was_started_again_has_lost_its_commands() {
    let mut desk = desk();
    desk.exec("make");
    desk.receive(hello(PROTOCOL_VERSION, 2));
    assert!(matches!(
        desk.events()[..],
        [Event::Ended { outcome: Outcome::ShimLost, .. }, Event::Ready]
    ));
    desk.exec("make again");
}

#[test]
fn a_second_hello_of_the_same_shim_changes_nothing() {
    let mut desk = desk();
    desk.exec("make");
    desk.receive(hello(PROTOCOL_VERSION, 1));
    assert!(desk.events().is_empty());
}

#[test]
fn another_protocol_version_is_a_clear_error() {
    let mut desk = Desk::new();
    assert_eq!(desk.sent(), [HostMessage::Hello { version: PROTOCOL_VERSION }]);
    desk.receive(hello(PROTOCOL_VERSION + 1, 1));
    assert!(matches!(desk.events()[..], [Event::Failed(ControlError::VersionMismatch { .. })]));

    let error = desk.try_exec("make").unwrap_err();
    let expected = "the shim speaks version 2 of the control protocol, this host version 1";
    assert_eq!(error.to_string(), expected);
    assert!(error.hint().unwrap().contains("guest image"));
}

#[test]
fn nothing_is_run_before_hello() {
    let mut desk = Desk::new();
    assert!(matches!(desk.try_exec("make"), Err(ControlError::NotReady)));
    desk.receive(ShimMessage::Pong { token: 1 });
    assert_violation(&desk.events(), Violation::BeforeHello { message: "pong" });
}

#[test]
fn output_of_commands_that_do_not_run_is_dropped() {
    let mut desk = desk();
    let id = desk.exec("make");
    desk.receive(output(id, b"early"));
    assert_violation(&desk.events(), Violation::OutputBeforeStart { id });
    desk.receive(output(UNKNOWN, b"whose?"));
    let message = "output";
    assert_violation(&desk.events(), Violation::UnknownCommand { message, id: UNKNOWN });
}

#[test]
fn input_is_bounded_until_the_command_takes_it() {
    let mut desk = desk();
    let exec = Exec { stdin: Stdin::Stream, ..Exec::shell("cat") };
    let id = desk.host.exec(exec, desk.now).unwrap();
    desk.receive(started(id));
    desk.events();
    let full = vec![b'x'; STDIN_WINDOW_BYTES];
    desk.host.send_stdin(id, full.into(), false).unwrap();
    let error = desk.host.send_stdin(id, "y".into(), false).unwrap_err();
    assert!(matches!(error, ControlError::StdinFull { room_bytes: 0, .. }), "{error}");

    desk.receive(ShimMessage::StdinAccepted { id, bytes: 10 });
    assert!(matches!(desk.events()[..], [Event::StdinRoom { room_bytes: 10, .. }]));
    desk.host.send_stdin(id, "y".into(), true).unwrap();
    desk.receive(ShimMessage::StdinAccepted { id, bytes: usize::MAX });
    assert_violation(&desk.events(), Violation::AcceptedTooMuch { id });
}

#[test]
fn a_command_too_long_for_a_line_is_refused_and_not_sent() {
    let mut desk = desk();
    let error = desk.try_exec(&"x".repeat(2 << 20)).unwrap_err();
    assert!(matches!(error, ControlError::MessageTooLong { .. }), "{error}");
    assert_eq!(desk.sent(), []);
}

#[test]
fn a_timed_out_command_is_given_up_when_the_shim_does_not_end_it() {
    let mut desk = desk();
    let exec = Exec { timeout_ms: Some(1_000), grace_ms: 500, ..Exec::shell("make") };
    let id = desk.host.exec(exec, desk.now).unwrap();
    desk.receive(started(id));
    desk.events();
    desk.advance(Duration::from_millis(11_499));
    assert!(desk.events().is_empty());
    desk.advance(Duration::from_millis(1));
    assert!(matches!(desk.events()[..], [Event::Ended { .. }]));
}

/// What the shim runs in can be stopped, and its clock with it.
#[test]
fn a_command_whose_time_is_up_is_ended_by_the_clock_of_the_host() {
    let mut desk = desk();
    let exec = Exec { timeout_ms: Some(1_000), ..Exec::shell("make") };
    let id = desk.host.exec(exec, desk.now).unwrap();
    desk.receive(started(id));
    desk.sent();
    desk.events();
    desk.let_pass(Duration::from_millis(999));
    assert_eq!(desk.sent(), []);
    desk.let_pass(Duration::from_millis(1));
    assert_eq!(desk.sent(), [HostMessage::Cancel { id }]);
    let (status, cause) = (ExitStatus::Signal(15), Cause::Cancelled);
    desk.receive(ShimMessage::StepCompleted { id, status, cause });
    match &desk.events()[..] {
        [Event::Ended { outcome, .. }] => {
            assert_eq!(*outcome, Outcome::Completed { status, cause: Cause::TimedOut });
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_expected_of_a_shim_while_it_stands_still() {
    let mut desk = desk();
    let id = desk.exec("make");
    desk.receive(started(id));
    desk.host.stand_still(desk.now);
    desk.host.cancel(id, desk.now).unwrap();
    desk.events();
    let patience = Duration::from_secs(5) + PATIENCE;
    desk.let_pass(10 * patience);
    assert!(desk.events().is_empty());

    desk.host.go_on(desk.now);
    desk.let_pass(patience - Duration::from_millis(1));
    assert!(desk.events().is_empty());
    desk.let_pass(Duration::from_millis(1));
    assert!(matches!(desk.events()[..], [Event::Ended { outcome: Outcome::Unresponsive, .. }]));
}

#[test]
fn exit_codes_and_signals_are_told_apart() {
    let mut desk = desk();
    let id = desk.exec("make");
    desk.receive(started(id));
    desk.events();
    desk.receive(completed(id, 137));
    match &desk.events()[..] {
        [Event::Ended { outcome, .. }] => assert_eq!(*outcome, exited(137)),
        other => panic!("{other:?}"),
    }
}

/// What is left of it may change files while others have steps.
#[test]
fn a_command_whose_processes_cannot_be_ended_counts_as_running_still() {
    let mut desk = desk();
    let id = desk.exec("make");
    desk.receive(started(id));
    desk.host.cancel(id, desk.now).unwrap();
    desk.events();
    let (code, message) = (ShimErrorCode::ProcessesRemain, "two of them".to_owned());
    desk.receive(ShimMessage::Error { id: Some(id), code, message });
    assert!(matches!(desk.events()[..], [Event::Ended { outcome: Outcome::Unresponsive, .. }]));
    // That it is over by its own account changes nothing.
    desk.receive(completed(id, 0));
    let message = "step_completed";
    assert_violation(&desk.events(), Violation::UnknownCommand { message, id });
}
