//! Sessions: folders whose changes can be undone, and commands that run contained in them.
//!
//! | module | what it holds |
//! |---|---|
//! | `session` | the session, which everything that talks to people or programs is built on |
//! | `executor` | where commands run: in a guest, in namespaces, on the host |
//! | `policy` | which paths are protected, judged in the worker |
//! | `config` | `codeagent.toml` of the user and of the project |
//! | `places` | where things are kept |
//! | `classify` | what a command line probably does |
//! | `setup` | entering and removing the server in agent clients |
//! | `server` | sessions offered to frontends and agents |
//! | `cli` | the command line; the only part that prints |
//!
//! A program that uses sessions begins its `main` with [`run_if_asked`], because it is run again
//! as the worker that holds a folder's history and as the sandbox around a command.

#![cfg(target_os = "linux")]

pub mod classify;
pub mod cli;
pub mod config;
pub mod diff;
pub mod error;
pub mod executor;
pub mod places;
pub mod policy;
pub mod server;
pub mod session;
pub mod setup;

use std::process::ExitCode;

pub use error::{Result, SandboxError};

/// If this process was started to be a part of a session, it is that, and its exit code comes back.
/// To be called before anything else, in a process that has one thread.
pub fn run_if_asked() -> Option<ExitCode> {
    if codeagent_worker::is_worker() {
        let mounts = codeagent_mount::MountFrontEnd;
        let over_9p = codeagent_p9::linux::NinePFrontEnd::new(mounts);
        let front_end = Box::new(codeagent_virtiofs::GuestFrontEnd(over_9p));
        return Some(codeagent_worker::run_with_policy(front_end, policy::read));
    }
    codeagent_namespace::run_if_asked()
        .or_else(codeagent_vm::run_if_asked)
        .or_else(executor::run_if_asked)
}
