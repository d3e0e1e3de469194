//! The undo directory itself: where it may be, whose it is, and what happens when it is damaged.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use codeagent_common::{ErrorCode, RelPathBuf};
use codeagent_interceptor::{
    ConflictKind, EngineConfig, EngineEvent, Fault, FaultInjector, Point, RollbackOptions,
    StepRequest, UndoEngine, UndoError, verify,
};
use codeagent_test_support::{TempWorkspace, TreeSnapshot, assert_tree_eq, filesystems, fixtures};
use common::edits::assert_blocked_by;
use common::{Bench, assert_errno, assert_helpful, beside, is_root};
use rustix::io::Errno;

fn workspace() -> TempWorkspace {
    TempWorkspace::with_fixture(fixtures::small_tree)
}

/// The error of an engine that must not open.
#[track_caller]
fn refused(working: &Path, undo: &Path) -> UndoError {
    match UndoEngine::open(EngineConfig::new(working, undo)) {
        Ok(_) => panic!("it opened"),
        Err(error) => error,
    }
}

fn step_dir(workspace: &TempWorkspace, step: i64) -> PathBuf {
    workspace.undo().join(format!("steps/{step}"))
}

fn flip_byte(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
}

fn truncate_to_half(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
}

/// Three steps with changes of every kind: content, a removed file, content again.
fn three_steps() -> (Bench, [TreeSnapshot; 4]) {
    let bench = Bench::configured(workspace(), |_| {});
    let start = bench.snapshot();
    bench.step(|fs| fs.overwrite("small.txt", b"one").unwrap());
    let first = bench.snapshot();
    bench.step(|fs| {
        fs.write("large.bin", 0, &[2; 80_000]).unwrap();
        fs.unlink("medium.txt").unwrap();
    });
    let second = bench.snapshot();
    bench.step(|fs| fs.overwrite("small.txt", b"three").unwrap());
    let third = bench.snapshot();
    (bench, [start, first, second, third])
}

/// UL-01
#[test]
fn what_a_step_did_reads_the_same_after_a_restart() {
    let bench = Bench::configured(TempWorkspace::with_fixture(fixtures::awkward_tree), |_| {});
    let step = bench.step(|fs| {
        fs.unlink(b"two\nlines").unwrap();
        fs.rename(b"latin-1 caf\xe9", b"\xff renamed").unwrap();
        fs.chmod("suid", 0o700).unwrap();
        fs.symlink("x", "new-link").unwrap();
        fs.mkdir("new-directory").unwrap();
        fs.mkfifo("new-fifo").unwrap();
    });
    let changes = bench.engine.changes(step.id).unwrap();
    let bench = bench.reopened();
    assert_eq!(bench.engine.changes(step.id).unwrap(), changes);
    assert_eq!(changes.len(), 6);
    let renamed = RelPathBuf::new(&b"\xff renamed"[..]).unwrap();
    assert!(changes.iter().any(|change| change.path == renamed), "{changes:?}");
}

/// UL-01
#[test]
fn the_summary_of_a_step_is_readable_by_people() {
    let bench = Bench::configured(workspace(), |_| {});
    bench.engine.open_step(StepRequest::command("cargo fmt")).unwrap();
    bench.applier().append("small.txt", b"x").unwrap();
    bench.engine.close_step(Some(3)).unwrap();
    let summary = fs::read_to_string(step_dir(&bench.workspace, 1).join("summary.json")).unwrap();
    assert!(summary.contains("cargo fmt") && summary.contains("\"exit_code\": 3"), "{summary}");
}

struct FailOnce {
    armed: AtomicBool,
    fault: Fault,
}

impl FaultInjector for FailOnce {
    fn reach(&self, point: Point) -> Fault {
        let hit = point == Point::StoreWrite && self.armed.swap(false, Ordering::SeqCst);
        if hit { self.fault } else { Fault::None }
    }
}

fn bench_failing(fault: Fault) -> (Bench, Arc<FailOnce>) {
    let faults = Arc::new(FailOnce { armed: AtomicBool::new(false), fault });
    let bench = Bench::configured(workspace(), |config| config.faults = Some(faults.clone()));
    (bench, faults)
}

/// UL-02: bytes that were stored half are never taken for a preimage.
#[test]
fn a_preimage_that_was_stored_half_is_not_used() {
    let (bench, faults) = bench_failing(Fault::ShortWrite(Errno::IO.raw_os_error()));
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.write("small.txt", 0, b"first").unwrap();
        faults.armed.store(true, Ordering::SeqCst);
        assert_errno(fs.write("large.bin", 0, &[1; 100_000]), Errno::IO);
        fs.write("large.bin", 0, &[2; 100_000]).unwrap();
    });
    bench.assert_sound();
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

/// UL-03
#[test]
fn a_step_moves_from_the_wal_to_the_history_as_a_whole() {
    let bench = Bench::configured(workspace(), |_| {});
    let (wal, steps) =
        (bench.workspace.undo().join("wal/in_progress"), bench.workspace.undo().join("steps"));
    bench.engine.open_step(StepRequest::command("test")).unwrap();
    bench.applier().append("small.txt", b"x").unwrap();
    assert!(wal.join("journal").exists());
    assert_eq!(fs::read_dir(&steps).unwrap().count(), 0);

    bench.engine.close_step(None).unwrap();

    assert!(!wal.exists());
    let names = ["journal", "summary.json", "changes"];
    assert!(names.iter().all(|name| steps.join("1").join(name).exists()));
}

fn of_another_version(bench: Bench) -> Bench {
    bench.reopened_after(|workspace| fs::write(workspace.undo().join("version"), "99\n").unwrap())
}

/// UL-04
#[test]
fn a_log_of_another_version_turns_undo_off_and_says_so() {
    let (bench, _) = three_steps();
    let bench = of_another_version(bench);

    let told = EngineEvent::VersionMismatch { found: "99".into(), expected: 1 };
    assert_eq!(bench.events.all(), [told]);
    assert_eq!(bench.engine.disabled_by_version().as_deref(), Some("99"));
    assert_eq!(bench.engine.status().unwrap().disabled_by_version.as_deref(), Some("99"));
    assert_eq!(bench.engine.steps(), []);
    for error in [
        bench.engine.rollback(1, RollbackOptions::force()).unwrap_err(),
        bench.engine.redo(1, RollbackOptions::force()).unwrap_err(),
        bench.engine.preview(1).unwrap_err(),
    ] {
        assert_helpful(&error, ErrorCode::UndoDisabled);
    }
}

/// UL-04
#[test]
fn while_undo_is_off_writes_pass_and_the_old_log_stays_as_it_is() {
    let (bench, _) = three_steps();
    let bench = of_another_version(bench);
    let log = TreeSnapshot::capture(bench.workspace.undo());
    bench.try_step(|fs| {
        fs.overwrite("small.txt", b"unrecorded").unwrap();
        fs.unlink("run.sh").unwrap();
    });
    bench.applier().create("ambient.txt", b"unrecorded too").unwrap();

    assert_eq!(fs::read(bench.path("small.txt")).unwrap(), b"unrecorded");
    assert!(!bench.path("run.sh").exists());
    assert_tree_eq(&log, &TreeSnapshot::capture(bench.workspace.undo()));
}

/// UL-05
#[test]
fn discarding_the_old_log_turns_undo_on_again() {
    let (bench, _) = three_steps();
    let bench = of_another_version(bench);
    bench.engine.discard().unwrap();

    assert_eq!(bench.engine.disabled_by_version(), None);
    assert_eq!(fs::read(bench.workspace.undo().join("version")).unwrap(), b"codeagent-undo 1\n");
    let before = bench.snapshot();
    bench.step(|fs| fs.unlink("large.bin").unwrap());
    let bench = bench.reopened();
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
    bench.assert_sound();
}

/// UL-05
#[test]
fn discarding_throws_the_whole_history_away_and_leaves_the_working_directory() {
    let (bench, trees) = three_steps();
    bench.undo(1);
    bench.engine.discard().unwrap();
    assert_eq!((bench.engine.steps(), bench.engine.redoable()), (vec![], vec![]));
    assert_tree_eq(&trees[2], &bench.snapshot());
    bench.step(|fs| fs.append("small.txt", b"x").unwrap());
    bench.undo(1);
    assert_tree_eq(&trees[2], &bench.snapshot());
}

/// Step 2 of three was damaged while nothing ran: step 3 can be undone, nothing older can.
#[track_caller]
fn assert_only_the_newest_can_be_undone(damage: impl FnOnce(&Path)) {
    let (bench, trees) = three_steps();
    let bench = bench.reopened_after(|workspace| damage(&step_dir(workspace, 2)));

    assert!(!verify(bench.workspace.undo()).unwrap().is_sound(), "verify does not see it");
    for count in [2, 3] {
        // `NothingToUndo` is an honest answer, too, if the step is not in the history any more.
        bench.engine.rollback(count, RollbackOptions::force()).unwrap_err();
        assert_tree_eq(&trees[3], &bench.snapshot());
    }
    bench.undo(1);
    assert_tree_eq(&trees[2], &bench.snapshot());
    bench.engine.rollback(1, RollbackOptions::force()).unwrap_err();
    assert_tree_eq(&trees[2], &bench.snapshot());
    bench.step(|fs| fs.append("small.txt", b"the engine works").unwrap());
}

/// UL-06
#[test]
fn a_truncated_journal_is_an_error_of_its_step_only() {
    assert_only_the_newest_can_be_undone(|step| truncate_to_half(&step.join("journal")));
}

/// UL-06
#[test]
fn truncated_changes_are_an_error_of_their_step_only() {
    assert_only_the_newest_can_be_undone(|step| truncate_to_half(&step.join("changes")));
}

/// UL-06: a step that cannot even be listed must not be passed over in silence.
#[test]
fn a_truncated_summary_is_an_error_of_its_step_only() {
    assert_only_the_newest_can_be_undone(|step| truncate_to_half(&step.join("summary.json")));
}

/// UL-06: where it stood in the history is not known any more.
#[test]
fn a_step_whose_files_are_gone_is_not_passed_over() {
    let (bench, trees) = three_steps();
    let bench = bench.reopened_after(|workspace| {
        fs::remove_file(step_dir(workspace, 2).join("journal")).unwrap();
        fs::remove_file(step_dir(workspace, 2).join("summary.json")).unwrap();
    });
    for count in [2, 3] {
        bench.engine.rollback(count, RollbackOptions::force()).unwrap_err();
        assert_tree_eq(&trees[3], &bench.snapshot());
    }
    bench.step(|fs| fs.append("small.txt", b"the engine works").unwrap());
    bench.undo(1);
    assert_tree_eq(&trees[3], &bench.snapshot());
}

/// UL-07
#[test]
fn a_missing_object_is_an_error_of_its_step_only() {
    assert_only_the_newest_can_be_undone(|step| {
        let objects = fs::read_dir(step.join("objects")).unwrap();
        objects.for_each(|object| fs::remove_file(object.unwrap().path()).unwrap());
    });
}

/// UL-07
#[test]
fn a_missing_pack_is_an_error_of_its_step_only() {
    assert_only_the_newest_can_be_undone(|step| fs::remove_file(step.join("pack")).unwrap());
}

/// UL-08
#[test]
fn flipped_bytes_are_noticed_and_never_restored() {
    assert_only_the_newest_can_be_undone(|step| flip_byte(&step.join("pack"), 70_000));
    assert_only_the_newest_can_be_undone(|step| flip_byte(&step.join("journal"), 100));
}

/// UL-08: a file that was moved into the store may have been open, and written to since. It is not
/// brought back unless somebody wants it as it is.
#[test]
fn a_kept_file_that_was_written_to_is_noticed_and_not_restored_unasked() {
    let (bench, trees) = three_steps();
    let bench = bench.reopened_after(|workspace| {
        let mut objects = fs::read_dir(step_dir(workspace, 2).join("objects")).unwrap();
        fs::write(objects.next().unwrap().unwrap().path(), b"not what it was").unwrap();
    });
    assert!(!verify(bench.workspace.undo()).unwrap().is_sound(), "verify does not see it");
    assert_blocked_by(&bench, 2, &[("medium.txt", ConflictKind::WrittenSince)]);
    assert_tree_eq(&trees[3], &bench.snapshot());
    bench.undo(1);
    assert_blocked_by(&bench, 1, &[("medium.txt", ConflictKind::WrittenSince)]);
    assert_tree_eq(&trees[2], &bench.snapshot());
}

/// UL-08
#[test]
fn damage_is_reported_as_damage() {
    let (bench, _) = three_steps();
    let bench =
        bench.reopened_after(|workspace| flip_byte(&step_dir(workspace, 3).join("pack"), 2));
    let error = bench.engine.rollback(1, RollbackOptions::default()).unwrap_err();
    assert_helpful(&error, ErrorCode::UndoCorrupt);
    let findings = bench.verify().findings;
    assert!(findings.iter().any(|finding| finding.place.contains("steps/3")), "{findings:?}");
}

/// UL-09
#[test]
fn preimages_are_reflinks_where_the_filesystem_can() {
    let filesystems = filesystems::reflink_dirs();
    if filesystems.is_empty() {
        filesystems::skip("preimages_are_reflinks_where_the_filesystem_can", "no btrfs, no xfs");
    }
    for (name, dir) in filesystems {
        let workspace = TempWorkspace::on(&dir).filled(fixtures::small_tree);
        let bench = Bench::configured(workspace, |_| {});
        let before = bench.snapshot();
        let step = bench.step(|fs| fs.overwrite("large.bin", b"all of it").unwrap());
        assert!(step.stored_bytes < 100_000, "{name}: {} bytes stored", step.stored_bytes);
        assert!(step.held_bytes >= 1_000_000, "{name}: {} bytes held", step.held_bytes);
        bench.assert_sound();
        bench.undo(1);
        assert_tree_eq(&before, &bench.snapshot());
    }
}

/// UL-09
#[test]
fn preimages_are_copied_where_the_filesystem_cannot_clone() {
    let workspace = TempWorkspace::on(Path::new("/dev/shm")).filled(fixtures::small_tree);
    let bench = Bench::configured(workspace, |_| {});
    let before = bench.snapshot();
    let step = bench.step(|fs| fs.overwrite("large.bin", b"all of it").unwrap());
    assert!(step.stored_bytes >= 1_000_000, "{} bytes stored", step.stored_bytes);
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn the_undo_directory_is_for_its_owner_only() {
    let bench = Bench::configured(workspace(), |_| {});
    let mode = fs::metadata(bench.workspace.undo()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn an_undo_directory_inside_the_working_directory_is_refused() {
    let workspace = workspace();
    let inside = workspace.path("src/.undo");
    assert_helpful(&refused(workspace.working(), &inside), ErrorCode::UndoDirInsideWorkingDir);
    let same = refused(workspace.working(), workspace.working());
    assert_helpful(&same, ErrorCode::UndoDirInsideWorkingDir);
    assert!(!inside.exists());
}

#[test]
fn an_undo_directory_inside_by_way_of_a_symlink_is_refused() {
    let workspace = workspace();
    let link = beside(&workspace, "links").join("way-in");
    std::os::unix::fs::symlink(workspace.path("src"), &link).unwrap();
    let error = refused(workspace.working(), &link.join("undo"));
    assert_helpful(&error, ErrorCode::UndoDirInsideWorkingDir);
    assert!(!workspace.path("src/undo").exists());
}

#[test]
fn a_working_directory_inside_the_undo_directory_is_refused() {
    let workspace = workspace();
    let error = refused(&workspace.path("src"), workspace.working());
    assert_helpful(&error, ErrorCode::UndoDirInsideWorkingDir);
}

#[test]
fn a_missing_parent_of_the_undo_directory_is_named() {
    let workspace = workspace();
    let undo = workspace.undo().join("no/such/parent");
    let error = refused(workspace.working(), &undo);
    assert_helpful(&error, ErrorCode::UndoDirUnusable);
    assert!(error.to_string().contains(undo.to_str().unwrap()), "{error}");
}

#[test]
fn an_undo_directory_that_is_a_file_is_refused() {
    let workspace = workspace();
    fs::write(workspace.undo(), b"a file").unwrap();
    let error = refused(workspace.working(), workspace.undo());
    assert_helpful(&error, ErrorCode::UndoDirUnusable);
    assert_eq!(fs::read(workspace.undo()).unwrap(), b"a file");
}

#[test]
fn an_unreadable_undo_directory_is_refused() {
    if is_root() {
        return filesystems::skip("an_unreadable_undo_directory_is_refused", "root reads all");
    }
    let workspace = workspace();
    fs::create_dir(workspace.undo()).unwrap();
    fs::set_permissions(workspace.undo(), fs::Permissions::from_mode(0o000)).unwrap();
    let error = refused(workspace.working(), workspace.undo());
    assert_helpful(&error, ErrorCode::UndoDirUnusable);
}

#[test]
fn a_directory_with_other_peoples_files_is_not_taken_for_an_undo_directory() {
    let workspace = workspace();
    fs::create_dir(workspace.undo()).unwrap();
    fs::write(workspace.undo().join("thesis.tex"), b"precious").unwrap();
    let before = TreeSnapshot::capture(workspace.undo());
    let error = refused(workspace.working(), workspace.undo());
    assert!(matches!(error, UndoError::NotAnUndoDir { .. }), "{error}");
    assert_helpful(&error, ErrorCode::UndoDirUnusable);
    assert_tree_eq(&before, &TreeSnapshot::capture(workspace.undo()));
}

#[test]
fn a_missing_working_directory_is_refused() {
    let workspace = workspace();
    let error = refused(&workspace.path("missing"), workspace.undo());
    assert_helpful(&error, ErrorCode::WorkingDirUnusable);
    let error = refused(&workspace.path("small.txt"), workspace.undo());
    assert_helpful(&error, ErrorCode::WorkingDirUnusable);
}

#[test]
fn the_log_of_another_working_directory_is_refused() {
    let (workspace, _) = Bench::configured(workspace(), |_| {}).close();
    let other = beside(&workspace, "other");
    let error = refused(&other, workspace.undo());
    assert_helpful(&error, ErrorCode::WrongWorkingDir);
    let sentence = error.to_string();
    assert!(sentence.contains(workspace.working().to_str().unwrap()), "{sentence}");
}

#[test]
fn a_working_directory_that_was_moved_keeps_its_history() {
    let bench = Bench::configured(workspace(), |_| {});
    let before = bench.snapshot();
    bench.step(|fs| fs.overwrite("small.txt", b"changed").unwrap());
    let (workspace, mut config) = bench.close();
    let moved = workspace.working().with_file_name("moved");
    fs::rename(workspace.working(), &moved).unwrap();
    config.working_dir = moved.clone();

    let engine = UndoEngine::open(config.clone()).unwrap();
    engine.rollback(1, RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &TreeSnapshot::capture(&moved));
    drop(engine);
    UndoEngine::open(config).unwrap();
}

#[test]
fn a_second_process_is_told_who_has_the_log() {
    let bench = Bench::configured(workspace(), |_| {});
    let error = refused(bench.workspace.working(), bench.workspace.undo());
    assert_helpful(&error, ErrorCode::UndoLocked);
    let pid = std::process::id().to_string();
    assert!(matches!(&error, UndoError::Locked { pid: holder } if *holder == pid), "{error}");
    bench.reopened();
}

#[test]
fn on_a_full_disk_the_mutation_fails_and_the_host_is_untouched() {
    let (bench, faults) = bench_failing(Fault::Errno(Errno::NOSPC.raw_os_error()));
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.append("medium.txt", b"there is room").unwrap();
        let between = bench.snapshot();
        for operation in [
            (|fs| fs.overwrite("small.txt", b"x")) as fn(&codeagent_test_support::Applier<'_>) -> _,
            |fs| fs.unlink("small.txt"),
            |fs| fs.create("new.txt", b""),
            |fs| fs.rename("src", "code"),
        ] {
            faults.armed.store(true, Ordering::SeqCst);
            assert_errno(operation(fs), Errno::NOSPC);
        }
        assert_tree_eq(&between, &bench.snapshot());
    });
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn a_full_disk_has_a_sentence_and_a_hint() {
    let (bench, faults) = bench_failing(Fault::Errno(Errno::NOSPC.raw_os_error()));
    bench.engine.open_step(StepRequest::command("test")).unwrap();
    bench.applier().append("small.txt", b"x").unwrap();
    faults.armed.store(true, Ordering::SeqCst);
    let mkdir = codeagent_interceptor::Mutation::Mkdir { path: common::rel("new") };
    let error = codeagent_interceptor::WriteInterceptor::before(&bench.engine, &mkdir).unwrap_err();
    assert_eq!(error.errno(), Errno::NOSPC.raw_os_error());
    assert_helpful(&error, error.code());
}
