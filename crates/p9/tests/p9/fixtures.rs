//! P9-02: bytes written down by hand from the definition of the protocol.

use codeagent_p9::wire::{Data, DirEntries, Frame, Names, Qid, QidKind, Reply, Request};
use codeagent_p9::{Attributes, FileSystemFigures, Time};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

#[track_caller]
fn request_is(tag: u16, request: Request<'_>, expected: &str) {
    let mut frame = Frame::default();
    frame.request(tag, &request);
    assert_eq!(frame.bytes(), hex(expected));
    assert_eq!(Request::read_frame(&hex(expected)), Ok((tag, request)));
}

#[track_caller]
fn reply_is(tag: u16, reply: Reply<'_>, expected: &str) {
    let mut frame = Frame::default();
    frame.reply(tag, &reply);
    assert_eq!(frame.bytes(), hex(expected));
    assert_eq!(Reply::read_frame(&hex(expected)), Ok((tag, reply)));
}

const QID: Qid = Qid { kind: QidKind::DIRECTORY, version: 0x0403_0201, path: 0x0807_0605 };

#[test]
fn version() {
    let version = Request::Version { msize: 8192, version: b"9P2000.L" };
    request_is(0xffff, version, "15000000 64 ffff 00200000 0800 3950323030302e4c");
    let version = Reply::Version { msize: 4096, version: b"unknown" };
    reply_is(0xffff, version, "14000000 65 ffff 00100000 0700 756e6b6e6f776e");
}

#[test]
fn attach() {
    let attach = Request::Attach { fid: 1, auth_fid: u32::MAX, user: b"me", tree: b"/", uid: 1000 };
    request_is(2, attach, "1a000000 68 0200 01000000 ffffffff 0200 6d65 0100 2f e8030000");
    reply_is(2, Reply::Attach { qid: QID }, "14000000 69 0200 80 01020304 0506070800000000");
}

#[test]
fn authentication() {
    let auth = Request::Auth { fid: 9, user: b"me", tree: b"/", uid: 1000 };
    request_is(2, auth, "16000000 66 0200 09000000 0200 6d65 0100 2f e8030000");
    reply_is(2, Reply::Auth { qid: QID }, "14000000 67 0200 80 01020304 0506070800000000");
}

#[test]
fn walk() {
    let mut buffer = Vec::new();
    let names = Names::collect(&[b"usr", b"x"], &mut buffer).unwrap();
    let walk = Request::Walk { fid: 1, new_fid: 2, names };
    request_is(3, walk, "19000000 6e 0300 01000000 02000000 0200 0300 757372 0100 78");
    let walk = Reply::Walk { qids: [QID].into_iter().collect() };
    reply_is(3, walk, "16000000 6f 0300 0100 80 01020304 0506070800000000");
}

#[test]
fn read_and_write() {
    let read = Request::Read { fid: 5, offset: 0x1_0000_0000, count: 16 };
    request_is(4, read, "17000000 74 0400 05000000 0000000001000000 10000000");
    reply_is(4, Reply::Read { data: Data(b"abc") }, "0e000000 75 0400 03000000 616263");
    let write = Request::Write { fid: 5, offset: 1, data: Data(b"hi") };
    request_is(4, write, "19000000 76 0400 05000000 0100000000000000 02000000 6869");
    reply_is(4, Reply::Write { count: 2 }, "0b000000 77 0400 02000000");
}

#[test]
fn open_and_create() {
    let open = Request::Lopen { fid: 7, flags: 0o100_002 };
    request_is(1, open, "0f000000 0c 0100 07000000 02800000");
    let opened = Reply::Lopen { qid: QID, iounit: 0x1000 };
    reply_is(1, opened, "18000000 0d 0100 80 01020304 0506070800000000 00100000");
    let create = Request::Lcreate { fid: 7, name: b"n", flags: 0o102, mode: 0o644, gid: 3 };
    request_is(1, create, "1a000000 0e 0100 07000000 0100 6e 42000000 a4010000 03000000");
}

#[test]
fn attributes() {
    let wanted = Request::Getattr { fid: 1, wanted: 0x7ff };
    request_is(1, wanted, "13000000 18 0100 01000000 ff07000000000000");
    let time = |seconds, nanoseconds| Time { seconds, nanoseconds };
    let attributes = Attributes {
        valid: 0x7ff,
        qid: QID,
        mode: 0o040_755,
        uid: 1,
        gid: 2,
        links: 3,
        device: 4,
        size: 5,
        block_size: 6,
        blocks: 7,
        accessed: time(8, 9),
        modified: time(10, 11),
        changed: time(12, 13),
        born: time(14, 15),
        generation: 16,
        data_version: 17,
    };
    let numbers: String =
        (3..=17).map(|number: u64| format!("{number:02x}00000000000000")).collect();
    let expected = format!(
        "a0000000 19 0100 ff07000000000000 80 01020304 0506070800000000 ed410000 01000000 02000000
         {numbers}"
    );
    reply_is(1, Reply::Getattr { attributes }, &expected);
    let change = Request::Setattr {
        fid: 1,
        valid: 0x1a9,
        mode: 0o600,
        uid: 2,
        gid: 3,
        size: 4,
        accessed: time(5, 6),
        modified: time(7, 8),
    };
    request_is(
        1,
        change,
        "43000000 1a 0100 01000000 a9010000 80010000 02000000 03000000 0400000000000000
         0500000000000000 0600000000000000 0700000000000000 0800000000000000",
    );
}

#[test]
fn names_made_and_removed() {
    let mkdir = Request::Mkdir { dir: 1, name: b"d", mode: 0o755, gid: 0 };
    request_is(1, mkdir, "16000000 48 0100 01000000 0100 64 ed010000 00000000");
    let symlink = Request::Symlink { dir: 1, name: b"l", target: b"to", gid: 0 };
    request_is(1, symlink, "16000000 10 0100 01000000 0100 6c 0200 746f 00000000");
    let mknod = Request::Mknod { dir: 1, name: b"p", mode: 0o010_600, major: 1, minor: 2, gid: 0 };
    request_is(1, mknod, "1e000000 12 0100 01000000 0100 70 80110000 01000000 02000000 00000000");
    let rename = Request::Renameat { old_dir: 1, old_name: b"a", new_dir: 2, new_name: b"b" };
    request_is(1, rename, "15000000 4a 0100 01000000 0100 61 02000000 0100 62");
    let unlink = Request::Unlinkat { dir: 1, name: b"d", flags: 0x200 };
    request_is(1, unlink, "12000000 4c 0100 01000000 0100 64 00020000");
    let link = Request::Link { dir: 1, fid: 2, name: b"h" };
    request_is(1, link, "12000000 46 0100 01000000 02000000 0100 68");
    request_is(1, Request::Remove { fid: 9 }, "0b000000 7a 0100 09000000");
}

#[test]
fn names_changed_and_numbers_given_up() {
    let rename = Request::Rename { fid: 3, dir: 4, name: b"new" };
    request_is(5, rename, "14000000 14 0500 03000000 04000000 0300 6e6577");
    reply_is(5, Reply::Rename {}, "07000000 15 0500");
    request_is(5, Request::Clunk { fid: 3 }, "0b000000 78 0500 03000000");
    reply_is(5, Reply::Clunk {}, "07000000 79 0500");
}

#[test]
fn where_links_lead() {
    request_is(1, Request::Readlink { fid: 6 }, "0b000000 16 0100 06000000");
    let target = &b"../to"[..];
    reply_is(1, Reply::Readlink { target }, "0e000000 17 0100 0500 2e2e2f746f");
}

#[test]
fn figures_of_a_filesystem() {
    request_is(1, Request::Statfs { fid: 2 }, "0b000000 08 0100 02000000");
    let figures = FileSystemFigures {
        kind: 0x0102_1997,
        block_size: 4096,
        blocks: 1,
        free: 2,
        available: 3,
        files: 4,
        free_files: 5,
        id: 6,
        longest_name: 255,
    };
    reply_is(
        1,
        Reply::Statfs { figures },
        "43000000 09 0100 97190201 00100000 0100000000000000 0200000000000000 0300000000000000
         0400000000000000 0500000000000000 0600000000000000 ff000000",
    );
}

#[test]
fn who_has_a_lock() {
    let ask = Request::Getlock {
        fid: 1,
        kind: 2,
        start: 5,
        length: 0x1_0000_0000,
        process: 7,
        client: b"vm",
    };
    request_is(
        1,
        ask,
        "24000000 36 0100 01000000 02 0500000000000000 0000000001000000 07000000 0200 766d",
    );
    let held = Reply::Getlock { kind: 1, start: 5, length: 6, process: 8, client: b"vm" };
    reply_is(1, held, "20000000 37 0100 01 0500000000000000 0600000000000000 08000000 0200 766d");
}

#[test]
fn locks() {
    let lock =
        Request::Lock { fid: 1, kind: 1, flags: 1, start: 2, length: 3, process: 4, client: b"vm" };
    request_is(
        1,
        lock,
        "28000000 34 0100 01000000 01 01000000 0200000000000000 0300000000000000 04000000 0200 766d",
    );
    reply_is(1, Reply::Lock { status: 1 }, "08000000 35 0100 01");
}

#[test]
fn attributes_with_names() {
    let walk = Request::Xattrwalk { fid: 1, new_fid: 2, name: b"user.a" };
    request_is(1, walk, "17000000 1e 0100 01000000 02000000 0600 757365722e61");
    reply_is(1, Reply::Xattrwalk { size: 5 }, "0f000000 1f 0100 0500000000000000");
    let create = Request::Xattrcreate { fid: 1, name: b"a", size: 2, flags: 1 };
    request_is(1, create, "1a000000 20 0100 01000000 0100 61 0200000000000000 01000000");
}

#[test]
fn errors_flush_and_sync() {
    reply_is(1, Reply::Error { errno: 2 }, "0b000000 07 0100 02000000");
    request_is(3, Request::Flush { old_tag: 1 }, "09000000 6c 0300 0100");
    reply_is(3, Reply::Flush {}, "07000000 6d 0300");
    request_is(1, Request::Fsync { fid: 2, data_only: 1 }, "0f000000 32 0100 02000000 01000000");
}

#[test]
fn a_directory() {
    let ask = Request::Readdir { fid: 8, offset: 0x0102, count: 0x4000 };
    request_is(1, ask, "17000000 28 0100 08000000 0201000000000000 00400000");
    let data = hex("80 01020304 0506070800000000 0100000000000000 04 0100 2e
         00 00000000 0900000000000000 0200000000000000 08 0300 666f6f");
    let entries: Vec<_> = DirEntries::new(&data).collect();
    assert_eq!(entries.len(), 2);
    assert_eq!((entries[0].qid, entries[0].name, entries[0].kind), (QID, &b"."[..], 4));
    assert_eq!((entries[1].offset, entries[1].name, entries[1].kind), (2, &b"foo"[..], 8));
    reply_is(
        1,
        Reply::Readdir { entries: Data(&data[..25]) },
        "24000000 29 0100 19000000
         80 01020304 0506070800000000 0100000000000000 04 0100 2e",
    );
}
