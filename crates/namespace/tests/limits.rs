//! What a command takes too much of: processes, memory, room in files. It meets its limit, it ends,
//! and nothing of it is left.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::sync::mpsc::channel;

use codeagent_control::{Cause, Exec, Leftovers, Order, Outcome};
use codeagent_namespace::{Limits, View};
use codeagent_test_support::TempWorkspace;
use codeagent_test_support::filesystems::skip;
use common::{Ran, Session, as_ordinary_user_with_fuse, eventually, processes_that_name, shell};

const VIEWS: [View; 3] = [View::Transactional, View::Live, View::ReadOnly];

/// More than the least that the kernel takes for a namespace of processes.
const PROCESSES: u64 = 400;

fn with_limits(change: impl FnOnce(&mut Limits)) -> Session {
    Session::with(TempWorkspace::new(), |policy| change(&mut policy.limits))
}

/// What the command lines of processes have in them that must not be left.
fn marker(test: &str) -> String {
    format!("codeagent-bomb-{}-{test}.", std::process::id())
}

/// Starts processes that wait, as many as it gets, and says how many those were.
fn start_many(session: &Session, marker: &str) -> Ran {
    let script = format!(
        "python3 -c '
import errno, os, signal
started = 0
while started < 3000:
    try: child = os.fork()
    except OSError as error:
        print(started, errno.errorcode[error.errno])
        break
    if child == 0: signal.pause()
    started += 1
else: print(started, \"unlimited\")
' {marker}"
    );
    let exec = Exec { leftovers: Leftovers::Keep, ..shell(&script) };
    session.try_run(exec).unwrap()
}

#[test]
fn a_command_gets_as_many_processes_as_it_may_have_and_no_more() {
    count_processes("a_command_gets_as_many_processes_as_it_may_have_and_no_more");
}

#[test]
fn a_command_of_an_ordinary_user_gets_no_more_either() {
    let test = "a_command_of_an_ordinary_user_gets_no_more_either";
    as_ordinary_user_with_fuse(test, || count_processes(test));
}

fn count_processes(test: &str) {
    for view in VIEWS {
        let session = with_limits(|limits| limits.processes = Some(PROCESSES)).seen(view);
        if !limits_processes(&session) {
            return skip(
                test,
                "this kernel limits processes of root with cgroups only, and there are none",
            );
        }
        let marker = marker(test);
        let ran = start_many(&session, &marker);
        let (started, why) = ran.stdout.trim().split_once(' ').unwrap();
        let started: u64 = started.parse().unwrap();
        // Others of the sandbox count, too; and of numbers, the lowest are given only once.
        assert!((PROCESSES / 2..PROCESSES).contains(&started), "{view:?}: {ran:?}");
        assert_eq!(why, "EAGAIN", "{view:?}: {ran:?}");
        assert_eq!(ran.code(), Some(0), "{view:?}: {ran:?}");
        assert_eq!(processes_that_name(&marker), Vec::<u32>::new(), "{view:?}");
        assert_eq!(session.run("echo still works").stdout, "still works\n", "{view:?}");
    }
}

/// Root is bound by a cgroup, or by the numbers that processes of the namespace may have.
fn limits_processes(session: &Session) -> bool {
    let ran = session.run("cat /proc/sys/kernel/pid_max");
    let highest: u64 = ran.stdout.trim().parse().unwrap();
    let is_root = rustix::process::geteuid().is_root();
    !is_root || ran.finished.limits_are_shared || highest <= PROCESSES
}

/// It is the host's, too, before Linux 6.14, and root may write to that.
#[test]
fn the_host_gives_its_processes_the_numbers_it_gave_them_before() {
    let of_host = || std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
    let before = of_host();
    for view in VIEWS {
        let session = with_limits(|limits| limits.processes = Some(PROCESSES)).seen(view);
        let (_orders, taken) = channel();
        let mut during = None;
        let ran = session.run_watched(shell("echo alive; sleep 0.1"), taken, |_| {
            during.get_or_insert_with(of_host);
        });
        assert_eq!(ran.unwrap().code(), Some(0), "{view:?}");
        assert_eq!(during.as_ref(), Some(&before), "{view:?}");
        assert_eq!(of_host(), before, "{view:?}");
    }
}

#[test]
fn a_fork_bomb_meets_its_limit_and_ends_when_it_is_cancelled() {
    set_off_a_bomb("a_fork_bomb_meets_its_limit_and_ends_when_it_is_cancelled");
}

#[test]
fn nor_is_anything_of_that_of_an_ordinary_user() {
    let test = "nor_is_anything_of_that_of_an_ordinary_user";
    as_ordinary_user_with_fuse(test, || set_off_a_bomb(test));
}

fn set_off_a_bomb(test: &str) {
    for view in VIEWS {
        let session = with_limits(|limits| limits.processes = Some(PROCESSES)).seen(view);
        if !limits_processes(&session) {
            return skip(
                test,
                "this kernel limits processes of root with cgroups only, and there are none",
            );
        }
        // Each goes on until it is refused; then it waits, as tests run beside this one.
        let marker = marker(test);
        let script = format!(
            "python3 -c '
import os, signal
while True:
    try: os.fork()
    except OSError: signal.pause()
' {marker}"
        );
        let exec = Exec { timeout_ms: Some(30_000), grace_ms: 200, ..shell(&script) };
        let (orders, taken) = channel();
        let mut most = 0;
        let ran = std::thread::scope(|scope| {
            let running = scope.spawn(|| session.run_with(exec, taken).unwrap());
            eventually("a bomb", || {
                most = most.max(processes_that_name(&marker).len());
                most as u64 > PROCESSES / 2
            });
            for _ in 0..5 {
                most = most.max(processes_that_name(&marker).len());
            }
            orders.send(Order::Cancel).unwrap();
            running.join().unwrap()
        });
        assert!(most as u64 <= PROCESSES, "{view:?}: {most}");
        let Outcome::Completed { cause, .. } = ran.finished.outcome else { panic!("{ran:?}") };
        assert_eq!(cause, Cause::Cancelled, "{view:?}");
        assert_eq!(processes_that_name(&marker), Vec::<u32>::new(), "{view:?}");
        assert_eq!(session.run("echo still works").stdout, "still works\n", "{view:?}");
    }
}

#[test]
fn a_process_that_wants_too_much_memory_does_not_get_it() {
    want_memory();
}

#[test]
fn nor_does_one_of_an_ordinary_user() {
    as_ordinary_user_with_fuse("nor_does_one_of_an_ordinary_user", want_memory);
}

fn want_memory() {
    for view in VIEWS {
        let session = with_limits(|limits| limits.memory_bytes = Some(256 << 20)).seen(view);
        let take = |bytes: u64| {
            session.run(&format!("python3 -c 'x = bytearray({bytes}); print(len(x))'"))
        };
        let within = take(64 << 20);
        assert_eq!(within.stdout, format!("{}\n", 64 << 20), "{view:?}: {within:?}");
        let beyond = take(1 << 30);
        assert_eq!(beyond.stdout, "", "{view:?}: {beyond:?}");
        // It is refused, or killed where a cgroup counts.
        let is_refused = beyond.code() == Some(1) && beyond.stderr.contains("MemoryError");
        let is_killed = beyond.code() == Some(137) && beyond.finished.limits_are_shared;
        assert!(is_refused || is_killed, "{view:?}: {beyond:?}");
    }
}

/// As files of the folder, but held in memory.
#[test]
fn what_is_shared_between_processes_is_limited_like_memory() {
    let session = with_limits(|limits| limits.memory_bytes = Some(64 << 20));
    let ran = session.run("head -c 200M /dev/zero > /dev/shm/big; stat -c %s /dev/shm/big");
    let size: u64 = ran.stdout.trim().parse().unwrap();
    assert!((32 << 20..=64 << 20).contains(&size), "{ran:?}");
    assert!(ran.stderr.contains("No space left on device"), "{ran:?}");
}

#[test]
fn a_file_grows_to_its_limit_and_no_further() {
    for view in [View::Transactional, View::Live] {
        let session = with_limits(|limits| limits.file_bytes = Some(1 << 20)).seen(view);
        let ran = session.run("head -c 2M /dev/zero > big; echo $?");
        // Killed by SIGXFSZ.
        assert_eq!(ran.stdout, "153\n", "{view:?}: {ran:?}");
        let size = session.workspace.path("big").metadata().unwrap().len();
        assert_eq!(size, 1 << 20, "{view:?}");
    }
}

#[test]
fn a_process_opens_as_many_files_as_it_may() {
    let session = with_limits(|limits| limits.open_files = Some(64));
    let ran = session.run(
        "ulimit -n; python3 -c '
import errno
opened = []
try:
    while True: opened.append(open(\"/dev/null\"))
except OSError as error: print(len(opened) + 3, errno.errorcode[error.errno])'",
    );
    assert_eq!(ran.stdout, "64\n64 EMFILE\n", "{ran:?}");
}
