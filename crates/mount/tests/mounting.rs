//! Mounting, unmounting, and what a mount is besides a place for programs to write.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use codeagent_interceptor::{EngineConfig, RollbackOptions, UndoEngine};
use codeagent_mount::Unmounted;
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use common::{Mounted, can_mount};

fn two_files(root: &Path) {
    fs::create_dir(root.join("dir")).unwrap();
    fs::write(root.join("dir/one"), "one").unwrap();
    fs::write(root.join("two"), "two").unwrap();
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_mount(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}

#[test]
fn a_read_only_mount_shows_everything_and_changes_nothing() {
    if !can_mount("a_read_only_mount_shows_everything_and_changes_nothing") {
        return;
    }
    let mounted = Mounted::with(two_files, |options| options.read_only = true);
    let before = mounted.workspace.snapshot();
    assert_eq!(fs::read_to_string(mounted.path("dir/one")).unwrap(), "one");
    for refused in [
        fs::write(mounted.path("two"), "x"),
        fs::write(mounted.path("new"), "x"),
        fs::remove_file(mounted.path("two")),
        fs::create_dir(mounted.path("d")),
        fs::rename(mounted.path("two"), mounted.path("three")),
    ] {
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EROFS));
    }
    assert_tree_eq(&before, &mounted.workspace.snapshot());
}

#[test]
fn a_folder_can_be_mounted_over_itself() {
    if !can_mount("a_folder_can_be_mounted_over_itself") {
        return;
    }
    let mounted = Mounted::with(two_files, |options| {
        options.mount_point.clone_from(&options.source);
    });
    let before = mounted.workspace.snapshot();
    mounted.step("echo changed > two; mv dir folder; echo new > folder/new; rm folder/one");
    let after = mounted.workspace.snapshot();
    let Mounted { mount, workspace, .. } = mounted;
    let engine = std::sync::Arc::clone(mount.engine());
    assert_eq!(mount.unmount().unwrap(), Unmounted::Cleanly);
    assert_tree_eq(&after, &workspace.snapshot());
    engine.rollback(1, RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &workspace.snapshot());
}

#[test]
fn a_mount_in_use_is_taken_away_all_the_same() {
    if !can_mount("a_mount_in_use_is_taken_away_all_the_same") {
        return;
    }
    let mounted = Mounted::new(two_files);
    let mut open = fs::File::open(mounted.path("two")).unwrap();
    let Mounted { mount, point, .. } = mounted;
    assert_eq!(mount.unmount().unwrap(), Unmounted::WhileInUse);
    assert!(!is_mount(point.path()));
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "two");
}

#[test]
fn undo_is_seen_at_once_through_the_mount() {
    if !can_mount("undo_is_seen_at_once_through_the_mount") {
        return;
    }
    let mounted = Mounted::new(two_files);
    mounted.step("echo changed > two");
    assert_eq!(fs::read_to_string(mounted.path("two")).unwrap(), "changed\n");
    mounted.engine().rollback(1, RollbackOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(mounted.path("two")).unwrap(), "two");
    assert_eq!(fs::metadata(mounted.path("two")).unwrap().len(), 3);
}

#[test]
fn a_file_held_open_across_steps_is_captured_in_each() {
    if !can_mount("a_file_held_open_across_steps_is_captured_in_each") {
        return;
    }
    let mounted = Mounted::new(two_files);
    let before = mounted.workspace.snapshot();
    let mut held = fs::OpenOptions::new().append(true).open(mounted.path("two")).unwrap();
    let mut states = vec![before];
    for text in ["a", "b", "c"] {
        mounted.engine().open_step(codeagent_interceptor::StepRequest::command(text)).unwrap();
        held.write_all(text.as_bytes()).unwrap();
        mounted.engine().close_step(Some(0)).unwrap();
        states.push(mounted.workspace.snapshot());
    }
    while let Some(state) = states.pop() {
        assert_tree_eq(&state, &mounted.workspace.snapshot());
        if !states.is_empty() {
            mounted.engine().rollback(1, RollbackOptions::default()).unwrap();
        }
    }
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn binary(workspace: &TempWorkspace, point: &Path, extra: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_codeagent-mount"));
    command.arg("--source-dir").arg(workspace.working());
    command.arg("--mount-point").arg(point).arg("--undo-dir").arg(workspace.undo());
    command.args(extra).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn steps(workspace: &TempWorkspace) -> UndoEngine {
    UndoEngine::open(EngineConfig::new(workspace.working(), workspace.undo())).unwrap()
}

#[test]
fn the_binary_records_ambient_steps_and_unmounts_on_a_signal() {
    if !can_mount("the_binary_records_ambient_steps_and_unmounts_on_a_signal") {
        return;
    }
    let workspace = TempWorkspace::with_fixture(two_files);
    let point = tempfile::tempdir().unwrap();
    let before = workspace.snapshot();
    let mut command = binary(&workspace, point.path(), &["--ambient-timeout", "0.05"]);
    let mut process = Process(command.spawn().unwrap());
    wait_for("the mount appears", || is_mount(point.path()));
    fs::write(point.path().join("two"), "first").unwrap();
    let steps_dir = workspace.undo().join("steps");
    let count = || fs::read_dir(&steps_dir).map_or(0, Iterator::count);
    wait_for("the first step ends", || count() >= 1);
    fs::write(point.path().join("two"), "second").unwrap();
    let pid = rustix::process::Pid::from_child(&process.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(process.0.wait().unwrap().success());
    assert!(!is_mount(point.path()));
    let engine = steps(&workspace);
    let recorded = engine.steps().len();
    assert!(recorded >= 2, "more, where the machine was slow between two system calls");
    assert!(engine.recovery().is_none(), "a clean end leaves nothing to recover");
    assert_eq!(fs::read_to_string(workspace.path("two")).unwrap(), "second");
    engine.rollback(recorded, RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &workspace.snapshot());
}

#[test]
fn a_killed_mount_is_taken_away_by_the_next_one() {
    if !can_mount("a_killed_mount_is_taken_away_by_the_next_one") {
        return;
    }
    let workspace = TempWorkspace::with_fixture(two_files);
    let point = tempfile::tempdir().unwrap();
    let before = workspace.snapshot();
    let mut process = Process(binary(&workspace, point.path(), &[]).spawn().unwrap());
    wait_for("the mount appears", || is_mount(point.path()));
    fs::write(point.path().join("two"), "unfinished").unwrap();
    process.0.kill().unwrap();
    process.0.wait().unwrap();
    assert!(fs::metadata(point.path()).is_err(), "nobody serves it");
    let mut again = Process(binary(&workspace, point.path(), &[]).spawn().unwrap());
    wait_for("the mount is served again", || fs::metadata(point.path().join("two")).is_ok());
    assert_eq!(fs::read_to_string(point.path().join("two")).unwrap(), "two");
    let pid = rustix::process::Pid::from_child(&again.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(again.0.wait().unwrap().success());
    assert_tree_eq(&before, &workspace.snapshot());
}

#[test]
fn a_daemon_returns_once_mounted_and_ends_with_umount() {
    if !can_mount("a_daemon_returns_once_mounted_and_ends_with_umount") {
        return;
    }
    let workspace = TempWorkspace::with_fixture(two_files);
    let point = tempfile::tempdir().unwrap();
    assert!(binary(&workspace, point.path(), &["--daemon"]).status().unwrap().success());
    assert!(is_mount(point.path()));
    fs::write(point.path().join("new"), "x").unwrap();
    assert!(Command::new("umount").arg(point.path()).status().unwrap().success());
    wait_for("the undo log is free", || {
        let config = EngineConfig::new(workspace.working(), workspace.undo());
        UndoEngine::open(config).is_ok_and(|engine| engine.steps().len() == 1)
    });
}

#[test]
fn directories_that_would_hide_each_other_are_refused() {
    let workspace = TempWorkspace::with_fixture(two_files);
    let inside = workspace.path("dir");
    let output = binary(&workspace, &inside, &[]).stderr(Stdio::piped()).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("inside the folder"));
    let above = workspace.working().parent().unwrap().to_path_buf();
    let output = binary(&workspace, &above, &[]).stderr(Stdio::piped()).output().unwrap();
    assert!(!output.status.success());
    assert!(!workspace.undo().exists());
}

#[test]
fn more_files_than_descriptors_can_be_seen() {
    if !can_mount("more_files_than_descriptors_can_be_seen") {
        return;
    }
    let workspace = TempWorkspace::with_fixture(|root| {
        for number in 0..3000 {
            let dir = root.join(format!("dir_{}", number / 100));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(number.to_string()), number.to_string()).unwrap();
        }
    });
    for cache in ["coherent", "auto"] {
        let point = tempfile::tempdir().unwrap();
        let mount = binary(&workspace, point.path(), &["--cache", cache]);
        let mut command = Command::new("sh");
        // Where the process may raise its limits again, nothing can run out.
        command.args(["-c", "ulimit -n 1000; exec \"$@\"", "sh"]);
        command.arg(mount.get_program()).args(mount.get_args());
        let mut process =
            Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        wait_for("the mount appears", || is_mount(point.path()));
        for _ in 0..2 {
            for number in 0..3000 {
                let file = point.path().join(format!("dir_{}/{number}", number / 100));
                assert_eq!(fs::read_to_string(file).unwrap(), number.to_string());
            }
        }
        let pid = rustix::process::Pid::from_child(&process.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(process.0.wait().unwrap().success());
    }
}
