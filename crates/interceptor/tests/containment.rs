//! INV-6: nothing outside the working directory is read, changed or removed, whatever symlinks an
//! agent makes and whenever it swaps them in.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the wanted failure")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use codeagent_common::RelPathBuf;
use codeagent_interceptor::{
    EngineConfig, FileRef, Mutation, Permit, RollbackOptions, StepRequest, UndoEngine,
    WriteInterceptor,
};
use codeagent_test_support::{Applier, TempWorkspace, TreeSnapshot, assert_tree_eq, fixtures};

/// A working directory, and beside it a directory that must never change.
struct Guarded {
    workspace: TempWorkspace,
    outside: PathBuf,
    canary: TreeSnapshot,
}

impl Guarded {
    fn new() -> Self {
        let workspace = TempWorkspace::with_fixture(|root| {
            fs::create_dir(root.join("dir")).unwrap();
            for n in 0..50 {
                fs::write(root.join(format!("dir/file{n}")), format!("inside {n}")).unwrap();
            }
            fixtures::set_distinct_mtimes(root);
        });
        let outside = workspace.working().parent().unwrap().join("outside");
        fs::create_dir(&outside).unwrap();
        for n in 0..50 {
            fs::write(outside.join(format!("file{n}")), format!("secret {n}")).unwrap();
        }
        fixtures::set_distinct_mtimes(&outside);
        let canary = TreeSnapshot::capture(&outside);
        Self { workspace, outside, canary }
    }

    fn engine(&self) -> UndoEngine {
        let config = EngineConfig::new(self.workspace.working(), self.workspace.undo());
        UndoEngine::open(config).unwrap()
    }

    fn assert_untouched(&self) {
        assert_tree_eq(&self.canary, &TreeSnapshot::capture(&self.outside));
    }

    /// No byte of the outside ended up in the store.
    fn assert_nothing_captured(&self) {
        let mut dirs = vec![self.workspace.undo().to_path_buf()];
        while let Some(dir) = dirs.pop() {
            for entry in unless_gone(fs::read_dir(dir)).into_iter().flatten() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    dirs.push(entry.path());
                } else if entry.file_type().unwrap().is_file() {
                    let bytes = unless_gone(fs::read(entry.path())).unwrap_or_default();
                    let found = bytes.windows(6).any(|window| window == b"secret");
                    assert!(!found, "{} holds bytes from outside", entry.path().display());
                }
            }
        }
    }
}

/// The engine empties its trash while somebody looks around in it.
fn unless_gone<T>(found: std::io::Result<T>) -> Option<T> {
    match found {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        found => Some(found.unwrap()),
    }
}

fn path(bytes: &str) -> RelPathBuf {
    RelPathBuf::new(bytes.as_bytes().to_vec()).unwrap()
}

/// SC-01, SC-03: a chain of symlinks leads outside.
#[test]
fn capture_does_not_follow_a_symlink_out_of_the_directory() {
    let guarded = Guarded::new();
    let root = guarded.workspace.working();
    symlink(&guarded.outside, root.join("c")).unwrap();
    symlink("c", root.join("b")).unwrap();
    symlink(guarded.outside.join("file1"), root.join("direct")).unwrap();
    let engine = guarded.engine();
    engine.open_step(StepRequest::command("escape")).unwrap();
    for name in ["b/file1", "c/file2", "direct"] {
        let target = path(name);
        let file = FileRef::at(target.as_path());
        // A front end that was tricked into asking about such a path gets no further than us.
        let _ = engine.before(&Mutation::Truncate { file, length: 0 }).map(Permit::failed);
        let _ = engine.before(&Mutation::SetAttributes { file }).map(Permit::failed);
    }
    for name in ["b/file1", "c/file2"] {
        let target = path(name);
        assert!(engine.before(&Mutation::Unlink { path: target.as_path() }).is_err());
        let new = path(&format!("{name}-new"));
        assert!(engine.before(&Mutation::Mkdir { path: new.as_path() }).is_err());
    }
    engine.close_step(None).unwrap();
    guarded.assert_untouched();
    guarded.assert_nothing_captured();
}

/// SC-02: between the step and its undo, a directory becomes a symlink to the outside.
#[test]
fn undo_does_not_restore_through_a_symlink() {
    let guarded = Guarded::new();
    let root = guarded.workspace.working().to_path_buf();
    let engine = guarded.engine();
    engine.open_step(StepRequest::command("changes")).unwrap();
    let fs_ = Applier::new(&engine, &root);
    fs_.write("dir/file1", 0, b"CHANGED").unwrap();
    fs_.unlink("dir/file2").unwrap();
    fs_.create("dir/new", b"new").unwrap();
    fs_.rename("dir/file3", "dir/renamed").unwrap();
    engine.close_step(Some(0)).unwrap();
    fs::rename(root.join("dir"), root.join("moved away")).unwrap();
    symlink(&guarded.outside, root.join("dir")).unwrap();
    assert!(engine.rollback(1, RollbackOptions::default()).is_err());
    guarded.assert_untouched();
    let _ = engine.rollback(1, RollbackOptions::force());
    guarded.assert_untouched();
}

fn swap_until(stop: &AtomicBool, root: &Path, outside: &Path) {
    while !stop.load(Ordering::Relaxed) {
        let _ = fs::rename(root.join("dir"), root.join("aside"));
        let _ = symlink(outside, root.join("dir"));
        let _ = fs::remove_file(root.join("dir"));
        let _ = fs::rename(root.join("aside"), root.join("dir"));
    }
}

/// Ends the swapping when the test is done, or has failed.
struct StopOnDrop<'s>(&'s AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Somebody swaps the directory for a symlink, back and forth, all the time.
#[test]
fn a_directory_swapped_for_a_symlink_during_capture_and_undo_changes_nothing_outside() {
    let guarded = Guarded::new();
    let root = guarded.workspace.working().to_path_buf();
    let engine = guarded.engine();
    let stop = AtomicBool::new(false);
    let mut opened = 0;
    thread::scope(|scope| {
        let _stopping = StopOnDrop(&stop);
        scope.spawn(|| swap_until(&stop, &root, &guarded.outside));
        for round in 0..40 {
            // What the swapping kept from being finished is finished first, or at the next attempt.
            if engine.open_step(StepRequest::command("race")).is_err() {
                continue;
            }
            opened += 1;
            for n in 0..20 {
                let name = path(&format!("dir/file{n}"));
                let file = FileRef::at(name.as_path());
                // Only what the engine itself does is looked at here: it captures, moves, removes.
                if let Ok(permit) = engine.before(&Mutation::Truncate { file, length: 0 }) {
                    permit.failed();
                }
                if (n + round) % 7 == 0
                    && let Ok(permit) = engine.before(&Mutation::Unlink { path: name.as_path() })
                {
                    permit.done();
                }
            }
            let _ = engine.close_step(Some(0));
            let _ = engine.rollback(1, RollbackOptions::force());
        }
    });
    assert!(opened > 10, "only {opened} rounds");
    guarded.assert_untouched();
    guarded.assert_nothing_captured();
}

/// Adoption goes to the same lengths.
#[test]
fn adoption_does_not_place_anything_through_a_symlink() {
    let guarded = Guarded::new();
    let root = guarded.workspace.working().to_path_buf();
    symlink(&guarded.outside, root.join("link")).unwrap();
    let staging = root.parent().unwrap().join("staging");
    fs::create_dir(&staging).unwrap();
    fs::write(staging.join("evil"), b"evil").unwrap();
    let engine = guarded.engine();
    engine.open_step(StepRequest::command("adopt")).unwrap();
    let changes = [codeagent_interceptor::StagedChange::Place {
        path: path("link/file1"),
        staged: path("evil"),
    }];
    assert!(engine.adopt(&staging, &changes).is_err());
    engine.abort_step().unwrap();
    guarded.assert_untouched();
}

/// A journal with correct checksums, forged by somebody with access to the store, that names a
/// path outside.
#[test]
fn a_forged_journal_that_names_a_path_outside_is_not_replayed() {
    let guarded = Guarded::new();
    let root = guarded.workspace.working().to_path_buf();
    {
        let engine = guarded.engine();
        engine.open_step(StepRequest::command("interrupted")).unwrap();
        Applier::new(&engine, &root).create("new", b"new").unwrap();
    } // dropped with the step open, as by a crash
    let journal = guarded.workspace.undo().join("wal/in_progress/journal");
    let mut bytes = fs::read(&journal).unwrap();
    let frames = count_frames(&bytes);
    // Create { path: "../outside/file1", kind: File }, whose inverse removes it.
    let victim = b"../outside/file1";
    let mut payload = vec![0, victim.len() as u8];
    payload.extend_from_slice(victim);
    payload.push(0);
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    let check = xxhash_rust::xxh3::xxh3_64_with_seed(&payload, frames);
    bytes.extend_from_slice(&check.to_le_bytes()[..4]);
    bytes.extend_from_slice(&payload);
    fs::write(&journal, bytes).unwrap();
    let engine = guarded.engine();
    let report = engine.recovery().unwrap();
    assert!(!report.rolled_back, "{report:?}");
    guarded.assert_untouched();
    assert!(root.join("new").exists(), "nothing of a journal that cannot be trusted is replayed");
}

fn count_frames(journal: &[u8]) -> u64 {
    let mut at = 8;
    let mut frames = 0;
    while at < journal.len() {
        let length = u32::from_le_bytes(journal[at..at + 4].try_into().unwrap()) as usize;
        at += 8 + length;
        frames += 1;
    }
    frames
}
