//! Starting a sandbox, from outside.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::cgroup::Cgroup;
use crate::link;
use crate::report::{Confinement, Failed};
use crate::spec::Spec;

/// Tells the program that it is to become a sandbox.
pub(crate) const ARGUMENT: &str = "--codeagent-namespace";

/// Namespaces with a shim in them, which runs commands over [`Sandbox::channel`]. Dropping it ends
/// everything in it.
#[derive(Debug)]
pub struct Sandbox {
    guard: Child,
    setup: UnixStream,
    channel: UnixStream,
    confinement: Confinement,
    devices: Vec<OwnedFd>,
    cgroup: Option<Cgroup>,
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
    /// Makes the namespaces. Commands can be run after [`Sandbox::open`].
    pub fn start(spec: &Spec) -> Result<Self, StartError> {
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
        let mut sandbox = Self {
            guard,
            setup,
            channel,
            confinement: Confinement { landlock: false, seccomp: false, capabilities: false },
            devices: Vec::new(),
            cgroup,
        };
        link::send(&sandbox.setup, spec, &[control.as_fd()])?;
        drop(control);
        let (answer, devices) = link::receive::<Result<Confinement, Failed>>(&sandbox.setup)
            .map_err(|error| {
                Failed::new("starting", format!("it ended before it was ready ({error})"))
            })?;
        sandbox.confinement = answer?;
        sandbox.devices = devices;
        Ok(sandbox)
    }

    /// The devices of the live views, in the order of the folders, to be served before
    /// [`Sandbox::open`].
    pub fn take_devices(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.devices)
    }

    /// Lets the shim begin.
    pub fn open(&self) -> io::Result<()> {
        (&self.setup).write_all(b"!")
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

    /// Ends everything in it, and waits until nothing is left.
    pub fn end(mut self) -> io::Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> io::Result<()> {
        let _ = self.setup.shutdown(std::net::Shutdown::Both);
        self.guard.wait().map(|_| ())
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}
