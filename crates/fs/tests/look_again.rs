//! Names that a client asks about again, which are looked at more quickly than at first.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;

use codeagent_fs::{FsConfig, InterceptedFs};
use codeagent_interceptor::{EngineConfig, StepRequest, UndoEngine};
use codeagent_test_support::TempWorkspace;
use virtiofsd::filesystem::{Context, Entry, FileSystem};
use virtiofsd::fuse::ROOT_ID;

type Fs = InterceptedFs<UndoEngine>;

fn ctx() -> Context {
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Context { uid: ids.0.into(), gid: ids.1.into(), pid: 1 }
}

fn workspace() -> TempWorkspace {
    TempWorkspace::with_fixture(|root| {
        fs::create_dir(root.join("dir")).unwrap();
        fs::write(root.join("dir/file"), "content").unwrap();
        fs::hard_link(root.join("dir/file"), root.join("dir/twin")).unwrap();
        std::os::unix::fs::symlink("file", root.join("dir/link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, root.join("dir/fifo"), 0o600.into()).unwrap();
    })
}

fn open(workspace: &TempWorkspace) -> (Arc<UndoEngine>, Fs) {
    let config = EngineConfig::new(workspace.working(), workspace.undo());
    let engine = Arc::new(UndoEngine::open(config).unwrap());
    let fs = InterceptedFs::new(&FsConfig::new(workspace.working()), Arc::clone(&engine)).unwrap();
    (engine, fs)
}

fn look(fs: &Fs, parent: u64, name: &str) -> Entry {
    fs.lookup(ctx(), parent, &CString::new(name).unwrap()).unwrap()
}

fn errno(fs: &Fs, parent: u64, name: &str) -> Option<i32> {
    fs.lookup(ctx(), parent, &CString::new(name).unwrap()).err()?.raw_os_error()
}

/// Everything that is told, but for the count of times it was told.
fn said(entry: &Entry) -> String {
    format!("{} {:?} {:?} {:?}", entry.inode, entry.attr, entry.attr_timeout, entry.entry_timeout)
}

#[test]
fn a_name_stands_for_the_same_the_second_time() {
    let workspace = workspace();
    let (_engine, fs) = open(&workspace);
    let dir = look(&fs, ROOT_ID, "dir");
    assert_eq!(said(&look(&fs, ROOT_ID, "dir")), said(&dir));
    for name in ["file", "twin", "link", "fifo"] {
        let first = look(&fs, dir.inode, name);
        let again = look(&fs, dir.inode, name);
        assert_eq!(said(&again), said(&first), "{name}");
        assert_eq!(said(&look(&fs.another(), dir.inode, name)), said(&first), "{name}");
    }
}

#[test]
fn what_somebody_changes_on_the_host_is_seen_at_once() {
    let workspace = workspace();
    let (_engine, fs) = open(&workspace);
    let dir = look(&fs, ROOT_ID, "dir").inode;
    let (first, _) = (look(&fs, dir, "file"), look(&fs, dir, "file"));
    let path = workspace.path("dir/file");

    fs::write(&path, "longer content").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let changed = look(&fs, dir, "file");
    assert_eq!((changed.inode, changed.attr.size), (first.inode, 14));
    assert_eq!(changed.attr.mode & 0o777, 0o640);

    fs::write(workspace.path("dir/other"), "other").unwrap();
    fs::rename(workspace.path("dir/other"), &path).unwrap();
    let replaced = look(&fs, dir, "file");
    assert_ne!(replaced.inode, first.inode);
    assert_eq!(replaced.attr.ino, fs::metadata(&path).unwrap().ino());

    fs::remove_file(&path).unwrap();
    assert_eq!(errno(&fs, dir, "file"), Some(libc::ENOENT));
    fs::create_dir(&path).unwrap();
    assert_eq!(look(&fs, dir, "file").attr.mode & libc::S_IFMT, libc::S_IFDIR);

    fs::rename(workspace.path("dir"), workspace.path("moved")).unwrap();
    assert_eq!(errno(&fs, ROOT_ID, "dir"), Some(libc::ENOENT));
    assert_eq!(look(&fs, ROOT_ID, "moved").inode, dir);
    assert_eq!(look(&fs, dir, "twin").inode, first.inode);
}

#[test]
fn names_that_the_client_renamed_or_removed_are_not_those_it_knew() {
    let workspace = workspace();
    let (engine, fs) = open(&workspace);
    let dir = look(&fs, ROOT_ID, "dir").inode;
    let (file, _) = (look(&fs, dir, "file").inode, look(&fs, dir, "link"));
    look(&fs, dir, "file");
    engine.open_step(StepRequest::command("x")).unwrap();
    fs.rename(ctx(), dir, c"file", ROOT_ID, c"file", 0).unwrap();
    fs.unlink(ctx(), dir, c"link").unwrap();
    engine.close_step(Some(0)).unwrap();
    assert_eq!(errno(&fs, dir, "file"), Some(libc::ENOENT));
    assert_eq!(errno(&fs, dir, "link"), Some(libc::ENOENT));
    assert_eq!(look(&fs, ROOT_ID, "file").inode, file);
}

/// Names that the store has are none of the client's, however it asks.
#[test]
fn names_are_counted_as_at_first() {
    let workspace = workspace();
    let (engine, fs) = open(&workspace);
    let dir = look(&fs, ROOT_ID, "dir").inode;
    assert_eq!(look(&fs, dir, "twin").attr.nlink, 2);
    engine.open_step(StepRequest::command("x")).unwrap();
    fs.unlink(ctx(), dir, c"file").unwrap();
    assert_eq!(look(&fs, dir, "twin").attr.nlink, 1);
    assert_eq!(fs::metadata(workspace.path("dir/twin")).unwrap().nlink(), 2);
}

#[test]
fn what_was_told_often_is_forgotten_as_often_and_then_let_go() {
    let workspace = workspace();
    let (_engine, fs) = open(&workspace);
    let open_files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let dir = look(&fs, ROOT_ID, "dir").inode;
    look(&fs, ROOT_ID, "dir");
    let before = open_files();
    let files = ["file", "link"].map(|name| (0..3).map(|_| look(&fs, dir, name)).last().unwrap());
    assert_eq!(open_files(), before + 3, "each of them, and their directory");
    for file in files {
        fs.forget(ctx(), file.inode, 2);
        fs.getattr(ctx(), file.inode, None).unwrap();
        fs.forget(ctx(), file.inode, 1);
        assert!(fs.getattr(ctx(), file.inode, None).is_err());
    }
    fs.forget(ctx(), dir, 2);
    assert_eq!(open_files(), before - 1);
}

/// As many as there may be, and each of them answers all the same.
#[test]
fn only_so_many_directories_are_kept_open() {
    const DIRS: usize = 40;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let lower = rustix::process::Rlimit { current: Some(512), ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, lower).unwrap();
    let workspace = TempWorkspace::with_fixture(|root| {
        for number in 0..DIRS {
            fs::create_dir(root.join(number.to_string())).unwrap();
            fs::write(root.join(format!("{number}/file")), number.to_string()).unwrap();
        }
    });
    let (_engine, fs) = open(&workspace);
    let open_files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let dirs: Vec<u64> =
        (0..DIRS).map(|number| look(&fs, ROOT_ID, &number.to_string()).inode).collect();
    let files: Vec<u64> = dirs.iter().map(|dir| look(&fs, *dir, "file").inode).collect();
    let before = open_files();
    for _ in 0..3 {
        let again: Vec<u64> = dirs.iter().map(|dir| look(&fs, *dir, "file").inode).collect();
        assert_eq!(again, files);
        let more = open_files() - before;
        assert!((1..=512 / 16).contains(&more), "{more}");
    }
}
