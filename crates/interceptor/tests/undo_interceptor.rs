//! One step of every kind of mutation, undone and redone: the tree must be exactly what it was.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use codeagent_interceptor::{Allocation, dump};
use codeagent_test_support::{
    CompareOptions, TempWorkspace, as_ordinary_user, assert_tree_eq, assert_tree_eq_with,
    filesystems, fixtures,
};
use common::reversible::{
    assert_reversible, assert_reversible_in, bench_on_disk, bench_with_xattrs,
};
use common::{Bench, is_root};

/// UI-01
#[test]
fn a_file_written_three_times_is_captured_once() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    let step = bench.step(|fs| {
        fs.write("small.txt", 0, b"first").unwrap();
        fs.write("small.txt", 2, b"second").unwrap();
        fs.write("small.txt", 0, b"third and longer than the file was").unwrap();
    });
    assert_eq!((step.modified, step.added, step.deleted), (1, 0, 0));
    let journal = dump(bench.workspace.undo(), &format!("steps/{}", step.id)).unwrap();
    assert_eq!(journal.matches("Preimage").count(), 1, "{journal}");

    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

/// UI-02
#[test]
fn undo_removes_a_created_file_and_restores_the_mtime_of_its_directory() {
    assert_reversible_in(fixtures::small_tree, |fs| {
        fs.create("src/new.rs", b"pub struct New;\n").unwrap();
    });
}

/// UI-03
#[test]
fn undo_removes_nested_new_directories() {
    assert_reversible_in(fixtures::small_tree, |fs| {
        for dir in ["a", "a/b", "a/b/c", "src/components/d"] {
            fs.mkdir(dir).unwrap();
        }
        fs.create("a/b/c/leaf", b"leaf\n").unwrap();
        fs.create("a/b/middle", b"").unwrap();
    });
}

/// UI-04
#[test]
fn undo_restores_a_deleted_file_with_mode_mtime_and_xattrs() {
    let Some(bench) = bench_with_xattrs("undo_restores_a_deleted_file") else { return };
    assert_reversible(&bench, |fs| {
        for name in ["plain.txt", "tagged.txt", "long.txt"] {
            fs.unlink(name).unwrap();
        }
        fs.rmdir("directory").unwrap();
    });
}

/// UI-05
#[test]
fn undo_restores_a_deleted_tree() {
    let step = assert_reversible_in(fixtures::deep_tree, |fs| fs.remove_all("left").unwrap());
    assert_eq!(step.deleted, 31 + 62, "directories and files");
}

/// UI-05: names, modes, types and times that are easy to lose.
#[test]
fn undo_restores_everything_of_an_awkward_tree() {
    assert_reversible_in(fixtures::awkward_tree, |fs| {
        fs.chmod("closed-directory", 0o700).unwrap();
        let names = std::fs::read_dir(fs.full_path("")).unwrap();
        for name in names.map(|entry| entry.unwrap().file_name()) {
            fs.remove_all(name.as_encoded_bytes()).unwrap();
        }
    });
}

/// The same for somebody whom permissions bind.
#[test]
fn undo_restores_an_awkward_tree_for_an_ordinary_user() {
    as_ordinary_user(
        "undo_restores_an_awkward_tree_for_an_ordinary_user",
        undo_restores_everything_of_an_awkward_tree,
    );
}

/// UI-06
#[test]
fn undo_gives_a_renamed_file_its_name_back() {
    let step = assert_reversible_in(fixtures::rename_tree, |fs| {
        fs.rename("a.txt", "full/new-name.txt").unwrap();
    });
    assert_eq!((step.renamed, step.added, step.deleted), (1, 0, 0));
}

/// UI-07
#[test]
fn undo_restores_both_files_of_a_rename_over_another() {
    assert_reversible_in(fixtures::rename_tree, |fs| fs.rename("a.txt", "b.txt").unwrap());
}

/// UI-07: as editors save.
#[test]
fn undo_restores_a_file_that_was_saved_by_rename() {
    assert_reversible_in(fixtures::rename_tree, |fs| {
        fs.save_by_rename("a.txt", b"new content\n").unwrap();
        fs.save_by_rename("a.txt", b"and once more\n").unwrap();
    });
}

/// UI-07: a directory may replace an empty one.
#[test]
fn undo_restores_both_directories_of_a_rename_over_an_empty_one() {
    assert_reversible_in(fixtures::rename_tree, |fs| fs.rename("full", "empty").unwrap());
}

/// UI-08
#[test]
fn undo_restores_a_renamed_directory_with_all_below_it() {
    let step = assert_reversible_in(fixtures::rename_tree, |fs| {
        fs.rename("full", "moved").unwrap();
    });
    assert_eq!((step.renamed, step.added, step.deleted), (1, 0, 0));
}

/// UI-08
#[test]
fn a_directory_is_renamed_across_directories_and_changed_below() {
    assert_reversible_in(fixtures::rename_tree, |fs| {
        fs.write("full/inner.txt", 0, b"before the rename").unwrap();
        fs.rename("full/deeper", "empty/deeper").unwrap();
        fs.write("empty/deeper/innermost.txt", 3, b"after it").unwrap();
        fs.create("empty/deeper/new.txt", b"new").unwrap();
        fs.rename("empty", "full/empty").unwrap();
        fs.unlink("full/empty/deeper/innermost.txt").unwrap();
    });
}

/// UI-09
#[test]
fn a_file_is_captured_before_it_is_opened_with_truncation() {
    assert_reversible_in(fixtures::small_tree, |fs| {
        fs.overwrite("large.bin", b"short now").unwrap();
        fs.overwrite("empty.txt", b"no longer empty").unwrap();
    });
}

/// UI-10
#[test]
fn undo_restores_what_truncation_cut_off() {
    assert_reversible_in(fixtures::small_tree, |fs| {
        fs.truncate("large.bin", 12_345).unwrap();
        fs.truncate("medium.txt", 100_000).unwrap();
        fs.truncate("small.txt", 0).unwrap();
    });
}

/// UI-11
#[test]
fn undo_restores_modes() {
    assert_reversible_in(fixtures::small_tree, |fs| {
        fs.chmod("run.sh", 0o644).unwrap();
        fs.chmod("small.txt", 0o6711).unwrap();
        fs.chmod("src", 0o1700).unwrap();
    });
}

/// UI-11: owner and times are attributes too.
#[test]
fn undo_restores_owner_and_mtime() {
    if !is_root() {
        return filesystems::skip("undo_restores_owner_and_mtime", "only root may chown");
    }
    assert_reversible_in(fixtures::awkward_tree, |fs| {
        fs.chown("suid", 12, 34).unwrap(); // takes the suid bit away, too
        fs.chown("sgid-directory", 12, 34).unwrap();
        fs.set_mtime("after-32-bits", -77, 5).unwrap();
        fs.set_mtime("sticky-directory", 1_234_567_890, 999_999_999).unwrap();
    });
}

/// UI-12
#[test]
fn undo_takes_back_new_and_changed_xattrs() {
    let Some(bench) = bench_with_xattrs("undo_takes_back_xattrs") else { return };
    assert_reversible(&bench, |fs| {
        fs.set_xattr("plain.txt", "user.new", b"value").unwrap();
        fs.set_xattr("tagged.txt", "user.text", b"another value").unwrap();
        fs.set_xattr("directory", "user.more", b"\0").unwrap();
    });
}

/// UI-13
#[test]
fn undo_restores_removed_xattrs() {
    let Some(bench) = bench_with_xattrs("undo_restores_removed_xattrs") else { return };
    assert_reversible(&bench, |fs| {
        for name in ["user.text", "user.bytes", "user.empty"] {
            fs.remove_xattr("tagged.txt", name).unwrap();
        }
        fs.remove_xattr("long.txt", "user.long").unwrap();
        fs.remove_xattr("directory", "user.text").unwrap();
    });
}

/// UI-12, UI-13: ACLs are xattrs that the kernel derives the mode from.
#[test]
fn undo_restores_acls() {
    let workspace = TempWorkspace::new();
    if !filesystems::supports_acls(workspace.working()) {
        return filesystems::skip("undo_restores_acls", "no ACLs here");
    }
    let bench = Bench::configured(workspace.filled(fixtures::awkward_tree), |_| {});
    assert_reversible(&bench, |fs| {
        fs.remove_xattr("with-acl", "system.posix_acl_access").unwrap();
        fs.chmod("with-acl", 0o600).unwrap();
        fs.set_xattr("empty", "system.posix_acl_access", &fixtures::sample_acl()).unwrap();
        fs.remove_all("default-acl").unwrap();
    });
}

/// UI-14
#[test]
fn undo_restores_the_size_of_a_file_extended_by_fallocate() {
    assert_reversible_in(fixtures::small_tree, |fs| {
        fs.allocate("small.txt", Allocation::Extend, 0, 100_000).unwrap();
        fs.allocate("medium.txt", Allocation::KeepSize, 0, 100_000).unwrap();
    });
}

/// UI-14: the ways of fallocate that take content away or move it.
#[test]
fn undo_restores_punched_zeroed_collapsed_and_inserted_ranges() {
    let Some(bench) = bench_on_disk("undo_restores_punched_ranges") else { return };
    bench.step(|fs| {
        for name in ["zeroed", "collapsed", "inserted"] {
            fs.create(name, &fixtures::varied_bytes(300_000)).unwrap();
        }
    });
    assert_reversible(&bench, |fs| {
        fs.allocate("large.bin", Allocation::PunchHole, 70_001, 130_000).unwrap();
        fs.allocate("zeroed", Allocation::ZeroRange, 290_000, 50_000).unwrap();
        fs.allocate("collapsed", Allocation::CollapseRange, 4096, 65_536).unwrap();
        fs.allocate("inserted", Allocation::InsertRange, 8192, 65_536).unwrap();
    });
}

/// UI-15
#[test]
fn the_destination_of_copy_file_range_is_captured() {
    assert_reversible_in(fixtures::small_tree, |fs| {
        fs.copy_range("medium.txt", "large.bin", 500_000, 4000).unwrap();
        fs.copy_range("large.bin", "small.txt", 10, 200_000).unwrap();
    });
}

/// UI-16
#[test]
fn undoing_one_of_two_steps_restores_what_the_first_left() {
    let bench = Bench::new(fixtures::small_tree);
    let original = bench.snapshot();
    bench.step(|fs| fs.overwrite("small.txt", b"after step 1").unwrap());
    let after_first = bench.snapshot();
    bench.step(|fs| fs.overwrite("small.txt", b"after step 2, longer").unwrap());

    bench.undo(1);
    assert_tree_eq(&after_first, &bench.snapshot());
    bench.undo(1);
    assert_tree_eq(&original, &bench.snapshot());
}

/// UI-22
#[test]
fn undo_in_one_working_directory_leaves_another_alone() {
    let (one, other) = (Bench::new(fixtures::small_tree), Bench::new(fixtures::small_tree));
    let before = one.snapshot();
    one.step(|fs| fs.overwrite("small.txt", b"changed").unwrap());
    other.step(|fs| fs.overwrite("small.txt", b"changed here too").unwrap());
    let other_after = other.snapshot();

    one.undo(1);

    assert_tree_eq(&before, &one.snapshot());
    assert_tree_eq(&other_after, &other.snapshot());
    assert_eq!(other.engine.steps().len(), 1);
}

/// UI-23: capture is by inode, so links come out exact, whichever name was used.
#[test]
fn undo_restores_hard_links_as_hard_links() {
    assert_reversible_in(fixtures::hardlink_tree, |fs| {
        fs.write("pair-1", 4, b"by one name").unwrap();
        fs.write("pair-2", 0, b"by the other").unwrap();
        fs.unlink("left/trio-1").unwrap();
        fs.append("right/trio-3", b"while a name is missing").unwrap();
        fs.rename("left/trio-2", "trio-2").unwrap();
        fs.link("equal-1", "left/equal-3").unwrap();
    });
}

/// UI-23
#[test]
fn undo_restores_the_links_of_a_file_all_of_whose_names_were_deleted() {
    assert_reversible_in(fixtures::hardlink_tree, |fs| {
        for name in ["left/trio-1", "right/trio-3", "left/trio-2", "pair-2", "pair-1"] {
            fs.unlink(name).unwrap();
        }
        fs.create("pair-1", b"someone else").unwrap();
    });
}

/// UI-23
#[test]
fn undo_tells_a_replaced_link_from_the_file_that_replaced_it() {
    assert_reversible_in(fixtures::hardlink_tree, |fs| {
        fs.save_by_rename("pair-1", b"a file of its own\n").unwrap();
        fs.rename("equal-1", "pair-2").unwrap();
        fs.rename("left/trio-1", "left/trio-2").unwrap(); // the same file: nothing happens
    });
}

/// UI-23: or a later write to the file would change the store.
#[test]
fn a_file_that_came_back_from_the_store_is_no_longer_linked_with_it() {
    let bench = Bench::new(fixtures::hardlink_tree);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.unlink("pair-1").unwrap();
        fs.rename("equal-1", "equal-2").unwrap();
        fs.save_by_rename("left/trio-1", b"replaced").unwrap();
    });
    bench.undo(1);
    let with_link_counts = CompareOptions { link_counts: true, ..CompareOptions::default() };
    assert_tree_eq_with(&before, &bench.snapshot(), &with_link_counts);
}

/// UI-24
#[test]
fn undo_restores_symlinks_with_target_and_mtime() {
    assert_reversible_in(fixtures::symlink_tree, |fs| {
        for link in ["to-file", "dangling", "loop", "to-outside", "directory/to-parent"] {
            fs.unlink(link).unwrap();
        }
        fs.symlink("elsewhere", "to-file").unwrap();
        fs.symlink("somewhere", "new-link").unwrap();
        fs.symlink("directory", "temporary").unwrap();
        fs.rename("temporary", "to-absolute").unwrap();
        fs.set_mtime("to-link", 5, 6).unwrap();
        fs.rename("to-directory", "directory/renamed-link").unwrap();
    });
}
