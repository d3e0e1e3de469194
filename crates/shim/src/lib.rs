//! The executor: runs commands for a host that speaks the control protocol (`codeagent-control`)
//! over any byte stream, in a guest, in namespaces, or on the host itself.
//!
//! ```text
//! host ◄── channel ──► shim ──┬── supervisor ── command ── its processes …
//!                             └── supervisor ── command ── …
//! ```
//!
//! One supervisor process per command is the reaper of everything the command starts, so that no
//! process can leave the command's tree, however it forks and whatever session it makes.

#![cfg(unix)]

mod clock;
mod command;
mod courier;
mod options;
mod outbox;
mod output_buffer;
mod raw;
mod rollback;
mod shim;
mod streams;
mod supervisor;
mod tree;

pub use options::{Channel, Options, UsageError};
pub use raw::inherited_fd;
pub use shim::{Defaults, Ended, Shim, ShimConfig};
pub use supervisor::supervise;
