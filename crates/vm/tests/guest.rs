//! One real guest and everything that its shim does over the serial port. The tests share it, one
//! after the other: each boot takes seconds.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use codeagent_control::{
    Cause, Exec, ExitStatus, HostMessage, PtySize, ShimErrorCode, ShimMessage,
};
use codeagent_vm::{Accelerator, Ending, GuestImage, Qemu};
use common::{PATIENCE, Talk, config, image, start};

/// `cargo xtask build-guest --architecture aarch64` builds what it needs, where there is a compiler
/// for it.
#[test]
fn a_guest_with_another_processor_is_emulated() {
    let test = "a_guest_with_another_processor_is_emulated";
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guest/minimal-aarch64");
    let image = GuestImage::open(dir);
    let image = image.and_then(|image| Qemu::find(None, image.architecture()).map(|_| image));
    let image = match image {
        Ok(image) => image,
        Err(error) => return codeagent_test_support::filesystems::skip(test, &error.to_string()),
    };
    let machine = start(config(image));
    assert_eq!(machine.accelerator(), Accelerator::Tcg);
    let mut talk = Talk::with(&machine);
    assert_eq!(talk.output("uname -m"), "aarch64\n");
    assert_eq!(machine.shutdown(PATIENCE), Ending::Clean);
}

/// CC-08, SH-01: a guest boots, its shim says hello in our version, and commands run in it: as the
/// user, with an exit code, with a terminal, with cancel. At the end it switches itself off.
#[test]
fn commands_run_in_a_guest() {
    let Some(image) = image("commands_run_in_a_guest") else { return };
    let mut config = config(image);
    config.hostname = "burrow".into();
    config.time_zone = Some("Europe/Berlin".into());
    let started = Instant::now();
    let machine = start(config);
    println!("ready after {:?} with {}", started.elapsed(), machine.accelerator());
    let mut talk = Talk::with(&machine);
    talk.output("true");
    println!("first command after {:?}", started.elapsed());

    the_exit_code_comes_back(&mut talk);
    commands_are_the_users(&mut talk);
    the_control_port_is_closed_to_commands(&mut talk);
    there_is_no_network(&mut talk);
    a_terminal_works(&mut talk);
    output_comes_while_the_command_runs(&mut talk);
    a_cancel_takes_the_whole_tree(&mut talk);
    much_output_is_exact(&mut talk);
    a_rollback_is_announced(&mut talk);
    an_id_is_used_once(&mut talk);
    the_clock_stands_still_while_paused(&machine, &mut talk);

    let death = machine.death();
    assert_eq!(machine.shutdown(PATIENCE), Ending::Clean);
    let death = death.wait().to_string();
    assert!(death.contains("switched itself off"), "{death}");
}

fn the_exit_code_comes_back(talk: &mut Talk) {
    let run = talk.shell("echo out; echo err >&2; exit 7");
    assert_eq!(run.status, ExitStatus::ExitCode(7));
    assert!(run.output.contains("out\n") && run.output.contains("err\n"), "{run:?}");
}

fn commands_are_the_users(talk: &mut Talk) {
    assert_eq!(
        talk.output("id -u; id -g; id -un; echo $HOME; pwd; hostname; echo $TZ"),
        "1234\n2345\nagent\n/home/agent\n/home/agent\nburrow\nEurope/Berlin\n"
    );
    assert_eq!(talk.output("touch ~/mine && stat -c %u ~/mine"), "1234\n");
    assert_ne!(talk.shell("touch /etc/theirs").status, ExitStatus::ExitCode(0));
    let root =
        Exec { user: Some(codeagent_control::User { uid: 0, gid: 0 }), ..Exec::shell("id -u") };
    assert_eq!(talk.run(root).output, "0\n");
}

fn the_control_port_is_closed_to_commands(talk: &mut Talk) {
    let run = talk.shell("for port in /dev/vport*; do : < $port && echo open; done");
    assert!(!run.output.contains("open\n"), "{run:?}");
    let forge = talk.shell("echo '{\"type\":\"pong\",\"token\":666}' > /dev/vport1p1");
    assert_ne!(forge.status, ExitStatus::ExitCode(0));
    // Nor is a descriptor of it inherited.
    assert_eq!(talk.output("ls -l /proc/self/fd 2> /dev/null | grep -c vport || true"), "0\n");
}

fn there_is_no_network(talk: &mut Talk) {
    assert_eq!(talk.output("ls /sys/class/net"), "lo\n");
    talk.output("ip link show lo | grep -q LOOPBACK,UP");
}

fn a_terminal_works(talk: &mut Talk) {
    let size = PtySize { rows: 20, columns: 60 };
    let id = talk.begin(Exec {
        pty: Some(size),
        ..Exec::shell("stty size; read line; echo \"<$line>\"; stty size")
    });
    talk.output_until(id, "20 60");
    talk.send(&HostMessage::Resize { id, size: PtySize { rows: 30, columns: 90 } });
    talk.send(&HostMessage::Stdin { id, data: "hello\n".into(), eof: false });
    let run = talk.finish(id);
    assert!(run.output.contains("<hello>") && run.output.contains("30 90"), "{run:?}");
    let exec = Exec { pty: Some(size), ..Exec::shell("test -t 0 && test -t 1 && echo terminal") };
    assert!(talk.run(exec).output.contains("terminal"));
}

/// What a command writes is on its way after 50 ms, and not only when it has ended. A busy machine
/// that emulates the guest adds to that.
fn output_comes_while_the_command_runs(talk: &mut Talk) {
    let id = talk.begin(Exec {
        stdin: codeagent_control::Stdin::Stream,
        ..Exec::shell("echo first; read line; echo $line")
    });
    talk.output_until(id, "first");
    let asked = Instant::now();
    talk.send(&HostMessage::Stdin { id, data: "second\n".into(), eof: true });
    talk.output_until(id, "second");
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    talk.finish(id);
}

fn a_cancel_takes_the_whole_tree(talk: &mut Talk) {
    let script = "trap '' TERM; setsid sleep 1000 & (setsid sh -c 'trap \"\" TERM; while :; do sleep 999; done' &) ; echo begun; while :; do sleep 998; done";
    let id = talk.begin(Exec { grace_ms: 200, ..Exec::shell(script) });
    talk.output_until(id, "begun");
    talk.send(&HostMessage::Cancel { id });
    let run = talk.finish(id);
    assert_eq!(run.cause, Cause::Cancelled);
    assert_eq!(talk.output("ps | grep -c '[s]leep 99\\|[s]leep 1000' || true"), "0\n");
}

fn much_output_is_exact(talk: &mut Talk) {
    let text = talk.output("i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done");
    let expected: String = (0..20_000).map(|i| format!("{i}\n")).collect();
    assert_eq!(text.len(), expected.len());
    assert!(text == expected);
}

fn a_rollback_is_announced(talk: &mut Talk) {
    let step_id = codeagent_common::StepId(42);
    talk.send(&HostMessage::RollbackNotify { step_id });
    talk.receive_where(|message| *message == ShimMessage::RollbackNoted { step_id });
    assert!(talk.output("cat $CODEAGENT_ROLLBACK_FILE").contains("42"));
}

fn an_id_is_used_once(talk: &mut Talk) {
    let id = talk.begin(Exec::shell("sleep 1000"));
    let again = Exec { id, ..Exec::shell("true") };
    talk.send(&HostMessage::Exec(again));
    let refusal = talk.receive_where(|message| matches!(message, ShimMessage::Error { .. }));
    assert!(matches!(refusal, ShimMessage::Error { code: ShimErrorCode::DuplicateCommand, .. }));
    talk.send(&HostMessage::Cancel { id });
    talk.finish(id);
}

/// SG-08, as far as the machine goes: nothing in the guest runs while it is paused.
fn the_clock_stands_still_while_paused(machine: &codeagent_vm::Machine, talk: &mut Talk) {
    machine.pause().unwrap();
    assert!(machine.is_paused().unwrap());
    talk.send(&HostMessage::Ping { token: 9 });
    talk.channel.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut byte = [0];
    let silence = std::io::Read::read(&mut &talk.channel, &mut byte).unwrap_err();
    assert_eq!(silence.kind(), std::io::ErrorKind::WouldBlock);
    machine.resume().unwrap();
    talk.receive_where(|message| *message == ShimMessage::Pong { token: 9 });
}
