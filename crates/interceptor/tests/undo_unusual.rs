//! Mutations off the beaten track, undone and redone: exchanged names, special files, handles of files that are gone, very long paths, refusals.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use codeagent_common::EntryKind;
use codeagent_interceptor::{ClosedStep, FileId, FileRef, Mutation, WriteInterceptor};
use codeagent_test_support::{Applier, TempWorkspace, assert_tree_eq, filesystems, fixtures};
use common::reversible::{assert_reversible, assert_reversible_in};
use common::{Bench, assert_errno, is_root, rel};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

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
fn overwriting_a_large_file_from_front_to_back_stores_little_more() {
    const PIECE: u64 = 1000;
    let large = |root: &Path| {
        std::fs::write(root.join("huge.bin"), fixtures::varied_bytes(4 << 20)).unwrap();
        fixtures::set_distinct_mtimes(root);
    };
    let overwrite = |fs: &Applier<'_>, from: u64, to: u64| {
        for offset in (from..to).step_by(PIECE as usize) {
            fs.write("huge.bin", offset, &[1; PIECE as usize]).unwrap();
        }
    };
    let step = assert_reversible(&Bench::new(large), |fs| overwrite(fs, 0, 1 << 20));
    let most = (1 << 20) + (64 << 10) + (16 << 10);
    assert!(step.stored_bytes < most, "{} bytes stored", step.stored_bytes);

    // What was kept ahead is changed later, by other means, or not at all.
    assert_reversible(&Bench::new(large), |fs| {
        overwrite(fs, 100_000, 400_000);
        fs.write("huge.bin", 420_000, &[2; 10]).unwrap();
        overwrite(fs, 3 << 20, 4 << 20);
        fs.truncate("huge.bin", 401_000).unwrap();
        fs.append("huge.bin", &[3; 100_000]).unwrap();
    });
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
    assert!(matches!(closed, ClosedStep::Empty { .. }), "{closed:?}");
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
        let file_ref = FileRef { path: rel(&file_path), open: Some(&file) };
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
