//! WR: what changes something.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use codeagent_p9::wire::{AT_REMOVEDIR, Request, setattr};
use codeagent_p9::{Errno, OpenFlags};

use crate::client::{Client, ROOT};
use crate::folder::Folder;

const NEW: u32 = OpenFlags::READ_WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE;

fn content(folder: &Folder, path: &str) -> Vec<u8> {
    fs::read(folder.workspace.path(path)).unwrap()
}

#[test]
fn a_new_file_is_open_at_once_under_the_number_of_its_directory() {
    let folder = Folder::usual();
    let mut client = folder.client();
    let qid = client.create(1, "new", NEW, 0o640).unwrap();
    assert_eq!(client.attributes(1).unwrap().qid.path, qid.path);
    assert_eq!(client.write(1, 0, b"hello").unwrap(), 5);
    assert_eq!(client.read(1, 1, 3).unwrap(), b"ell");
    client.clunk(1).unwrap();
    let host = fs::metadata(folder.workspace.path("new")).unwrap();
    assert_eq!(host.permissions().mode() & 0o7777, 0o640, "no umask but the client's");
    assert_eq!(content(&folder, "new"), b"hello");
}

#[test]
fn what_exists_is_opened_unless_it_must_not_exist() {
    let folder = Folder::usual();
    let mut client = folder.client();
    assert_eq!(client.create(1, "file", NEW, 0o644), Err(Errno::EEXIST));
    assert!(client.attributes(1).unwrap().qid.is_dir(), "the number is the directory's still");
    client.clunk(1).unwrap();
    client.create(1, "file", OpenFlags::READ_WRITE, 0o644).unwrap();
    assert_eq!(client.read(1, 0, 4).unwrap(), b"0123");
    assert_eq!(client.create(2, "dir", OpenFlags::READ_ONLY, 0o644), Err(Errno::EISDIR));
    assert!(client.create(3, "link", OpenFlags::READ_WRITE, 0o644).is_err());
    assert_eq!(content(&folder, "file"), b"0123456789");
}

#[test]
fn truncating_and_appending_are_flags_of_opening() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find_open(1, "file", OpenFlags::WRITE_ONLY | OpenFlags::APPEND);
    assert_eq!(client.write(1, 0, b"end").unwrap(), 3);
    assert_eq!(content(&folder, "file"), b"0123456789end");
    client.find_open(2, "file", OpenFlags::WRITE_ONLY | OpenFlags::TRUNCATE);
    assert_eq!(content(&folder, "file"), b"");
    assert_eq!(client.write(1, 50, b"again").unwrap(), 5);
    assert_eq!(content(&folder, "file"), b"again");
}

#[test]
fn a_write_leaves_a_hole_before_it() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find_open(1, "file", OpenFlags::READ_WRITE);
    client.write(1, 12, b"x").unwrap();
    assert_eq!(content(&folder, "file"), b"0123456789\0\0x");
}

#[test]
fn as_much_as_fits_is_written_with_one_message() {
    let folder = Folder::usual();
    let mut client = folder.client();
    let bytes: Vec<u8> = (0..(1 << 20) - 24).map(|number: u32| (number % 251) as u8).collect();
    client.create(1, "large", NEW, 0o644).unwrap();
    assert_eq!(client.write(1, 0, &bytes).unwrap() as usize, bytes.len());
    assert_eq!(content(&folder, "large"), bytes);
}

/// P9-03.
#[test]
fn what_is_not_open_for_writing_is_not_written() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find(1, "file").unwrap();
    assert_eq!(client.write(1, 0, b"x"), Err(Errno::EBADF));
    client.open(1, 0).unwrap();
    assert_eq!(client.write(1, 0, b"x"), Err(Errno::EBADF));
    client.find_open(2, "file", OpenFlags::READ_WRITE);
    assert_eq!(client.write(2, u64::MAX, b"x"), Err(Errno::EINVAL));
    assert_eq!(client.write(2, i64::MAX as u64, b"x"), Err(Errno::EINVAL));
    assert_eq!(content(&folder, "file"), b"0123456789");
}

#[test]
fn attributes_change_as_they_are_told_to() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find(1, "file").unwrap();
    client.change(1, setattr::MODE, 0o100_600, 0).unwrap();
    client.change(1, setattr::SIZE, 0, 4).unwrap();
    client.change(1, setattr::MODIFIED | setattr::MODIFIED_SET, 0, 0).unwrap();
    let host = fs::metadata(folder.workspace.path("file")).unwrap();
    assert_eq!((host.mode() & 0o7777, host.size()), (0o600, 4));
    assert_eq!((host.mtime(), host.mtime_nsec()), (1_000_000_007, 5));
    assert_ne!(host.atime(), 1_000_000_007);
}

#[test]
fn a_time_without_a_value_is_now() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find(1, "file").unwrap();
    let both = setattr::ACCESSED | setattr::MODIFIED;
    let set = setattr::ACCESSED_SET | setattr::MODIFIED_SET;
    client.change(1, both | set, 0, 0).unwrap();
    client.change(1, setattr::MODIFIED | setattr::CHANGED, 0, 0).unwrap();
    let host = fs::metadata(folder.workspace.path("file")).unwrap();
    assert_eq!(host.atime(), 1_000_000_007);
    assert!(host.mtime() > 1_700_000_000);
    client.change(1, setattr::CHANGED, 0, 0).unwrap();
}

/// P9-03.
#[test]
fn attributes_that_nothing_can_have_are_refused() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find(1, "file").unwrap();
    client.find(2, "dir").unwrap();
    assert_eq!(client.change(2, setattr::SIZE, 0, 0), Err(Errno::EISDIR));
    assert_eq!(client.change(1, setattr::SIZE, 0, u64::MAX), Err(Errno::EINVAL));
    let time = codeagent_p9::Time { seconds: 1, nanoseconds: 1_000_000_000 };
    let valid = setattr::MODIFIED | setattr::MODIFIED_SET;
    let (mode, uid, gid, size) = (0, 0, 0, 0);
    let request =
        Request::Setattr { fid: 1, valid, mode, uid, gid, size, accessed: time, modified: time };
    assert_eq!(client.tell(&request), Err(Errno::EINVAL));
}

#[test]
fn directories_come_and_go() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.mkdir(ROOT, "new").unwrap();
    assert_eq!(client.mkdir(ROOT, "new"), Err(Errno::EEXIST));
    assert_eq!(client.unlink(ROOT, "new", 0), Err(Errno::EISDIR));
    client.unlink(ROOT, "new", AT_REMOVEDIR).unwrap();
    assert_eq!(client.unlink(ROOT, "new", AT_REMOVEDIR), Err(Errno::ENOENT));
    assert_eq!(client.unlink(ROOT, "dir", AT_REMOVEDIR), Err(Errno::ENOTEMPTY));
    assert_eq!(client.unlink(ROOT, "file", AT_REMOVEDIR), Err(Errno::ENOTDIR));
    assert_eq!(client.unlink(ROOT, "file", 1), Err(Errno::EINVAL));
    client.find(1, "file").unwrap();
    assert_eq!(client.mkdir(1, "x"), Err(Errno::ENOTDIR));
}

#[test]
fn names_change_by_directory_and_by_number() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find(1, "dir").unwrap();
    client.rename((ROOT, "file"), (1, "inner")).unwrap();
    assert_eq!(content(&folder, "dir/inner"), b"0123456789");
    assert_eq!(client.rename((ROOT, "none"), (1, "x")), Err(Errno::ENOENT));
    client.find(2, "dir/inner").unwrap();
    client.tell(&Request::Rename { fid: 2, dir: ROOT, name: b"back" }).unwrap();
    client.tell(&Request::Rename { fid: 2, dir: 1, name: b"again" }).unwrap();
    assert_eq!(content(&folder, "dir/again"), b"0123456789");
    assert_eq!(client.tell(&Request::Rename { fid: 1, dir: 1, name: b"x" }), Err(Errno::EINVAL));
    client.tell(&Request::Remove { fid: 2 }).unwrap();
    assert!(!folder.workspace.path("dir/again").exists());
}

#[test]
fn the_root_cannot_be_removed_or_renamed() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.walk(ROOT, 1, &[]).unwrap();
    assert_eq!(client.tell(&Request::Rename { fid: 1, dir: ROOT, name: b"x" }), Err(Errno::EBUSY));
    assert_eq!(client.tell(&Request::Remove { fid: 1 }), Err(Errno::EBUSY));
    assert_eq!(client.clunk(1), Err(Errno::EBADF));
}

#[test]
fn a_number_is_given_up_by_a_removal_that_fails() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find(1, "dir").unwrap();
    assert_eq!(client.tell(&Request::Remove { fid: 1 }), Err(Errno::ENOTEMPTY));
    assert_eq!(client.clunk(1), Err(Errno::EBADF));
    client.find(1, "dir/sub").unwrap();
    client.tell(&Request::Remove { fid: 1 }).unwrap();
    assert!(!folder.workspace.path("dir/sub").exists());
}

#[test]
fn links_of_both_kinds_are_made() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find(1, "file").unwrap();
    client.find(2, "dir").unwrap();
    client.tell(&Request::Link { dir: 2, fid: 1, name: b"hard" }).unwrap();
    assert_eq!(client.attributes(1).unwrap().links, 2);
    assert_eq!(client.tell(&Request::Link { dir: 2, fid: 1, name: b"hard" }), Err(Errno::EEXIST));
    assert_eq!(client.tell(&Request::Link { dir: ROOT, fid: 2, name: b"d" }), Err(Errno::EPERM));
    let target = &b"/any where\xff"[..];
    client.tell(&Request::Symlink { dir: 2, name: b"soft", target, gid: 0 }).unwrap();
    let host = fs::read_link(folder.workspace.path("dir/soft")).unwrap();
    assert_eq!(std::os::unix::ffi::OsStrExt::as_bytes(host.as_os_str()), target);
    let empty = Request::Symlink { dir: 2, name: b"no", target: b"", gid: 0 };
    assert_eq!(client.tell(&empty), Err(Errno::ENOENT));
}

#[test]
fn special_files_are_made_as_nodes() {
    use std::os::unix::fs::FileTypeExt;
    let folder = Folder::usual();
    let mut client = folder.client();
    let node = |name, mode| Request::Mknod { dir: ROOT, name, mode, major: 0, minor: 0, gid: 0 };
    client.tell(&node(b"fifo", 0o010_600)).unwrap();
    client.tell(&node(b"plain", 0o100_600)).unwrap();
    assert_eq!(client.tell(&node(b"dir2", 0o040_700)), Err(Errno::EINVAL));
    let kind = |name| fs::symlink_metadata(folder.workspace.path(name)).unwrap().file_type();
    assert!(kind("fifo").is_fifo() && kind("plain").is_file());
}

/// P9-03: every operation that takes a name.
#[test]
fn names_that_lead_elsewhere_change_nothing() {
    let folder = Folder::usual();
    let before = folder.workspace.snapshot();
    let mut client = folder.client();
    client.find(1, "file").unwrap();
    for name in [&b""[..], b".", b"..", b"/", b"../x", b"a/b", b"/etc/x", b"a\0b"] {
        client.walk(ROOT, 2, &[]).unwrap();
        let (dir, target, gid) = (ROOT, &b"t"[..], 0);
        let (mode, flags) = (0o644, OpenFlags::READ_WRITE);
        let all = [
            Request::Lcreate { fid: 2, name, flags, mode, gid },
            Request::Symlink { dir, name, target, gid },
            Request::Mknod { dir, name, mode: 0o100_644, major: 0, minor: 0, gid },
            Request::Mkdir { dir, name, mode, gid },
            Request::Link { dir, fid: 1, name },
            Request::Rename { fid: 1, dir, name },
            Request::Renameat { old_dir: dir, old_name: name, new_dir: dir, new_name: b"x" },
            Request::Renameat { old_dir: dir, old_name: b"file", new_dir: dir, new_name: name },
            Request::Unlinkat { dir, name, flags: 0 },
            Request::Unlinkat { dir, name, flags: AT_REMOVEDIR },
        ];
        for request in all {
            assert_eq!(client.tell(&request), Err(Errno::EINVAL), "{request:?}");
        }
        client.clunk(2).unwrap();
    }
    assert_eq!(folder.workspace.snapshot(), before);
}

#[test]
fn extended_attributes_are_set_replaced_and_removed() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find(1, "file").unwrap();
    let (create, replace) = (1, 2);
    assert_eq!(client.set_xattr(1, "user.a", b"1", replace), Err(Errno::ENODATA));
    client.set_xattr(1, "user.a", b"1", create).unwrap();
    assert_eq!(client.set_xattr(1, "user.a", b"2", create), Err(Errno::EEXIST));
    client.set_xattr(1, "user.a", b"three", 0).unwrap();
    assert_eq!(client.xattr(1, "user.a").unwrap(), b"three");
    client.set_xattr(1, "user.a", b"", 0).unwrap();
    assert_eq!(client.xattr(1, "user.a").unwrap(), b"", "an empty value is one");
    client.set_xattr(1, "user.a", b"", replace).unwrap();
    assert_eq!(client.xattr(1, "user.a"), Err(Errno::ENODATA), "as Linux removes one");
    assert_eq!(client.set_xattr(1, "user.a", b"", replace), Err(Errno::ENODATA));
}

fn new_xattr(client: &mut Client, size: u64) -> Result<(), Errno> {
    client.walk(1, 2, &[]).unwrap();
    client.tell(&Request::Xattrcreate { fid: 2, name: b"user.a", size, flags: 0 })
}

#[test]
fn an_extended_attribute_is_set_only_when_all_of_it_is_there() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find(1, "file").unwrap();
    new_xattr(&mut client, 10).unwrap();
    client.write(2, 0, b"12345").unwrap();
    assert_eq!(client.write(2, 7, b"x"), Err(Errno::EINVAL), "a gap");
    assert_eq!(client.write(2, 5, b"123456"), Err(Errno::ENOSPC), "more than was said");
    assert_eq!(client.clunk(2), Err(Errno::EINVAL), "less than was said");
    assert_eq!(client.xattr(1, "user.a"), Err(Errno::ENODATA));
    new_xattr(&mut client, 10).unwrap();
    client.write(2, 0, b"12345").unwrap();
    client.write(2, 5, b"67890").unwrap();
    client.clunk(2).unwrap();
    assert_eq!(client.xattr(1, "user.a").unwrap(), b"1234567890");
    assert_eq!(new_xattr(&mut client, 1 << 20), Err(Errno::E2BIG));
}

#[test]
fn what_was_written_is_synced() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find_open(1, "file", OpenFlags::READ_WRITE);
    client.write(1, 0, b"x").unwrap();
    client.tell(&Request::Fsync { fid: 1, data_only: 0 }).unwrap();
    client.tell(&Request::Fsync { fid: 1, data_only: 1 }).unwrap();
    client.find_open(2, "dir", 0);
    client.tell(&Request::Fsync { fid: 2, data_only: 0 }).unwrap();
    assert_eq!(client.tell(&Request::Fsync { fid: ROOT, data_only: 0 }), Err(Errno::EBADF));
}

/// As on any Linux: only root, who could set the bits again, writes and leaves them there.
#[test]
fn a_file_that_somebody_else_changes_loses_its_privileges() {
    if !rustix::process::geteuid().is_root() {
        let test = "a_file_that_somebody_else_changes_loses_its_privileges";
        return codeagent_test_support::filesystems::skip(test, "not root");
    }
    let privileged = ["write", "truncate", "open", "create", "root"];
    let folder = Folder::new(|root| {
        for name in privileged {
            fs::write(root.join(name), "0123456789").unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o6777)).unwrap();
        }
        fs::set_permissions(root, fs::Permissions::from_mode(0o777)).unwrap();
    });
    let mut client = folder.client();
    client.find_open(1, "root", OpenFlags::READ_WRITE);
    client.write(1, 0, b"x").unwrap();
    client.clunk(1).unwrap();

    let somebody = 50;
    client.attach_as(somebody, 1000).unwrap();
    let mut open = |fid, name, flags| {
        client.walk(somebody, fid, &[name]).unwrap();
        client.open(fid, flags).unwrap();
    };
    open(1, "write", OpenFlags::READ_WRITE);
    open(2, "truncate", OpenFlags::READ_WRITE);
    open(3, "open", OpenFlags::READ_WRITE | OpenFlags::TRUNCATE);
    client.write(1, 0, b"x").unwrap();
    client.change(2, setattr::SIZE, 0, 5).unwrap();
    client.walk(somebody, 4, &[]).unwrap();
    let flags = OpenFlags::READ_WRITE | OpenFlags::TRUNCATE;
    let (name, mode, gid) = (&b"create"[..], 0o644, 1000);
    client.tell(&Request::Lcreate { fid: 4, name, flags, mode, gid }).unwrap();

    let mode = |name| fs::metadata(folder.workspace.path(name)).unwrap().mode() & 0o7777;
    assert_eq!(privileged.map(mode), [0o777, 0o777, 0o777, 0o777, 0o6777]);
}
