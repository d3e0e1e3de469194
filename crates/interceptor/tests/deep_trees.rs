//! Trees deeper than a process may have files open, or a path may be long.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use codeagent_interceptor::StagedChange;
use codeagent_test_support::{TempWorkspace, filesystems};
use common::{Bench, rel_buf, wait_until};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

const DEPTH: usize = 3000;

/// Directories in directories, and a mebibyte at the bottom.
fn dig(root: &Path) {
    let open = |dir: &OwnedFd| {
        openat(dir, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
    };
    let mut at = openat(CWD, root, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..DEPTH {
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = open(&at);
    }
    let file = openat(&at, "large", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
    rustix::io::write(&file, &[1; 1 << 20]).unwrap();
}

fn remove(bench: &Bench) {
    let staging = bench.beside("staging");
    bench.step(|fs| {
        fs.engine().adopt(&staging, &[StagedChange::Remove { path: rel_buf("d") }]).unwrap();
    });
}

#[test]
fn a_deep_tree_is_counted_and_put_back() {
    let bench = Bench::new(dig);
    remove(&bench);
    wait_until("it is counted", || bench.engine.status().unwrap().held_bytes >= 1 << 20);
    bench.undo(1);
    assert!(bench.path("d/d/d/d/d").exists());
}

#[test]
fn a_deep_tree_that_is_dropped_leaves_the_disk() {
    let bench = Bench::configured(TempWorkspace::with_fixture(dig), |config| {
        config.limits.max_steps = 1;
    });
    remove(&bench);
    bench.step(|fs| fs.create("f", b"x").unwrap());
    wait_until("the trash is emptied", || {
        fs::read_dir(bench.workspace.undo().join("trash")).unwrap().count() == 0
    });
}

/// Adopted from another filesystem, and taken back for good after a crash.
#[test]
fn a_deep_tree_on_another_filesystem_is_removed_by_recovery() {
    let Some(disk) = filesystems::disk_dir() else {
        return filesystems::skip("deep trees across filesystems", "no disk filesystem");
    };
    let workspace = TempWorkspace::across(Path::new("/dev/shm"), &disk);
    let bench = Bench::configured(workspace, |_| {});
    let staging = bench.beside("staging");
    dig(&staging);
    bench.engine.open_step(codeagent_interceptor::StepRequest::command("dies")).unwrap();
    let place = StagedChange::Place { path: rel_buf("d"), staged: rel_buf("d") };
    bench.engine.adopt(&staging, &[place]).unwrap();
    let bench = bench.reopened();
    assert!(bench.engine.recovery().unwrap().rolled_back);
    assert!(!bench.path("d").exists());
}
