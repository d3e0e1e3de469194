//! Several clients of one directory.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use codeagent_fs::{FsConfig, InterceptedFs};
use codeagent_interceptor::{EngineConfig, OnConflict, RollbackOptions, StepRequest, UndoEngine};
use codeagent_test_support::TempWorkspace;
use virtiofsd::filesystem::{Context, Extensions, FileSystem, FsOptions};
use virtiofsd::fuse::ROOT_ID;

fn ctx() -> Context {
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Context { uid: ids.0.into(), gid: ids.1.into(), pid: 1 }
}

fn workspace() -> TempWorkspace {
    TempWorkspace::with_fixture(|root| {
        fs::create_dir(root.join("dir")).unwrap();
        fs::write(root.join("dir/inner"), "inner").unwrap();
    })
}

type Fs = InterceptedFs<UndoEngine>;

fn clients(workspace: &TempWorkspace) -> (Arc<UndoEngine>, Fs, Fs) {
    let config = EngineConfig::new(workspace.working(), workspace.undo());
    let engine = Arc::new(UndoEngine::open(config).unwrap());
    let one = InterceptedFs::new(&FsConfig::new(workspace.working()), Arc::clone(&engine)).unwrap();
    let other = one.another();
    (engine, one, other)
}

/// With tables of their own, the first would go on to record changes under a path that is no more.
#[test]
fn a_directory_that_one_renames_has_its_new_path_for_the_other() {
    let workspace = workspace();
    let before = workspace.snapshot();
    let (engine, one, other) = clients(&workspace);
    let dir = one.lookup(ctx(), ROOT_ID, c"dir").unwrap().inode;
    engine.open_step(StepRequest::command("x")).unwrap();
    other.rename(ctx(), ROOT_ID, c"dir", ROOT_ID, c"moved", 0).unwrap();
    let none = Extensions::default();
    one.mkdir(ctx(), dir, c"new", 0o755, 0o022, none).unwrap();
    one.unlink(ctx(), dir, c"inner").unwrap();
    engine.close_step(Some(0)).unwrap();
    assert!(workspace.path("moved/new").is_dir());
    engine.rollback(1, RollbackOptions { on_conflict: OnConflict::Refuse }).unwrap();
    assert_eq!(workspace.snapshot(), before);
}

/// A guest that is held for a question of its own does not keep another one from going on.
#[test]
fn nobody_waits_for_the_answers_that_another_client_waits_for() {
    let (_engine, one, other) = clients(&workspace());
    let unanswered = one.taken();
    assert!(!one.wait_until_answered(Duration::ZERO));
    assert!(other.wait_until_answered(Duration::ZERO));
    drop(unanswered);
    assert!(one.wait_until_answered(Duration::ZERO));
}

#[test]
fn no_client_closes_what_another_has_open() {
    let workspace = workspace();
    let (_engine, one, other) = clients(&workspace);
    let dir = one.lookup(ctx(), ROOT_ID, c"dir").unwrap().inode;
    let inner = one.lookup(ctx(), dir, c"inner").unwrap().inode;
    let file = one.open(ctx(), inner, false, libc::O_RDWR as u32).unwrap().0.unwrap();
    let listing = one.opendir(ctx(), dir, 0).unwrap().0.unwrap();
    let release = |client: &Fs| client.release(ctx(), inner, 0, file, false, false, None);
    let bad = |outcome: std::io::Result<()>| {
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EBADF));
    };
    bad(release(&other));
    bad(other.releasedir(ctx(), dir, 0, listing));
    one.fsync(ctx(), inner, false, file).unwrap();
    one.fsyncdir(ctx(), dir, false, listing).unwrap();
    release(&one).unwrap();
    one.releasedir(ctx(), dir, 0, listing).unwrap();
    bad(release(&one));
}

#[test]
fn what_a_client_had_is_given_back_when_it_goes_and_when_it_begins_anew() {
    let workspace = workspace();
    let (_engine, one, other) = clients(&workspace);
    let open_files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let kept = one.lookup(ctx(), ROOT_ID, c"dir").unwrap().inode;
    let before = open_files();
    let take = |client: &Fs| {
        let dir = client.lookup(ctx(), ROOT_ID, c"dir").unwrap().inode;
        let inner = client.lookup(ctx(), dir, c"inner").unwrap().inode;
        client.open(ctx(), inner, false, libc::O_RDWR as u32).unwrap();
        client.opendir(ctx(), dir, 0).unwrap();
        assert!(open_files() > before + 2);
    };
    take(&other);
    other.init(FsOptions::all()).unwrap();
    assert_eq!((open_files(), other.open_files()), (before, vec![]));
    take(&other);
    other.forget(ctx(), kept, u64::MAX);
    drop(other);
    assert_eq!(open_files(), before);
    one.getattr(ctx(), kept, None).unwrap();
    one.lookup(ctx(), kept, c"inner").unwrap();
}
