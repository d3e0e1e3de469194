//! SC-01 to SC-03: nothing outside the folder is read or changed, whatever a client asks for.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use codeagent_interceptor::{OnConflict, RollbackOptions, StepRequest};
use codeagent_p9::wire::{Request, setattr};
use codeagent_p9::{Errno, OpenFlags};

use crate::client::ROOT;
use crate::folder::Folder;

/// A file outside that must stay as it is.
struct Canary {
    _dir: tempfile::TempDir,
    path: PathBuf,
    stamp: (u64, i64, i64, u32),
}

impl Canary {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("canary");
        fs::write(&path, "untouched").unwrap();
        let stamp = stamp(&path);
        Self { _dir: dir, path, stamp }
    }

    #[track_caller]
    fn is_untouched(&self) {
        assert_eq!(fs::read(&self.path).unwrap(), b"untouched");
        assert_eq!(stamp(&self.path), self.stamp);
        assert_eq!(fs::read_dir(self.path.parent().unwrap()).unwrap().count(), 1);
    }
}

/// Without the time it was read at: the canary itself is.
fn stamp(path: &Path) -> (u64, i64, i64, u32) {
    use std::os::unix::fs::MetadataExt;
    let host = fs::symlink_metadata(path).unwrap();
    (host.ino(), host.ctime(), host.ctime_nsec(), host.mode())
}

/// SC-01.
#[test]
fn a_link_that_leads_out_is_neither_opened_nor_walked_through() {
    let canary = Canary::new();
    let folder = Folder::new(|root| {
        symlink(&canary.path, root.join("file")).unwrap();
        symlink(canary.path.parent().unwrap(), root.join("dir")).unwrap();
    });
    folder.engine.open_step(StepRequest::command("x")).unwrap();
    let mut client = folder.client();
    assert_eq!(client.walk(ROOT, 1, &["dir", "canary"]).unwrap().len(), 1);
    client.find(1, "file").unwrap();
    client.find(2, "dir").unwrap();
    for flags in [0, OpenFlags::READ_WRITE, OpenFlags::WRITE_ONLY | OpenFlags::TRUNCATE] {
        assert_eq!(client.open(1, flags), Err(Errno::ELOOP));
        assert_eq!(client.open(2, flags), Err(Errno::ELOOP));
    }
    assert!(client.create(3, "file", OpenFlags::READ_WRITE, 0o644).is_err());
    assert!(client.change(1, setattr::SIZE, 0, 0).is_err());
    assert_eq!(client.mkdir(2, "x"), Err(Errno::ENOTDIR));
    assert_eq!(client.unlink(2, "canary", 0), Err(Errno::ENOTDIR));
    let gid = 0;
    let create = Request::Lcreate { fid: 2, name: b"x", flags: 2, mode: 0o644, gid };
    assert_eq!(client.tell(&create), Err(Errno::ENOTDIR));
    client.change(1, setattr::MODIFIED | setattr::MODIFIED_SET, 0, 0).ok();
    client.change(1, setattr::MODE, 0o777, 0).ok();
    client.set_xattr(1, "user.a", b"x", 0).ok();
    canary.is_untouched();
}

/// SC-02.
#[test]
fn undoing_what_was_done_around_a_link_writes_nothing_outside() {
    let canary = Canary::new();
    let folder = Folder::usual();
    let before = folder.workspace.snapshot();
    folder.engine.open_step(StepRequest::command("x")).unwrap();
    let mut client = folder.client();
    client.find_open(1, "file", OpenFlags::WRITE_ONLY | OpenFlags::TRUNCATE);
    client.unlink(ROOT, "file", 0).unwrap();
    let target = std::os::unix::ffi::OsStrExt::as_bytes(canary.path.as_os_str());
    client.tell(&Request::Symlink { dir: ROOT, name: b"file", target, gid: 0 }).unwrap();
    client.find(2, "dir").unwrap();
    client.rename((ROOT, "file"), (2, "inner")).unwrap();
    client.leave().unwrap();
    folder.engine.close_step(Some(0)).unwrap();
    folder.engine.rollback(1, RollbackOptions { on_conflict: OnConflict::Refuse }).unwrap();
    assert_eq!(folder.workspace.snapshot(), before);
    canary.is_untouched();
}

/// SC-03.
#[test]
fn a_chain_of_links_leads_nowhere() {
    let canary = Canary::new();
    let folder = Folder::new(|root| {
        symlink("b", root.join("a")).unwrap();
        symlink("c", root.join("b")).unwrap();
        symlink(&canary.path, root.join("c")).unwrap();
        symlink("..", root.join("up")).unwrap();
    });
    let mut client = folder.client();
    for (fid, name) in (1..).zip(["a", "b", "c", "up"]) {
        client.find(fid, name).unwrap();
        assert_eq!(client.open(fid, OpenFlags::READ_WRITE), Err(Errno::ELOOP), "{name}");
        assert_eq!(client.walk(fid, 100, &["canary"]), Err(Errno::ENOTDIR), "{name}");
    }
    canary.is_untouched();
}

/// SC-03: a directory that becomes a link while a client has a number for it.
#[test]
fn a_number_does_not_follow_what_its_name_became() {
    let canary = Canary::new();
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find(1, "dir").unwrap();
    let path = folder.workspace.path("dir");
    fs::rename(&path, folder.workspace.path("elsewhere")).unwrap();
    symlink(canary.path.parent().unwrap(), &path).unwrap();
    assert_eq!(client.walk(1, 2, &["canary"]), Err(Errno::ENOENT));
    // It may be refused, because the host has moved it; it does not happen outside.
    client.unlink(1, "canary", 0).unwrap_err();
    client.mkdir(1, "new").ok();
    canary.is_untouched();
}

#[test]
fn what_is_above_the_root_has_no_number_even_in_a_listing() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find_open(1, "", 0);
    let above = fs::metadata(folder.workspace.working().parent().unwrap()).unwrap();
    let above = std::os::unix::fs::MetadataExt::ino(&above);
    let request = Request::Readdir { fid: 1, offset: 0, count: 4096 };
    let codeagent_p9::wire::Reply::Readdir { entries } = client.ask(&request).unwrap() else {
        unreachable!()
    };
    let mut numbers = codeagent_p9::wire::DirEntries::new(entries.0).map(|entry| entry.qid.path);
    assert!(numbers.all(|number| number != above));
}
