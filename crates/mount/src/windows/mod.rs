//! The mount on Windows: a folder served through WinFsp, every change announced first.
//!
//! | file | what it holds |
//! |---|---|
//! | `host` | the folder below: every system call, by handle, following no reparse point |
//! | `passthrough` | the requests of the driver; which of them are mutations, and of what kind |
//! | `security` | security descriptors, as the driver wants them |
//! | `status` | errors, as the driver wants them |
//!
//! It compiles; it has never been mounted. `host` alone was tried once, under Wine, which knows
//! neither reparse points nor removal at once. What it cannot do:
//! - Symlinks, junctions and other reparse points are listed and cannot be opened.
//! - Named streams and extended attributes are refused, and so are names that mean a device.
//! - Security descriptors can be read, not changed: `winfsp_wrs` does not give out the one that
//!   somebody wants to set. New files inherit from their directory.
//! - A removal happens when the last handle is closed, where Windows cannot be told of an error: if
//!   the interceptor refuses it then, the file stays.

mod host;
mod mounted;
mod passthrough;
mod security;
mod status;

pub use mounted::{Mount, MountError};
