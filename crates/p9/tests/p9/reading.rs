//! RO: what changes nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;

use codeagent_p9::wire::{DirEntries, Reply, Request, getattr};
use codeagent_p9::{Errno, OpenFlags};

use crate::client::ROOT;
use crate::folder::Folder;

#[test]
fn attributes_are_the_hosts() {
    let folder = Folder::usual();
    let mut client = folder.client();
    for path in ["file", "dir", "link", "dir/inner"] {
        client.find(1, path).unwrap();
        let seen = client.attributes(1).unwrap();
        let host = fs::symlink_metadata(folder.workspace.path(path)).unwrap();
        assert_eq!(seen.valid & getattr::BASIC, getattr::BASIC);
        let ids = (seen.mode, seen.uid, seen.gid, seen.links, seen.qid.path);
        assert_eq!(ids, (host.mode(), host.uid(), host.gid(), host.nlink(), host.ino()), "{path}");
        assert_eq!((seen.size, seen.blocks), (host.size(), host.blocks()), "{path}");
        let time = (seen.modified.seconds as i64, seen.modified.nanoseconds as i64);
        assert_eq!(time, (host.mtime(), host.mtime_nsec()), "{path}");
        client.clunk(1).unwrap();
    }
}

#[test]
fn a_file_is_read_in_any_pieces() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find_open(1, "file", 0);
    assert_eq!(client.read(1, 0, 100).unwrap(), b"0123456789");
    assert_eq!(client.read(1, 3, 4).unwrap(), b"3456");
    assert_eq!(client.read(1, 8, 4).unwrap(), b"89");
    assert_eq!(client.read(1, 10, 4).unwrap(), b"");
    assert_eq!(client.read(1, 1 << 40, 4).unwrap(), b"");
    assert_eq!(client.read(1, 0, 0).unwrap(), b"");
}

#[test]
fn no_more_is_read_than_fits_into_a_message() {
    let content: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
    let folder = Folder::new(|root| fs::write(root.join("large"), &content).unwrap());
    let mut client = folder.client();
    client.greet(8192);
    client.attach(ROOT).unwrap();
    client.find(1, "large").unwrap();
    let iounit = client.open(1, 0).unwrap();
    assert_eq!(iounit, 8192 - 24);
    assert_eq!(client.read(1, 0, u32::MAX).unwrap(), content[..8192 - 11]);
    let mut all = Vec::new();
    while all.len() < content.len() {
        all.extend(client.read(1, all.len() as u64, iounit).unwrap());
    }
    assert_eq!(all, content);
}

/// P9-03.
#[test]
fn what_is_not_open_for_reading_is_not_read() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find(1, "file").unwrap();
    assert_eq!(client.read(1, 0, 1), Err(Errno::EBADF));
    client.open(1, OpenFlags::WRITE_ONLY).unwrap();
    assert_eq!(client.read(1, 0, 1), Err(Errno::EBADF));
    client.find_open(2, "dir", 0);
    assert_eq!(client.read(2, 0, 1), Err(Errno::EISDIR));
    client.find_open(3, "file", 0);
    assert_eq!(client.read(3, u64::MAX, 1), Err(Errno::EINVAL));
    assert_eq!(client.read(3, i64::MAX as u64, 1), Err(Errno::EINVAL));
}

#[test]
fn a_number_is_opened_once() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find_open(1, "file", 0);
    assert_eq!(client.open(1, 0), Err(Errno::EINVAL));
}

#[test]
fn only_what_can_be_opened_is() {
    let folder = Folder::usual();
    let fifo =
        Request::Mknod { dir: ROOT, name: b"fifo", mode: 0o010_644, major: 0, minor: 0, gid: 0 };
    let mut client = folder.client();
    client.tell(&fifo).unwrap();
    client.find(1, "link").unwrap();
    assert_eq!(client.open(1, 0), Err(Errno::ELOOP));
    client.find(2, "dir").unwrap();
    assert_eq!(client.open(2, OpenFlags::READ_WRITE), Err(Errno::EISDIR));
    assert_eq!(client.open(2, OpenFlags::TRUNCATE), Err(Errno::EISDIR));
    client.find(3, "file").unwrap();
    assert_eq!(client.open(3, OpenFlags::DIRECTORY), Err(Errno::ENOTDIR));
    assert_eq!(client.open(3, 3), Err(Errno::EINVAL));
    // It would wait for somebody at the other end.
    client.find(4, "fifo").unwrap();
    assert!(client.open(4, 0).is_err());
}

#[test]
fn a_directory_is_listed_whole_in_pieces_of_any_size() {
    let names: Vec<String> = (0..500).map(|number| format!("entry-{number:03}")).collect();
    let folder = Folder::new(|root| {
        names.iter().for_each(|name| fs::write(root.join(name), "").unwrap());
    });
    let mut client = folder.client();
    for (fid, count) in [(1, 64), (2, 4096), (3, 1 << 20)] {
        client.walk(ROOT, fid, &[]).unwrap();
        client.open(fid, OpenFlags::DIRECTORY).unwrap();
        let mut listed = client.list(fid, count).unwrap();
        listed.retain(|name| name != "." && name != "..");
        listed.sort();
        assert_eq!(listed, names, "{count} bytes at once");
    }
}

#[test]
fn nothing_is_above_the_root() {
    let folder = Folder::usual();
    let mut client = folder.client();
    let root = client.attributes(ROOT).unwrap().qid.path;
    client.walk(ROOT, 1, &[]).unwrap();
    client.open(1, OpenFlags::DIRECTORY).unwrap();
    let request = Request::Readdir { fid: 1, offset: 0, count: 4096 };
    let Reply::Readdir { entries } = client.ask(&request).unwrap() else { unreachable!() };
    let mut entries = DirEntries::new(entries.0);
    let above = entries.find(|entry| entry.name == b"..").unwrap();
    assert_eq!(above.qid.path, root);
}

#[test]
fn a_listing_goes_on_where_it_was_while_entries_go() {
    let folder = Folder::new(|root| {
        (0..100).for_each(|number| fs::write(root.join(format!("{number:02}")), "").unwrap());
    });
    let mut client = folder.client();
    client.find_open(1, "", 0);
    let mut listed = client.list(1, 1 << 16).unwrap();
    listed.retain(|name| !name.starts_with('.'));
    for name in &listed[..50] {
        client.unlink(ROOT, name, 0).unwrap();
    }
    let mut left = client.list(1, 300).unwrap();
    left.retain(|name| !name.starts_with('.'));
    assert_eq!(left.len(), 50);
}

/// P9-03.
#[test]
fn a_directory_has_to_be_open_and_its_entries_have_to_fit() {
    let folder = Folder::usual();
    let mut client = folder.client();
    assert_eq!(client.list(ROOT, 4096), Err(Errno::EBADF));
    client.find_open(1, "file", 0);
    assert_eq!(client.list(1, 4096), Err(Errno::ENOTDIR));
    client.find_open(2, "dir", 0);
    assert_eq!(client.list(2, 20), Err(Errno::EINVAL), "an empty answer would be the end");
}

#[test]
fn a_link_is_read_and_nothing_else_is() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find(1, "link").unwrap();
    let Reply::Readlink { target } = client.ask(&Request::Readlink { fid: 1 }).unwrap() else {
        unreachable!()
    };
    assert_eq!(target, b"file");
    client.find(2, "file").unwrap();
    assert_eq!(client.tell(&Request::Readlink { fid: 2 }), Err(Errno::EINVAL));
}

#[test]
fn the_filesystem_has_figures() {
    let folder = Folder::usual();
    let mut client = folder.client();
    let Reply::Statfs { figures } = client.ask(&Request::Statfs { fid: ROOT }).unwrap() else {
        unreachable!()
    };
    let host = rustix::fs::statvfs(folder.workspace.working()).unwrap();
    assert_eq!(figures.kind, 0x0102_1997);
    assert_eq!((figures.blocks, figures.block_size.into()), (host.f_blocks, host.f_frsize));
    assert_eq!(figures.longest_name, 255);
}

#[test]
fn extended_attributes_are_read_and_listed() {
    let folder = Folder::usual();
    let flags = rustix::fs::XattrFlags::empty();
    let (path, long) = (folder.workspace.path("file"), vec![b'x'; 3000]);
    rustix::fs::setxattr(&path, "user.one", b"1", flags).unwrap();
    rustix::fs::setxattr(&path, "user.long", &long, flags).unwrap();
    let mut client = folder.client();
    client.find(1, "file").unwrap();
    assert_eq!(client.xattr(1, "user.one").unwrap(), b"1");
    assert_eq!(client.xattr(1, "user.long").unwrap(), long);
    assert_eq!(client.xattr(1, "user.none"), Err(Errno::ENODATA));
    let names = client.xattr(1, "").unwrap();
    let mut names: Vec<&[u8]> = names.split(|byte| *byte == 0).collect();
    names.sort_unstable();
    assert_eq!(names, [&b""[..], b"user.long", b"user.one"]);
}

#[test]
fn the_version_of_a_file_is_another_when_its_content_is() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find_open(1, "file", OpenFlags::READ_WRITE);
    let before = client.attributes(1).unwrap().qid;
    client.write(1, 100, b"more").unwrap();
    let after = client.attributes(1).unwrap().qid;
    assert_eq!(before.path, after.path);
    assert_ne!(before.version, after.version);
    assert_ne!(after.version, 0, "clients keep nothing of what has no version");
}

#[test]
fn a_file_without_a_name_is_still_there_for_who_has_it_open() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find_open(1, "file", OpenFlags::READ_WRITE);
    client.unlink(ROOT, "file", 0).unwrap();
    assert_eq!(client.read(1, 0, 4).unwrap(), b"0123");
    assert_eq!(client.write(1, 10, b"more").unwrap(), 4);
    client.change(1, codeagent_p9::wire::setattr::SIZE, 0, 12).unwrap();
    let attributes = client.attributes(1).unwrap();
    assert_eq!((attributes.size, attributes.links), (12, 0));
    assert_eq!(client.read(1, 10, 10).unwrap(), b"mo");
    client.clunk(1).unwrap();
}
