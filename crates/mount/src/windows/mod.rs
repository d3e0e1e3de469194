//! The mount on Windows: a folder served through WinFsp, every change announced first.
//!
//! | file | what it holds |
//! |---|---|
//! | `passthrough` | the requests of the driver; which of them are mutations, and of what kind |
//! | `security` | security descriptors, as the driver wants them |
//! | `status` | errors, as the driver wants them |
//!
//! The folder below is `codeagent_windows::host`: every system call, by handle, following no reparse
//! point. What is here compiles; it has never been mounted. What it cannot do:
//! - Symlinks, junctions and other reparse points are listed and cannot be opened.
//! - Named streams and extended attributes are refused, and so are names that mean a device.
//! - Security descriptors can be read, not changed: `winfsp_wrs` does not give out the one that
//!   somebody wants to set. New files inherit from their directory.
//! - A removal happens when the last handle is closed, where Windows cannot be told of an error: if
//!   the interceptor refuses it then, the file stays.

mod mounted;
mod passthrough;
mod security;
mod status;

pub use mounted::{Mount, MountError};
