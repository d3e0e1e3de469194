//! A full disk: growth is refused in time, and closing, undoing and restarting still work.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::path::PathBuf;

use codeagent_common::{ErrorCode, ResourceLimits};
use codeagent_interceptor::{
    Allocation, ClosedStep, EngineConfig, FileRef, Mutation, RollbackOptions, StepRequest,
    UndoEngine, WriteInterceptor,
};
use codeagent_test_support::filesystems::{SmallDisk, skip};
use codeagent_test_support::{Applier, TempWorkspace, TreeSnapshot, assert_tree_eq, fixtures};
use common::{Bench, assert_errno, assert_helpful, rel, wait_until};
use rustix::io::Errno;

const MIN_FREE: u64 = 1 << 20;

/// Working and undo directory on a disk of eight mebibytes.
struct Small {
    working: PathBuf,
    // Unmounted before the directory it is mounted on goes.
    disk: SmallDisk,
    _holder: tempfile::TempDir,
}

impl Small {
    /// `None` where nothing can be mounted.
    fn new(test: &str) -> Option<Self> {
        let holder = tempfile::tempdir_in("/dev/shm").unwrap();
        let Some(disk) = SmallDisk::mount(&holder.path().join("disk"), "8M") else {
            skip(test, "mounting is not allowed");
            return None;
        };
        let working = disk.path().join("working");
        fs::create_dir(&working).unwrap();
        fs::write(working.join("f"), "original").unwrap();
        Some(Self { working, disk, _holder: holder })
    }

    fn open(&self) -> UndoEngine {
        let mut config = EngineConfig::new(&self.working, self.disk.path().join("undo"));
        config.limits.min_free_bytes = MIN_FREE;
        UndoEngine::open(config).unwrap()
    }

    fn reserve(&self) -> PathBuf {
        self.disk.path().join("undo/reserve")
    }

    fn snapshot(&self) -> TreeSnapshot {
        TreeSnapshot::capture(&self.working)
    }

    /// A step of many kinds, left open.
    fn work(&self, engine: &UndoEngine) {
        engine.open_step(StepRequest::command("work")).unwrap();
        let applier = Applier::new(engine, &self.working);
        applier.overwrite("f", b"changed").unwrap();
        applier.mkdir("d").unwrap();
        // More than a journal holds before it is written through memory.
        for n in 0..3000 {
            applier.create(format!("d/{n}"), b"").unwrap();
        }
        applier.rename("d", "e").unwrap();
    }
}

#[test]
fn a_step_that_filled_the_disk_can_be_undone() {
    let Some(small) = Small::new("a_step_that_filled_the_disk_can_be_undone") else { return };
    let before = small.snapshot();
    let engine = small.open();
    let applier = Applier::new(&engine, &small.working);
    engine.open_step(StepRequest::command("fill")).unwrap();
    let fill = || -> std::io::Result<()> {
        for n in 0.. {
            let name = format!("junk-{n}");
            let file = applier.create_open(&name)?;
            for block in 0..64 {
                applier.write_open(&file, &name, block << 14, &[1; 1 << 14])?;
            }
        }
        Ok(())
    };
    assert_errno(fill(), Errno::NOSPC);
    assert!(small.disk.free_bytes() > MIN_FREE / 2, "{} bytes left", small.disk.free_bytes());
    assert!(small.disk.free_bytes() < 2 * MIN_FREE, "{} bytes left", small.disk.free_bytes());
    engine.close_step(Some(1)).unwrap();
    engine.rollback(1, RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &small.snapshot());
}

#[test]
fn on_a_disk_that_is_nearly_full_only_growth_is_refused() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.engine.open_step(StepRequest::command("test")).unwrap();
    let fs = bench.applier();
    fs.create("made", &[1; 1000]).unwrap();
    bench
        .engine
        .set_limits(ResourceLimits { min_free_bytes: u64::MAX, ..ResourceLimits::default() });

    assert_errno(fs.create("new", b""), Errno::NOSPC);
    assert_errno(fs.mkdir("new"), Errno::NOSPC);
    assert_errno(fs.symlink("x", "new"), Errno::NOSPC);
    assert_errno(fs.link("run.sh", "new"), Errno::NOSPC);
    assert_errno(fs.write("made", 0, b"x"), Errno::NOSPC);
    assert_errno(fs.append("made", b"x"), Errno::NOSPC);
    assert_errno(fs.truncate("made", 2000), Errno::NOSPC);
    assert_errno(fs.allocate("made", Allocation::Extend, 0, 10_000), Errno::NOSPC);
    let file = FileRef::at(rel("made"));
    let error = bench.engine.before(&Mutation::Append { file }).unwrap_err();
    assert_helpful(&error, ErrorCode::LowDiskSpace);

    fs.truncate("made", 10).unwrap();
    fs.rename("small.txt", "renamed").unwrap();
    fs.rename("run.sh", "medium.txt").unwrap();
    fs.chmod("renamed", 0o600).unwrap();
    fs.unlink("large.bin").unwrap();
    fs.remove_all("src").unwrap();
    bench.engine.close_step(Some(0)).unwrap();
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(1);
    bench.undo(1);
    bench.engine.open_step(StepRequest::command("test")).unwrap();
    fs.unlink("large.bin").unwrap();
    bench.engine.abort_step().unwrap();
    assert_tree_eq(&before, &bench.snapshot());
}

/// Somebody else leaves not a single block.
#[test]
fn on_a_full_disk_a_step_can_be_closed_undone_and_redone() {
    let Some(small) = Small::new("on_a_full_disk_a_step_can_be_closed_undone_and_redone") else {
        return;
    };
    let before = small.snapshot();
    let engine = small.open();
    small.work(&engine);
    let after = small.snapshot();
    small.disk.fill("filler");

    let closed = engine.close_step(Some(0)).unwrap();
    assert!(matches!(closed, ClosedStep::Recorded { .. }), "{closed:?}");
    engine.rollback(1, RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &small.snapshot());
    engine.redo(1, RollbackOptions::default()).unwrap();
    assert_tree_eq(&after, &small.snapshot());
}

#[test]
fn on_a_full_disk_a_step_can_be_aborted() {
    let Some(small) = Small::new("on_a_full_disk_a_step_can_be_aborted") else { return };
    let before = small.snapshot();
    let engine = small.open();
    small.work(&engine);
    small.disk.fill("filler");
    engine.abort_step().unwrap();
    assert_tree_eq(&before, &small.snapshot());
}

#[test]
fn on_a_full_disk_a_crash_is_recovered_from() {
    let Some(small) = Small::new("on_a_full_disk_a_crash_is_recovered_from") else { return };
    let before = small.snapshot();
    let engine = small.open();
    small.work(&engine);
    drop(engine);
    small.disk.fill("filler");
    let engine = small.open();
    assert!(engine.recovery().unwrap().rolled_back);
    assert_tree_eq(&before, &small.snapshot());
}

#[test]
fn the_space_that_was_set_aside_is_set_aside_again_when_there_is_some() {
    let test = "the_space_that_was_set_aside_is_set_aside_again_when_there_is_some";
    let Some(small) = Small::new(test) else { return };
    let engine = small.open();
    assert!(small.reserve().exists());
    small.work(&engine);
    small.disk.fill("filler");
    engine.close_step(Some(0)).unwrap();
    assert!(!small.reserve().exists(), "it was needed");

    fs::remove_file(small.disk.path().join("filler")).unwrap();
    engine.rollback(1, RollbackOptions::default()).unwrap();
    assert!(small.reserve().exists());
}

#[test]
fn dropping_what_can_be_redone_gives_its_space_back() {
    let bench = Bench::configured(TempWorkspace::new(), |_| {});
    let before = bench.snapshot();
    let step = bench.step(|fs| fs.create("large", &[1; 1 << 20]).unwrap()).id;
    bench.undo(1);
    assert!(bench.engine.status().unwrap().held_bytes >= 1 << 20);

    assert_eq!(bench.engine.drop_redoable().unwrap(), [step]);

    assert_eq!(bench.engine.redoable(), []);
    assert_eq!(bench.engine.status().unwrap().held_bytes, 0);
    wait_until("the trash is emptied", || {
        fs::read_dir(bench.workspace.undo().join("trash")).unwrap().count() == 0
    });
    assert_eq!(bench.engine.drop_redoable().unwrap(), []);
    let bench = bench.reopened();
    assert_eq!(bench.engine.redoable(), []);
    assert_tree_eq(&before, &bench.snapshot());
}
