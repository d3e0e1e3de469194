//! Nothing leads out of the folder: a victim outside stays as it was, whatever lies in between.
#![cfg(windows)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;

use codeagent_p9::{Change, Errno, NewNode, Share};
use common::{Folder, ME, READ, WRITE, failed, junction, skip};

/// WN-06, WN-07, SC-06
#[test]
fn a_junction_is_a_link_that_leads_nowhere() {
    let folder = Folder::new();
    if junction(&folder.host("out"), &folder.outside()).is_none() {
        return skip("a_junction_is_a_link_that_leads_nowhere", "junctions");
    }
    let node = folder.node("out");
    let target = String::from_utf8(folder.share.read_link(ME, &node).unwrap()).unwrap();
    assert!(target.ends_with(r"\outside") && target.contains(':'), "{target}");
    assert_eq!(folder.stat("out").mode, 0o120_777);
    assert_eq!(failed(folder.share.open(ME, &node, READ)), Errno::ELOOP);
    assert_eq!(failed(folder.share.lookup(ME, &node, b"victim")), Errno::ENOTDIR);
    assert_eq!(failed(folder.make(&node, "new")), Errno::ENOTDIR);
    assert_eq!(failed(folder.share.unlink(ME, &node, b"victim")), Errno::ENOTDIR);
    folder.share.unlink(ME, &folder.root(), b"out").unwrap();
    assert!(!folder.host("out").exists());
    folder.victim_is_untouched();
}

/// SC-07
#[test]
fn a_directory_that_becomes_a_junction_leads_no_rename_out() {
    let folder = Folder::new();
    let root = folder.root();
    let dir = folder.mkdir(&root, "dir");
    let sub = folder.mkdir(&dir, "sub");
    fs::write(folder.host("a"), "").unwrap();
    fs::create_dir(folder.outside().join("sub")).unwrap();
    fs::remove_dir(folder.host("dir/sub")).unwrap();
    fs::remove_dir(folder.host("dir")).unwrap();
    let made = junction(&folder.host("dir"), &folder.outside());
    let moved = folder.share.rename(ME, (&root, b"a"), (&sub, b"a"));
    assert!(moved.is_err());
    let moved = folder.share.rename(ME, (&root, b"a"), (&dir, b"a"));
    assert!(moved.is_err());
    assert!(folder.host("a").exists());
    fs::remove_dir(folder.outside().join("sub")).unwrap();
    folder.victim_is_untouched();
    if made.is_none() {
        skip("a_directory_that_becomes_a_junction_leads_no_rename_out", "junctions");
    }
}

#[test]
fn a_symlink_of_the_host_is_a_link_and_is_not_followed() {
    const TEST: &str = "a_symlink_of_the_host_is_a_link_and_is_not_followed";
    let folder = Folder::new();
    let made = std::os::windows::fs::symlink_file(r"..\outside\victim", folder.host("link"));
    if made.is_err() || fs::symlink_metadata(folder.host("link")).is_err() {
        return skip(TEST, "symlinks, which it does not make for this user");
    }
    let node = folder.node("link");
    assert_eq!(folder.share.read_link(ME, &node).unwrap(), b"../outside/victim");
    assert_eq!(failed(folder.share.open(ME, &node, WRITE)), Errno::ELOOP);
    let truncate = Change { size: Some(0), ..Change::default() };
    assert!(folder.share.change(ME, &node, None, &truncate).is_err());
    // One that a guest makes is one for programs of Windows as well.
    fs::write(folder.host("file"), "content").unwrap();
    let new = NewNode::Symlink { target: b"file" };
    folder.share.make(ME, &folder.root(), b"native", new).unwrap();
    assert_eq!(fs::read_to_string(folder.host("native")).unwrap(), "content");
    folder.victim_is_untouched();
}

/// What was in the folder when a guest came to know it, and is elsewhere when it uses it.
#[test]
fn a_directory_that_was_moved_out_is_not_followed() {
    let folder = Folder::new();
    let dir = folder.mkdir(&folder.root(), "dir");
    fs::write(folder.host("dir/a"), "inside").unwrap();
    let a = folder.node("dir/a");
    let elsewhere = folder.outside().with_file_name("elsewhere");
    fs::rename(folder.host("dir"), &elsewhere).unwrap();
    folder.notes.take();
    assert_eq!(failed(folder.make(&dir, "new")), Errno::ENOENT);
    let truncate = Change { size: Some(0), ..Change::default() };
    assert_eq!(failed(folder.share.change(ME, &a, None, &truncate)), Errno::ENOENT);
    assert!(folder.notes.take().is_empty());
    assert_eq!(fs::read_to_string(elsewhere.join("a")).unwrap(), "inside");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1);
}

/// The server has checked names before; the share does not rely on it.
#[test]
fn names_that_are_paths_lead_nowhere() {
    let folder = Folder::new();
    let root = folder.root();
    for name in ["..", ".", r"..\outside\victim", "../outside/victim", r"\??\C:\", "C:", "a:b", ""]
    {
        assert_eq!(
            failed(folder.share.lookup(ME, &root, name.as_bytes())),
            Errno::ENOENT,
            "{name}"
        );
        assert_eq!(
            failed(folder.share.unlink(ME, &root, name.as_bytes())),
            Errno::ENOENT,
            "{name}"
        );
        assert!(folder.make(&root, name).is_err(), "{name}");
        let new = NewNode::Directory { mode: 0o755 };
        assert!(folder.share.make(ME, &root, name.as_bytes(), new).is_err(), "{name}");
    }
    assert!(folder.notes.take().is_empty());
    folder.victim_is_untouched();
}

#[test]
fn a_stream_of_a_file_is_no_file() {
    let folder = Folder::new();
    fs::write(folder.host("a"), "plain").unwrap();
    if fs::write(folder.host("a:hidden"), "stream").is_err()
        || fs::read_dir(folder.host("")).unwrap().count() != 1
    {
        return skip("a_stream_of_a_file_is_no_file", "alternate streams");
    }
    assert_eq!(failed(folder.try_node("a:hidden")), Errno::ENOENT);
    assert_eq!(failed(folder.share.unlink(ME, &folder.root(), b"a:hidden")), Errno::ENOENT);
    assert_eq!(fs::read_to_string(folder.host("a:hidden")).unwrap(), "stream");
}

#[test]
fn an_open_file_loses_its_name_at_once() {
    let folder = Folder::new();
    let root = folder.root();
    let made = folder.make(&root, "a").unwrap();
    folder.share.unlink(ME, &root, b"a").unwrap();
    if folder.make(&root, "a").is_err() {
        return skip("an_open_file_loses_its_name_at_once", "POSIX delete");
    }
    let (node, open) = (&made.found.node, &made.open);
    assert_eq!(folder.share.write(ME, node, open, 0, b"still there").unwrap(), 11);
    assert_eq!(folder.share.attributes(ME, node, Some(open), 0).unwrap().size, 11);
    assert_eq!(folder.stat("a").size, 0);
}

#[test]
fn halves_of_characters_are_names_that_a_guest_can_remove() {
    use std::os::windows::ffi::OsStringExt;
    let folder = Folder::new();
    let name = std::ffi::OsString::from_wide(&[b'a'.into(), 0xd800]);
    if fs::write(folder.host("").join(&name), "x").is_err()
        || folder.share.lookup(ME, &folder.root(), b"a\xed\xa0\x80").is_err()
    {
        let test = "halves_of_characters_are_names_that_a_guest_can_remove";
        return skip(test, "names that are not text");
    }
    folder.share.unlink(ME, &folder.root(), b"a\xed\xa0\x80").unwrap();
    assert_eq!(fs::read_dir(folder.host("")).unwrap().count(), 0);
}
