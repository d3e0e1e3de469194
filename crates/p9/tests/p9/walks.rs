//! WK: from one number to the next.

use std::fs;

use codeagent_p9::memory::Memory;
use codeagent_p9::wire::{Names, QidKind, Request};
use codeagent_p9::{Errno, OpenFlags};

use crate::client::{Client, ROOT};
use crate::folder::Folder;

#[test]
fn a_walk_tells_what_it_comes_by() {
    let folder = Folder::usual();
    let mut client = folder.client();
    let qids = client.walk(ROOT, 1, &["dir", "inner"]).unwrap();
    assert_eq!([qids[0].kind, qids[1].kind], [QidKind::DIRECTORY, QidKind::FILE]);
    assert_eq!(client.attributes(1).unwrap().qid, qids[1]);
    assert_eq!(client.walk(ROOT, 2, &["link"]).unwrap()[0].kind, QidKind::SYMLINK);
}

#[test]
fn without_names_a_walk_is_a_copy() {
    let folder = Folder::usual();
    let mut client = folder.client();
    assert_eq!(client.walk(ROOT, 1, &[]).unwrap(), []);
    client.clunk(ROOT).unwrap();
    client.walk(1, 2, &["file"]).unwrap();
}

#[test]
fn the_first_name_that_is_not_there_is_an_error() {
    let folder = Folder::usual();
    let mut client = folder.client();
    assert_eq!(client.walk(ROOT, 1, &["none", "x"]), Err(Errno::ENOENT));
    assert_eq!(client.clunk(1), Err(Errno::EBADF));
}

#[test]
fn a_later_one_ends_the_walk_there_and_makes_no_number() {
    let folder = Folder::usual();
    let mut client = folder.client();
    assert_eq!(client.walk(ROOT, 1, &["dir", "none", "x"]).unwrap().len(), 1);
    assert_eq!(client.clunk(1), Err(Errno::EBADF));
    assert_eq!(client.walk(ROOT, 1, &["file", "x"]).unwrap().len(), 1, "a file has no names");
    client.find(1, "file").unwrap();
    assert_eq!(client.walk(1, 2, &["x"]), Err(Errno::ENOTDIR));
}

#[test]
fn a_walk_to_its_own_number_moves_it_only_if_all_is_there() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.walk(ROOT, 1, &[]).unwrap();
    assert_eq!(client.walk(1, 1, &["dir", "none"]).unwrap().len(), 1);
    client.walk(1, 1, &["dir"]).unwrap();
    client.walk(1, 2, &["inner"]).unwrap();
}

#[test]
fn nothing_is_above_the_root() {
    let folder = Folder::usual();
    let mut client = folder.client();
    let root = client.attributes(ROOT).unwrap().qid.path;
    let qids = client.walk(ROOT, 1, &["..", "..", "dir", "sub", "..", "..", "..", ".."]).unwrap();
    assert_eq!(qids.len(), 8);
    assert_eq!([0, 1, 5, 6, 7].map(|step| qids[step].path), [root; 5]);
    assert_eq!(qids[4].path, qids[2].path);
}

#[test]
fn names_that_lead_elsewhere_are_invalid() {
    let folder = Folder::usual();
    let mut client = folder.client();
    for name in ["", ".", "/", "../file", "dir/inner", "file\0"] {
        assert_eq!(client.walk(ROOT, 1, &[name]), Err(Errno::EINVAL), "{name:?}");
        assert_eq!(client.walk(ROOT, 1, &["dir", name]).unwrap().len(), 1, "{name:?}");
    }
    let long = "x".repeat(256);
    assert_eq!(client.walk(ROOT, 1, &[&long]), Err(Errno::ENAMETOOLONG));
}

#[test]
fn an_open_number_can_be_copied_but_not_moved() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find_open(1, "dir", 0);
    client.walk(1, 2, &[]).unwrap();
    client.walk(1, 3, &["inner"]).unwrap();
    assert_eq!(client.walk(1, 1, &["inner"]), Err(Errno::EINVAL));
    assert_eq!(client.list(2, 4096), Err(Errno::EBADF), "the copy is not open");
}

#[test]
fn names_need_not_be_text() {
    let folder = Folder::new(|root| {
        let name = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff\xfe \n");
        fs::write(root.join(name), "x").unwrap();
    });
    let mut client = folder.client();
    let mut buffer = Vec::new();
    let names = Names::collect(&[b"\xff\xfe \n"], &mut buffer).unwrap();
    client.tell(&Request::Walk { fid: ROOT, new_fid: 1, names }).unwrap();
    client.open(1, 0).unwrap();
    assert_eq!(client.read(1, 0, 10).unwrap(), b"x");
}

#[test]
fn a_node_stays_what_it_was_when_its_name_changes() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find(1, "dir").unwrap();
    client.rename((ROOT, "dir"), (ROOT, "moved")).unwrap();
    client.walk(1, 2, &["inner"]).unwrap();
    client.mkdir(1, "new").unwrap();
    assert!(folder.workspace.path("moved/new").is_dir());
}

/// What a long way costs is given back without a deep stack.
#[test]
fn a_way_can_be_longer_than_a_stack_is_deep() {
    let memory = Memory::default();
    let mut client = Client::in_memory(&memory);
    client.walk(ROOT, 1, &[]).unwrap();
    for _ in 0..30_000 {
        client.mkdir(1, "d").unwrap();
        client.walk(1, 1, &["d"]).unwrap();
    }
    client.clunk(1).unwrap();
    client.leave().unwrap();
    // As deep as its own tree, which is dropped by whoever made it.
    std::mem::forget(memory);
}

#[test]
fn what_a_number_does_not_stand_for_any_more_is_not_removed_by_it() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find(1, "file").unwrap();
    client.rename((ROOT, "file"), (ROOT, "moved")).unwrap();
    client.create(2, "file", OpenFlags::READ_WRITE, 0o644).unwrap();
    assert_eq!(client.tell(&Request::Remove { fid: 1 }), Err(Errno::ENOENT));
    assert!(folder.workspace.path("file").exists() && folder.workspace.path("moved").exists());
    assert_eq!(client.clunk(1), Err(Errno::EBADF), "it is given up all the same");
}
