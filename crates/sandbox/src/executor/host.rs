//! Commands on this machine as they are: nothing holds them back. What they do to the folders is
//! recorded if these can be mounted over themselves; where not, that is said.
//!
//! The same shim runs them as in a sandbox, in a process of its own, so that a cancelled command
//! takes everything with it that it has started.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use codeagent_control::{ByteString, Exec, Line, LineError, Order, Outcome, Stream};
use codeagent_namespace::{FolderStep, Steps, View, WorkFolder, tell_git};
use codeagent_shim::{Defaults, Shim, ShimConfig};

use super::host_mounts::{HostMounts, InUse};
use super::{Executor, Isolation, Ran, Work};
use crate::error::{Result, SandboxError, lost};

/// Tells the program that it is to be a shim on its standard input.
const ARGUMENT: &str = "--codeagent-shim";

#[derive(Debug)]
pub struct HostExecutor {
    program: PathBuf,
    mounts: HostMounts,
}

impl HostExecutor {
    /// `main` of the program, or of this one, begins with
    /// [`run_if_asked`](crate::run_if_asked).
    pub fn new(program: Option<PathBuf>) -> Self {
        let program = program.unwrap_or_else(|| "/proc/self/exe".into());
        Self { program, mounts: HostMounts::default() }
    }
}

impl Executor for HostExecutor {
    fn isolation(&self) -> Isolation {
        Isolation::Host
    }

    fn run(&self, work: Work<'_>) -> Result<Ran> {
        if let Some(kept) = work.folders.iter().find(|folder| folder.worker.is_none()) {
            return Err(SandboxError::Isolation {
                isolation: Isolation::Host,
                reason: format!(
                    "nothing would keep a command from writing to {}",
                    kept.path.display()
                ),
                hint: "use --isolation namespace, or make the folder read_write".into(),
            });
        }
        let mut exec = work.exec;
        if exec.cwd.is_none() {
            let first = work.folders.first();
            exec.cwd =
                first.map(|folder| ByteString::from(folder.path.as_os_str().as_bytes().to_vec()));
        }
        let recorded = match self.mounts.enter(work.folders) {
            Ok(mounted) => {
                let steps = match work.background {
                    true => Steps::ambient(work.folders)?,
                    false => Steps::open(work.folders, &exec.label(), View::Live)?,
                };
                tell_git(&mut exec.env);
                Ok((steps, mounted))
            }
            Err(error) => {
                let reason = format!("the folder cannot be mounted over itself: {error}");
                (work.warn)(format!("what this command does CANNOT be undone: {reason}"));
                Err(reason)
            }
        };
        let mounted = recorded.as_ref().map_or(&[][..], |(_, mounted)| mounted.paths());
        let outcome = match self.converse(exec, mounted, work.orders, work.output) {
            Ok(outcome) => outcome,
            Err(error) => {
                let kept = recorded.map(|(steps, _mounted)| match error {
                    SandboxError::NotStarted(_) => steps.abort_unbegun(work.folders),
                    _ => steps.abort(work.folders),
                });
                return Err(error.but_kept(kept.unwrap_or_default()));
            }
        };
        let ended = Instant::now();
        let (steps, not_undoable) = match recorded {
            Ok((steps, mounted)) => {
                let gone = "the folder was unmounted meanwhile, and what followed is not recorded";
                let gone = (!mounted.are_all_there()).then(|| gone.to_owned());
                (close(steps, mounted, work.folders, &outcome)?, gone)
            }
            Err(reason) => (work.folders.iter().map(|_| None).collect(), Some(reason)),
        };
        Ok(Ran {
            outcome,
            steps,
            view: not_undoable.is_none().then_some(View::Live),
            other_view: None,
            not_undoable,
            confined: false,
            committed_in: ended.elapsed(),
        })
    }

    fn end(&self) {
        self.mounts.end();
    }
}

impl HostExecutor {
    /// Has a process of its own run the command. Whatever it has started has gone when this returns.
    fn converse(
        &self,
        exec: Exec,
        mounted: &[PathBuf],
        orders: Receiver<Order>,
        output: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<Outcome> {
        let (channel, theirs) = UnixStream::pair()?;
        let mut shim = Command::new(&self.program)
            .arg0("codeagent-shim")
            .arg(ARGUMENT)
            .args(mounted)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C on the terminal is for us.
            .process_group(0)
            .spawn()
            .map_err(SandboxError::doing("cannot start commands"))?;
        let line = Line::over(&channel).map_err(LineError::from);
        let outcome = line.and_then(|line| line.run(exec, orders, output));
        // Its end is that of everything the command has started.
        let _ = channel.shutdown(std::net::Shutdown::Both);
        shim.wait()?;
        let outcome = outcome.map_err(|error| SandboxError::CommandLost(error.to_string()))?;
        match outcome {
            Outcome::Completed { .. } => Ok(outcome),
            lost_one => Err(lost(lost_one)),
        }
    }
}

/// What the command did becomes final, and the mounts go.
fn close(
    steps: Steps<'_>,
    mounted: InUse<'_>,
    folders: &[WorkFolder<'_>],
    outcome: &Outcome,
) -> Result<Vec<Option<FolderStep>>> {
    let closed = steps.close(folders, outcome);
    drop(mounted);
    Ok(closed?)
}

pub(super) fn run_if_asked() -> Option<ExitCode> {
    if std::env::args_os().nth(1)? != ARGUMENT {
        return None;
    }
    Some(match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

fn serve() -> io::Result<()> {
    let channel = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let config = ShimConfig {
        supervisor: "/proc/self/exe".into(),
        // What was written through mappings, too, is there before the step ends.
        sync_dirs: std::env::args_os().skip(2).map(PathBuf::from).collect(),
        rollback_file: None,
        drop_caches: false,
        sets_clock: false,
        defaults: Defaults::default(),
    };
    Shim::new(config).run(channel.try_clone()?, channel).map(drop)
}
