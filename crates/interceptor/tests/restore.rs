//! Bringing single paths back from before a step, and taking a copy of what they were.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;

use codeagent_common::{StepId, StepKind};
use codeagent_interceptor::{RestoreReport, RollbackOptions, StagedChange, UndoError};
use codeagent_test_support::{TreeSnapshot, assert_tree_eq, assert_tree_eq_with, fixtures};
use common::{Bench, all_but, only, rel, rel_buf, rel_bufs};

#[track_caller]
fn restore(bench: &Bench, step: StepId, paths: &[&str]) -> RestoreReport {
    bench.engine.restore(step, &rel_bufs(paths)).expect("restore")
}

#[test]
fn a_file_changed_in_several_steps_comes_back_as_it_was_before_the_one_named() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.overwrite("small.txt", b"step 1").unwrap());
    let wanted = bench.snapshot();
    let second = bench.step(|fs| fs.overwrite("small.txt", b"step 2, longer").unwrap()).id;
    bench.step(|fs| {
        fs.append("small.txt", b" and step 3").unwrap();
        fs.append("medium.txt", b"stays").unwrap();
    });
    let latest = bench.snapshot();

    let report = restore(&bench, second, &["small.txt"]);

    let now = bench.snapshot();
    assert_tree_eq_with(&wanted, &now, &only(&["small.txt"]));
    assert_tree_eq_with(&latest, &now, &all_but(&["small.txt", ""]));
    assert_eq!(report.restored, rel_bufs(&["small.txt"]));
    assert_eq!(report.removed, []);
    assert_eq!(report.step.map(|step| step.kind), Some(StepKind::Restore));
}

#[test]
fn a_restore_is_a_step_that_can_be_undone() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    let step = bench.step(|fs| fs.overwrite("large.bin", b"short").unwrap()).id;
    let changed = bench.snapshot();
    restore(&bench, step, &["large.bin"]);
    let restored = bench.snapshot();

    bench.undo(1);
    assert_tree_eq(&changed, &bench.snapshot());
    bench.redo(1);
    assert_tree_eq(&restored, &bench.snapshot());
    bench.undo(2);
    assert_tree_eq(&before, &bench.snapshot());
    bench.assert_sound();
}

#[test]
fn a_deleted_file_comes_back() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    let step = bench
        .step(|fs| {
            fs.unlink("run.sh").unwrap();
            fs.unlink("large.bin").unwrap();
        })
        .id;

    restore(&bench, step, &["run.sh"]);

    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&["large.bin", ""]));
    assert!(!bench.path("large.bin").exists());
    // What was copied out of the history is still in it.
    bench.undo(2);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn a_deleted_directory_comes_back_with_all_that_was_in_it() {
    let bench = Bench::new(fixtures::deep_tree);
    let before = bench.snapshot();
    let step = bench.step(|fs| fs.remove_all("left").unwrap()).id;

    restore(&bench, step, &["left"]);

    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&[""]));
}

#[test]
fn a_file_out_of_a_deleted_directory_comes_back_alone() {
    let bench = Bench::new(fixtures::deep_tree);
    let before = bench.snapshot();
    let step = bench.step(|fs| fs.remove_all("left").unwrap()).id;

    restore(&bench, step, &["left/right/one.txt"]);

    let now = bench.snapshot();
    assert_tree_eq_with(&before, &now, &only(&["left/right/one.txt"]));
    let left: Vec<_> = now.entries.keys().filter(|path| path.starts_with(b"left")).collect();
    assert_eq!(left, [&b"left"[..], b"left/right", b"left/right/one.txt"]);
}

#[test]
fn a_file_that_did_not_exist_before_is_removed() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    let step = bench.step(|fs| fs.create("new.txt", b"new").unwrap()).id;
    bench.step(|fs| fs.append("new.txt", b" and changed").unwrap());

    let report = restore(&bench, step, &["new.txt"]);

    assert_eq!((report.restored, report.removed), (vec![], rel_bufs(&["new.txt"])));
    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&[""]));
    bench.undo(1);
    assert_eq!(fs::read(bench.path("new.txt")).unwrap(), b"new and changed");
}

#[test]
fn a_renamed_file_comes_back_and_its_new_name_stays() {
    let bench = Bench::new(fixtures::rename_tree);
    let before = bench.snapshot();
    let step = bench.step(|fs| fs.rename("a.txt", "full/moved.txt").unwrap()).id;
    bench.step(|fs| fs.append("full/moved.txt", b"changed since").unwrap());
    let after = bench.snapshot();

    restore(&bench, step, &["a.txt"]);

    let now = bench.snapshot();
    assert_tree_eq_with(&before, &now, &only(&["a.txt"]));
    assert_tree_eq_with(&after, &now, &all_but(&["a.txt", ""]));
}

#[test]
fn both_names_of_a_rename_are_put_right_together() {
    let bench = Bench::new(fixtures::rename_tree);
    let before = bench.snapshot();
    let step = bench.step(|fs| fs.rename("a.txt", "b.txt").unwrap()).id;

    restore(&bench, step, &["a.txt", "b.txt"]);

    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&[""]));
}

#[test]
fn a_file_in_a_renamed_directory_comes_back_under_its_old_name() {
    let bench = Bench::new(fixtures::rename_tree);
    let before = bench.snapshot();
    let step = bench
        .step(|fs| {
            fs.rename("full", "moved").unwrap();
            fs.overwrite("moved/inner.txt", b"changed").unwrap();
        })
        .id;

    restore(&bench, step, &["full/inner.txt"]);

    let now = bench.snapshot();
    assert_tree_eq_with(&before, &now, &only(&["full/inner.txt"]));
    assert_eq!(fs::read(bench.path("moved/inner.txt")).unwrap(), b"changed");
}

#[test]
fn a_file_that_became_a_directory_is_a_file_again() {
    let bench = Bench::new(fixtures::rename_tree);
    let before = bench.snapshot();
    let step = bench
        .step(|fs| {
            fs.unlink("a.txt").unwrap();
            fs.mkdir("a.txt").unwrap();
            fs.create("a.txt/inner", b"").unwrap();
        })
        .id;

    restore(&bench, step, &["a.txt"]);

    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&[""]));
}

#[test]
fn symlinks_and_attributes_come_back() {
    let bench = Bench::new(fixtures::symlink_tree);
    let before = bench.snapshot();
    let step = bench
        .step(|fs| {
            fs.unlink("dangling").unwrap();
            fs.chmod("file.txt", 0o600).unwrap();
            fs.set_mtime("directory", 1, 2).unwrap();
        })
        .id;

    restore(&bench, step, &["dangling", "file.txt", "directory"]);

    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&[""]));
}

#[test]
fn a_restore_outlives_the_engine() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    let step = bench.step(|fs| fs.unlink("large.bin").unwrap()).id;
    let bench = bench.reopened();
    restore(&bench, step, &["large.bin"]);
    let bench = bench.reopened();

    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&[""]));
    bench.undo(2);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn only_paths_and_steps_of_the_history_can_be_restored() {
    let bench = Bench::new(fixtures::small_tree);
    let step = bench.step(|fs| fs.append("small.txt", b"x").unwrap()).id;
    let after = bench.snapshot();

    let untouched = bench.engine.restore(step, &[rel_buf("medium.txt")]).unwrap_err();
    assert!(matches!(untouched, UndoError::PathNotInStep { .. }), "{untouched}");
    let mixed = bench.engine.restore(step, &rel_bufs(&["small.txt", "medium.txt"])).unwrap_err();
    assert!(matches!(mixed, UndoError::PathNotInStep { .. }), "{mixed}");
    let unknown = bench.engine.restore(StepId(99), &[rel_buf("small.txt")]).unwrap_err();
    assert!(matches!(unknown, UndoError::StepNotFound(StepId(99))), "{unknown}");

    assert_tree_eq(&after, &bench.snapshot());
    assert_eq!(bench.engine.steps().len(), 1);
}

#[test]
fn extract_writes_what_a_file_was_and_changes_nothing() {
    let bench = Bench::new(fixtures::small_tree);
    let former = fs::read(bench.path("large.bin")).unwrap();
    let step = bench.step(|fs| fs.write("large.bin", 5000, &[0; 90_000]).unwrap()).id;
    bench.step(|fs| fs.unlink("large.bin").unwrap());
    let after = bench.snapshot();
    let target = bench.beside("extracted").join("former.bin");

    assert!(bench.engine.extract(step, rel("large.bin"), &target).unwrap());

    assert!(fs::read(&target).unwrap() == former, "the content differs");
    assert_tree_eq(&after, &bench.snapshot());
    assert_eq!(bench.engine.steps().len(), 2);
}

#[test]
fn extract_says_that_there_was_nothing() {
    let bench = Bench::new(fixtures::small_tree);
    let step = bench.step(|fs| fs.create("new.txt", b"").unwrap()).id;
    let dir = bench.beside("extracted");

    let existed = bench.engine.extract(step, rel("new.txt"), &dir.join("new.txt")).unwrap();

    assert!(!existed);
    assert_eq!(TreeSnapshot::capture(&dir).entries.len(), 1, "nothing but the directory");
}

/// A file, then a directory in its place, each by a commit, and then work of another step.
fn replaced_twice() -> (Bench, Vec<TreeSnapshot>) {
    let bench = Bench::new(|root| fs::write(root.join("file"), "original").unwrap());
    let staging = bench.beside("staging");
    let mut trees = vec![bench.snapshot()];
    for round in ["first", "second"] {
        match round {
            "first" => fs::write(staging.join(round), round).unwrap(),
            _ => {
                fs::create_dir(staging.join(round)).unwrap();
                fs::write(staging.join(round).join("inside"), round).unwrap();
            }
        }
        bench.step(|fs| {
            let place = StagedChange::Place { path: rel_buf("file"), staged: rel_buf(round) };
            fs.engine().adopt(&staging, &[place]).unwrap();
        });
        trees.push(bench.snapshot());
    }
    bench.step(|fs| fs.append("file/inside", b", and more").unwrap());
    trees.push(bench.snapshot());
    (bench, trees)
}

#[test]
fn what_commits_have_replaced_comes_back_from_before_each_of_them() {
    for before in [1, 2] {
        let (bench, trees) = replaced_twice();
        let target = bench.beside("extracted").join("former");
        let step = StepId(before);
        assert!(bench.engine.extract(step, rel("file"), &target).unwrap());
        let former = if before == 1 { "original" } else { "first" };
        assert_eq!(fs::read_to_string(&target).unwrap(), former);
        restore(&bench, step, &["file"]);
        assert_tree_eq_with(&trees[before as usize - 1], &bench.snapshot(), &all_but(&[""]));
        bench.assert_sound();
        bench.undo(1);
        assert_tree_eq(&trees[3], &bench.snapshot());
        bench.undo(3);
        assert_tree_eq(&trees[0], &bench.snapshot());
        bench.redo(3);
        assert_tree_eq(&trees[3], &bench.snapshot());
    }
}

/// What the second step has replaced is missing in the store, or is another file.
#[test]
fn what_is_lost_of_what_a_commit_replaced_is_noticed_and_nothing_is_undone() {
    let damages: [fn(&std::path::Path); 2] = [
        |object| fs::remove_file(object).unwrap(),
        |object| {
            fs::remove_file(object).unwrap();
            fs::write(object, "another").unwrap();
        },
    ];
    for damage in damages {
        let (bench, trees) = replaced_twice();
        bench.undo(1);
        let bench = bench.reopened_after(|workspace| {
            let objects = fs::read_dir(workspace.undo().join("steps/2/objects")).unwrap();
            objects.for_each(|object| damage(&object.unwrap().path()));
        });
        assert!(!bench.verify().is_sound());
        let refused = bench.engine.rollback(1, RollbackOptions::default());
        assert!(matches!(refused, Err(UndoError::Corrupt(_))), "{refused:?}");
        let refused = bench.engine.restore(StepId(2), &rel_bufs(&["file"]));
        assert!(matches!(refused, Err(UndoError::Corrupt(_))), "{refused:?}");
        assert_tree_eq(&trees[2], &bench.snapshot());
    }
}
