//! The mount: the intercepting filesystem, served to this machine over FUSE.
#![cfg(target_os = "linux")]

mod acl;
mod adapter;
mod attach;
mod attributes;
mod front_end;
mod kernel_cache;
mod local;
mod mounted;
mod plain;
mod replies;
mod stale;
mod supervised;

pub use codeagent_fs::{Cache, raise_descriptor_limit};
pub use front_end::{MountFrontEnd, Session, serve};
pub use mounted::{Mount, MountOptions, Unmounted};
pub use plain::PlainMount;
pub use stale::{recover, unmount};
pub use supervised::{Report, Signal, Supervised, SupervisedError};
