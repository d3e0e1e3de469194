//! What a process that died leaves behind, and what the next one makes of it. The sweep over every
//! point of every operation is in `crash.rs`; here is what a person would see.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use codeagent_common::StepId;
use codeagent_interceptor::{
    Fault, FaultInjector, Point, StepRequest, UndoEngine, UndoError, WriteInterceptor,
};
use codeagent_test_support::{Applier, TempWorkspace, TreeSnapshot, assert_tree_eq, fixtures};
use common::{Bench, assert_errno, has_file_of};
use rustix::io::Errno;

/// Fails at one kind of point for as long as it is switched on.
struct FailWhile {
    on: AtomicBool,
    point: Point,
    fault: Fault,
}

impl FaultInjector for FailWhile {
    fn reach(&self, point: Point) -> Fault {
        let fails = self.on.load(Ordering::SeqCst) && point == self.point;
        if fails { self.fault } else { Fault::None }
    }
}

fn bench_failing(point: Point, fault: Fault) -> (Bench, Arc<FailWhile>) {
    let faults = Arc::new(FailWhile { on: AtomicBool::new(false), point, fault });
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let bench = Bench::configured(workspace, |config| config.faults = Some(faults.clone()));
    (bench, faults)
}

const EIO: Fault = Fault::Errno(Errno::IO.raw_os_error());

fn wal(bench: &Bench) -> std::path::PathBuf {
    bench.workspace.undo().join("wal/in_progress")
}

fn change_a_lot(fs: &Applier<'_>) {
    fs.write("large.bin", 70_000, &[1; 100_000]).unwrap();
    fs.unlink("medium.txt").unwrap();
    fs.rename("src", "code").unwrap();
    fs.save_by_rename("small.txt", b"saved").unwrap();
    fs.create("code/new.rs", b"new").unwrap();
    fs.exchange("run.sh", "empty-directory").unwrap();
}

/// A bench that was left in the middle of its second step, with the tree as the first left it.
fn interrupted(work: impl FnOnce(&Applier<'_>)) -> (Bench, TreeSnapshot) {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.append("small.txt", b"committed\n").unwrap());
    let boundary = bench.snapshot();
    bench.engine.open_step(StepRequest::command("never finished")).unwrap();
    work(&bench.applier());
    (bench, boundary)
}

/// CR-01
#[test]
fn an_unfinished_step_is_rolled_back_at_the_next_start() {
    let (bench, boundary) = interrupted(change_a_lot);
    let bench = bench.reopened();

    assert_tree_eq(&boundary, &bench.snapshot());
    let report = bench.engine.recovery().expect("a report");
    assert_eq!((report.step, report.rolled_back), (Some(StepId(2)), true));
    assert!(report.restored > 0 && report.removed > 0, "{report:?}");
    assert_eq!((report.left.len(), report.problem.as_ref()), (0, None));
    assert_eq!(bench.engine.steps().len(), 1, "what was closed before is still there");
    assert!(!wal(&bench).exists());
    bench.undo(1);
    bench.assert_sound();
}

/// Not a test of its own: the process that `a_killed_process_…` kills.
#[test]
fn child_that_dies_in_a_step() {
    let Some(dir) = std::env::var_os("CODEAGENT_DIE_IN") else { return };
    let dir = Path::new(&dir);
    let config = codeagent_interceptor::EngineConfig::new(dir.join("working"), dir.join("undo"));
    let engine = UndoEngine::open(config).unwrap();
    engine.open_step(StepRequest::command("rm -rf .")).unwrap();
    change_a_lot(&Applier::new(&engine, &dir.join("working")));
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
        .unwrap();
}

/// CR-01
#[test]
fn a_killed_process_leaves_nothing_locked_and_nothing_half_done() {
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let before = workspace.snapshot();
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_dies_in_a_step"])
        .env("CODEAGENT_DIE_IN", workspace.working().parent().unwrap())
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    assert!(!before.diff(&workspace.snapshot()).is_empty(), "it had changed the tree");

    let bench = Bench::configured(workspace, |_| {});

    assert_tree_eq(&before, &bench.snapshot());
    assert!(bench.engine.recovery().is_some_and(|report| report.rolled_back));
    bench.step(|fs| fs.append("small.txt", b"life goes on").unwrap());
}

/// CR-02
#[test]
fn a_mutation_whose_preimage_cannot_be_stored_does_not_happen() {
    let (bench, faults) = bench_failing(Point::StoreWrite, EIO);
    let before = bench.snapshot();
    bench.engine.open_step(StepRequest::command("on a failing disk")).unwrap();
    let fs = bench.applier();
    fs.append("medium.txt", b"recorded").unwrap();
    let between = bench.snapshot();

    faults.on.store(true, Ordering::SeqCst);
    assert_errno(fs.write("large.bin", 0, b"overwrites"), Errno::IO);
    assert_errno(fs.truncate("large.bin", 0), Errno::IO);
    assert_errno(fs.create("new.txt", b""), Errno::IO);
    assert_errno(fs.mkdir("new-directory"), Errno::IO);
    assert_errno(fs.unlink("small.txt"), Errno::IO);
    assert_errno(fs.rmdir("empty-directory"), Errno::IO);
    assert_errno(fs.rename("src", "code"), Errno::IO);
    assert_errno(fs.rename("run.sh", "small.txt"), Errno::IO);
    assert_errno(fs.exchange("run.sh", "small.txt"), Errno::IO);
    assert_errno(fs.chmod("run.sh", 0), Errno::IO);
    assert_tree_eq(&between, &bench.snapshot());

    faults.on.store(false, Ordering::SeqCst);
    fs.unlink("small.txt").unwrap();
    bench.engine.close_step(Some(1)).unwrap();
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

/// CR-02
#[test]
fn a_record_that_was_written_half_is_no_record() {
    let (bench, faults) =
        bench_failing(Point::StoreWrite, Fault::ShortWrite(Errno::NOSPC.raw_os_error()));
    let before = bench.snapshot();
    bench.engine.open_step(StepRequest::command("on a full disk")).unwrap();
    let fs = bench.applier();
    fs.unlink("medium.txt").unwrap();
    faults.on.store(true, Ordering::SeqCst);
    assert_errno(fs.unlink("small.txt"), Errno::NOSPC);
    faults.on.store(false, Ordering::SeqCst);

    let bench = bench.reopened();

    assert_tree_eq(&before, &bench.snapshot());
    assert!(bench.engine.recovery().is_some_and(|report| report.rolled_back));
}

/// CR-03
#[test]
fn a_step_that_could_not_be_promoted_is_rolled_back_at_the_next_start() {
    let (bench, faults) = bench_failing(Point::Promotion, EIO);
    let before = bench.snapshot();
    bench.engine.open_step(StepRequest::command("test")).unwrap();
    change_a_lot(&bench.applier());
    faults.on.store(true, Ordering::SeqCst);
    let error = bench.engine.close_step(Some(0)).unwrap_err();
    assert!(matches!(error, UndoError::Io { .. }), "{error}");
    assert!(wal(&bench).exists());
    faults.on.store(false, Ordering::SeqCst);

    let bench = bench.reopened();

    assert_tree_eq(&before, &bench.snapshot());
    assert_eq!(bench.engine.recovery().and_then(|report| report.step), Some(StepId(1)));
    assert_eq!(bench.engine.steps(), []);
}

/// CR-03
#[test]
fn a_step_that_could_not_be_promoted_can_be_closed_again() {
    let (bench, faults) = bench_failing(Point::Promotion, EIO);
    let before = bench.snapshot();
    bench.engine.open_step(StepRequest::command("test")).unwrap();
    change_a_lot(&bench.applier());
    faults.on.store(true, Ordering::SeqCst);
    bench.engine.close_step(Some(0)).unwrap_err();
    faults.on.store(false, Ordering::SeqCst);
    bench.applier().append("large.bin", b"still in the step").unwrap();
    bench.engine.close_step(Some(0)).unwrap();
    let bench = bench.reopened();
    assert!(bench.engine.recovery().is_none());
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

/// CR-04
#[test]
fn a_torn_last_record_is_ignored_and_the_rest_rolled_back() {
    let (bench, boundary) = interrupted(change_a_lot);
    let bench = bench.reopened_after(|workspace| {
        // Died while it appended: the mutation of that record never began.
        let journal = workspace.undo().join("wal/in_progress/journal");
        let file = OpenOptions::new().append(true).open(journal).unwrap();
        std::io::Write::write_all(&mut &file, &[40, 0, 0, 0, 1, 2]).unwrap();
    });
    assert_tree_eq(&boundary, &bench.snapshot());
    assert!(bench.engine.recovery().is_some_and(|report| report.rolled_back));
}

/// CR-04
#[test]
fn a_damaged_journal_is_set_aside_and_not_replayed() {
    let (bench, _) = interrupted(change_a_lot);
    let as_it_was_left = bench.snapshot();
    let bench = bench.reopened_after(|workspace| {
        let journal = workspace.undo().join("wal/in_progress/journal");
        let file = OpenOptions::new().read(true).write(true).open(journal).unwrap();
        let middle = file.metadata().unwrap().len() / 2;
        let mut byte = [0];
        file.read_exact_at(&mut byte, middle).unwrap();
        file.write_all_at(&[byte[0] ^ 0xff], middle).unwrap();
    });

    assert_tree_eq(&as_it_was_left, &bench.snapshot());
    let report = bench.engine.recovery().expect("a report");
    assert_eq!((report.step, report.rolled_back), (Some(StepId(2)), false));
    assert!(report.problem.is_some());
    let quarantine = bench.workspace.undo().join("quarantine");
    assert!(has_file_of(&quarantine, &[b'm'; 4096]), "what was deleted is still there");
    bench.step(|fs| fs.append("empty.txt", b"and the engine works").unwrap());
}

/// CR-04: whatever became of the journal, the only copy of a file is never thrown away.
#[test]
fn a_truncated_journal_loses_no_file() {
    for kept_bytes in [0, 5, 20, 50, 100] {
        let (bench, _) = interrupted(|fs| {
            fs.chmod("run.sh", 0o700).unwrap();
            fs.unlink("medium.txt").unwrap();
        });
        let bench = bench.reopened_after(|workspace| {
            let journal = workspace.undo().join("wal/in_progress/journal");
            OpenOptions::new().write(true).open(journal).unwrap().set_len(kept_bytes).unwrap();
        });

        assert!(bench.engine.recovery().is_some(), "{kept_bytes} bytes left: no report");
        let (undo, working) = (bench.workspace.undo(), bench.workspace.working());
        let somewhere = has_file_of(working, &[b'm'; 4096])
            || has_file_of(&undo.join("quarantine"), &[b'm'; 4096]);
        assert!(somewhere, "{kept_bytes} bytes left: the deleted file is lost");
    }
}

/// CR-05
#[test]
fn a_clean_end_leaves_nothing_to_recover() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(change_a_lot);
    bench.step(|fs| fs.append("small.txt", b"more").unwrap());
    let (after, steps) = (bench.snapshot(), bench.engine.steps());
    let bench = bench.reopened();

    assert!(bench.engine.recovery().is_none());
    assert_eq!(fs::read_dir(bench.workspace.undo().join("wal")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(bench.workspace.undo().join("steps")).unwrap().count(), 2);
    assert_eq!(bench.engine.steps(), steps);
    assert_tree_eq(&after, &bench.snapshot());
    bench.undo(2);
    assert_tree_eq(&before, &bench.snapshot());
}

/// CR-05
#[test]
fn what_was_undone_can_be_redone_after_a_restart() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(change_a_lot);
    let after = bench.snapshot();
    bench.undo(1);
    let bench = bench.reopened();
    bench.redo(1);
    assert_tree_eq(&after, &bench.snapshot());
}

/// CR-06
#[test]
fn a_second_restart_has_nothing_to_do() {
    let (bench, boundary) = interrupted(change_a_lot);
    let bench = bench.reopened();
    assert!(bench.engine.recovery().is_some());
    let events = bench.events.all();
    let bench = bench.reopened();

    assert!(bench.engine.recovery().is_none());
    assert_eq!(bench.events.all(), events, "nothing is told twice");
    assert_tree_eq(&boundary, &bench.snapshot());
}

/// CR-07
#[test]
fn a_step_without_writes_leaves_nothing() {
    let (bench, boundary) = interrupted(|_| {});
    let bench = bench.reopened();
    assert!(bench.engine.recovery().is_none());
    assert_tree_eq(&boundary, &bench.snapshot());
    assert_eq!(bench.engine.steps().len(), 1);
}

/// CR-07: died after the directory was made, before anything was in it.
#[test]
fn an_empty_wal_directory_is_dropped() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    let bench = bench.reopened_after(|workspace| {
        fs::create_dir(workspace.undo().join("wal/in_progress")).unwrap();
    });
    assert!(bench.engine.recovery().is_none());
    assert_tree_eq(&before, &bench.snapshot());
    bench.step(|fs| fs.append("small.txt", b"x").unwrap());
}

#[test]
fn an_unfinished_transaction_and_an_ambient_step_are_rolled_back_too() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.engine.begin_transaction("never committed").unwrap();
    bench.engine.open_step(StepRequest::command("inner")).unwrap();
    change_a_lot(&bench.applier());
    bench.engine.close_step(Some(0)).unwrap();
    let bench = bench.reopened();
    assert_tree_eq(&before, &bench.snapshot());

    change_a_lot(&bench.applier());
    assert!(bench.engine.current_step().is_some_and(StepId::is_ambient));
    let bench = bench.reopened();
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn an_undo_that_fails_half_way_is_taken_back() {
    let (bench, faults) = bench_failing(Point::Promotion, EIO);
    let before = bench.snapshot();
    bench.step(change_a_lot);
    let after = bench.snapshot();
    faults.on.store(true, Ordering::SeqCst);
    bench.engine.rollback(1, codeagent_interceptor::RollbackOptions::default()).unwrap_err();
    faults.on.store(false, Ordering::SeqCst);

    let bench = bench.reopened();

    assert_tree_eq(&after, &bench.snapshot());
    assert_eq!(bench.engine.steps().len(), 1);
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn a_recovery_that_was_interrupted_goes_on_at_the_next_start() {
    let (bench, boundary) = interrupted(change_a_lot);
    let (workspace, mut config) = bench.close();
    let faults =
        Arc::new(FailWhile { on: AtomicBool::new(true), point: Point::HostMutation, fault: EIO });
    config.faults = Some(faults.clone());
    UndoEngine::open(config.clone()).unwrap_err();
    faults.on.store(false, Ordering::SeqCst);

    let engine = UndoEngine::open(config).unwrap();

    assert!(engine.recovery().is_some_and(|report| report.rolled_back));
    assert_tree_eq(&boundary, &workspace.snapshot());
    drop(engine);
}

#[test]
fn a_file_somebody_else_put_in_the_way_is_left_and_the_former_one_kept() {
    let (bench, _) = interrupted(|fs| fs.unlink("medium.txt").unwrap());
    let bench = bench.reopened_after(|workspace| {
        fs::write(workspace.path("medium.txt"), b"the user's new file").unwrap();
    });

    let report = bench.engine.recovery().expect("a report");
    assert_eq!(report.left, common::rel_bufs(&["medium.txt"]));
    assert_eq!(fs::read(bench.path("medium.txt")).unwrap(), b"the user's new file");
    assert!(has_file_of(&bench.workspace.undo().join("quarantine"), &[b'm'; 4096]));
}
