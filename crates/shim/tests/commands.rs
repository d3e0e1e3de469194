//! Commands as the host sees them: output, input, environment, how they end. Real processes.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::os::unix::fs::MetadataExt;

use codeagent_control::{
    Cause, CommandLine, Exec, ExitStatus, HostMessage, STDIN_WINDOW_BYTES, ShimErrorCode,
    ShimMessage, Stdin, User,
};
use common::{ShimUnderTest, id_of, is_root};

fn argv(words: &[&str]) -> Exec {
    Exec::new(CommandLine::Argv(words.iter().map(|word| (*word).into()).collect()))
}

fn with_stdin(line: &str) -> Exec {
    Exec { stdin: Stdin::Stream, ..Exec::shell(line) }
}

/// SH-01
#[test]
fn a_command_starts_prints_and_ends() {
    let mut shim = ShimUnderTest::start();
    let run = shim.run_shell("echo hello");
    assert_eq!((run.text().as_str(), run.status), ("hello\n", ExitStatus::ExitCode(0)));
    assert_eq!(run.cause, Cause::Exited);
}

/// SH-01
#[test]
fn arguments_reach_the_program_as_they_are() {
    let mut shim = ShimUnderTest::start();
    let mut exec = argv(&["printf", "%s|", "a b", "$HOME", "*"]);
    if let CommandLine::Argv(words) = &mut exec.command {
        words.push(b"\xff\n".as_slice().into());
    }
    assert_eq!(shim.run(exec).stdout, b"a b|$HOME|*|\xff\n|");
}

/// SH-02
#[test]
fn exit_codes_are_exact() {
    let mut shim = ShimUnderTest::start();
    for code in [1, 42, 127, 137, 255] {
        let run = shim.run_shell(&format!("exit {code}"));
        assert_eq!(run.status, ExitStatus::ExitCode(code));
    }
}

/// SH-02
#[test]
fn a_signal_is_not_an_exit_code() {
    let mut shim = ShimUnderTest::start();
    assert_eq!(shim.run_shell("kill -SEGV $$").status, ExitStatus::Signal(11));
    assert_eq!(shim.run_shell("kill -KILL $$").status, ExitStatus::Signal(9));
}

/// SH-02
#[test]
fn a_program_that_does_not_exist_is_an_error_and_the_shim_goes_on() {
    let mut shim = ShimUnderTest::start();
    let id = shim.exec(argv(&["/no/such/program"]));
    let (failed, code, message) = shim.error();
    assert_eq!((failed, code), (Some(id), ShimErrorCode::SpawnFailed));
    assert!(message.contains("/no/such/program"), "{message}");
    assert_eq!(shim.run_shell("echo on").text(), "on\n");
}

/// SH-03
#[test]
fn stdout_and_stderr_are_two_streams() {
    let mut shim = ShimUnderTest::start();
    let run = shim.run_shell("echo out; echo err >&2; echo out again");
    assert_eq!((run.stdout, run.stderr), (b"out\nout again\n".to_vec(), b"err\n".to_vec()));
}

/// SH-03
#[test]
fn every_byte_arrives_and_in_order() {
    let mut shim = ShimUnderTest::start();
    let script = "i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %03o $i)\"; i=$((i+1)); done";
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(shim.run_shell(script).stdout, all);

    let counted = shim.run_shell("seq 1 200000").text();
    let expected: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    assert!(counted == expected, "{} bytes of {}", counted.len(), expected.len());
}

/// SH-03
#[test]
fn output_without_a_newline_at_the_end_arrives() {
    let mut shim = ShimUnderTest::start();
    assert_eq!(shim.run_shell("printf 'no newline'").stdout, b"no newline");
}

/// SH-04
#[test]
fn environment_and_directory_are_as_asked() {
    let mut shim = ShimUnderTest::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let exec = Exec {
        env: [("GREETING".to_owned(), b"h\xe9llo".as_slice().into())].into(),
        cwd: Some(path.to_str().unwrap().into()),
        ..Exec::shell("printf '%s ' \"$GREETING\"; pwd")
    };
    let mut expected = b"h\xe9llo ".to_vec();
    expected.extend_from_slice(format!("{}\n", path.display()).as_bytes());
    assert_eq!(shim.run(exec).stdout, expected);
}

/// SH-04
#[test]
fn a_cleared_environment_holds_nothing_but_what_was_given() {
    let mut shim = ShimUnderTest::start();
    let env = [("ONLY".to_owned(), "this".into())].into();
    let exec = Exec { clear_env: true, env, ..argv(&["/usr/bin/env"]) };
    assert_eq!(shim.run(exec).text(), "ONLY=this\n");
}

/// SH-04
#[test]
fn a_missing_directory_is_a_clear_error() {
    let mut shim = ShimUnderTest::start();
    shim.exec(Exec { cwd: Some("/no/such/dir".into()), ..Exec::shell("true") });
    let (_, code, message) = shim.error();
    assert_eq!(code, ShimErrorCode::SpawnFailed);
    assert!(message.contains("there is no directory `/no/such/dir`"), "{message}");
}

/// SH-04
#[test]
fn a_command_runs_as_the_user_it_was_given() {
    if !is_root() {
        println!("skipped: only root can become somebody else");
        return;
    }
    let mut shim = ShimUnderTest::start();
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .unwrap();
    let exec = Exec {
        user: Some(User { uid: 12345, gid: 23456 }),
        cwd: Some(dir.path().to_str().unwrap().into()),
        ..Exec::shell("id -u; id -g; id -G; touch mine; cat /etc/shadow 2>/dev/null | wc -c")
    };
    assert_eq!(shim.run(exec).text(), "12345\n23456\n23456\n0\n");
    let file = dir.path().join("mine").metadata().unwrap();
    assert_eq!((file.uid(), file.gid()), (12345, 23456));
}

/// SH-05
#[test]
fn input_streams_to_the_command_until_its_end() {
    let mut shim = ShimUnderTest::start();
    let id = shim.begin(with_stdin("read line; echo \"got $line\"; cat"));
    shim.send(HostMessage::Stdin { id, data: "first\n".into(), eof: false });
    assert_eq!(shim.output_until(id, "\n"), "got first\n");
    shim.send(HostMessage::Stdin { id, data: b"\x00\xff rest".as_slice().into(), eof: true });
    let run = shim.finish(id);
    assert_eq!(
        (run.stdout.as_slice(), run.status),
        (&b"\x00\xff rest"[..], ExitStatus::ExitCode(0))
    );
}

/// SH-05
#[test]
fn without_input_a_command_sees_the_end_at_once() {
    let mut shim = ShimUnderTest::start();
    assert_eq!(shim.run_shell("cat; echo done").text(), "done\n");
}

/// SH-05
#[test]
fn input_nobody_reads_is_bounded_and_does_not_hold_up_others() {
    let mut shim = ShimUnderTest::start();
    let id = shim.begin(with_stdin("while :; do sleep 1; done"));
    let half = vec![b'x'; STDIN_WINDOW_BYTES / 2];
    for _ in 0..4 {
        shim.send(HostMessage::Stdin { id, data: half.clone().into(), eof: false });
    }
    let (about, code, _) = shim.error();
    assert_eq!((about, code), (Some(id), ShimErrorCode::StdinOverflow));
    assert_eq!(shim.run_shell("echo quick").text(), "quick\n");
}

/// SH-05
#[test]
fn the_host_learns_how_much_input_was_taken() {
    let mut shim = ShimUnderTest::start();
    let id = shim.begin(with_stdin("cat > /dev/null"));
    let total = 3 * STDIN_WINDOW_BYTES;
    let (mut sent, mut accepted) = (0, 0);
    while accepted < total {
        while sent < total && sent - accepted < STDIN_WINDOW_BYTES {
            shim.send(HostMessage::Stdin { id, data: vec![b'x'; 32 * 1024].into(), eof: false });
            sent += 32 * 1024;
        }
        match shim.receive_where(|message| id_of(message) == Some(id)) {
            ShimMessage::StdinAccepted { bytes, .. } => accepted += bytes,
            other => panic!("unexpected: {other:?}"),
        }
    }
    shim.send(HostMessage::Stdin { id, data: "".into(), eof: true });
    assert_eq!(shim.finish(id).status, ExitStatus::ExitCode(0));
}

/// SH-05
#[test]
fn input_for_a_command_that_does_not_want_it_is_dropped() {
    let mut shim = ShimUnderTest::start();
    let id = shim.begin(with_stdin("exec <&-; echo closed; while :; do sleep 1; done"));
    shim.output_until(id, "closed\n");
    let data = vec![b'x'; STDIN_WINDOW_BYTES];
    shim.send(HostMessage::Stdin { id, data: data.into(), eof: false });
    let accepted = shim.receive_where(|message| id_of(message) == Some(id));
    assert_eq!(accepted, ShimMessage::StdinAccepted { id, bytes: STDIN_WINDOW_BYTES });
}

/// SH-07
#[test]
fn commands_run_side_by_side() {
    let mut shim = ShimUnderTest::start();
    let first = shim.begin(with_stdin("read go; echo first"));
    let second = shim.begin(with_stdin("read go; echo second"));
    let third = shim.run_shell("echo third");
    shim.send(HostMessage::Stdin { id: second, data: "\n".into(), eof: true });
    let second = shim.finish(second);
    shim.send(HostMessage::Stdin { id: first, data: "\n".into(), eof: true });
    let first = shim.finish(first);
    assert_eq!([first.text(), second.text(), third.text()], ["first\n", "second\n", "third\n"]);
}

/// SH-07
#[test]
fn an_id_that_is_in_use_is_refused() {
    let mut shim = ShimUnderTest::start();
    let id = shim.begin(with_stdin("cat"));
    shim.send(HostMessage::Exec(Exec { id, ..Exec::shell("echo intruder") }));
    let (about, code, _) = shim.error();
    assert_eq!((about, code), (Some(id), ShimErrorCode::DuplicateCommand));
    shim.send(HostMessage::Stdin { id, data: "mine".into(), eof: true });
    assert_eq!(shim.finish(id).text(), "mine");
}
