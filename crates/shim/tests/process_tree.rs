//! A command's processes: that a cancel reaches all of them, and that none is left over.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::path::Path;

use codeagent_control::{Cause, Exec, ExitStatus, HostMessage, Leftovers, ShimErrorCode};
use common::{ShimUnderTest, children, is_alive, pid_from, wait_until};

/// A shell command that runs in `dir`, with little patience when it is cancelled.
fn in_dir(dir: &Path, line: &str) -> Exec {
    Exec { cwd: Some(dir.to_str().unwrap().into()), grace_ms: 100, ..Exec::shell(line) }
}

/// Runs `line`, which writes the pid of a process to `pid` and then goes on for ever; cancels it.
#[track_caller]
fn assert_cancel_reaches(line: &str) {
    let mut shim = ShimUnderTest::start();
    let dir = tempfile::tempdir().unwrap();
    let id = shim.begin(in_dir(dir.path(), line));
    let escapee = pid_from(&dir.path().join("pid"));
    assert!(is_alive(escapee));

    shim.send(HostMessage::Cancel { id });
    let run = shim.finish(id);

    assert_eq!(run.cause, Cause::Cancelled);
    assert!(!is_alive(escapee), "it escaped");
}

const FOR_EVER: &str = "while :; do sleep 1; done";

/// SH-06
#[test]
fn cancel_ends_a_command_with_term() {
    let mut shim = ShimUnderTest::start();
    let id = shim.begin(Exec::shell(format!("trap 'echo bye; exit 7' TERM; echo on; {FOR_EVER}")));
    shim.output_until(id, "on\n");
    shim.send(HostMessage::Cancel { id });
    let run = shim.finish(id);
    assert_eq!((run.text().as_str(), run.status), ("bye\n", ExitStatus::ExitCode(7)));
    assert_eq!(run.cause, Cause::Cancelled);
}

/// SH-06
#[test]
fn cancel_sends_term_once() {
    let mut shim = ShimUnderTest::start();
    let line = "trap 'echo bye' TERM; echo on; while :; do sleep 0.01; done";
    let id = shim.begin(Exec { grace_ms: 300, ..Exec::shell(line) });
    shim.output_until(id, "on\n");
    shim.send(HostMessage::Cancel { id });
    shim.send(HostMessage::Cancel { id });
    assert_eq!(shim.finish(id).text(), "bye\n");
}

/// SH-06
#[test]
fn cancel_kills_what_ignores_term() {
    let mut shim = ShimUnderTest::start();
    let line = format!("trap '' TERM; echo on; {FOR_EVER}");
    let id = shim.begin(Exec { grace_ms: 50, ..Exec::shell(line) });
    shim.output_until(id, "on\n");
    shim.send(HostMessage::Cancel { id });
    assert_eq!(shim.finish(id).status, ExitStatus::Signal(9));
}

/// SH-06
#[test]
fn cancel_reaches_children() {
    assert_cancel_reaches(&format!("sh -c 'echo $$ > pid; {FOR_EVER}'; true"));
}

/// SH-06
#[test]
fn cancel_reaches_a_background_process() {
    assert_cancel_reaches(&format!("sh -c 'echo $$ > pid; {FOR_EVER}' & {FOR_EVER}"));
}

/// SH-06
#[test]
fn cancel_reaches_a_process_in_a_session_of_its_own() {
    assert_cancel_reaches(&format!("setsid sh -c 'echo $$ > pid; {FOR_EVER}' & {FOR_EVER}"));
}

/// SH-06
#[test]
fn cancel_reaches_a_daemon_that_forked_twice_and_ignores_term() {
    let daemon = format!("trap \"\" TERM HUP; echo $$ > pid; {FOR_EVER}");
    assert_cancel_reaches(&format!(
        "(setsid sh -c '(setsid sh -c \"{}\" <&- >&- 2>&- &) ' &); {FOR_EVER}",
        daemon.replace('"', "\\\"").replace('$', "\\$")
    ));
}

/// SH-06
#[test]
fn cancel_reaches_a_process_without_environment() {
    assert_cancel_reaches(&format!("env -i setsid sh -c 'echo $$ > pid; {FOR_EVER}' & {FOR_EVER}"));
}

/// SH-06
#[test]
fn cancel_reaches_a_stopped_process() {
    assert_cancel_reaches("sh -c 'echo $$ > pid; kill -STOP $$' & while :; do sleep 1; done");
}

/// SH-06
#[test]
fn cancel_catches_processes_that_keep_forking() {
    let mut shim = ShimUnderTest::start();
    let dir = tempfile::tempdir().unwrap();
    // Each runner starts the next one and ends: no process lives long enough to be looked up.
    std::fs::write(dir.path().join("run"), "echo $$ >> trail\n. /dev/null\nsetsid sh run &\n")
        .unwrap();
    let id = shim.begin(in_dir(dir.path(), &format!("sh run; {FOR_EVER}")));
    let trail = || std::fs::metadata(dir.path().join("trail")).map_or(0, |file| file.len());
    wait_until("it runs", || trail() > 100);
    shim.send(HostMessage::Cancel { id });
    shim.finish(id);
    let supervisors = children(shim.process.id());
    let length = trail();
    assert_eq!(shim.run_shell("true").status, ExitStatus::ExitCode(0));
    assert_eq!(trail(), length, "something still runs; {supervisors:?}");
}

/// SH-06
#[test]
fn cancel_of_one_command_leaves_the_others_alone() {
    let mut shim = ShimUnderTest::start();
    let dir = tempfile::tempdir().unwrap();
    let spared = shim.begin(in_dir(
        dir.path(),
        &format!("setsid sh -c 'echo $$ > pid; {FOR_EVER}' & {FOR_EVER}"),
    ));
    let survivor = pid_from(&dir.path().join("pid"));
    let id = shim.begin(Exec { grace_ms: 0, ..Exec::shell(FOR_EVER) });
    shim.send(HostMessage::Cancel { id });
    shim.finish(id);
    assert!(is_alive(survivor));
    shim.send(HostMessage::Cancel { id: spared });
    shim.finish(spared);
    assert!(!is_alive(survivor));
}

/// SH-06
#[test]
fn a_command_that_takes_too_long_is_ended_with_its_tree() {
    let mut shim = ShimUnderTest::start();
    let dir = tempfile::tempdir().unwrap();
    let line = format!("setsid sh -c 'echo $$ > pid; {FOR_EVER}' & {FOR_EVER}");
    let id = shim.begin(Exec { timeout_ms: Some(500), ..in_dir(dir.path(), &line) });
    let escapee = pid_from(&dir.path().join("pid"));
    let run = shim.finish(id);
    assert_eq!((run.cause, run.status), (Cause::TimedOut, ExitStatus::Signal(15)));
    assert!(!is_alive(escapee));
}

/// SH-06
#[test]
fn cancelling_what_does_not_run_is_an_error() {
    let mut shim = ShimUnderTest::start();
    let id = codeagent_control::CommandId(99);
    shim.send(HostMessage::Cancel { id });
    let (about, code, _) = shim.error();
    assert_eq!((about, code), (Some(id), ShimErrorCode::UnknownCommand));
}

#[test]
fn a_signal_reaches_the_command_and_it_decides() {
    let mut shim = ShimUnderTest::start();
    let line = "trap 'echo again' USR1; echo on; while :; do sleep 0.01; done";
    let id = shim.begin(Exec { grace_ms: 0, ..Exec::shell(line) });
    shim.output_until(id, "on\n");
    let usr1 = rustix::process::Signal::USR1.as_raw();
    shim.send(HostMessage::Signal { id, signal: usr1 });
    shim.output_until(id, "again\n");
    shim.send(HostMessage::Cancel { id });
    assert_eq!(shim.finish(id).cause, Cause::Cancelled);
}

#[test]
fn a_background_process_outlives_its_command_and_is_cancelled_by_its_id() {
    let mut shim = ShimUnderTest::start();
    let dir = tempfile::tempdir().unwrap();
    let line = "sh -c 'echo $$ > pid; while :; do echo noise; sleep 0.01; done' & \
                while ! [ -s pid ]; do :; done; echo done";
    let id = shim.begin(in_dir(dir.path(), line));
    let run = shim.finish(id);
    let background = pid_from(&dir.path().join("pid"));
    assert!(run.text().contains("done\n"));
    assert_eq!(run.cause, Cause::Exited);
    assert!(is_alive(background));

    shim.send(HostMessage::Cancel { id });
    wait_until("the background process ends", || !is_alive(background));
}

#[test]
fn leftovers_end_before_the_command_is_completed_if_asked() {
    let mut shim = ShimUnderTest::start();
    let dir = tempfile::tempdir().unwrap();
    let line = format!(
        "setsid sh -c 'echo $$ > pid; {FOR_EVER}' & \
                        while ! [ -s pid ]; do :; done; exit 3"
    );
    let exec = Exec { leftovers: Leftovers::Kill, ..in_dir(dir.path(), &line) };
    let run = shim.run(exec);
    let leftover = pid_from(&dir.path().join("pid"));
    assert_eq!((run.status, run.cause), (ExitStatus::ExitCode(3), Cause::Exited));
    assert!(!is_alive(leftover));
}

#[test]
fn no_zombies_are_left() {
    let mut shim = ShimUnderTest::start();
    for _ in 0..5 {
        shim.run_shell("for i in 1 2 3; do (setsid true &) ; done; true");
    }
    let pid = shim.process.id();
    wait_until("everything is reaped", || children(pid).is_empty());
}

#[test]
fn a_killed_supervisor_takes_its_command_with_it() {
    let mut shim = ShimUnderTest::start();
    let dir = tempfile::tempdir().unwrap();
    let line = format!("setsid sh -c 'echo $$ > pid; {FOR_EVER}' & {FOR_EVER}");
    let id = shim.begin(in_dir(dir.path(), &line));
    let escapee = pid_from(&dir.path().join("pid"));
    let (supervisor, _) = children(shim.process.id())[0];
    let supervisor = rustix::process::Pid::from_raw(supervisor).unwrap();
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();

    let (about, code, _) = shim.error();
    assert_eq!((about, code), (Some(id), ShimErrorCode::CommandLost));
    assert!(!is_alive(escapee));
    assert_eq!(shim.run_shell("echo on").text(), "on\n");
    let pid = shim.process.id();
    wait_until("everything is reaped", || children(pid).is_empty());
}

#[test]
fn a_supervisor_killed_after_its_command_takes_the_leftovers_with_it() {
    let mut shim = ShimUnderTest::start();
    let dir = tempfile::tempdir().unwrap();
    let line = format!(
        "setsid sh -c 'echo $$ > pid; {FOR_EVER}' & while ! [ -s pid ]; do sleep 0.01; done"
    );
    shim.run(in_dir(dir.path(), &line));
    let leftover = pid_from(&dir.path().join("pid"));
    let (supervisor, _) = children(shim.process.id())[0];
    let supervisor = rustix::process::Pid::from_raw(supervisor).unwrap();
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();

    let pid = shim.process.id();
    wait_until("everything is reaped", || children(pid).is_empty());
    assert!(!is_alive(leftover));
}
