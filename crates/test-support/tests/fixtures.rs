//! The fixtures hold what they promise, and are the same each time.

#![allow(clippy::unwrap_used)] // A test that cannot set up its tree has failed.

use codeagent_test_support::filesystems::{skip, supports_user_xattrs};
use codeagent_test_support::fixtures::{
    self, awkward_tree, hardlink_tree, set_distinct_mtimes, small_tree, symlink_tree,
};
use codeagent_test_support::{EntryKind, TempWorkspace, assert_tree_eq};

#[test]
fn the_same_fixture_twice_is_the_same_tree() {
    for fixture in [small_tree, symlink_tree, hardlink_tree, awkward_tree] {
        let (one, two) =
            (TempWorkspace::with_fixture(fixture), TempWorkspace::with_fixture(fixture));
        assert_tree_eq(&one.snapshot(), &two.snapshot());
    }
}

#[test]
fn fixtures_hold_what_they_promise() {
    let awkward = TempWorkspace::with_fixture(awkward_tree).snapshot();
    assert_eq!(awkward.get("suid").unwrap().mode, 0o4755);
    assert_eq!(awkward.get("sticky-directory").unwrap().mode, 0o1777);
    assert_eq!(awkward.get("fifo").unwrap().kind, EntryKind::Fifo);
    assert_eq!(awkward.get("sparse").unwrap().size_bytes, 1024 * 1024);
    assert_eq!(awkward.get("last-before-epoch").unwrap().mtime_ns, -1);
    assert!(awkward.get(b"latin-1 caf\xe9").is_some());
    assert!(awkward.get([b'n'; 255]).is_some());

    let deep = TempWorkspace::with_fixture(fixtures::deep_tree).snapshot();
    let is_file = |kind: &EntryKind| matches!(kind, EntryKind::Regular { .. });
    let files = deep.entries.values().filter(|entry| is_file(&entry.kind));
    assert_eq!(files.count(), 124);

    let flat = TempWorkspace::with_fixture(|root| fixtures::large_flat(root, 300, 64)).snapshot();
    assert_eq!(flat.entries.len(), 301);
    for snapshot in [&awkward, &deep, &flat] {
        let mut times: Vec<_> = snapshot.entries.values().map(|e| e.mtime_ns).collect();
        times.sort_unstable();
        times.dedup();
        assert_eq!(times.len(), snapshot.entries.len());
    }
}

#[test]
fn hard_links_share_one_mtime_and_keep_their_groups() {
    let workspace = TempWorkspace::with_fixture(hardlink_tree);
    let snapshot = workspace.snapshot();
    let group = |path: &str| snapshot.get(path).unwrap().hard_link_group;
    assert_eq!(group("left/trio-1"), Some(0));
    assert_eq!(group("right/trio-3"), Some(0));
    assert_eq!(group("pair-2"), Some(1));
    assert_eq!(group("equal-1"), None);
    set_distinct_mtimes(workspace.working());
    assert_tree_eq(&snapshot, &workspace.snapshot());
}

#[test]
fn the_xattr_fixture_is_whole() {
    let workspace = TempWorkspace::new();
    if !supports_user_xattrs(workspace.working()) {
        return skip("the_xattr_fixture_is_whole", "no user xattrs here");
    }
    let workspace = workspace.filled(fixtures::xattr_tree);
    let snapshot = workspace.snapshot();
    let tagged = &snapshot.get("tagged.txt").unwrap().xattrs;
    assert_eq!(tagged[b"user.bytes".as_slice()], b"\x00\xff\n\x80");
    assert_eq!(tagged.len(), 3);
}
