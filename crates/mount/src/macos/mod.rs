//! The mount on macOS: a folder served through macFUSE, every change announced first.
//!
//! | file | what it holds |
//! |---|---|
//! | `host` | the folder below: every system call, from a descriptor, following no symlink |
//! | `passthrough` | the requests of the kernel; which of them are mutations, and of what kind |
//! | `attributes` | attributes and times, in the words of the host and in those of FUSE |
//! | `mounted` | the life of a mount |
//!
//! `macos_nodes`, beside this folder, knows which name each of the kernel's nodes stands for.
//!
//! It compiles; it has never run. What it cannot do:
//! - One request at a time: `fuser` has one thread outside Linux, so a mutation that waits for an
//!   answer to a safeguard holds up everything else.
//! - FIFOs, sockets and devices cannot be made, nor flags (`chflags`) and times of creation set.
//! - Resource forks can be written in one piece only.
//! - Names that differ in case are one name where the disk says so, if the file may be read; names
//!   that differ in how their accents are composed count as two.
//! - Each name of a file with several is a node, and has an inode number, of its own; listings show
//!   the host's numbers.
//! - Of a removed file that is still open, the content can be changed, the attributes cannot.

mod attributes;
mod host;
mod mounted;
mod passthrough;

pub use mounted::{Mount, MountError};
