//! The channel: how it begins and ends, what it is made of, what it survives.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use codeagent_common::StepId;
use codeagent_control::{
    Cause, CommandId, Exec, ExitStatus, HostMessage, MessageReader, MessageWriter,
    PROTOCOL_VERSION, ShimErrorCode, ShimMessage,
};
use common::{ShimUnderTest, binary, is_alive, pid_from, wait_until};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

const FOR_EVER: &str = "while :; do sleep 1; done";

#[test]
fn hello_is_said_at_the_start_and_in_answer() {
    let mut shim = ShimUnderTest::start_silently(&[]);
    let first = shim.receive();
    shim.send(HostMessage::Hello { version: PROTOCOL_VERSION });
    let second = shim.receive();
    assert!(matches!(first, ShimMessage::Hello { version: PROTOCOL_VERSION, .. }), "{first:?}");
    assert_eq!(first, second);
}

#[test]
fn another_version_is_refused_with_a_clear_error() {
    let mut shim = ShimUnderTest::start_silently(&[]);
    shim.send(HostMessage::Hello { version: PROTOCOL_VERSION + 1 });
    let (_, code, message) = shim.error();
    assert_eq!(code, ShimErrorCode::VersionMismatch);
    assert_eq!(message, "this shim speaks version 1 of the control protocol, the host 2");
    let id = shim.exec(Exec::shell("true"));
    let (about, code, _) = shim.error();
    assert_eq!((about, code), (Some(id), ShimErrorCode::VersionMismatch));
}

#[test]
fn what_is_no_message_is_reported_and_the_channel_goes_on() {
    let mut shim = ShimUnderTest::start();
    for line in ["garbage", "{\"type\":\"dance\"}", "{\"type\":\"exec\"}"] {
        shim.send_line(line);
        let (_, code, _) = shim.error();
        assert_eq!(code, ShimErrorCode::BadMessage);
    }
    shim.send_line(&"x".repeat(3 << 20));
    let (_, code, _) = shim.error();
    assert_eq!(code, ShimErrorCode::BadMessage);
    assert_eq!(shim.run_shell("echo on").text(), "on\n");
}

#[test]
fn a_ping_is_answered() {
    let mut shim = ShimUnderTest::start();
    shim.send(HostMessage::Ping { token: 5 });
    assert_eq!(shim.receive(), ShimMessage::Pong { token: 5 });
}

#[test]
fn when_the_host_goes_every_process_goes() {
    let mut shim = ShimUnderTest::start();
    let dir = tempfile::tempdir().unwrap();
    let line = format!("setsid sh -c 'trap \"\" TERM; echo $$ > pid; {FOR_EVER}' & {FOR_EVER}");
    let cwd = Some(dir.path().to_str().unwrap().into());
    shim.begin(Exec { cwd, grace_ms: 50, ..Exec::shell(line) });
    let escapee = pid_from(&dir.path().join("pid"));

    shim.hang_up();
    assert!(shim.wait_for_exit().success());
    assert!(!is_alive(escapee));
}

#[test]
fn when_the_shim_is_killed_every_process_goes() {
    let mut shim = ShimUnderTest::start();
    let dir = tempfile::tempdir().unwrap();
    let line = format!("setsid sh -c 'trap \"\" TERM; echo $$ > pid; {FOR_EVER}' & {FOR_EVER}");
    let cwd = Some(dir.path().to_str().unwrap().into());
    shim.begin(Exec { cwd, grace_ms: 50, ..Exec::shell(line) });
    let escapee = pid_from(&dir.path().join("pid"));

    shim.process.kill().unwrap();
    wait_until("the process ends", || !is_alive(escapee));
}

#[test]
fn a_shutdown_ends_commands_and_reports_them() {
    let mut shim = ShimUnderTest::start();
    let id = shim.begin(Exec { grace_ms: 50, ..Exec::shell(FOR_EVER) });
    shim.send(HostMessage::Shutdown);
    let run = shim.finish(id);
    assert_eq!((run.status, run.cause), (ExitStatus::Signal(15), Cause::Cancelled));
    assert!(shim.wait_for_exit().success());
}

#[test]
fn a_rollback_is_announced_to_running_commands() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rollbacks");
    let mut shim = ShimUnderTest::start_with(&["--rollback-file", file.to_str().unwrap()]);
    let line = "while ! [ -s \"$CODEAGENT_ROLLBACK_FILE\" ]; do sleep 0.01; done; \
                cat \"$CODEAGENT_ROLLBACK_FILE\"";
    let id = shim.begin(Exec::shell(line));
    shim.send(HostMessage::RollbackNotify { step_id: StepId(7) });

    let noted = ShimMessage::RollbackNoted { step_id: StepId(7) };
    shim.receive_where(|message| *message == noted);
    assert_eq!(shim.finish(id).text(), "{\"type\":\"rollback_notify\",\"step_id\":7}\n");
}

#[test]
fn the_channel_can_be_an_inherited_socket() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    fcntl_setfd(&theirs, FdFlags::empty()).unwrap();
    let number = theirs.as_raw_fd().to_string();
    let process = binary().args(["--fd", &number]).spawn().unwrap();
    drop(theirs);
    let mut shim = ShimUnderTest::on(process, ours);
    shim.send(HostMessage::Hello { version: PROTOCOL_VERSION });
    // A command must not get hold of the channel.
    let run = shim.run_shell("ls -l /proc/self/fd | grep -c socket: || true");
    assert_eq!(run.text(), "0\n");
}

#[test]
fn the_channel_can_be_a_serial_port() {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let port = File::options().read(true).write(true).open(&path).unwrap();
    let mut settings = tcgetattr(&port).unwrap();
    settings.make_raw();
    tcsetattr(&port, OptionalActions::Now, &settings).unwrap();
    let mut process = binary().args(["--device", &path]).spawn().unwrap();

    let mut from_shim =
        MessageReader::<_, ShimMessage>::new(File::from(master.try_clone().unwrap()));
    let mut to_shim = MessageWriter::new(File::from(master));
    let id = CommandId(1);
    to_shim.write(&HostMessage::Hello { version: PROTOCOL_VERSION }).unwrap();
    to_shim.write(&HostMessage::Exec(Exec { id, ..Exec::shell("exit 4") })).unwrap();
    let completed = loop {
        match from_shim.read().unwrap().unwrap().unwrap() {
            ShimMessage::StepCompleted { status, .. } => break status,
            ShimMessage::Hello { .. } | ShimMessage::StepStarted { .. } => {}
            other => panic!("unexpected: {other:?}"),
        }
    };
    to_shim.write(&HostMessage::Shutdown).unwrap();
    assert_eq!(completed, ExitStatus::ExitCode(4));
    assert!(process.wait().unwrap().success());
}

#[test]
fn a_descriptor_that_is_not_open_is_a_clear_error() {
    let output = binary().args(["--fd", "77"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Bad file descriptor"));
}

#[test]
fn completed_commands_have_their_files_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let mut shim = ShimUnderTest::start_with(&["--sync", dir.path().to_str().unwrap()]);
    let run = shim.run_shell("true");
    assert_eq!(run.status, ExitStatus::ExitCode(0));
}
