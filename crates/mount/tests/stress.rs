//! stress-ng's filesystem stressors in the mount: they find nothing wrong, and what they leave
//! behind when they are killed is undone like anything else.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use codeagent_interceptor::RollbackOptions;
use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use common::{Mounted, can_mount, has};
use rustix::process::{Pid, Signal, WaitOptions};

/// Names come and go.
const NAMES: &[&str] = &[
    "access", "chdir", "dentry", "dir", "dirdeep", "dirmany", "filename", "getdent", "link",
    "mknod", "open", "rename", "symlink", "touch",
];

/// Content comes and goes, through every way in.
const CONTENT: &[&str] = &[
    "copy-file",
    "fallocate",
    "fpunch",
    "fsize",
    "hdd",
    "io",
    "iomix",
    "mmap",
    "readahead",
    "revio",
    "seek",
    "sendfile",
    "sync-file",
];

/// Attributes, locks, notifications.
const ATTRIBUTES: &[&str] = &[
    "chattr",
    "chmod",
    "chown",
    "dnotify",
    "fcntl",
    "file-ioctl",
    "flock",
    "fstat",
    "handle",
    "inode-flags",
    "inotify",
    "lease",
    "locka",
    "lockf",
    "lockofd",
    "utime",
    "xattr",
];

fn seconds() -> u64 {
    if std::env::var_os("CODEAGENT_LONG").is_some() { 20 } else { 3 }
}

/// One of each stressor at once. They check what they do; their sizes are such that each gets
/// somewhere in a few seconds.
fn stress(stressors: &[&str], folder: &Path) -> Command {
    let mut command = Command::new("stress-ng");
    command.args(["--verify", "--temp-path", "."]).current_dir(folder);
    for stressor in stressors {
        command.args([&format!("--{stressor}"), "1"]);
    }
    command.args(["--chdir-dirs", "64", "--hdd-bytes", "8m", "--fallocate-bytes", "8m"]);
    command.args(["--readahead-bytes", "8m", "--revio-bytes", "8m", "--seek-size", "8m"]);
    command.args(["--copy-file-bytes", "128m", "--mmap-bytes", "4m", "--mmap-file"]);
    command.args(["--iomix-bytes", "8m", "--sync-file-bytes", "8m"]);
    command
}

fn assert_finds_nothing_wrong(stressors: &[&str], folder: &Path) {
    let mut command = stress(stressors, folder);
    let output = command.args(["--timeout", &format!("{}s", seconds())]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "in {}: {}\n{said}", folder.display(), output.status);
}

/// Kills all stressors at work, and returns when the last one is gone.
#[expect(clippy::zombie_processes, reason = "waited for together with its group")]
fn run_and_kill(stressors: &[&str], folder: &Path) {
    // What the first process leaves behind becomes ours to wait for.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let child = stress(stressors, folder).process_group(0).spawn().unwrap();
    let group = Pid::from_child(&child);
    std::thread::sleep(Duration::from_secs(seconds())); // the time they get
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        rustix::process::kill_process_group(group, Signal::KILL).unwrap_or_default();
        match rustix::process::waitpgid(group, WaitOptions::NOHANG) {
            Err(_nobody_is_left) => return,
            Ok(_) => assert!(Instant::now() < deadline, "a stressor survives"),
        }
    }
}

/// Changes what the stressors have left behind, all of it and in every way.
const AFTERMATH: &str = "
    find . -type f | head -50 | while read -r f; do echo more >> \"$f\"; done
    find . -mindepth 1 -maxdepth 1 | head -1 | while read -r d; do mv \"$d\" moved; done
    find . -depth -type f -links -2 | tail -50 | xargs -r rm -f
    find . -depth -type d -empty -delete
    echo done > end";

fn stressed(test: &str, stressors: &[&str]) {
    if !can_mount(test) {
        return;
    }
    if !has("stress-ng") {
        return skip(test, "stress-ng is not installed");
    }
    let bare = TempWorkspace::new();
    assert_finds_nothing_wrong(stressors, bare.working());
    let mounted = Mounted::new(|root| std::fs::write(root.join("file"), "as it was").unwrap());
    mounted.there_and_back_of("stress", || {
        assert_finds_nothing_wrong(stressors, mounted.mount.mount_point());
        mounted.sh("echo more >> file"); // the stressors clean up after themselves
    });

    let mut states = vec![mounted.workspace.snapshot()];
    mounted.step_of("stress", || run_and_kill(stressors, mounted.mount.mount_point()));
    states.push(mounted.workspace.snapshot());
    mounted.step(AFTERMATH);
    states.push(mounted.workspace.snapshot());
    for _ in 0..2 {
        for state in states.iter().rev().skip(1) {
            mounted.engine().rollback(1, RollbackOptions::default()).unwrap();
            assert_tree_eq(state, &mounted.workspace.snapshot());
            mounted.assert_seen_through_the_mount(state);
        }
        for state in states.iter().skip(1) {
            mounted.engine().redo(1, RollbackOptions::default()).unwrap();
            assert_tree_eq(state, &mounted.workspace.snapshot());
            mounted.assert_seen_through_the_mount(state);
        }
    }
}

#[test]
fn stressed_names_are_undone() {
    stressed("stressed_names_are_undone", NAMES);
}

#[test]
fn stressed_content_is_undone() {
    stressed("stressed_content_is_undone", CONTENT);
}

#[test]
fn stressed_attributes_are_undone() {
    stressed("stressed_attributes_are_undone", ATTRIBUTES);
}
