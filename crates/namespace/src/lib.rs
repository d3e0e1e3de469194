//! Commands in Linux namespaces: contained, at native speed, without root and without a VM.
//!
//! [`Spec`] says what a sandbox looks like, [`Sandbox`] is one. A program that starts sandboxes
//! begins its `main` with [`run_if_asked`], because it is run again as the process that becomes
//! the sandbox, and as the one that supervises a command in it.

#![cfg(target_os = "linux")]

mod cgroup;
mod ephemeral;
mod executor;
mod facts;
mod guards;
mod inside;
mod kernel;
mod launch;
mod link;
mod raw;
mod report;
mod spec;
mod steps;
mod surroundings;
mod work_dirs;

use std::ffi::OsStr;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

pub use executor::{
    Executor, Finished, FolderStep, KeptStep, RunError, View, ViewChoice, WorkFolder, tell_git,
};
pub use facts::{Fact, FactId, FactsRequest, Presence, facts};
pub use guards::GuardEnd;
pub use launch::{Sandbox, StartError};
pub use report::{Confinement, Failed, Landlock};
pub use spec::{Folder, FolderView, Home, HostPath, Limits, Network, Spec, Toolchain};
pub use steps::Steps;
pub use surroundings::{Keep, Policy, Surroundings, forget};

/// Whether something stands behind the mounts of a sandbox, should there be a mistake in them. Asking
/// costs next to nothing.
pub fn has_second_wall() -> bool {
    inside::has_second_wall()
}

/// Whether commands whose network is open are kept from abstract sockets of programs outside.
pub fn keeps_sockets_out() -> bool {
    inside::keeps_sockets_out()
}

/// Whether the number of a command's processes is limited as these limits say. Root's are not where
/// neither a cgroup nor the kernel counts them.
pub fn limits_processes(limits: &Limits) -> bool {
    limits.processes.is_none()
        || !rustix::process::geteuid().is_root()
        || kernel::this_one_counts_by_namespace()
        || cgroup::delegated(std::path::Path::new("/")).is_ok()
}

/// Where commands find the proxy, with [`Network::Gateway`].
pub const GATEWAY_PORT: u16 = 3128;

/// If this process was started to be a part of a sandbox, it is that, and its exit code comes back.
/// To be called before anything else, in a process that has one thread.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next()?;
    if first == launch::ARGUMENT || first == facts::ARGUMENT {
        raw::close_what_was_inherited();
    }
    if first == launch::ARGUMENT {
        let setup = rustix::stdio::stdin().try_clone_to_owned().ok()?;
        return Some(inside::guard(UnixStream::from(setup)));
    }
    if first == facts::ARGUMENT {
        let setup = rustix::stdio::stdin().try_clone_to_owned().ok()?;
        return Some(inside::try_everything(&UnixStream::from(setup)));
    }
    if first == "--supervise" {
        return Some(supervise(arguments.next().as_deref()));
    }
    None
}

fn supervise(socket: Option<&OsStr>) -> ExitCode {
    let socket = socket.and_then(OsStr::to_str).and_then(|number| number.parse().ok());
    let Some(Ok(socket)) = socket.map(codeagent_shim::inherited_fd) else {
        return ExitCode::FAILURE;
    };
    // Commands are of the same user, and must not change what tells of their end.
    let behavior = rustix::process::DumpableBehavior::NotDumpable;
    if rustix::process::set_dumpable_behavior(behavior).is_err() {
        return ExitCode::FAILURE;
    }
    match codeagent_shim::supervise(UnixStream::from(socket)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
