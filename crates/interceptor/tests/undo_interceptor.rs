//! One step of every kind of mutation, undone and redone: the tree must be exactly what it was.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use codeagent_common::{EntryKind, StepInfo};
use codeagent_interceptor::{
    Allocation, ClosedStep, FileId, FileRef, Mutation, WriteInterceptor, dump,
};
use codeagent_test_support::{
    Applier, CompareOptions, TempWorkspace, as_ordinary_user, assert_tree_eq, assert_tree_eq_with,
    filesystems, fixtures,
};
use common::{Bench, assert_errno, is_root, rel};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Undo brings back exactly what was there before `work`, redo what it made of it.
#[track_caller]
fn assert_reversible(bench: &Bench, work: impl FnOnce(&Applier<'_>)) -> StepInfo {
    let before = bench.snapshot();
    let step = bench.step(work);
    let after = bench.snapshot();
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(1);
    assert_tree_eq(&after, &bench.snapshot());
    bench.assert_sound();
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
    step
}

/// As `assert_reversible`, in a small tree.
#[track_caller]
fn assert_reversible_in(fixture: impl FnOnce(&Path), work: impl FnOnce(&Applier<'_>)) -> StepInfo {
    assert_reversible(&Bench::new(fixture), work)
}

/// A bench whose files can have xattrs, or `None` after saying why not.
fn bench_with_xattrs(test: &str) -> Option<Bench> {
    let workspace = TempWorkspace::new();
    if !filesystems::supports_user_xattrs(workspace.working()) {
        filesystems::skip(test, "no user xattrs here");
        return None;
    }
    Some(Bench::configured(workspace.filled(fixtures::xattr_tree), |_| {}))
}

/// A bench on a real disk, or `None` after saying why not.
fn bench_on_disk(test: &str) -> Option<Bench> {
    let Some(disk) = filesystems::disk_dir() else {
        filesystems::skip(test, "no disk filesystem");
        return None;
    };
    Some(Bench::configured(TempWorkspace::on(&disk).filled(fixtures::small_tree), |_| {}))
}

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

#[test]
fn undo_swaps_exchanged_names_back() {
    assert_reversible_in(fixtures::rename_tree, |fs| {
        fs.exchange("a.txt", "b.txt").unwrap();
        fs.exchange("full", "empty").unwrap();
        fs.write("empty/inner.txt", 0, b"changed under the new name").unwrap();
    });
    assert_reversible_in(fixtures::rename_tree, |fs| {
        fs.exchange("a.txt", "full").unwrap();
        fs.create("a.txt/new", b"in what was full").unwrap();
        fs.append("full", b"to what was a.txt").unwrap();
        fs.exchange("empty", "a.txt/deeper").unwrap();
    });
}

#[test]
fn a_rename_that_must_not_replace_does_not() {
    let bench = Bench::new(fixtures::rename_tree);
    let before = bench.snapshot();
    bench.try_step(|fs| assert_errno(fs.rename_noreplace("a.txt", "b.txt"), Errno::EXIST));
    assert_tree_eq(&before, &bench.snapshot());
    assert_reversible(&bench, |fs| fs.rename_noreplace("a.txt", "c.txt").unwrap());
}

#[test]
fn undo_removes_a_file_that_was_made_without_a_name_and_linked_later() {
    assert_reversible_in(fixtures::small_tree, |fs| {
        fs.link_tmpfile("src/linked", b"complete at once\n").unwrap();
        fs.append("src/linked", b"and more\n").unwrap();
    });
}

#[test]
fn fifos_come_and_go() {
    assert_reversible_in(fixtures::awkward_tree, |fs| {
        fs.mkfifo("new-fifo").unwrap();
        fs.unlink("fifo").unwrap();
    });
    assert_reversible_in(fixtures::awkward_tree, |fs| fs.chmod("fifo", 0o600).unwrap());
}

#[test]
fn sockets_and_devices_come_and_go() {
    if !is_root() {
        return filesystems::skip("sockets_and_devices_come_and_go", "only root makes devices");
    }
    let make = |path: &Path, kind, device| {
        rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o640), device).unwrap();
    };
    let null = rustix::fs::makedev(1, 3);
    let bench = Bench::new(|root| {
        make(&root.join("old-null"), FileType::CharacterDevice, null);
        make(&root.join("old-socket"), FileType::Socket, 0);
        fixtures::set_distinct_mtimes(root);
    });
    assert_reversible(&bench, |fs| {
        for (name, kind, host_kind, device) in [
            ("null", EntryKind::Device, FileType::CharacterDevice, null),
            ("socket", EntryKind::Socket, FileType::Socket, 0),
        ] {
            let permit = fs.engine().before(&Mutation::Create { path: rel(name), kind }).unwrap();
            make(&fs.full_path(name), host_kind, device);
            permit.done();
        }
        fs.unlink("old-null").unwrap();
        fs.unlink("old-socket").unwrap();
    });
}

#[test]
fn appending_stores_only_the_former_length() {
    let step = assert_reversible_in(fixtures::small_tree, |fs| {
        fs.append("large.bin", b"one more line\n").unwrap();
        fs.write("large.bin", 1_000_014, &[7; 70_000]).unwrap();
    });
    assert!(step.stored_bytes < 8192, "{} bytes stored", step.stored_bytes);
}

#[test]
fn overwriting_a_small_part_of_a_large_file_stores_a_small_part() {
    let bench = Bench::new(|root| {
        std::fs::write(root.join("huge.bin"), fixtures::varied_bytes(32 << 20)).unwrap();
        fixtures::set_distinct_mtimes(root);
    });
    let step = assert_reversible(&bench, |fs| {
        fs.write("huge.bin", 20_000_000, &[1; 4096]).unwrap();
    });
    assert!(step.stored_bytes < 2 << 20, "{} bytes stored", step.stored_bytes);
}

#[test]
fn writes_the_engine_does_not_see_are_captured_when_the_file_is_opened_for_them() {
    assert_reversible_in(fixtures::small_tree, |fs| {
        fs.write_unseen("large.bin", b"through a shared mapping").unwrap();
    });
}

#[test]
fn holes_stay_holes_and_data_behind_them_stays() {
    assert_reversible_in(fixtures::awkward_tree, |fs| {
        fs.write("sparse", 100, &fixtures::varied_bytes(900_000)).unwrap();
        fs.truncate("sparse", 500_000).unwrap();
        fs.truncate("sparse", 800_000).unwrap();
    });
}

#[test]
fn a_deleted_file_that_is_written_to_through_a_handle_comes_back_unwritten() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    let file = bench.applier().open("large.bin").unwrap();
    bench.step(|fs| {
        fs.write_open(&file, "large.bin", 0, b"before it is deleted").unwrap();
        fs.unlink("large.bin").unwrap();
        fs.write_open(&file, "large.bin", 100_000, b"after").unwrap();
    });
    bench.step(|fs| {
        fs.write_open(&file, "large.bin", 300_000, b"in a later step").unwrap();
        fs.write("small.txt", 0, b"so that it is not empty").unwrap();
    });

    bench.undo(2);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(2);
    bench.undo(2);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn a_replaced_file_that_is_written_to_through_a_handle_comes_back_unwritten() {
    let bench = Bench::new(fixtures::rename_tree);
    let before = bench.snapshot();
    let file = bench.applier().open("b.txt").unwrap();
    bench.step(|fs| {
        fs.rename("a.txt", "b.txt").unwrap();
        fs.write_open(&file, "b.txt", 3, b"to the file that was replaced").unwrap();
    });
    bench.step(|fs| {
        fs.write_open(&file, "b.txt", 8, b"again").unwrap();
        fs.append("b.txt", b"to the one that replaced it").unwrap();
    });

    bench.undo(1);
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn a_handle_finds_its_file_after_a_rename() {
    let bench = Bench::new(fixtures::rename_tree);
    let file = bench.applier().open("full/inner.txt").unwrap();
    assert_reversible(&bench, |fs| {
        fs.rename("full", "moved").unwrap();
        fs.write_open(&file, "full/inner.txt", 0, b"by its former name").unwrap();
    });
}

#[test]
fn a_large_file_is_overwritten_piece_by_piece_while_its_name_goes_to_another() {
    let bench = Bench::new(fixtures::small_tree);
    let file = bench.applier().open("large.bin").unwrap();
    assert_reversible(&bench, |fs| {
        fs.write_open(&file, "large.bin", 0, b"under its name").unwrap();
        fs.rename("large.bin", "moved.bin").unwrap();
        fs.create("large.bin", &[7; 200_000]).unwrap();
        fs.write_open(&file, "large.bin", 100_000, b"by its former name").unwrap();
        fs.write_open(&file, "moved.bin", 150_000, b"by its new name").unwrap();
        fs.write("large.bin", 100_000, b"the other one").unwrap();
    });
}

#[test]
fn undo_restores_what_changed_its_type() {
    assert_reversible_in(fixtures::rename_tree, |fs| {
        fs.unlink("a.txt").unwrap();
        fs.mkdir("a.txt").unwrap();
        fs.create("a.txt/inner", b"below what was a file").unwrap();
        fs.remove_all("full").unwrap();
        fs.create("full", b"a file where a directory was").unwrap();
        fs.unlink("b.txt").unwrap();
        fs.symlink("full", "b.txt").unwrap();
        fs.rmdir("empty").unwrap();
        fs.mkfifo("empty").unwrap();
    });
}

#[test]
fn what_is_made_and_removed_in_one_step_leaves_nothing() {
    let step = assert_reversible_in(fixtures::small_tree, |fs| {
        fs.mkdir("scratch").unwrap();
        fs.create("scratch/file", &[1; 100_000]).unwrap();
        fs.rename("scratch/file", "scratch/renamed").unwrap();
        fs.remove_all("scratch").unwrap();
        fs.write("small.txt", 0, b"x").unwrap();
    });
    assert_eq!((step.added, step.deleted, step.renamed), (0, 0, 0));
    assert!(step.stored_bytes < 8192, "{} bytes stored", step.stored_bytes);
}

#[test]
fn operations_that_cannot_happen_leave_no_trace() {
    let bench = Bench::new(fixtures::rename_tree);
    let before = bench.snapshot();
    let closed = bench.try_step(|fs| {
        assert_errno(fs.create("a.txt", b"over an existing file"), Errno::EXIST);
        assert_errno(fs.mkdir("full"), Errno::EXIST);
        assert_errno(fs.symlink("x", "b.txt"), Errno::EXIST);
        assert_errno(fs.link("a.txt", "b.txt"), Errno::EXIST);
        assert_errno(fs.rmdir("full"), Errno::NOTEMPTY);
        assert_errno(fs.rmdir("a.txt"), Errno::NOTDIR);
        assert_errno(fs.unlink("missing"), Errno::NOENT);
        assert_errno(fs.rename("full", "a.txt"), Errno::NOTDIR);
        assert_errno(fs.rename("a.txt", "full"), Errno::ISDIR);
        assert_errno(fs.rename("empty", "full"), Errno::NOTEMPTY);
        assert_errno(fs.rename("missing", "new"), Errno::NOENT);
        assert_errno(fs.rename("full", "full/deeper/inside-itself"), Errno::INVAL);
        assert_errno(fs.create("a.txt/below-a-file", b""), Errno::NOTDIR);
    });
    assert_tree_eq(&before, &bench.snapshot());
    assert!(matches!(closed, ClosedStep::Empty(_)), "{closed:?}");
    assert_eq!(bench.engine.steps(), []);
    bench.assert_sound();
}

#[test]
fn a_mutation_the_host_refused_is_not_undone() {
    let bench = Bench::new(fixtures::rename_tree);
    let before = bench.snapshot();
    bench.step(|fs| {
        let engine = fs.engine();
        fs.create("new.txt", b"this one happens").unwrap();
        for refused in [
            Mutation::Create { path: rel("c.txt"), kind: EntryKind::File },
            Mutation::Mkdir { path: rel("dir") },
            Mutation::Rmdir { path: rel("empty") },
            Mutation::Rename {
                from: rel("a.txt"),
                to: rel("b.txt"),
                mode: codeagent_interceptor::RenameMode::Replace,
            },
            Mutation::Rename {
                from: rel("a.txt"),
                to: rel("full"),
                mode: codeagent_interceptor::RenameMode::Exchange,
            },
            Mutation::SetAttributes { file: FileRef::at(rel("b.txt")) },
        ] {
            engine.before(&refused).unwrap().failed();
        }
    });
    bench.assert_sound();
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

/// Makes a chain of directories by handle, each announced to the engine by its whole path, until
/// the path is longer than any system call would take. Returns path and handle of the deepest.
fn descend_past_path_max(bench: &Bench) -> (Vec<u8>, OwnedFd) {
    let name = [b'd'; 200];
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let mut at = rustix::fs::open(bench.workspace.working(), flags, Mode::empty()).unwrap();
    let mut path = Vec::new();
    while path.len() <= 4200 {
        path.extend_from_slice(if path.is_empty() { b"" } else { b"/" });
        path.extend_from_slice(&name);
        let permit = bench.engine.before(&Mutation::Mkdir { path: rel(&path) }).unwrap();
        rustix::fs::mkdirat(&at, &name[..], Mode::from_raw_mode(0o755)).unwrap();
        permit.done();
        at = rustix::fs::openat(&at, &name[..], flags, Mode::empty()).unwrap();
    }
    (path, at)
}

#[test]
fn paths_longer_than_path_max_are_undone_too() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    let mut deepest = None;
    bench.step(|_| deepest = Some(descend_past_path_max(&bench)));
    let (dir_path, dir) = deepest.unwrap();
    let file_path = [&dir_path[..], b"/file"].concat();
    bench.step(|_| {
        let mutation = Mutation::Create { path: rel(&file_path), kind: EntryKind::File };
        let permit = bench.engine.before(&mutation).unwrap();
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let file = rustix::fs::openat(&dir, "file", flags, Mode::from_raw_mode(0o644)).unwrap();
        permit.created(FileId::of(&file).unwrap());
        File::from(file).write_all_at(b"deep down", 0).unwrap();
    });
    let with_file = bench.snapshot();
    bench.step(|_| {
        let file = rustix::fs::openat(&dir, "file", OFlags::RDWR, Mode::empty()).unwrap();
        let file_ref = FileRef { path: rel(&file_path), fd: Some(file.as_fd()) };
        let write = Mutation::Write { file: file_ref, offset: 0, length: 4 };
        bench.engine.before(&write).unwrap().done();
        File::from(file).write_all_at(b"DEEP", 0).unwrap();
        let permit = bench.engine.before(&Mutation::Unlink { path: rel(&file_path) }).unwrap();
        assert!(
            permit.performed() || {
                rustix::fs::unlinkat(&dir, "file", AtFlags::empty()).unwrap();
                true
            }
        );
    });
    let without_file = bench.snapshot();

    bench.undo(1);
    assert_tree_eq(&with_file, &bench.snapshot());
    bench.redo(1);
    assert_tree_eq(&without_file, &bench.snapshot());
    bench.undo(3);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn a_store_on_another_filesystem_undoes_as_exactly() {
    let Some(disk) = filesystems::disk_dir() else {
        return filesystems::skip("a_store_on_another_filesystem", "no disk filesystem");
    };
    let workspace = TempWorkspace::across(Path::new("/dev/shm"), &disk);
    let bench = Bench::configured(workspace.filled(fixtures::hardlink_tree), |_| {});
    assert_reversible(&bench, |fs| {
        fs.unlink("left/trio-1").unwrap();
        fs.unlink("pair-1").unwrap();
        fs.unlink("pair-2").unwrap();
        fs.rename("equal-1", "right/trio-3").unwrap();
        fs.remove_all("left").unwrap();
        fs.symlink("somewhere", "left").unwrap();
    });
}

#[test]
fn what_became_read_only_is_undone() {
    assert_reversible_in(fixtures::small_tree, |fs| {
        fs.overwrite("small.txt", b"changed").unwrap();
        fs.chmod("small.txt", 0o400).unwrap();
        fs.create("src/new.rs", b"new").unwrap();
        fs.unlink("src/main.rs").unwrap();
        fs.chmod("src", 0o500).unwrap();
    });
}

/// The second step says of `b/x` what is there now, though it has never touched that file.
#[test]
fn a_file_that_came_to_a_former_name_with_its_directory_is_known_to_the_step_that_made_it() {
    let bench = Bench::new(|root| {
        std::fs::create_dir(root.join("a")).unwrap();
        std::fs::create_dir(root.join("b")).unwrap();
    });
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.create("a/x", b"one").unwrap();
        fs.create("b/x", b"two").unwrap();
    });
    bench.step(|fs| {
        fs.rename("b/x", "c").unwrap();
        fs.rename("b", "d").unwrap();
        fs.rename("a", "b").unwrap();
    });
    bench.step(|fs| fs.write("b/x", 0, b"ONE").unwrap());
    for _ in 0..3 {
        bench.undo(1);
    }
    assert_tree_eq(&before, &bench.snapshot());
}
