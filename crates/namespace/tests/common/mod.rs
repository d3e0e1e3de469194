//! A folder with a worker, and an executor for commands in it.

#![allow(dead_code, reason = "every test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use codeagent_control::{CommandLine, Exec, Order, Outcome, Stream};
use codeagent_namespace::{
    Executor, Finished, FolderStep, Policy, RunError, Surroundings, View, ViewChoice, WorkFolder,
};
use codeagent_test_support::{TempWorkspace, TreeSnapshot};
use codeagent_worker::{Client, Settings, WorkerProcess, WorkerSpec};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_namespace-probe");

pub(crate) struct Session {
    pub(crate) executor: Executor,
    worker: WorkerProcess,
    pub(crate) choice: ViewChoice,
    pub(crate) workspace: TempWorkspace,
    pub(crate) state: tempfile::TempDir,
}

/// How a command went.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) finished: Finished,
}

impl Ran {
    pub(crate) fn code(&self) -> Option<i32> {
        match &self.finished.outcome {
            Outcome::Completed { status, .. } => Some(status.shell_code()),
            _ => None,
        }
    }

    pub(crate) fn step(&self) -> &FolderStep {
        self.finished.steps[0].as_ref().unwrap()
    }
}

impl Session {
    pub(crate) fn new(fixture: impl FnOnce(&Path)) -> Self {
        Self::with(TempWorkspace::with_fixture(fixture), |_| {})
    }

    pub(crate) fn with(workspace: TempWorkspace, change: impl FnOnce(&mut Policy)) -> Self {
        let worker = start_worker(workspace.working(), workspace.undo());
        let state = tempfile::tempdir().unwrap();
        let mut policy = Policy::new(state.path().join("state"));
        change(&mut policy);
        let surroundings = Surroundings::new(policy).unwrap();
        let executor = Executor::with_program(surroundings, PROGRAM)
            .with_live_options(codeagent_mount::live_options(2));
        let choice = ViewChoice::Only(View::Transactional);
        Self { executor, worker, choice, workspace, state }
    }

    /// The same, with another view.
    pub(crate) fn seen(self, view: View) -> Self {
        Self { choice: ViewChoice::Only(view), ..self }
    }

    /// As commands are that are known to only read.
    pub(crate) fn reading(self) -> Self {
        Self { choice: ViewChoice::Reading, ..self }
    }

    pub(crate) fn worker(&self) -> &Client {
        self.worker.client()
    }

    pub(crate) fn run(&self, script: &str) -> Ran {
        self.try_run(shell(script)).unwrap()
    }

    pub(crate) fn try_run(&self, exec: Exec) -> Result<Ran, RunError> {
        let (_orders, taken) = channel();
        self.run_with(exec, taken)
    }

    pub(crate) fn run_with(&self, exec: Exec, orders: Receiver<Order>) -> Result<Ran, RunError> {
        self.run_watched(exec, orders, |_| {})
    }

    /// `on_output` is called whenever there is something on standard output.
    pub(crate) fn run_watched(
        &self,
        exec: Exec,
        orders: Receiver<Order>,
        mut on_output: impl FnMut(&[u8]),
    ) -> Result<Ran, RunError> {
        heard(&mut on_output, |hear| {
            self.executor.run(&[self.folder()], exec, self.choice, orders, hear)
        })
    }

    /// Others run beside it.
    pub(crate) fn run_in_background(&self, exec: Exec) -> Result<Ran, RunError> {
        let (_orders, taken) = channel();
        heard(&mut |_| {}, |hear| {
            self.executor.run_in_background(&[self.folder()], exec, taken, hear)
        })
    }

    fn folder(&self) -> WorkFolder<'_> {
        WorkFolder { path: self.workspace.working(), worker: Some(self.worker.client()) }
    }

    pub(crate) fn snapshot(&self) -> TreeSnapshot {
        self.workspace.snapshot()
    }
}

/// What a command that is run says.
fn heard(
    on_output: &mut dyn FnMut(&[u8]),
    run: impl FnOnce(&mut dyn FnMut(Stream, &[u8])) -> Result<Finished, RunError>,
) -> Result<Ran, RunError> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let finished = run(&mut |stream, data| match stream {
        Stream::Stdout => {
            stdout.extend_from_slice(data);
            on_output(&stdout);
        }
        Stream::Stderr => stderr.extend_from_slice(data),
    })?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Ran { stdout: text(stdout), stderr: text(stderr), finished })
}

pub(crate) fn start_worker(working: &Path, undo: &Path) -> WorkerProcess {
    let mut spec = WorkerSpec::new(Settings::new(working, undo)).unwrap();
    spec.program = PROGRAM.into();
    WorkerProcess::start(&spec, |_| {}).unwrap().unwrap()
}

pub(crate) fn shell(script: &str) -> Exec {
    Exec::new(CommandLine::Shell(script.into()))
}

pub(crate) fn sh(script: &str, dir: &Path) {
    let done = Command::new("sh").args(["-ec", script]).current_dir(dir).output().unwrap();
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Waits until something is so, or fails.
pub(crate) fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    within(Duration::from_secs(5), what, is_so);
}

/// As [`eventually`], for what takes longer.
pub(crate) fn within(patience: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {patience:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Processes whose command line has this text in it.
pub(crate) fn processes_that_name(text: impl AsRef<OsStr>) -> Vec<u32> {
    let needle = text.as_ref().as_bytes();
    every_process()
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.windows(needle.len()).any(|part| part == needle)
        })
        .collect()
}

/// Mounts that anybody has at, or of something at, this path.
pub(crate) fn mounts_that_name(path: &Path) -> Vec<String> {
    let needle = path.to_str().unwrap();
    let of = |pid| std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let named = |text: String| {
        text.lines().filter(|line| line.contains(needle)).map(str::to_owned).collect::<Vec<_>>()
    };
    every_process().flat_map(|pid| named(of(pid))).collect()
}

pub(crate) fn every_process() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Runs `body` as an ordinary user of a machine where everybody may open `/dev/fuse`, as on most.
/// Where the tests run as root, that takes another process: the test named `test` is run again.
pub(crate) fn as_ordinary_user_with_fuse(test: &str, body: impl FnOnce()) {
    if !rustix::process::geteuid().is_root() {
        return body();
    }
    const ARRANGE: &str = r#"
        mount --make-rprivate /
        mknod "$DIR/fuse" c 10 229
        chmod 666 "$DIR/fuse"
        mount --bind "$DIR/fuse" /dev/fuse
        exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@""#;
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-euc", ARRANGE, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("DIR", dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "as an ordinary user:\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
}
