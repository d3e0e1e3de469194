//! Starting a sandbox, from outside.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;

use crate::cgroup::Cgroup;
use crate::guards::{self, GuardEnd};
use crate::link;
use crate::report::{Confinement, Failed, Landlock, News};
use crate::spec::{Spec, Wanted};

/// Tells the program that it is to become a sandbox.
pub(crate) const ARGUMENT: &str = "--codeagent-namespace";

/// Namespaces with a shim in them, which runs commands over [`Sandbox::channel`]. Dropping it ends
/// everything in it.
#[derive(Debug)]
pub struct Sandbox {
    /// `None` at the end.
    guard: Option<Child>,
    /// Process 1, once it is ready. Everything else inside ends before it does.
    first: Option<OwnedFd>,
    setup: UnixStream,
    channel: UnixStream,
    confinement: Confinement,
    cgroup: Option<Cgroup>,
    /// The group can be removed while there still is a guard.
    guard_is_apart: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The machine does not allow what the sandbox is made of; `facts` says why.
    #[error("cannot make a sandbox: {0}")]
    Impossible(#[from] Failed),
    #[error("cannot start a sandbox: {0}")]
    Io(#[from] io::Error),
}

impl Sandbox {
    /// Makes the namespaces. `serve` gets the devices of the live views, in the order of the
    /// folders, and has to see that they are served.
    pub fn start<E: From<StartError>>(
        spec: &Spec,
        serve: impl FnOnce(Vec<OwnedFd>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let (mut sandbox, control) = Self::spawn(spec).map_err(StartError::from)?;
        let limits_are_shared = sandbox.limits_are_shared();
        let wanted = Wanted { spec: spec.clone(), limits_are_shared };
        link::send(&sandbox.setup, &wanted, &[control.as_fd()]).map_err(StartError::from)?;
        drop(control);
        let mut serve = Some(serve);
        loop {
            match (sandbox.hear()?, serve.take()) {
                ((News::Serve, devices), Some(serve)) => {
                    serve(devices)?;
                    (&sandbox.setup).write_all(b"!").map_err(StartError::from)?;
                }
                ((News::Ready(confinement), first), _) => {
                    sandbox.first = first.into_iter().next();
                    sandbox.confinement = confinement;
                    sandbox.guard_is_apart = sandbox.set_guard_apart();
                    return Ok(sandbox);
                }
                ((News::Failed(failed), _), _) => return Err(StartError::from(failed).into()),
                ((News::Serve, _), None) => {
                    let failed = Failed::new("starting", "it asked twice for the same");
                    return Err(StartError::from(failed).into());
                }
            }
        }
    }

    fn spawn(spec: &Spec) -> io::Result<(Self, UnixStream)> {
        let (setup, theirs) = UnixStream::pair()?;
        let (channel, control) = UnixStream::pair()?;
        let guard = Command::new(spec.program.as_path())
            .arg0("codeagent-sandbox")
            .arg(ARGUMENT)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C on the terminal is for us.
            .process_group(0)
            .spawn()?;
        // Before it forks: what it starts is in there, too.
        let cgroup = Cgroup::around(guard.id(), &spec.limits);
        let confinement = Confinement { landlock: Landlock::Missing };
        let guard = Some(guard);
        let sandbox =
            Self { guard, first: None, setup, channel, confinement, cgroup, guard_is_apart: false };
        Ok((sandbox, control))
    }

    fn set_guard_apart(&self) -> bool {
        match (&self.cgroup, &self.guard) {
            (Some(cgroup), Some(guard)) => cgroup.release(guard.id()).is_ok(),
            _ => true,
        }
    }

    fn hear(&self) -> Result<(News, Vec<OwnedFd>), StartError> {
        link::receive(&self.setup).map_err(|error| {
            Failed::new("starting", format!("it ended before it was ready ({error})")).into()
        })
    }

    /// The control channel of the shim.
    pub fn channel(&self) -> &UnixStream {
        &self.channel
    }

    pub fn confinement(&self) -> Confinement {
        self.confinement
    }

    /// Whether memory and processes are limited for all commands together.
    pub fn limits_are_shared(&self) -> bool {
        self.cgroup.is_some()
    }

    /// Ends everything in it, and waits until nothing is left but the guard, which holds the
    /// overlays for another while.
    pub fn end(mut self) -> io::Result<GuardEnd> {
        self.finish()
    }

    fn finish(&mut self) -> io::Result<GuardEnd> {
        let Some(mut guard) = self.guard.take() else { return Ok(GuardEnd::past()) };
        let _ = self.setup.shutdown(std::net::Shutdown::Both);
        let Some(first) = &self.first else {
            guard.wait()?;
            return Ok(GuardEnd::past());
        };
        let _ = rustix::process::pidfd_send_signal(first, Signal::KILL);
        let mut ended = [PollFd::new(first, PollFlags::IN)];
        let ended = rustix::io::retry_on_intr(|| poll(&mut ended, None));
        let guard_end = if self.guard_is_apart {
            guards::see_off(guard)
        } else {
            guard.wait()?;
            GuardEnd::past()
        };
        ended?;
        Ok(guard_end)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}
