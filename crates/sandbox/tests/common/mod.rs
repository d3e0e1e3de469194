//! The real binary, with a home of its own.

#![allow(dead_code, reason = "every test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

pub(crate) mod client;
pub(crate) mod malformed;
pub(crate) mod repository;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use codeagent_test_support::TreeSnapshot;
use serde_json::Value;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_sandbox");

/// A person with a home and a project.
pub(crate) struct Person {
    dir: tempfile::TempDir,
}

impl Person {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("home")).unwrap();
        fs::create_dir(dir.path().join("project")).unwrap();
        Self { dir }
    }

    /// With something in the project.
    pub(crate) fn with(script: &str) -> Self {
        let person = Self::new();
        sh(script, &person.project());
        person
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.dir.path().join("project")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.project().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn snapshot(&self) -> TreeSnapshot {
        TreeSnapshot::capture(&self.project())
    }

    /// The command, in the project.
    pub(crate) fn sandbox(
        &self,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments)
            .current_dir(self.project())
            .env("HOME", self.home())
            .env_remove("CODEAGENT_HOME")
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("NO_COLOR")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.sandbox(arguments).output().unwrap()
    }

    /// What it prints, if it succeeds.
    #[track_caller]
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        text(&output.stdout)
    }

    /// Runs a script in a sandbox; it has to succeed.
    #[track_caller]
    pub(crate) fn run(&self, script: &str) -> Output {
        self.run_with(&[], script)
    }

    #[track_caller]
    pub(crate) fn run_with(&self, arguments: &[&str], script: &str) -> Output {
        let mut all = vec!["run"];
        all.extend(arguments);
        all.extend(["--", "sh", "-c", script]);
        let output = self.output(&all);
        assert!(output.status.success(), "{script}: {output:?}");
        output
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.sandbox(["--json"]).args(arguments).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    }

    /// The user's codeagent.toml.
    pub(crate) fn configure(&self, text: &str) {
        let dir = self.home().join(".config/codeagent");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("codeagent.toml"), text).unwrap();
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub(crate) fn sh(script: &str, dir: &Path) {
    let done = Command::new("sh").args(["-ec", script]).current_dir(dir).output().unwrap();
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Waits until something is so, or fails.
#[track_caller]
pub(crate) fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    eventually_within(Duration::from_secs(20), what, is_so);
}

#[track_caller]
pub(crate) fn eventually_within(time: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{what}: not within {time:?}");
}

/// Processes whose command line has this text in it.
pub(crate) fn processes_that_name(needle: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.windows(needle.len()).any(|part| part == needle.as_bytes())
        })
        .collect()
}

/// The memory that a process has now.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

pub(crate) fn can_use_fuse() -> bool {
    fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok()
}
