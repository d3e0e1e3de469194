//! One folder, and the ways to run a command in it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use codeagent_control::{CommandLine, Exec, Outcome, Stream};
use codeagent_interceptor::OnConflict;
use codeagent_namespace::{Executor, Finished, Policy, Surroundings, View, ViewChoice, WorkFolder};
use codeagent_sandbox::policy::PathRules;
use codeagent_worker::{Settings, WorkerProcess, WorkerSpec};

use crate::place::Scratch;

/// Where a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Native,
    Bubblewrap,
    /// An overlay in namespaces and nothing else: what the kernel takes for a transactional view,
    /// whoever asks for one.
    OverlayAlone,
    Ours(View),
}

impl Way {
    /// Those there are on this machine, the one to compare with first.
    pub(super) fn all() -> Vec<Self> {
        let ours = [View::Transactional, View::Live].map(Self::Ours);
        let mut ways = vec![Self::Native, Self::OverlayAlone];
        ways.extend(ours);
        if has_bubblewrap() {
            ways.push(Self::Bubblewrap);
        }
        ways
    }
}

/// A folder with a worker on it.
#[derive(Debug)]
pub(super) struct Session {
    executor: Executor,
    worker: WorkerProcess,
    folder: PathBuf,
    /// For the layers of [`Way::OverlayAlone`].
    layers: PathBuf,
}

/// What one command took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Took {
    /// Everything, as whoever waits for it sees it.
    pub(super) all: Duration,
    /// The command itself, by its own clock.
    pub(super) command: Duration,
    /// From its end until it was a step.
    pub(super) commit: Duration,
}

impl Session {
    /// For a folder of `scratch`.
    pub(super) fn new(scratch: &Scratch, folder: PathBuf, name: &str) -> Result<Self> {
        let undo = scratch.path(&format!("undo-{name}"));
        let mut settings = Settings::new(&folder, undo);
        // As in every session: whatever appears is looked through.
        settings.path_rules = Some(PathRules::default().to_bytes()?.into());
        let mut spec = WorkerSpec::new(settings)?;
        spec.silent = true;
        let worker = WorkerProcess::start(&spec, |_| {})?.map_err(|failure| anyhow!(failure))?;
        let policy = Policy::new(scratch.path(&format!("state-{name}")));
        let executor = Executor::new(Surroundings::new(policy)?)?
            .with_live_options(codeagent_mount::live_options(4));
        let layers = scratch.path(&format!("layers-{name}"));
        Ok(Self { executor, worker, folder, layers })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs a script. It must succeed.
    pub(super) fn run(&self, way: Way, script: &str) -> Result<Took> {
        // Its own clock: what is around it is measured elsewhere.
        let script = format!("date +%s%N >&2; {script}\ncode=$?; date +%s%N >&2; exit $code");
        let started = Instant::now();
        let (stderr, commit) = match way {
            Way::Native => (outside(Command::new("sh"), &script, &self.folder)?, Duration::ZERO),
            Way::Bubblewrap => {
                (outside(bubblewrap(&self.folder)?, &script, &self.folder)?, Duration::ZERO)
            }
            Way::OverlayAlone => {
                for layer in ["up", "work"] {
                    fs::create_dir_all(self.layers.join(layer))?;
                }
                let stderr = outside(overlay_alone(&self.layers), &script, &self.folder)?;
                (stderr, Duration::ZERO)
            }
            Way::Ours(view) => {
                let (stderr, finished) = self.run_sandboxed(view, &script)?;
                (stderr, finished.committed_in)
            }
        };
        let all = started.elapsed();
        if way == Way::OverlayAlone {
            remove_layers(&self.layers)?;
        }
        let times: Vec<u64> = stderr.lines().filter_map(|line| line.parse().ok()).collect();
        let (Some(first), Some(last)) = (times.first(), times.last()) else {
            bail!("the command did not say how long it took: {stderr}");
        };
        Ok(Took { all, command: Duration::from_nanos(last - first), commit })
    }

    fn run_sandboxed(&self, view: View, script: &str) -> Result<(String, Finished)> {
        let folder = WorkFolder { path: &self.folder, worker: Some(self.worker.client()) };
        let exec = Exec::new(CommandLine::Shell(script.into()));
        let (_orders, taken) = channel();
        let mut stderr = Vec::new();
        let choice = match view {
            // As a session chooses it by itself.
            View::ReadOnly => ViewChoice::Reading,
            view => ViewChoice::Only(view),
        };
        let finished = self.executor.run(&[folder], exec, choice, taken, |stream, data| {
            if stream == Stream::Stderr {
                stderr.extend_from_slice(data);
            }
        })?;
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        match &finished.outcome {
            Outcome::Completed { status, .. } if status.shell_code() == 0 => Ok((stderr, finished)),
            outcome => bail!("{outcome:?}: {stderr}"),
        }
    }

    /// Undoes the last command, and says how long that took.
    pub(super) fn undo(&self) -> Result<Duration> {
        let started = Instant::now();
        self.worker.client().undo(1, OnConflict::Refuse)?;
        Ok(started.elapsed())
    }
}

fn outside(mut command: Command, script: &str, folder: &Path) -> Result<String> {
    let output = command
        .args(["-c", script])
        .current_dir(folder)
        .env_remove("CARGO_TARGET_DIR")
        .stdin(Stdio::null())
        .output()
        .context("cannot run the command")?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{stderr}");
    Ok(stderr)
}

fn has_bubblewrap() -> bool {
    Command::new("bwrap").arg("--version").output().is_ok_and(|done| done.status.success())
}

/// The folder is the current directory, and everything else is as it was.
fn overlay_alone(layers: &Path) -> Command {
    let mount = "mount -t overlay -o \"userxattr,lowerdir=$PWD,upperdir=$0/up,workdir=$0/work\" \
                 codeagent \"$PWD\" && cd \"$PWD\" && exec sh \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", mount]).arg(layers);
    command
}

/// The overlay leaves a directory without permissions.
fn remove_layers(layers: &Path) -> Result<()> {
    let inner = layers.join("work/work");
    if inner.exists() {
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o700))?;
    }
    Ok(fs::remove_dir_all(layers)?)
}

/// The usual invocation: a read-only system, the folder writable, no network.
fn bubblewrap(folder: &Path) -> Result<Command> {
    let home = std::env::home_dir().context("the home directory is not known")?;
    let mut command = Command::new("bwrap");
    command
        .args(["--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev"])
        .args(["--proc", "/proc", "--tmpfs", "/tmp", "--bind"])
        .args([&home, &home])
        .arg("--bind")
        .args([folder, folder])
        .arg("--chdir")
        .arg(folder)
        .args(["--", "sh"]);
    Ok(command)
}
