//! Whose directory the undo directory is: what proves it, and what is never deleted.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;

use codeagent_common::ErrorCode;
use codeagent_interceptor::{EngineConfig, UndoEngine, UndoError};
use codeagent_test_support::filesystems::{SmallDisk, skip};
use codeagent_test_support::{TempWorkspace, TreeSnapshot, assert_tree_eq, fixtures};
use common::{Bench, assert_helpful};

/// Other programs have files called `version`, too.
#[test]
fn a_directory_with_a_version_of_something_else_is_refused() {
    for version in ["2.7.1\n", "1\n", ""] {
        let workspace = TempWorkspace::new();
        fs::create_dir_all(workspace.undo().join("thesis")).unwrap();
        fs::write(workspace.undo().join("version"), version).unwrap();
        fs::write(workspace.undo().join("thesis/chapter1"), "years of work").unwrap();
        let before = TreeSnapshot::capture(workspace.undo());
        let config = EngineConfig::new(workspace.working(), workspace.undo());
        let error = UndoEngine::open(config).err().unwrap();
        assert!(matches!(error, UndoError::NotAnUndoDir { .. }), "{error}");
        assert_helpful(&error, ErrorCode::UndoDirUnusable);
        assert_tree_eq(&before, &TreeSnapshot::capture(workspace.undo()));
    }
}

/// Directories of our names with things in them are not ours for their names alone.
#[test]
fn a_directory_with_somebody_elses_steps_is_refused() {
    let workspace = TempWorkspace::new();
    fs::create_dir_all(workspace.undo().join("steps/choreography")).unwrap();
    let config = EngineConfig::new(workspace.working(), workspace.undo());
    let error = UndoEngine::open(config).err().unwrap();
    assert!(matches!(error, UndoError::NotAnUndoDir { .. }), "{error}");
}

#[test]
fn discarding_deletes_only_what_the_engine_made() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.unlink("small.txt").unwrap());
    let notes = bench.workspace.undo().join("notes.txt");
    fs::write(&notes, "by the user").unwrap();
    bench.engine.discard().unwrap();
    assert_eq!(fs::read(&notes).unwrap(), b"by the user");
    let bench = bench.reopened();
    assert_eq!(bench.engine.steps(), []);
    bench.step(|fs| fs.unlink("medium.txt").unwrap());
    bench.undo(1);
    bench.assert_sound();
}

/// Before `version` was written, or, with an older program, after it was removed.
#[test]
fn a_crash_during_discard_leaves_a_directory_that_can_be_opened() {
    let bench = Bench::new(|_| {});
    bench.step(|fs| fs.create("f", b"x").unwrap());
    let bench = bench.reopened_after(|workspace| {
        fs::remove_file(workspace.undo().join("version")).unwrap();
    });
    bench.assert_sound();
    bench.undo(1);
}

/// Whatever is gone by the time the process dies, the rest can be opened, and is sound.
#[test]
fn a_crash_anywhere_in_a_discard_leaves_a_sound_log() {
    let order = ["wal", "redo", "steps", "quarantine", "barriers", "remade", "counters"];
    for gone in 1..=order.len() {
        let bench = Bench::new(|_| {});
        bench.step(|fs| fs.create("a", b"x").unwrap());
        bench.step(|fs| fs.create("b", b"x").unwrap());
        bench.undo(1);
        let bench = bench.reopened_after(|workspace| {
            for name in &order[..gone] {
                let path = workspace.undo().join(name);
                let _ =
                    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            }
        });
        assert_eq!(bench.engine.steps().len(), usize::from(gone < 3), "{gone}");
        bench.step(|fs| fs.create("c", b"x").unwrap());
        bench.undo(1);
    }
}

/// The roots of two filesystems have the same inode number and are not the same directory.
#[test]
fn another_filesystem_with_the_same_root_inode_is_another_working_directory() {
    let test = "another_filesystem_with_the_same_root_inode_is_another_working_directory";
    let holder = tempfile::tempdir_in("/dev/shm").unwrap();
    let mount = |name: &str| SmallDisk::mount(&holder.path().join(name), "1M");
    let (Some(a), Some(b)) = (mount("a"), mount("b")) else {
        return skip(test, "mounting is not allowed");
    };
    let undo = holder.path().join("undo");
    drop(UndoEngine::open(EngineConfig::new(a.path(), &undo)).unwrap());
    let error = UndoEngine::open(EngineConfig::new(b.path(), &undo)).err().unwrap();
    assert_helpful(&error, ErrorCode::WrongWorkingDir);
}
