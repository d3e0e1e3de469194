//! The mount: the intercepting filesystem, served to this machine over FUSE.
#![cfg(target_os = "linux")]

mod acl;
mod adapter;
mod attributes;
mod cache;
mod mounted;
mod replies;
mod stale;
mod transfer;

pub use mounted::{Mount, MountOptions, Unmounted};
pub use stale::recover;
