//! The mount: the intercepting filesystem, served to this machine over FUSE.
#![cfg(target_os = "linux")]

mod adapter;
mod attributes;
mod descriptors;
mod kernel_cache;
mod local;
mod mounted;
mod plain;
mod replies;
mod stale;
mod transfer;

pub use codeagent_fs::Cache;
pub use descriptors::raise_descriptor_limit;
pub use mounted::{Mount, MountOptions, Unmounted};
pub use plain::PlainMount;
pub use stale::{recover, unmount};
