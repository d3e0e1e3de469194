//! Commands on this machine as they are: nothing holds them back, and nothing is recorded.
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
use std::time::Duration;

use codeagent_control::{ByteString, Outcome};
use codeagent_namespace::converse;
use codeagent_shim::{Shim, ShimConfig};

use super::{Executor, Isolation, Ran, Work};
use crate::error::{Result, SandboxError, lost};

/// Tells the program that it is to be a shim on its standard input.
const ARGUMENT: &str = "--codeagent-shim";

#[derive(Debug)]
pub struct HostExecutor {
    program: PathBuf,
}

impl HostExecutor {
    /// `main` of the program, or of this one, begins with
    /// [`run_if_asked`](crate::run_if_asked).
    pub fn new(program: Option<PathBuf>) -> Self {
        Self { program: program.unwrap_or_else(|| "/proc/self/exe".into()) }
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
        let (channel, theirs) = UnixStream::pair()?;
        let mut shim = Command::new(&self.program)
            .arg0("codeagent-shim")
            .arg(ARGUMENT)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C on the terminal is for us.
            .process_group(0)
            .spawn()
            .map_err(SandboxError::doing("cannot start commands"))?;
        let outcome = converse(&channel, exec, work.orders, work.output);
        // Its end is that of everything the command has started.
        let _ = channel.shutdown(std::net::Shutdown::Both);
        shim.wait()?;
        let outcome = outcome.map_err(|error| SandboxError::CommandLost(error.to_string()))?;
        if !matches!(outcome, Outcome::Completed { .. }) {
            return Err(lost(outcome));
        }
        Ok(Ran {
            outcome,
            steps: work.folders.iter().map(|_| None).collect(),
            view: None,
            other_view: None,
            undoable: false,
            confined: false,
            committed_in: Duration::ZERO,
        })
    }
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
        sync_dirs: Vec::new(),
        rollback_file: None,
        drop_caches: false,
    };
    Shim::new(config).run(channel.try_clone()?, channel).map(drop)
}
