//! How a snapshot goes through a tree: how deep, where not, and without a trace.

#![allow(clippy::unwrap_used)] // A test that cannot set up its tree has failed.

use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use codeagent_test_support::filesystems::skip;
use codeagent_test_support::fixtures::{small_tree, symlink_tree};
use codeagent_test_support::{EntryKind, TempWorkspace, TreeSnapshot};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn symlinks_are_never_followed() {
    let workspace = TempWorkspace::with_fixture(symlink_tree);
    let snapshot = workspace.snapshot();
    assert!(snapshot.get("to-directory/inner.txt").is_none());
    assert_eq!(
        snapshot.get("to-directory").unwrap().kind,
        EntryKind::Symlink { target: b"directory".to_vec() }
    );
}

#[test]
#[should_panic(expected = "snapshot of ")]
fn a_symlink_as_the_root_is_refused() {
    let workspace = TempWorkspace::with_fixture(symlink_tree);
    TreeSnapshot::capture(&workspace.path("to-directory"));
}

#[test]
fn reading_leaves_no_trace() {
    let workspace = TempWorkspace::with_fixture(small_tree);
    let times = || {
        ["", "small.txt", "src"].map(|name| {
            let metadata = fs::symlink_metadata(workspace.path(name)).unwrap();
            let (atime, mtime) = (metadata.atime_nsec(), metadata.mtime_nsec());
            (atime, mtime, metadata.ctime_nsec())
        })
    };
    let before = times();
    workspace.snapshot();
    assert_eq!(times(), before);
}

fn set_mode_000(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o000)).unwrap();
}

#[test]
fn files_and_directories_of_mode_000() {
    if !rustix::process::geteuid().is_root() {
        return skip("files_and_directories_of_mode_000", "only root reads them");
    }
    let workspace = TempWorkspace::with_fixture(|root| {
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/f"), "hidden").unwrap();
        set_mode_000(&root.join("d/f"));
        set_mode_000(&root.join("d"));
    });
    assert_eq!(workspace.snapshot().get("d/f").unwrap().size_bytes, 6);
}

/// A chain of directories with a file in the last, made one step at a time, as no call
/// takes the whole path.
fn make_chain(root: &Path, name: &str, depth: usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut fd = rustix::fs::open(root, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&fd, name, Mode::from(0o755)).unwrap();
        fd = rustix::fs::openat(&fd, name, flags, Mode::empty()).unwrap();
    }
    let (kind, mode) = (FileType::RegularFile, Mode::from(0o644));
    rustix::fs::mknodat(&fd, "end", kind, mode, 0).unwrap();
    rustix::fs::symlinkat("target", &fd, "link").unwrap();
}

#[test]
fn paths_longer_than_any_call_takes() {
    let name = "n".repeat(200);
    let workspace = TempWorkspace::with_fixture(|root| make_chain(root, &name, 30));
    let snapshot = workspace.snapshot();
    let end = format!("{}end", format!("{name}/").repeat(30));
    assert!(end.len() > 4096);
    assert!(snapshot.get(&end).is_some());
    let bottom = Path::new(&end).parent().unwrap();
    assert_eq!(snapshot.entries.len(), 1 + 30 + 2);
    assert!(snapshot.get(bottom.join("link").as_os_str().as_bytes()).is_some());
}

#[test]
fn more_levels_than_files_may_be_open() {
    let limit = Rlimit { current: Some(1024), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let workspace = TempWorkspace::with_fixture(|root| {
        make_chain(root, "a", 3000);
        make_chain(root, "b", 100);
    });
    let snapshot = workspace.snapshot();
    assert_eq!(snapshot.entries.len(), 1 + 3002 + 102);
    assert!(snapshot.get(format!("{}end", "b/".repeat(100))).is_some());

    let holder = workspace.working().parent().unwrap().to_owned();
    drop(workspace);
    assert!(!holder.exists());
}
