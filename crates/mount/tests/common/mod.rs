//! A folder, its engine and its mount.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use codeagent_interceptor::{ClosedStep, EngineConfig, RollbackOptions, StepRequest, UndoEngine};
use codeagent_mount::{Mount, MountOptions};
use codeagent_test_support::filesystems::skip;
pub(crate) use codeagent_test_support::workloads::{has, sh};
use codeagent_test_support::{TempWorkspace, TreeSnapshot, assert_tree_eq};

pub(crate) struct Mounted {
    // Dropped in this order: the mount before the folders.
    pub(crate) mount: Mount,
    pub(crate) point: tempfile::TempDir,
    pub(crate) workspace: TempWorkspace,
}

/// No file is read by the kernel itself, or every one: programs must not see a difference.
pub(crate) const WITHOUT_AND_WITH_PASSTHROUGH: [Option<u64>; 2] = [None, Some(0)];

/// Whether this machine can mount; says why not.
pub(crate) fn can_mount(test: &str) -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    match device {
        Err(error) => skip(test, &format!("/dev/fuse cannot be used: {error}")),
        Ok(_) if !rustix::process::geteuid().is_root() && !has("fusermount3") => {
            skip(test, "not root, and there is no fusermount3");
        }
        Ok(_) => return true,
    }
    false
}

impl Mounted {
    pub(crate) fn new(fixture: impl FnOnce(&Path)) -> Self {
        Self::with(fixture, |_| {})
    }

    pub(crate) fn with(
        fixture: impl FnOnce(&Path),
        change: impl FnOnce(&mut MountOptions),
    ) -> Self {
        Self::on(TempWorkspace::with_fixture(fixture), change)
    }

    pub(crate) fn on(workspace: TempWorkspace, change: impl FnOnce(&mut MountOptions)) -> Self {
        let point = tempfile::tempdir().unwrap();
        let config = EngineConfig::new(workspace.working(), workspace.undo());
        let engine = Arc::new(UndoEngine::open(config).unwrap());
        let mut options = MountOptions::new(workspace.working(), point.path());
        change(&mut options);
        let mount = Mount::start(&options, engine).unwrap();
        Self { mount, point, workspace }
    }

    pub(crate) fn engine(&self) -> &UndoEngine {
        self.mount.engine()
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.mount.mount_point().join(relative)
    }

    /// Runs a script in the mount.
    pub(crate) fn sh(&self, script: &str) {
        sh(script, self.mount.mount_point());
    }

    /// Runs a script in the mount, as one step.
    pub(crate) fn step(&self, script: &str) {
        self.step_of(script, || self.sh(script));
    }

    /// Whatever `work` does is one step.
    pub(crate) fn step_of<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        self.engine().open_step(StepRequest::command(name)).unwrap();
        let done = work();
        let closed = self.engine().close_step(Some(0)).unwrap();
        assert!(matches!(closed, ClosedStep::Recorded { .. }), "{closed:?}");
        done
    }

    /// One step, undone and redone twice; the tree is exact each time, on both sides.
    pub(crate) fn there_and_back(&self, script: &str) {
        self.there_and_back_of(script, || self.sh(script));
    }

    /// As [`Self::there_and_back`], of what `work` does.
    pub(crate) fn there_and_back_of<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        let before = self.workspace.snapshot();
        let done = self.step_of(name, work);
        let after = self.workspace.snapshot();
        assert!(before != after, "{name} changes something");
        for _ in 0..2 {
            self.engine().rollback(1, RollbackOptions::default()).unwrap();
            assert_tree_eq(&before, &self.workspace.snapshot());
            self.assert_seen_through_the_mount(&before);
            self.engine().redo(1, RollbackOptions::default()).unwrap();
            assert_tree_eq(&after, &self.workspace.snapshot());
            self.assert_seen_through_the_mount(&after);
        }
        done
    }

    /// What clients see is what is there: no stale names, attributes or contents.
    pub(crate) fn assert_seen_through_the_mount(&self, expected: &TreeSnapshot) {
        assert_tree_eq(expected, &TreeSnapshot::capture(self.mount.mount_point()));
    }
}

pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether something is mounted there, dead or alive.
pub(crate) fn is_mount(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}

/// A running `codeagent-mount`; killed when it is dropped.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `codeagent-mount` on the folder of a workspace.
pub(crate) fn binary(workspace: &TempWorkspace, point: &Path, extra: &[&str]) -> Command {
    let mut command = binary_with(workspace, point, workspace.undo());
    command.args(extra);
    command
}

/// As [`binary`], with another undo directory.
pub(crate) fn binary_with(workspace: &TempWorkspace, point: &Path, undo: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_codeagent-mount"));
    command.arg("--source-dir").arg(workspace.working());
    command.arg("--mount-point").arg(point).arg("--undo-dir").arg(undo);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
