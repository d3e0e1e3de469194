//! Sessions whose commands run in a real guest.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(dead_code, unused_imports, unused_macros, reason = "not every test file uses all of it")]

pub(crate) mod folder;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use codeagent_interceptor::OnConflict;
use codeagent_sandbox::executor::IsolationChoice;
use codeagent_sandbox::session::{
    CommandReport, CommandRequest, FolderOptions, Running, Session, SessionOptions,
};
use codeagent_test_support::{TempWorkspace, filesystems::skip};
use codeagent_vm::{Accelerator, GuestImage, GuestUser, MachineConfig};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_sandbox-under-test");

/// Emulated guests on a busy machine take their time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What guests are made of here.
#[derive(Debug, Clone)]
pub(crate) struct Ground {
    pub(crate) image: PathBuf,
    pub(crate) accelerator: Accelerator,
    pub(crate) memory_mib: u32,
}

impl Ground {
    /// The smallest image, which `cargo xtask test` has built, and the accelerator that works; or the
    /// test counts as skipped.
    pub(crate) fn find(test: &str) -> Option<Self> {
        Self::of(test, "CODEAGENT_TEST_GUEST", "minimal-x86_64", 512)
    }

    /// The same with the image for development.
    pub(crate) fn dev(test: &str) -> Option<Self> {
        Self::of(test, "CODEAGENT_TEST_GUEST_DEV", "dev-x86_64", 1024)
    }

    fn of(test: &str, variable: &str, name: &str, memory_mib: u32) -> Option<Self> {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guest").join(name);
        let image = std::env::var_os(variable).map_or(built, PathBuf::from);
        // Shared by all tests, so that one of them at most waits for a trial.
        let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join("vm-state");
        let found = GuestImage::open(&image).and_then(|image| {
            let user = GuestUser { name: "u".into(), uid: 0, gid: 0, home: "/root".into() };
            codeagent_vm::accelerator(&MachineConfig::new(PROGRAM, image, user, &state))
        });
        match found {
            Ok(accelerator) => Some(Self { image, accelerator, memory_mib }),
            Err(error) => {
                skip(test, &error.to_string());
                None
            }
        }
    }
}

/// A person's home, in which everything of ours is.
pub(crate) struct Home(tempfile::TempDir);

impl Home {
    pub(crate) fn new(ground: &Ground) -> Self {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join(".config/codeagent");
        fs::create_dir_all(&dir).unwrap();
        let Ground { image, accelerator, memory_mib } = ground;
        let text = format!(
            "[vm]\nimage = '{}'\naccelerator = '{accelerator}'\nmemory_mib = {memory_mib}\nboot_seconds = 120\n",
            image.display()
        );
        fs::write(dir.join("codeagent.toml"), text).unwrap();
        Self(home)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The program, in the folder.
    pub(crate) fn sandbox(&self, workspace: &TempWorkspace, arguments: &[&str]) -> Command {
        self.command(PROGRAM, workspace, arguments)
    }

    /// Another program that is to start ours.
    pub(crate) fn command(
        &self,
        program: &str,
        workspace: &TempWorkspace,
        arguments: &[&str],
    ) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(workspace.working());
        command.env("HOME", self.path()).env("XDG_CONFIG_HOME", self.path().join(".config"));
        command.env_remove("CODEAGENT_HOME").stdin(Stdio::null());
        command
    }
}

/// Everything a program said.
pub(crate) fn text(output: &Output) -> String {
    let streams = [&output.stdout, &output.stderr];
    streams.map(|stream| String::from_utf8_lossy(stream).into_owned()).join("\n")
}

/// A session in a folder, as most tests want it.
pub(crate) fn options(ground: &Ground, workspace: &TempWorkspace, state: &Path) -> SessionOptions {
    let mut folder = FolderOptions::new(workspace.working());
    folder.undo_dir = Some(workspace.undo().into());
    folder.label = Some("work".into());
    let mut options = SessionOptions::new(vec![folder]);
    options.program = Some(PROGRAM.into());
    options.isolation = IsolationChoice::Vm;
    options.watch.enabled = false;
    options.vm.image = Some(ground.image.clone());
    options.vm.accelerator = Some(ground.accelerator);
    options.vm.memory_mib = ground.memory_mib;
    options.vm.boot_deadline = Duration::from_secs(120);
    options.state_dir = Some(state.join("state"));
    options
}

/// A session in a guest.
pub(crate) struct Office {
    pub(crate) session: Arc<Session>,
    pub(crate) workspace: TempWorkspace,
    state: tempfile::TempDir,
}

impl Office {
    pub(crate) fn new(ground: &Ground, workspace: TempWorkspace) -> Self {
        Self::with(ground, workspace, |_| {})
    }

    pub(crate) fn with(
        ground: &Ground,
        workspace: TempWorkspace,
        change: impl FnOnce(&mut SessionOptions),
    ) -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut options = options(ground, &workspace, state.path());
        change(&mut options);
        let session = Session::new(options).unwrap();
        session.start().unwrap();
        Self { session, workspace, state }
    }

    /// Another session in the same folder.
    pub(crate) fn beside(&self, ground: &Ground) -> Arc<Session> {
        let session = self.beside_with(ground, |_| {});
        session.start().unwrap();
        session
    }

    /// The same, before it is started.
    pub(crate) fn beside_with(
        &self,
        ground: &Ground,
        adjust: impl FnOnce(&mut SessionOptions),
    ) -> Arc<Session> {
        let mut options = options(ground, &self.workspace, self.state.path());
        options.share = true;
        adjust(&mut options);
        Session::new(options).unwrap()
    }

    /// Where the session keeps what is not the folder's.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.state.path().join("state")
    }

    /// A background command that speaks all the time.
    pub(crate) fn tick(&self, heard: &Arc<AtomicUsize>) -> Running {
        let mut ticking = CommandRequest::shell("while :; do echo tick; sleep 0.05; done");
        ticking.background = true;
        let ticks = Arc::clone(heard);
        let ticking = self.session.spawn(ticking, move |_, _| {
            ticks.fetch_add(1, Ordering::SeqCst);
        });
        eventually("it ticks", || heard.load(Ordering::SeqCst) > 3);
        ticking.unwrap()
    }

    pub(crate) fn run(&self, script: &str) -> CommandReport {
        self.session.exec(&CommandRequest::shell(script), |_, _| {}).unwrap()
    }

    pub(crate) fn output(&self, script: &str) -> String {
        output(&self.session, script)
    }

    pub(crate) fn undo(&self) {
        self.session.undo(None, 1, OnConflict::Refuse).unwrap();
    }

    pub(crate) fn redo(&self) {
        self.session.redo(None, 1, OnConflict::Refuse).unwrap();
    }

    /// Of this session.
    pub(crate) fn qemu(&self) -> u32 {
        let found = descendants(std::process::id());
        let mut machines = found.iter().filter(|(_, name)| name.starts_with("qemu-system"));
        machines.next().expect("there is a machine").0
    }

    pub(crate) fn worker(&self) -> u32 {
        let found = descendants(std::process::id());
        let is_worker = |pid: &u32| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.windows(16).any(|part| part == b"codeagent-worker"))
        };
        found.into_iter().map(|(pid, _)| pid).find(is_worker).expect("there is a worker")
    }
}

/// What a script says, which has to succeed.
#[track_caller]
pub(crate) fn output(session: &Session, script: &str) -> String {
    let mut said = Vec::new();
    let report = session.exec(&CommandRequest::shell(script), |_, data| {
        said.extend_from_slice(data);
    });
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(report.unwrap().exit_code, 0, "{script}: {said}");
    said
}

impl Drop for Office {
    fn drop(&mut self) {
        let _ = self.session.stop(); // some tests have done so already
    }
}

/// Processes below one, with their names.
pub(crate) fn descendants(of: u32) -> Vec<(u32, String)> {
    let all: Vec<(u32, u32, String)> = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
            let parent = rest.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent, name.to_owned()))
        })
        .collect();
    let mut found: Vec<(u32, String)> = Vec::new();
    let mut pending = vec![of];
    while let Some(parent) = pending.pop() {
        for (pid, _, name) in all.iter().filter(|(_, above, _)| *above == parent) {
            found.push((*pid, name.clone()));
            pending.push(*pid);
        }
    }
    found
}

pub(crate) fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL); // it has gone
}

#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up_at = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < give_up_at, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
