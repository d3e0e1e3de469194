//! Commands in sandboxes: what they see, how they end, and that each is a step.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use codeagent_control::{Cause, Exec, Leftovers, Order, Outcome, PtySize, Stdin};
use codeagent_interceptor::{ClosedStep, OnConflict};
use codeagent_namespace::{Keep, View};
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use common::{Session, as_ordinary_user_with_fuse, eventually, processes_that_name, sh, shell};

#[test]
fn a_command_that_destroys_everything_is_one_step_and_comes_back() {
    destroy_everything();
}

#[test]
fn for_an_ordinary_user_too() {
    as_ordinary_user_with_fuse("for_an_ordinary_user_too", destroy_everything);
}

fn destroy_everything() {
    for view in [View::Transactional, View::Live] {
        let session = Session::new(|dir| sh("mkdir a; echo x > a/x; echo y > y", dir)).seen(view);
        let before = session.snapshot();
        let ran = session.run("rm -rf ./* && echo gone && echo said >&2; exit 7");
        assert_eq!((ran.code(), &*ran.stdout, &*ran.stderr), (Some(7), "gone\n", "said\n"));
        let ClosedStep::Recorded { step, .. } = &ran.step().closed else { panic!("{ran:?}") };
        assert_eq!(step.exit_code, Some(7));
        assert_eq!(std::fs::read_dir(session.workspace.working()).unwrap().count(), 0);
        session.worker().undo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&before, &session.snapshot());
        session.worker().redo(1, OnConflict::Refuse).unwrap();
        assert_eq!(std::fs::read_dir(session.workspace.working()).unwrap().count(), 0);
        session.worker().undo(1, OnConflict::Refuse).unwrap();
        let ran = session.run("echo again > y; cat a/x");
        assert_eq!((ran.code(), &*ran.stdout), (Some(0), "x\n"));
    }
}

#[test]
fn in_the_live_view_everybody_sees_changes_at_once() {
    let session = Session::new(|dir| sh("echo old > file", dir)).seen(View::Live);
    let (orders, taken) = channel();
    let file = session.workspace.path("file");
    std::thread::scope(|scope| {
        let running = scope.spawn(|| session.run_with(shell("echo new > file; sleep 100"), taken));
        eventually("the change", || std::fs::read_to_string(&file).unwrap() == "new\n");
        orders.send(Order::Cancel).unwrap();
        running.join().unwrap().unwrap();
    });
    session.worker().undo(1, OnConflict::Refuse).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "old\n");
}

#[test]
fn nothing_reaches_the_folder_before_the_command_has_ended() {
    let session = Session::new(|dir| sh("echo old > file", dir));
    let (orders, taken) = channel();
    let file = session.workspace.path("file");
    let working = session.workspace.working().to_owned();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            session.run_with(shell("echo new > file; echo more > other; sleep 100"), taken)
        });
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "old\n");
        assert!(!working.join("other").exists());
        orders.send(Order::Cancel).unwrap();
        let ran = running.join().unwrap().unwrap();
        let Outcome::Completed { cause, .. } = ran.finished.outcome else { panic!("{ran:?}") };
        assert_eq!(cause, Cause::Cancelled);
    });
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "new\n");
}

#[test]
fn input_terminals_and_signals_work() {
    let session = Session::new(|_| {});
    let mut exec = shell("cat; echo end");
    exec.stdin = Stdin::Stream;
    let (orders, taken) = channel();
    orders.send(Order::Input { data: b"first ".to_vec(), eof: false }).unwrap();
    orders.send(Order::Input { data: b"last\n".to_vec(), eof: true }).unwrap();
    let ran = session.run_with(exec, taken).unwrap();
    assert_eq!(ran.stdout, "first last\nend\n");

    let mut exec =
        shell("test -t 0 && test -t 1 && stty size; tty; ps -o comm= -p $PPID >/dev/null");
    exec.pty = Some(PtySize { rows: 33, columns: 77 });
    let ran = session.try_run(exec).unwrap();
    assert!(ran.stdout.starts_with("33 77\r\n/dev/pts/"), "{ran:?}");

    let (orders, taken) = channel();
    let exec = shell("trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.1; done");
    let ran = session.run_watched(exec, taken, |said| {
        if said == b"ready\n" {
            orders.send(Order::Signal(10)).unwrap();
        }
    });
    let ran = ran.unwrap();
    assert_eq!((ran.code(), &*ran.stdout), (Some(3), "ready\ncaught\n"));
}

#[test]
fn what_a_command_leaves_running_ends_with_it() {
    leave_something_running();
}

#[test]
fn what_that_of_an_ordinary_user_leaves_running_ends_with_it() {
    let test = "what_that_of_an_ordinary_user_leaves_running_ends_with_it";
    as_ordinary_user_with_fuse(test, leave_something_running);
}

/// It has lived when the command ends: it has written that it does, and the command has waited for it.
fn leave_something_running() {
    for view in [View::Transactional, View::Live] {
        let session = Session::new(|_| {}).seen(view);
        let marker = format!("codeagent-daemon-{}", std::process::id());
        let script = format!(
            "setsid sh -c 'echo $$ > daemon; sleep 1000; : {marker}' >/dev/null 2>&1 &
             sh -c 'trap \"\" TERM; echo $$ > deaf; sleep 1000; : {marker}' >/dev/null 2>&1 &
             until test -s daemon && test -s deaf; do sleep 0.01; done
             kill -0 $(cat daemon deaf) && echo alive"
        );
        for leftovers in [Leftovers::Keep, Leftovers::Kill] {
            let started = Instant::now();
            let ran = session.try_run(Exec { leftovers, grace_ms: 300, ..shell(&script) }).unwrap();
            assert_eq!((ran.code(), &*ran.stdout), (Some(0), "alive\n"), "{ran:?}");
            assert!(started.elapsed() < Duration::from_secs(10));
            assert_eq!(processes_that_name(&marker), Vec::<u32>::new(), "{view:?} {leftovers:?}");
            // What they wrote is part of the step, as it is of any other process.
            assert!(session.workspace.path("daemon").exists());
            session.worker().undo(1, OnConflict::Refuse).unwrap();
            assert!(!session.workspace.path("daemon").exists());
        }
    }
}

#[test]
fn time_is_up_for_a_command_that_ignores_it() {
    let session = Session::new(|_| {});
    let mut exec = shell("trap '' TERM INT; while :; do sleep 1; done");
    (exec.timeout_ms, exec.grace_ms) = (Some(300), 200);
    let ran = session.try_run(exec).unwrap();
    let Outcome::Completed { cause, .. } = ran.finished.outcome else { panic!("{ran:?}") };
    assert_eq!(cause, Cause::TimedOut);
}

#[test]
fn home_and_tmp_are_its_own_and_stay_or_go() {
    for keep in [Keep::Persistent, Keep::Ephemeral] {
        let session = Session::with(TempWorkspace::new(), |policy| policy.keep = keep);
        let ran = session.run("echo mine > ~/file; echo mine > /tmp/file; ls -A ~ /tmp | wc -l");
        assert_eq!(ran.code(), Some(0), "{ran:?}");
        let ran = session.run("cat ~/file /tmp/file");
        assert_eq!(ran.stdout, "mine\nmine\n", "the next command finds them");
        let home = std::env::home_dir().unwrap();
        assert!(!home.join("file").exists());
        let state = session.state.path().join("state");
        drop(session.executor);
        let left = std::fs::read_dir(&state).unwrap().flatten().count();
        assert_eq!(left, usize::from(keep == Keep::Persistent), "{keep:?}");
    }
}

/// Files have other numbers in each live view, and git asks for those.
#[test]
fn git_knows_the_files_of_a_folder_again_in_either_view() {
    for view in [View::Transactional, View::Live] {
        let session = Session::new(|dir| {
            let commit = "git -c user.name=x -c user.email=x@localhost commit -qm x";
            sh(&format!("git init -q; echo 1 > a; echo 1 > b; git add .; {commit}"), dir);
            // What is as old as the index is read in any case.
            sh("touch -d '1 hour ago' a b; git status", dir);
        })
        .seen(view);
        let ran =
            session.run("git diff-files --name-only; echo 22 > b; git diff-files --name-only");
        assert_eq!(ran.stdout, "b\n", "{view:?} {ran:?}");
    }
}
