//! Nothing outside the working directory changes, whatever lies in it and whoever swaps what.
//! Every test asserts that the victim is untouched, not only that an error came back.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use codeagent_common::EntryKind;
use codeagent_interceptor::{
    Allocation, FileRef, Mutation, OnConflict, RenameMode, RollbackOptions, StagedChange,
    StepRequest, WriteInterceptor,
};
use codeagent_test_support::{
    Applier, CompareOptions, TreeSnapshot, assert_tree_eq, assert_tree_eq_with, fixtures,
};
use common::{Bench, rel, rel_buf, rel_bufs};
use rustix::fs::{CWD, RenameFlags};

/// What the working directory has, too: so every name an attack could aim at exists outside.
fn same_names(dir: &Path, content: &str) {
    fs::create_dir_all(dir.join("sub")).unwrap();
    for name in ["changed", "deleted", "renamed", "moved", "created", "sub/inner"] {
        fs::write(dir.join(name), format!("{content} {name}\n")).unwrap();
    }
    fixtures::set_distinct_mtimes(dir);
}

/// The directory outside, and how it was.
struct Victim {
    dir: PathBuf,
    before: TreeSnapshot,
}

impl Victim {
    fn beside(bench: &Bench) -> Self {
        let dir = bench.beside("outside");
        same_names(&dir, "outside");
        let before = TreeSnapshot::capture(&dir);
        Self { dir, before }
    }

    #[track_caller]
    fn assert_untouched(&self) {
        let exactly = CompareOptions { link_counts: true, ..CompareOptions::default() };
        assert_tree_eq_with(&self.before, &TreeSnapshot::capture(&self.dir), &exactly);
    }
}

fn bench() -> (Bench, Victim) {
    let bench = Bench::new(|root| {
        same_names(&root.join("dir"), "inside");
        fs::remove_file(root.join("dir/created")).unwrap();
        fs::remove_file(root.join("dir/moved")).unwrap();
    });
    let victim = Victim::beside(&bench);
    (bench, victim)
}

/// A step with every kind of record, all below `dir`.
fn work_in_dir(fs: &Applier<'_>) {
    fs.overwrite("dir/changed", b"changed").unwrap();
    fs.chmod("dir/changed", 0o600).unwrap();
    fs.unlink("dir/deleted").unwrap();
    fs.rename("dir/renamed", "dir/moved").unwrap();
    fs.create("dir/created", b"created").unwrap();
    fs.remove_all("dir/sub").unwrap();
    fs.mkdir("dir/new-directory").unwrap();
    fs.chmod("dir", 0o700).unwrap();
}

/// `dir` becomes a symlink to the victim; the real one is kept beside it.
fn swap_dir_for_symlink(bench: &Bench, victim: &Victim) {
    fs::rename(bench.path("dir"), bench.path("real")).unwrap();
    symlink(&victim.dir, bench.path("dir")).unwrap();
}

#[test]
fn a_mutation_through_a_symlinked_directory_is_refused() {
    let (bench, victim) = bench();
    symlink(&victim.dir, bench.path("way-out")).unwrap();
    symlink("../../outside", bench.path("dir/relative-way-out")).unwrap();
    let store_before = {
        bench.engine.open_step(StepRequest::command("escape")).unwrap();
        bench.applier().create("dir/created", b"so that a journal exists").unwrap();
        bench.workspace.undo().join("wal/in_progress/objects")
    };
    for way_out in ["way-out", "dir/relative-way-out"] {
        let at = |name: &str| format!("{way_out}/{name}");
        let (changed, deleted, sub, new) =
            (at("changed"), at("deleted"), at("sub"), at("brand-new"));
        let file = FileRef::at(rel(&changed));
        let mutations = [
            Mutation::Create { path: rel(&new), kind: EntryKind::File },
            Mutation::Mkdir { path: rel(&new) },
            Mutation::Link { path: rel(&new), existing: Some(rel("dir/changed")) },
            Mutation::Unlink { path: rel(&deleted) },
            Mutation::Rmdir { path: rel(&sub) },
            Mutation::Rename { from: rel(&changed), to: rel("in"), mode: RenameMode::Replace },
            Mutation::Rename {
                from: rel("dir/changed"),
                to: rel(&changed),
                mode: RenameMode::Replace,
            },
            Mutation::Rename {
                from: rel("dir/changed"),
                to: rel(&changed),
                mode: RenameMode::Exchange,
            },
            Mutation::Write { file, offset: 0, length: 5 },
            Mutation::Append { file },
            Mutation::Truncate { file, length: 0 },
            Mutation::Allocate { file, how: Allocation::PunchHole, offset: 0, length: 5 },
            Mutation::OpenUnseen { file },
            Mutation::SetAttributes { file },
        ];
        for mutation in mutations {
            let refused = bench.engine.before(&mutation).err();
            assert!(refused.is_some(), "allowed: {mutation:?}");
        }
    }
    victim.assert_untouched();
    let kept = fs::read_dir(store_before).map_or(0, Iterator::count);
    assert_eq!(kept, 0, "nothing from outside was taken into the store");
}

#[test]
fn undo_does_not_follow_a_directory_that_became_a_symlink() {
    for on_conflict in [OnConflict::Refuse, OnConflict::Skip, OnConflict::Force] {
        let (bench, victim) = bench();
        bench.step(work_in_dir);
        swap_dir_for_symlink(&bench, &victim);

        // Whether it refuses or does what is left to do, outside nothing happens.
        let _ = bench.engine.rollback(1, RollbackOptions { on_conflict });

        victim.assert_untouched();
    }
}

#[test]
fn redo_does_not_follow_a_directory_that_became_a_symlink() {
    for on_conflict in [OnConflict::Refuse, OnConflict::Skip, OnConflict::Force] {
        let (bench, victim) = bench();
        bench.step(work_in_dir);
        bench.undo(1);
        swap_dir_for_symlink(&bench, &victim);

        let _ = bench.engine.redo(1, RollbackOptions { on_conflict });

        victim.assert_untouched();
    }
}

#[test]
fn undo_does_not_follow_a_file_that_became_a_symlink() {
    for on_conflict in [OnConflict::Skip, OnConflict::Force] {
        let (bench, victim) = bench();
        bench.step(|fs| {
            fs.overwrite("dir/changed", b"changed").unwrap();
            fs.chmod("dir/deleted", 0o600).unwrap();
            fs.truncate("dir/renamed", 1).unwrap();
        });
        for name in ["changed", "deleted", "renamed"] {
            let path = bench.path("dir").join(name);
            fs::remove_file(&path).unwrap();
            symlink(victim.dir.join(name), &path).unwrap();
        }

        let _ = bench.engine.rollback(1, RollbackOptions { on_conflict });

        victim.assert_untouched();
    }
}

#[test]
fn recovery_does_not_follow_a_directory_that_became_a_symlink() {
    let (bench, victim) = bench();
    bench.engine.open_step(StepRequest::command("dies")).unwrap();
    work_in_dir(&bench.applier());
    swap_dir_for_symlink(&bench, &victim);

    let bench = bench.reopened();

    victim.assert_untouched();
    let report = bench.engine.recovery().expect("a report");
    assert!(!report.left.is_empty(), "it says what it could not put back: {report:?}");
}

#[test]
fn abort_does_not_follow_a_directory_that_became_a_symlink() {
    let (bench, victim) = bench();
    bench.engine.open_step(StepRequest::command("aborted")).unwrap();
    work_in_dir(&bench.applier());
    swap_dir_for_symlink(&bench, &victim);
    let _ = bench.engine.abort_step();
    victim.assert_untouched();
}

#[test]
fn restore_does_not_follow_a_directory_that_became_a_symlink() {
    let (bench, victim) = bench();
    let step = bench.step(work_in_dir).id;
    swap_dir_for_symlink(&bench, &victim);
    for path in ["dir/changed", "dir/deleted", "dir/created", "dir/sub"] {
        let _ = bench.engine.restore(step, &[rel_buf(path)]);
        victim.assert_untouched();
    }
}

#[test]
fn a_commit_does_not_follow_symlinks_on_either_side() {
    let (bench, victim) = bench();
    let staging = bench.beside("staging");
    fs::write(staging.join("file"), b"staged").unwrap();
    symlink(&victim.dir, staging.join("way-out")).unwrap();
    symlink(&victim.dir, bench.path("way-out")).unwrap();
    bench.engine.open_step(StepRequest::command("commit")).unwrap();
    for change in [
        StagedChange::Place { path: rel_buf("way-out/changed"), staged: rel_buf("file") },
        StagedChange::Remove { path: rel_buf("way-out/deleted") },
        StagedChange::Attributes { path: rel_buf("way-out/sub"), staged: rel_buf("file") },
        StagedChange::Place { path: rel_buf("stolen"), staged: rel_buf("way-out/changed") },
    ] {
        let outcome = bench.engine.adopt(&staging, std::slice::from_ref(&change));
        victim.assert_untouched();
        assert!(outcome.is_err() || !bench.path("stolen").exists(), "{change:?}");
    }
}

/// Swaps `dir` and a symlink to the victim as fast as it can while `work` runs.
fn while_swapping(bench: &Bench, victim: &Victim, work: impl FnOnce()) {
    symlink(&victim.dir, bench.path("trap")).unwrap();
    let (dir, trap) = (bench.path("dir"), bench.path("trap"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = rustix::fs::renameat_with(CWD, &dir, CWD, &trap, RenameFlags::EXCHANGE);
            }
        });
        work();
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn undo_and_redo_win_every_race_against_a_swapped_symlink() {
    for round in 0..15 {
        let (bench, victim) = bench();
        bench.step(work_in_dir);
        bench.step(|fs| fs.append("dir/changed", b"once more").unwrap());
        let on_conflict = if round % 2 == 0 { OnConflict::Force } else { OnConflict::Skip };
        let options = RollbackOptions { on_conflict };
        while_swapping(&bench, &victim, || {
            for _ in 0..3 {
                let _ = bench.engine.rollback(2, options);
                let _ = bench.engine.rollback(1, options);
                let _ = bench.engine.redo(1, options);
                let _ = bench.engine.redo(1, options);
            }
        });
        victim.assert_untouched();
    }
}

#[test]
fn capture_wins_every_race_against_a_swapped_symlink() {
    let (bench, victim) = bench();
    bench.engine.open_step(StepRequest::command("race")).unwrap();
    while_swapping(&bench, &victim, || {
        for _ in 0..300 {
            for path in ["dir/deleted", "dir/changed", "dir/sub/inner"] {
                // The engine moves what is removed out of the way itself.
                let _ = bench.engine.before(&Mutation::Unlink { path: rel(path) });
                let file = FileRef::at(rel(path));
                let _ = bench.engine.before(&Mutation::Truncate { file, length: 0 });
            }
        }
    });
    victim.assert_untouched();
    let _ = bench.engine.abort_step();
    victim.assert_untouched();
}

#[test]
fn the_watcher_cannot_be_sent_outside() {
    let (bench, victim) = bench();
    symlink(&victim.dir, bench.path("way-out")).unwrap();
    bench.step(|fs| fs.append("dir/changed", b"x").unwrap());
    let seen = rel_bufs(&["way-out/changed", "dir/changed"]);
    let _ = bench.engine.external_modification(&seen);
    bench.engine.watcher_overflowed().unwrap();
    victim.assert_untouched();
    bench.undo(1);
    victim.assert_untouched();
}

#[test]
fn a_hostile_tree_is_undone_without_leaving_it() {
    let (bench, victim) = bench();
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.symlink(victim.dir.as_os_str().as_encoded_bytes(), "absolute").unwrap();
        fs.symlink("../outside", "relative").unwrap();
        fs.symlink("/proc/self/root", "root").unwrap();
        fs.rename("dir", "hidden").unwrap();
        fs.symlink("../outside", "dir").unwrap();
    });
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
    victim.assert_untouched();
}
