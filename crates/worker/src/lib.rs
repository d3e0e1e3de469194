//! One process per working directory holds its undo engine and its filesystem front end, and
//! everybody else talks to it over a socket.
//!
//! | file | what it holds |
//! |---|---|
//! | `protocol` | what can be asked, and what comes back |
//! | `link` | messages and descriptors over a Unix socket |
//! | `client` | asking, from any other process |
//! | `server` | answering |
//! | `calls` | the threads that do |
//! | `outbox` | what is on its way to one client |
//! | `process` | the life of the worker process itself |
//! | `claim` | whose a folder is |
//! | `confine` | what that process gives up before it begins |
//! | `enclosure` | a root directory of its own, with nothing in it |
//! | `system_calls` | those it may make from then on |
//! | `supervise` | starting it, noticing its death |
#![cfg(target_os = "linux")]

mod calls;
mod claim;
mod client;
mod confine;
mod enclosure;
mod link;
mod mount_points;
mod outbox;
mod process;
mod protocol;
mod raw;
mod server;
mod supervise;
mod system_calls;
mod turns;

pub use client::{Client, Unreachable, WorkerError};
pub use mount_points::mount_points;
pub use process::{Ended, FrontEnd, ReadPolicy, WorkerFs, is_worker, run, run_with_policy};
pub use protocol::{
    Backgrounds, Confinement, Event, Failure, FileChange, Greeting, Ready, Request, Settings,
};
pub use server::Server;
pub use supervise::{Patience, WorkerProcess, WorkerSpec, end_orphan};
