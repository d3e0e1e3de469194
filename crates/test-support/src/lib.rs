//! What tests and benchmarks share: exact pictures of directory trees, throw-away
//! workspaces, fixture trees, and the filesystems a machine offers. Linux only: entries
//! without a file descriptor (symlinks, fifos) are reached through `/proc/self/fd`.

// Only tests use this crate: a panic that names what went wrong is the wanted failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod applier;
pub mod filesystems;
pub mod fixtures;
mod ordinary;
mod remove;
pub mod snapshot;
pub mod workloads;
mod workspace;

pub use applier::{Applier, HostHook};
pub use ordinary::as_ordinary_user;
pub use remove::remove_tree;
pub use snapshot::{
    CompareOptions, Entry, EntryKind, TreeSnapshot, assert_tree_eq, assert_tree_eq_with,
};
pub use workspace::TempWorkspace;
