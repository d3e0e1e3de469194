//! Commands in a terminal.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use codeagent_control::{Exec, ExitStatus, HostMessage, PtySize, ShimErrorCode};
use common::ShimUnderTest;

const SIZE: PtySize = PtySize { rows: 33, columns: 101 };

fn in_terminal(line: &str) -> Exec {
    Exec { pty: Some(SIZE), grace_ms: 100, ..Exec::shell(line) }
}

#[test]
fn a_command_sees_a_terminal_of_the_given_size() {
    let mut shim = ShimUnderTest::start();
    let run = shim.run(in_terminal("test -t 0 && test -t 1 && test -t 2 && stty size"));
    assert_eq!((run.text().as_str(), run.status), ("33 101\r\n", ExitStatus::ExitCode(0)));
}

#[test]
fn a_resize_reaches_the_command() {
    let mut shim = ShimUnderTest::start();
    let line = "trap 'stty size; exit' WINCH; echo on; while :; do sleep 0.01; done";
    let id = shim.begin(in_terminal(line));
    shim.output_until(id, "on\r\n");
    shim.send(HostMessage::Resize { id, size: PtySize { rows: 10, columns: 20 } });
    assert_eq!(shim.finish(id).text(), "10 20\r\n");
}

#[test]
fn what_is_typed_reaches_the_command_and_ctrl_c_interrupts_it() {
    let mut shim = ShimUnderTest::start();
    let line = "stty -echo; trap 'echo interrupted; exit 5' INT; echo on; \
                read line; echo \"got $line\"; while :; do sleep 0.01; done";
    let id = shim.begin(in_terminal(line));
    shim.output_until(id, "on\r\n");
    shim.send(HostMessage::Stdin { id, data: "text\n".into(), eof: false });
    shim.output_until(id, "got text\r\n");
    shim.send(HostMessage::Stdin { id, data: "\u{3}".into(), eof: false });
    let run = shim.finish(id);
    assert!(run.text().ends_with("interrupted\r\n"), "{:?}", run.text());
    assert_eq!(run.status, ExitStatus::ExitCode(5));
}

#[test]
fn the_end_of_input_is_ctrl_d() {
    let mut shim = ShimUnderTest::start();
    let id = shim.begin(in_terminal("stty -echo; echo on; cat; echo done"));
    shim.output_until(id, "on\r\n");
    shim.send(HostMessage::Stdin { id, data: "line\n".into(), eof: true });
    assert_eq!(shim.finish(id).text(), "line\r\ndone\r\n");
}

#[test]
fn the_terminal_is_the_controlling_one() {
    let mut shim = ShimUnderTest::start();
    let run = shim.run(in_terminal("echo to the terminal > /dev/tty"));
    assert_eq!(run.text(), "to the terminal\r\n");
}

#[test]
fn a_signal_goes_to_the_foreground_of_the_terminal() {
    let mut shim = ShimUnderTest::start();
    let line = "set -m; sh -c 'trap \"exit 9\" USR1; echo on; while :; do sleep 0.01; done'; \
                echo \"ended with $?\"";
    let id = shim.begin(in_terminal(line));
    shim.output_until(id, "on\r\n");
    let signal = rustix::process::Signal::USR1.as_raw();
    shim.send(HostMessage::Signal { id, signal });
    let text = shim.finish(id).text();
    assert!(text.ends_with("ended with 9\r\n"), "{text:?}");
}

#[test]
fn a_command_without_a_terminal_has_no_size() {
    let mut shim = ShimUnderTest::start();
    let id = shim.begin(Exec { grace_ms: 0, ..Exec::shell("while :; do sleep 1; done") });
    shim.send(HostMessage::Resize { id, size: SIZE });
    let (about, code, _) = shim.error();
    assert_eq!((about, code), (Some(id), ShimErrorCode::NotSupported));
}
