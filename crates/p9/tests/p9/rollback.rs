//! RB: every mutation that a client can make is undone and redone exactly.

use codeagent_p9::OpenFlags;
use codeagent_p9::wire::{AT_REMOVEDIR, Request, setattr};

use crate::client::{Client, ROOT};
use crate::folder::Folder;

fn undone_and_redone(act: impl FnOnce(&mut Client)) {
    Folder::usual().undone_and_redone(act);
}

#[test]
fn a_new_file() {
    undone_and_redone(|client| {
        client.create(1, "new", OpenFlags::READ_WRITE, 0o640).unwrap();
        client.write(1, 0, b"content").unwrap();
    });
}

#[test]
fn a_write() {
    undone_and_redone(|client| {
        client.find_open(1, "file", OpenFlags::READ_WRITE);
        client.write(1, 3, b"xyz").unwrap();
        client.write(1, 100, b"far").unwrap();
    });
}

#[test]
fn an_append() {
    undone_and_redone(|client| {
        client.find_open(1, "file", OpenFlags::WRITE_ONLY | OpenFlags::APPEND);
        client.write(1, 0, b"more").unwrap();
    });
}

#[test]
fn a_truncation_by_opening() {
    undone_and_redone(|client| {
        client.find_open(1, "file", OpenFlags::WRITE_ONLY | OpenFlags::TRUNCATE);
    });
}

#[test]
fn a_truncation_by_size() {
    undone_and_redone(|client| {
        client.find(1, "file").unwrap();
        client.change(1, setattr::SIZE, 0, 3).unwrap();
    });
}

#[test]
fn a_mode() {
    undone_and_redone(|client| {
        client.find(1, "dir").unwrap();
        client.change(1, setattr::MODE, 0o700, 0).unwrap();
    });
}

#[test]
fn a_time() {
    undone_and_redone(|client| {
        client.find(1, "dir/inner").unwrap();
        client.change(1, setattr::MODIFIED | setattr::MODIFIED_SET, 0, 0).unwrap();
    });
}

#[test]
fn a_directory() {
    undone_and_redone(|client| {
        client.mkdir(ROOT, "new").unwrap();
        client.find(1, "new").unwrap();
        client.mkdir(1, "deeper").unwrap();
    });
}

#[test]
fn a_removed_file() {
    undone_and_redone(|client| client.unlink(ROOT, "file", 0).unwrap());
}

#[test]
fn a_removed_directory() {
    undone_and_redone(|client| {
        client.find(1, "dir").unwrap();
        client.unlink(1, "inner", 0).unwrap();
        client.unlink(1, "sub", AT_REMOVEDIR).unwrap();
        client.unlink(ROOT, "dir", AT_REMOVEDIR).unwrap();
    });
}

#[test]
fn a_removal_by_number() {
    undone_and_redone(|client| {
        client.find(1, "dir/inner").unwrap();
        client.tell(&Request::Remove { fid: 1 }).unwrap();
    });
}

#[test]
fn a_rename_over_another_file() {
    undone_and_redone(|client| {
        client.find(1, "dir").unwrap();
        client.rename((ROOT, "file"), (1, "inner")).unwrap();
    });
}

#[test]
fn a_rename_of_a_directory_by_number() {
    undone_and_redone(|client| {
        client.find(1, "dir").unwrap();
        client.tell(&Request::Rename { fid: 1, dir: ROOT, name: b"moved" }).unwrap();
        client.mkdir(1, "new").unwrap();
    });
}

#[test]
fn a_symbolic_link() {
    undone_and_redone(|client| {
        client.tell(&Request::Symlink { dir: ROOT, name: b"l", target: b"t", gid: 0 }).unwrap();
    });
}

#[test]
fn a_hard_link_that_is_written_through() {
    undone_and_redone(|client| {
        client.find(1, "file").unwrap();
        client.tell(&Request::Link { dir: ROOT, fid: 1, name: b"hard" }).unwrap();
        client.find_open(2, "hard", OpenFlags::READ_WRITE);
        client.write(2, 0, b"through").unwrap();
    });
}

#[test]
fn a_fifo() {
    undone_and_redone(|client| {
        let (dir, mode) = (ROOT, 0o010_600);
        let fifo = Request::Mknod { dir, name: b"fifo", mode, major: 0, minor: 0, gid: 0 };
        client.tell(&fifo).unwrap();
    });
}

#[test]
fn an_extended_attribute() {
    undone_and_redone(|client| {
        client.find(1, "file").unwrap();
        client.set_xattr(1, "user.a", b"value", 0).unwrap();
    });
}

#[test]
fn an_extended_attribute_that_was_removed() {
    let folder = Folder::usual();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(folder.workspace.path("file"), "user.a", b"value", flags).unwrap();
    folder.undone_and_redone(|client| {
        client.find(1, "file").unwrap();
        client.set_xattr(1, "user.a", b"", 2).unwrap();
    });
}

#[test]
fn a_file_that_lost_its_name_while_it_was_written() {
    undone_and_redone(|client| {
        client.find_open(1, "file", OpenFlags::READ_WRITE);
        client.write(1, 0, b"before").unwrap();
        client.unlink(ROOT, "file", 0).unwrap();
        client.write(1, 20, b"after").unwrap();
        client.change(1, setattr::SIZE, 0, 22).unwrap();
    });
}

/// What editors do.
#[test]
fn a_file_that_is_saved_by_renaming_another_over_it() {
    undone_and_redone(|client| {
        client.create(1, ".file.swp", OpenFlags::READ_WRITE, 0o600).unwrap();
        client.write(1, 0, b"new content").unwrap();
        client.tell(&Request::Fsync { fid: 1, data_only: 0 }).unwrap();
        client.clunk(1).unwrap();
        client.rename((ROOT, ".file.swp"), (ROOT, "file")).unwrap();
    });
}
