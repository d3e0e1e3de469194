//! The folder as a guest has it, on a Windows or under Wine.
#![cfg(windows)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;

use codeagent_common::StepId;
use codeagent_p9::{Change, Errno, NewNode, NewTime, OpenFlags, Share, Time, XattrFlags};
use codeagent_windows::share::ShareOptions;
use common::{Folder, ME, NEW, READ, WRITE, failed, path, skip};

/// WN-01
#[test]
fn names_that_differ_in_case_only_collide_and_nothing_is_clobbered() {
    let folder = Folder::new();
    let root = folder.root();
    let made = folder.make(&root, "Foo").unwrap();
    folder.share.write(ME, &made.found.node, &made.open, 0, b"kept").unwrap();
    folder.make(&root, "other").unwrap();
    folder.notes.take();

    assert_eq!(failed(folder.try_node("foo")), Errno::ENOENT);
    assert_eq!(failed(folder.make(&root, "foo")), Errno::EEXIST);
    let new = NewNode::Directory { mode: 0o755 };
    assert_eq!(failed(folder.share.make(ME, &root, b"FOO", new)), Errno::EEXIST);
    assert_eq!(failed(folder.share.unlink(ME, &root, b"foo")), Errno::ENOENT);
    let over = folder.share.rename(ME, (&root, b"other"), (&root, b"foo"));
    assert_eq!(failed(over), Errno::EEXIST);

    assert_eq!(fs::read(folder.host("Foo")).unwrap(), b"kept");
    let names: Vec<_> = folder.names(&root).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [".", "..", "Foo", "other"]);
}

/// WN-01
#[test]
fn a_rename_can_change_the_case_of_a_name() {
    let folder = Folder::new();
    let root = folder.root();
    drop(folder.make(&root, "Foo").unwrap());
    folder.share.rename(ME, (&root, b"Foo"), (&root, b"foo")).unwrap();
    assert_eq!(folder.notes.take()[1..], ["rename Foo foo NoReplace"]);
    if folder.names(&root).iter().any(|(name, _)| name == "Foo") {
        return skip("a_rename_can_change_the_case_of_a_name", "case-only renames");
    }
    assert!(folder.try_node("foo").is_ok());
    assert_eq!(failed(folder.try_node("Foo")), Errno::ENOENT);
}

/// WN-02
#[test]
fn names_that_windows_reserves_are_refused_before_anybody_is_asked() {
    let folder = Folder::new();
    let root = folder.root();
    for name in ["CON", "nul", "aux.c", "COM1", "LPT¹", "conout$", "a.", "a ", "a:b", "a*", "a\\b"]
    {
        assert_eq!(failed(folder.make(&root, name)), Errno::EINVAL, "{name}");
        let new = NewNode::Directory { mode: 0o755 };
        let made = folder.share.make(ME, &root, name.as_bytes(), new);
        assert_eq!(failed(made), Errno::EINVAL, "{name}");
        let link = NewNode::Symlink { target: b"a" };
        let made = folder.share.make(ME, &root, name.as_bytes(), link);
        assert_eq!(failed(made), Errno::EINVAL, "{name}");
    }
    assert_eq!(failed(folder.share.create(ME, &root, b"\xff", NEW, 0)), Errno(84));
    assert_eq!(failed(folder.make(&root, &"a".repeat(256))), Errno::ENAMETOOLONG);
    assert!(folder.notes.take().is_empty());
    assert_eq!(fs::read_dir(folder.host("")).unwrap().count(), 0);
}

/// WN-03
#[test]
fn a_mode_is_there_in_the_next_session() {
    let folder = Folder::new();
    drop(folder.make(&folder.root(), "tool").unwrap());
    assert_eq!(folder.stat("tool").mode, 0o100_644);
    folder.chmod("tool", 0o755).unwrap();
    let owner = Change { uid: Some(5), gid: Some(6), ..Change::default() };
    folder.share.change(ME, &folder.node("tool"), None, &owner).unwrap();
    let folder = folder.again(ShareOptions::default());
    let stat = folder.stat("tool");
    assert_eq!((stat.mode, stat.uid, stat.gid), (0o100_755, 5, 6));
}

/// WN-04
#[test]
fn files_that_nobody_has_given_a_mode_have_the_likely_one() {
    let folder = Folder::new();
    fs::create_dir(folder.host("dir")).unwrap();
    for (name, content) in [
        ("a.txt", "#!/bin/sh"),
        ("run.sh", ""),
        ("tool", "#!/bin/sh"),
        ("notes", "x"),
        ("a.py", ""),
    ] {
        fs::write(folder.host(name), content).unwrap();
    }
    let mut locked = fs::metadata(folder.host("notes")).unwrap().permissions();
    locked.set_readonly(true);
    fs::set_permissions(folder.host("notes"), locked).unwrap();
    for (name, mode) in [
        ("", 0o040_755),
        ("dir", 0o040_755),
        ("a.txt", 0o100_644),
        ("run.sh", 0o100_755),
        ("tool", 0o100_755),
        ("notes", 0o100_444),
        ("a.py", 0o100_644),
    ] {
        let stat = folder.stat(name);
        assert_eq!((stat.mode, stat.uid, stat.gid), (mode, 1000, 1000), "{name}");
    }
    // Who may write to it again can.
    folder.chmod("notes", 0o644).unwrap();
    fs::write(folder.host("notes"), "y").unwrap();
}

/// WN-05
#[test]
fn a_mode_that_a_step_changed_comes_back_with_its_rollback() {
    let folder = Folder::new();
    let (one, two) = (StepId(1), StepId(2));
    folder.overlay.begin_step(one).unwrap();
    drop(folder.make(&folder.root(), "tool").unwrap());
    folder.chmod("tool", 0o700).unwrap();
    folder.overlay.end_step(one).unwrap();
    folder.overlay.begin_step(two).unwrap();
    folder.chmod("tool", 0o755).unwrap();
    folder.overlay.end_step(two).unwrap();
    folder.overlay.rollback(two).unwrap();
    assert_eq!(folder.stat("tool").mode, 0o100_700);
    folder.overlay.redo(two).unwrap();
    assert_eq!(folder.stat("tool").mode, 0o100_755);
}

#[test]
fn what_is_written_is_read_and_on_the_host() {
    let folder = Folder::new();
    let root = folder.root();
    let made = folder.make(&root, "a").unwrap();
    let (node, open) = (&made.found.node, &made.open);
    assert_eq!(folder.share.write(ME, node, open, 0, b"hello").unwrap(), 5);
    assert_eq!(folder.share.write(ME, node, open, 10, b"!").unwrap(), 1);
    let mut bytes = [1; 20];
    assert_eq!(folder.share.read(ME, node, open, 0, &mut bytes).unwrap(), 11);
    assert_eq!(&bytes[..11], b"hello\0\0\0\0\0!");
    assert_eq!(folder.share.read(ME, node, open, 11, &mut bytes).unwrap(), 0);
    assert_eq!(folder.share.read(ME, node, open, 99, &mut bytes).unwrap(), 0);
    folder.share.sync(ME, node, open, false).unwrap();

    let append = folder.share.open(ME, node, OpenFlags(WRITE.0 | OpenFlags::APPEND)).unwrap();
    folder.share.write(ME, node, &append, 0, b"end").unwrap();
    let truncate = Change { size: Some(2), ..Change::default() };
    folder.share.change(ME, node, Some(open), &truncate).unwrap();
    assert_eq!(fs::read(folder.host("a")).unwrap(), b"he");
    folder.share.change(ME, node, None, &Change { size: Some(4), ..truncate }).unwrap();
    assert_eq!(fs::read(folder.host("a")).unwrap(), b"he\0\0");
    drop(folder.share.open(ME, node, OpenFlags(WRITE.0 | OpenFlags::TRUNCATE)).unwrap());
    assert_eq!(folder.stat("a").size, 0);
    let reading = folder.share.open(ME, node, READ).unwrap();
    assert_eq!(failed(folder.share.write(ME, node, &reading, 0, b"x")), Errno::EBADF);

    assert_eq!(
        folder.notes.take(),
        [
            "create a File",
            "write a 0 5",
            "write a 10 1",
            "append a",
            "truncate a 2",
            "truncate a 4",
            "truncate a 0",
        ]
    );
}

#[test]
fn what_is_refused_leaves_the_host_as_it_was() {
    let folder = Folder::new();
    let root = folder.root();
    fs::create_dir(folder.host("dir")).unwrap();
    fs::write(folder.host("a"), "content").unwrap();
    let (a, share) = (folder.node("a"), &folder.share);
    let open = share.open(ME, &a, WRITE).unwrap();
    folder.notes.refuse(true);

    let refused = [
        folder.make(&root, "new").map(drop),
        share.make(ME, &root, b"new", NewNode::Directory { mode: 0o755 }).map(drop),
        share.make(ME, &root, b"new", NewNode::Symlink { target: b"a" }).map(drop),
        share
            .make(ME, &root, b"new", NewNode::Node { mode: 0o100_644, major: 0, minor: 0 })
            .map(drop),
        share.link(ME, &a, &root, b"new"),
        share.unlink(ME, &root, b"a"),
        share.remove_dir(ME, &root, b"dir"),
        share.rename(ME, (&root, b"a"), (&root, b"new")),
        share.write(ME, &a, &open, 0, b"x").map(drop),
        share.change(ME, &a, None, &Change { size: Some(0), ..Change::default() }),
        share.change(ME, &a, None, &Change { mode: Some(0), ..Change::default() }),
        share.open(ME, &a, OpenFlags(WRITE.0 | OpenFlags::TRUNCATE)).map(drop),
        share.set_xattr(ME, &a, b"user.a", b"1", XattrFlags(0)),
    ];
    for (number, outcome) in refused.into_iter().enumerate() {
        assert_eq!(outcome, Err(Errno::EROFS), "{number}");
    }
    assert_eq!(folder.notes.take().len(), 13);
    drop(open);
    assert_eq!(fs::read_to_string(folder.host("a")).unwrap(), "content");
    assert_eq!(fs::read_dir(folder.host("")).unwrap().count(), 2);
    assert_eq!(folder.stat("a").mode, 0o100_644);
}

#[test]
fn nothing_changes_in_a_folder_that_is_read_only() {
    let folder = Folder::new();
    fs::write(folder.host("a"), "content").unwrap();
    let folder = folder.again(ShareOptions { read_only: true, ..ShareOptions::default() });
    let (root, a) = (folder.root(), folder.node("a"));
    assert_eq!(failed(folder.make(&root, "b")), Errno::EROFS);
    assert_eq!(failed(folder.share.open(ME, &a, WRITE)), Errno::EROFS);
    assert_eq!(failed(folder.share.unlink(ME, &root, b"a")), Errno::EROFS);
    assert_eq!(failed(folder.chmod("a", 0)), Errno::EROFS);
    assert!(folder.share.open(ME, &a, READ).is_ok());
    assert!(folder.notes.take().is_empty());
}

#[test]
fn a_renamed_directory_takes_its_files_and_what_is_known_of_them_along() {
    let folder = Folder::new();
    let root = folder.root();
    let dir = folder.mkdir(&root, "dir");
    let sub = folder.mkdir(&dir, "sub");
    drop(folder.make(&sub, "file").unwrap());
    folder.chmod("dir/sub/file", 0o600).unwrap();
    let known = folder.node("dir/sub/file");
    folder.notes.take();

    folder.share.rename(ME, (&root, b"dir"), (&root, b"moved")).unwrap();
    assert_eq!(folder.notes.take(), ["rename dir moved NoReplace"]);
    assert!(folder.host("moved/sub/file").exists());
    assert_eq!(folder.stat("moved/sub/file").mode, 0o100_600);
    // Who knew it before knows it still.
    let stat = folder.share.attributes(ME, &known, None, 0).unwrap();
    assert_eq!(stat.mode, 0o100_600);
    drop(folder.make(&sub, "another").unwrap());
    assert!(folder.host("moved/sub/another").exists());
    let into = folder.share.rename(ME, (&root, b"moved"), (&sub, b"x"));
    assert_eq!(failed(into), Errno::EINVAL);
}

#[test]
fn a_rename_replaces_what_it_may() {
    let folder = Folder::new();
    let root = folder.root();
    fs::write(folder.host("new"), "new").unwrap();
    fs::write(folder.host("old"), "old").unwrap();
    for dir in ["empty", "full", "dir"] {
        fs::create_dir(folder.host(dir)).unwrap();
    }
    fs::write(folder.host("full/a"), "").unwrap();
    fs::write(folder.host("dir/b"), "").unwrap();
    folder.chmod("old", 0o600).unwrap();
    folder.notes.take();
    let rename = |from: &str, to: &str| {
        folder.share.rename(ME, (&root, from.as_bytes()), (&root, to.as_bytes()))
    };
    rename("new", "old").unwrap();
    assert_eq!(fs::read_to_string(folder.host("old")).unwrap(), "new");
    assert_eq!(folder.stat("old").mode, 0o100_644);
    assert_eq!(rename("old", "dir"), Err(Errno::EISDIR));
    assert_eq!(rename("dir", "old"), Err(Errno::ENOTDIR));
    assert_eq!(rename("dir", "full"), Err(Errno::ENOTEMPTY));
    assert_eq!(rename("missing", "x"), Err(Errno::ENOENT));
    assert_eq!(rename("old", "nul"), Err(Errno::EINVAL));
    assert_eq!(rename("old", "old"), Ok(()));
    rename("dir", "empty").unwrap();
    assert!(folder.host("empty/b").exists());
    assert_eq!(
        folder.notes.take(),
        ["rename new old Replace", "rmdir empty", "rename dir empty NoReplace"]
    );
}

#[test]
fn several_names_are_one_file() {
    let folder = Folder::new();
    let root = folder.root();
    drop(folder.make(&root, "a").unwrap());
    folder.share.link(ME, &folder.node("a"), &root, b"b").unwrap();
    assert_eq!(folder.notes.take()[1..], ["link a b"]);
    folder.chmod("b", 0o711).unwrap();
    let (a, b) = (folder.stat("a"), folder.stat("b"));
    assert_eq!((a.mode, a.links, a.qid.path), (0o100_711, 2, b.qid.path));
    folder.share.unlink(ME, &root, b"a").unwrap();
    let b = folder.stat("b");
    assert_eq!((b.mode, b.links), (0o100_711, 1));
    let taken = folder.share.link(ME, &folder.node("b"), &root, b"B");
    assert_eq!(failed(taken), Errno::EEXIST);
}

#[test]
fn names_go_away() {
    let folder = Folder::new();
    let root = folder.root();
    let dir = folder.mkdir(&root, "dir");
    drop(folder.make(&dir, "a").unwrap());
    folder.notes.take();
    assert_eq!(failed(folder.share.unlink(ME, &root, b"dir")), Errno::EISDIR);
    assert_eq!(failed(folder.share.remove_dir(ME, &dir, b"a")), Errno::ENOTDIR);
    assert_eq!(failed(folder.share.remove_dir(ME, &root, b"dir")), Errno::ENOTEMPTY);
    assert!(folder.notes.take().is_empty());
    folder.share.unlink(ME, &dir, b"a").unwrap();
    folder.share.remove_dir(ME, &root, b"dir").unwrap();
    assert_eq!(folder.notes.take(), ["unlink dir/a", "rmdir dir"]);
    assert_eq!(fs::read_dir(folder.host("")).unwrap().count(), 0);
    assert_eq!(failed(folder.make(&dir, "b")), Errno::ENOENT);
}

#[test]
fn a_link_is_a_link_also_where_the_host_has_none() {
    let folder = Folder::new();
    let root = folder.root();
    // Never a link of Windows: it means something in the guest only.
    let qid =
        folder.share.make(ME, &root, b"abs", NewNode::Symlink { target: b"/usr/bin" }).unwrap();
    assert_eq!(qid.kind.0, 2);
    folder.share.make(ME, &root, b"rel", NewNode::Symlink { target: b"dir/x" }).unwrap();
    for (name, target) in [("abs", "/usr/bin"), ("rel", "dir/x")] {
        let node = folder.node(name);
        assert_eq!(folder.share.read_link(ME, &node).unwrap(), target.as_bytes());
        let stat = folder.stat(name);
        assert_eq!((stat.mode, stat.size), (0o120_777, target.len() as u64));
        assert_eq!(failed(folder.share.open(ME, &node, READ)), Errno::ELOOP);
        assert_eq!(failed(folder.share.lookup(ME, &node, b"x")), Errno::ENOTDIR);
    }
    assert_eq!(fs::read(folder.host("abs")).unwrap(), b"/usr/bin");
    assert_eq!(folder.notes.take(), ["create abs Symlink", "create rel Symlink"]);
    assert!(folder.names(&root).contains(&("abs".to_owned(), 10)));
    // It follows its name, and is no link any more when somebody has written to it.
    folder.share.rename(ME, (&root, b"abs"), (&root, b"moved")).unwrap();
    assert_eq!(folder.share.read_link(ME, &folder.node("moved")).unwrap(), b"/usr/bin");
    fs::write(folder.host("moved"), "/usr/lib").unwrap();
    assert_eq!(folder.stat("moved").mode & 0o170_000, 0o100_000);
    assert_eq!(failed(folder.share.read_link(ME, &folder.node("moved"))), Errno::EINVAL);
}

#[test]
fn a_directory_is_listed_from_wherever_somebody_stopped() {
    let folder = Folder::new();
    let root = folder.root();
    for number in 0..300 {
        fs::write(folder.host(&format!("file {number}")), "").unwrap();
    }
    fs::create_dir(folder.host("dir")).unwrap();
    let open = folder.share.open(ME, &root, READ).unwrap();
    let (mut offset, mut found) = (0, Vec::new());
    loop {
        let before = found.len();
        folder
            .share
            .list(ME, &root, &open, offset, &mut |entry| {
                let has_room = found.len() < before + 7;
                if has_room {
                    offset = entry.offset;
                    found.push((entry.name.to_vec(), entry.kind, entry.qid.path));
                }
                has_room
            })
            .unwrap();
        if found.len() == before {
            break;
        }
    }
    assert_eq!(found.len(), 303);
    let number = folder.stat("").qid.path;
    assert_eq!(found[..2], [(b".".to_vec(), 4, number), (b"..".to_vec(), 4, number)]);
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 303);
    assert!(found.contains(&(b"dir".to_vec(), 4, folder.stat("dir").qid.path)));
    assert!(found.contains(&(b"file 7".to_vec(), 8, folder.stat("file 7").qid.path)));
}

#[test]
fn extended_attributes_are_kept_beside_the_folder() {
    let folder = Folder::new();
    drop(folder.make(&folder.root(), "a").unwrap());
    let a = folder.node("a");
    let set = |name: &[u8], flags| folder.share.set_xattr(ME, &a, name, b"1", XattrFlags(flags));
    set(b"user.x", 0).unwrap();
    set(b"user.y", XattrFlags::CREATE).unwrap();
    assert_eq!(set(b"user.y", XattrFlags::CREATE), Err(Errno::EEXIST));
    assert_eq!(set(b"user.z", XattrFlags::REPLACE), Err(Errno::ENODATA));
    assert_eq!(set(b"security.capability", 0), Err(Errno::EOPNOTSUPP));
    assert_eq!(folder.share.xattr_names(ME, &a).unwrap(), b"user.x\0user.y\0");
    assert_eq!(folder.share.xattr(ME, &a, b"user.x").unwrap(), b"1");
    folder.share.remove_xattr(ME, &a, b"user.x").unwrap();
    assert_eq!(failed(folder.share.xattr(ME, &a, b"user.x")), Errno::ENODATA);
    assert_eq!(folder.notes.take()[1..], ["attributes a"; 5]);
}

#[test]
fn times_are_kept_to_a_tenth_of_a_microsecond() {
    let folder = Folder::new();
    drop(folder.make(&folder.root(), "a").unwrap());
    let at = |seconds: u64, nanoseconds| Some(NewTime::At(Time { seconds, nanoseconds }));
    let change = Change {
        accessed: at(1, 500),
        modified: at(1_000_000_000, 123_456_700),
        ..Change::default()
    };
    folder.share.change(ME, &folder.node("a"), None, &change).unwrap();
    let stat = folder.stat("a");
    assert_eq!(stat.modified, Time { seconds: 1_000_000_000, nanoseconds: 123_456_700 });
    assert_eq!(stat.accessed, Time { seconds: 1, nanoseconds: 500 });
    let now = Change { modified: Some(NewTime::Now), ..Change::default() };
    folder.share.change(ME, &folder.node("a"), None, &now).unwrap();
    assert!(folder.stat("a").modified.seconds > 1_600_000_000);
}

#[test]
fn paths_can_be_longer_than_programs_of_windows_expect() {
    let folder = Folder::new();
    let name = "a long name of a directory ".repeat(4) + "end";
    let probe = fs::canonicalize(folder.outside()).unwrap().join([&*name; 4].join("\\"));
    fs::create_dir_all(&probe).unwrap();
    if fs::canonicalize(&probe).is_err() {
        let test = "paths_can_be_longer_than_programs_of_windows_expect";
        return skip(test, "final paths of handles longer than MAX_PATH");
    }
    let mut dir = folder.root();
    for _ in 0..10 {
        dir = folder.mkdir(&dir, &name);
    }
    let made = folder.make(&dir, "file").unwrap();
    folder.share.write(ME, &made.found.node, &made.open, 0, b"deep").unwrap();
    drop(made);
    let below = [&*name; 10].join("/") + "/file";
    assert!(below.len() > 1000);
    assert_eq!(folder.stat(&below).size, 4);
    let wanted = path(&below);
    assert!(folder.notes.take().contains(&format!("write {} 0 4", wanted.as_path())));
}

#[test]
fn what_somebody_else_has_replaced_is_not_taken_for_what_it_was() {
    let folder = Folder::new();
    fs::write(folder.host("a"), "first").unwrap();
    fs::write(folder.host("b"), "second").unwrap();
    let a = folder.node("a");
    fs::remove_file(folder.host("a")).unwrap();
    fs::rename(folder.host("b"), folder.host("a")).unwrap();
    let truncate = Change { size: Some(0), ..Change::default() };
    assert_eq!(failed(folder.share.change(ME, &a, None, &truncate)), Errno::ESTALE);
    assert_eq!(fs::read_to_string(folder.host("a")).unwrap(), "second");
    assert!(folder.notes.take().is_empty());
}

/// FIFOs, sockets and devices.
#[test]
fn what_windows_does_not_have_is_not_made() {
    let folder = Folder::new();
    for mode in [0o010_644, 0o140_644, 0o020_644, 0o060_644] {
        let new = NewNode::Node { mode, major: 1, minor: 3 };
        assert_eq!(failed(folder.share.make(ME, &folder.root(), b"x", new)), Errno::EPERM);
    }
    assert!(folder.notes.take().is_empty());
}

/// What is kept of a directory that is being read is bounded, through however many openings.
#[test]
fn directories_that_are_never_read_to_the_end_take_bounded_memory() {
    let folder = Folder::new();
    for number in 0..300 {
        let name = format!("{number:0>150}");
        fs::write(folder.host(&name), "").unwrap();
    }
    let root = folder.root();
    let begun = || {
        let open = folder.share.open(ME, &root, READ).unwrap();
        folder.share.list(ME, &root, &open, 0, &mut |_| false).map(|()| open)
    };
    let mut openings = Vec::new();
    let refused = loop {
        match begun() {
            Ok(open) => openings.push(open),
            Err(errno) => break errno,
        }
        assert!(openings.len() < 2000, "somebody keeps all of them");
    };
    assert_eq!(refused, Errno::ENOMEM);
    assert!(openings.len() > 100, "{}", openings.len());
    // Who reads on gets everything, and room is there again.
    let (mut names, mut offset) = (Vec::new(), 0);
    loop {
        let mut page = Vec::new();
        let mut keep = |entry: codeagent_p9::Entry<'_>| {
            page.push((entry.name.to_vec(), entry.offset));
            page.len() < 100
        };
        folder.share.list(ME, &root, &openings[0], offset, &mut keep).unwrap();
        let Some((_, last)) = page.last() else { break };
        offset = *last;
        names.extend(page.into_iter().map(|(name, _)| name));
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 302);
    begun().unwrap();
}
