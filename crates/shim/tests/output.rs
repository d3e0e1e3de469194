//! When output is sent, and that it never piles up. Real processes.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use codeagent_control::{Exec, ExitStatus, HostMessage, ShimMessage, Stdin};
use common::{ShimUnderTest, id_of, wait_until};

const FLUSH_BYTES: usize = 4096;

/// SH-08
#[test]
fn much_output_is_sent_in_pieces_of_four_kibibytes() {
    let mut shim = ShimUnderTest::start();
    let run = shim.run_shell("head -c 1000000 /dev/zero");
    assert_eq!(run.stdout.len(), 1_000_000);
    let full = run.pieces.iter().filter(|piece| **piece == FLUSH_BYTES).count();
    assert!(run.pieces.iter().all(|piece| *piece <= FLUSH_BYTES), "{:?}", run.pieces);
    assert!(full * FLUSH_BYTES > 900_000, "only {full} full pieces of {}", run.pieces.len());
}

/// SH-08
#[test]
fn little_output_is_sent_although_the_command_goes_on() {
    let mut shim = ShimUnderTest::start();
    let exec = Exec { stdin: Stdin::Stream, ..Exec::shell("printf waiting; read line") };
    let id = shim.begin(exec);
    assert_eq!(shim.output_until(id, "waiting"), "waiting");
    shim.send(HostMessage::Stdin { id, data: "\n".into(), eof: true });
    assert_eq!(shim.finish(id).status, ExitStatus::ExitCode(0));
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

fn read_bytes(pid: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// SH-08
#[test]
fn a_host_that_does_not_read_stops_the_command_and_costs_no_memory() {
    let mut shim = ShimUnderTest::start();
    let pid = shim.process.id();
    let before = resident_kib(pid);
    let id = shim.begin(Exec { grace_ms: 0, ..Exec::shell("cat /dev/zero") });

    // Nobody reads the channel: at some point the shim reads no more from the command.
    let (mut last, mut unchanged) = (0, 0);
    wait_until("the shim stops reading", || {
        let now = read_bytes(pid);
        unchanged = if now == last { unchanged + 1 } else { 0 };
        last = now;
        unchanged > 50
    });
    let grown = resident_kib(pid).saturating_sub(before);
    assert!(grown < 8 * 1024, "{grown} KiB more in memory");

    // A cancel gets through all the same.
    shim.send(HostMessage::Cancel { id });
    assert_eq!(shim.finish(id).status, ExitStatus::Signal(15));
}

/// SH-08
#[test]
fn large_output_passes_through_without_filling_memory() {
    let mut shim = ShimUnderTest::start();
    let pid = shim.process.id();
    let id = shim.begin(Exec::shell("head -c 32000000 /dev/zero"));
    let (mut received, mut peak) = (0, 0);
    let status = loop {
        match shim.receive_where(|message| id_of(message) == Some(id)) {
            ShimMessage::Output { data, .. } => received += data.len(),
            ShimMessage::StepCompleted { status, .. } => break status,
            other => panic!("unexpected: {other:?}"),
        }
        if received % (4 << 20) < FLUSH_BYTES {
            peak = peak.max(resident_kib(pid));
        }
    };
    assert_eq!((received, status), (32_000_000, ExitStatus::ExitCode(0)));
    assert!(peak < 16 * 1024, "{peak} KiB in memory");
}

/// SH-08
#[test]
fn a_noisy_command_does_not_starve_another() {
    let mut shim = ShimUnderTest::start();
    let noisy = shim.begin(Exec { grace_ms: 0, ..Exec::shell("cat /dev/zero") });
    let quiet = shim.exec(Exec::shell("echo heard"));
    let mut heard = Vec::new();
    loop {
        match shim.receive_where(|message| id_of(message).is_some()) {
            ShimMessage::Output { id, data, .. } if id == quiet => {
                heard.extend_from_slice(data.as_bytes());
            }
            ShimMessage::StepCompleted { id, .. } if id == quiet => break,
            _ => {}
        }
    }
    assert_eq!(heard, b"heard\n");
    shim.send(HostMessage::Cancel { id: noisy });
    loop {
        let message = shim.receive_where(|message| id_of(message) == Some(noisy));
        if matches!(message, ShimMessage::StepCompleted { .. }) {
            break;
        }
    }
}
