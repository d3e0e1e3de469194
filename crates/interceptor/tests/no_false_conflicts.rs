//! What the engine did itself is never taken for somebody else's edit.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;

use codeagent_interceptor::{OnConflict, RollbackOptions};
use codeagent_test_support::{TempWorkspace, assert_tree_eq, filesystems, fixtures};
use common::Bench;

/// Undo and redo of everything, back and forth, with restarts: no conflict, ever.
fn assert_never_in_its_own_way(bench: Bench) {
    let mut trees = vec![bench.snapshot()];
    let works: [fn(&codeagent_test_support::Applier<'_>); 6] = [
        |fs| {
            fs.append("pair-1", b"agent").unwrap();
            fs.unlink("left/trio-1").unwrap();
            fs.mkdir("made").unwrap();
        },
        |fs| {
            fs.rename("pair-1", "made/pair-1").unwrap();
            fs.write("pair-2", 0, b"AGENT").unwrap();
            fs.link("right/trio-3", "made/trio-4").unwrap();
        },
        |fs| {
            fs.rename("made", "renamed").unwrap();
            fs.save_by_rename("equal-1", b"saved").unwrap();
        },
        |fs| {
            fs.append("renamed/trio-4", b"by a late name").unwrap();
            fs.remove_all("left").unwrap();
            fs.create("left", b"a file now").unwrap();
        },
        |fs| {
            fs.exchange("renamed", "right").unwrap();
            fs.chmod("equal-2", 0o600).unwrap();
        },
        |fs| {
            fs.remove_all("renamed").unwrap();
            fs.truncate("right/pair-1", 3).unwrap();
        },
    ];
    let mut bench = bench;
    for work in works {
        bench.step(work);
        trees.push(bench.snapshot());
    }
    let last = trees.len() - 1;
    for (undone, restart) in [(1, false), (3, true), (last, false), (2, true), (last, true)] {
        let report = bench.undo(undone);
        assert_eq!(report.conflicts, []);
        assert_tree_eq(&trees[last - undone], &bench.snapshot());
        bench = if restart { bench.reopened() } else { bench };
        (0..undone).for_each(|_| drop(bench.redo(1)));
        assert_tree_eq(&trees[last], &bench.snapshot());
    }
    (0..last).for_each(|_| drop(bench.undo(1)));
    assert_tree_eq(&trees[0], &bench.snapshot());
    bench.assert_sound();
}

#[test]
fn our_own_undo_and_redo_are_never_conflicts() {
    assert_never_in_its_own_way(Bench::new(fixtures::hardlink_tree));
}

#[test]
fn our_own_undo_and_redo_are_never_conflicts_across_filesystems() {
    let Some(disk) = filesystems::disk_dir() else {
        return filesystems::skip("no_conflicts_across_filesystems", "no disk filesystem");
    };
    let workspace = TempWorkspace::across(std::path::Path::new("/dev/shm"), &disk);
    let workspace = workspace.filled(fixtures::hardlink_tree);
    assert_never_in_its_own_way(Bench::configured(workspace, |_| {}));
}

#[test]
fn steps_after_an_undo_meet_no_conflicts() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| fs.append("small.txt", b"1").unwrap());
    bench.step(|fs| fs.unlink("small.txt").unwrap());
    bench.undo(1);
    bench.step(|fs| fs.append("small.txt", b"2").unwrap());
    let options = RollbackOptions { on_conflict: OnConflict::Refuse };
    bench.engine.rollback(2, options).unwrap();
    assert_tree_eq(&before, &bench.snapshot());
}

/// Two directories with a file of the same name in each.
fn twin_directories(root: &std::path::Path) {
    for dir in ["one", "two"] {
        fs::create_dir(root.join(dir)).unwrap();
        fs::write(root.join(dir).join("file"), dir).unwrap();
    }
    fixtures::set_distinct_mtimes(root);
}

#[test]
fn a_name_that_came_with_another_directory_has_not_appeared() {
    let bench = Bench::new(twin_directories);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.exchange("one", "two").unwrap();
        fs.unlink("one/file").unwrap();
    });
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());

    bench.step(|fs| {
        fs.rename("one", "three").unwrap();
        fs.rename("two", "one").unwrap();
        fs.unlink("three/file").unwrap();
    });
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn a_name_in_a_new_directory_in_place_of_a_renamed_one_has_not_appeared() {
    let bench = Bench::new(twin_directories);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.rename("one", "two/one").unwrap();
        fs.mkdir("one").unwrap();
    });
    bench.step(|fs| fs.mkdir("one/file").unwrap());
    let after = bench.snapshot();
    bench.undo(2);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(2);
    assert_tree_eq(&after, &bench.snapshot());
}

#[test]
fn another_name_of_a_file_in_a_renamed_directory_has_not_changed() {
    let bench = Bench::new(|root| {
        twin_directories(root);
        fs::hard_link(root.join("one/file"), root.join("link")).unwrap();
    });
    bench.step(|fs| fs.append("link", b"more").unwrap());
    bench.step(|fs| fs.rename("one", "renamed").unwrap());
    bench.step(|fs| fs.unlink("renamed/file").unwrap());
    let after = bench.snapshot();
    bench.undo(3);
    (0..3).for_each(|_| drop(bench.redo(1)));
    assert_tree_eq(&after, &bench.snapshot());
}

/// Undoes all steps at once, redoes them at once, and undoes them again.
#[track_caller]
fn assert_undone_together(bench: &Bench, before: &codeagent_test_support::TreeSnapshot) {
    let (count, after) = (bench.engine.steps().len(), bench.snapshot());
    bench.undo(count);
    assert_tree_eq(before, &bench.snapshot());
    bench.redo(count);
    assert_tree_eq(&after, &bench.snapshot());
    bench.undo(count);
    assert_tree_eq(before, &bench.snapshot());
}

#[test]
fn a_link_whose_other_name_was_written_and_deleted_has_not_changed() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| fs.link("small.txt", "link").unwrap());
    bench.step(|fs| {
        fs.write("small.txt", 0, b"agent").unwrap();
        fs.unlink("small.txt").unwrap();
    });
    assert_undone_together(&bench, &before);
}

#[test]
fn a_link_that_is_written_by_a_handle_of_a_deleted_name_has_not_changed() {
    let bench = Bench::new(fixtures::hardlink_tree);
    let before = bench.snapshot();
    let file = bench.applier().open("pair-1").unwrap();
    bench.step(|fs| fs.write_open(&file, "pair-1", 0, b"first").unwrap());
    bench.step(|fs| {
        fs.write_open(&file, "pair-1", 0, b"second").unwrap();
        fs.unlink("pair-1").unwrap();
    });
    bench.step(|fs| fs.write_open(&file, "pair-1", 0, b"third").unwrap());
    assert_undone_together(&bench, &before);
}

#[test]
fn linked_files_exchanged_there_and_back_have_not_changed() {
    let bench = Bench::new(fixtures::hardlink_tree);
    let before = bench.snapshot();
    bench.step(|fs| fs.exchange("pair-1", "equal-1").unwrap());
    bench.step(|fs| {
        fs.exchange("pair-1", "equal-1").unwrap();
        fs.exchange("pair-1", "equal-1").unwrap();
    });
    assert_undone_together(&bench, &before);
}

#[test]
fn a_link_in_an_exchanged_directory_has_not_changed() {
    let bench = Bench::new(twin_directories);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.link("two/file", "link").unwrap();
        fs.write("link", 0, b"agent").unwrap();
    });
    bench.step(|fs| {
        fs.write("one/file", 0, b"agent").unwrap();
        fs.exchange("one", "two").unwrap();
    });
    assert_undone_together(&bench, &before);
}
