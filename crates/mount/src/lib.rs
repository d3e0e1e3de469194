//! The mount: the intercepting filesystem, served to this machine over FUSE.
#![cfg(target_os = "linux")]

mod acl;
mod adapter;
mod attach;
mod attributes;
mod cache;
mod front_end;
mod mounted;
mod replies;
mod stale;
mod supervised;

pub use front_end::{MountFrontEnd, Session, serve};
pub use mounted::{Mount, MountOptions, Unmounted};
pub use stale::recover;
pub use supervised::{Report, Signal, Supervised, SupervisedError};
