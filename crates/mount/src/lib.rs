//! The mount: the folder, served to this machine so that every change is announced first.
//!
//! On Linux that is the intercepting filesystem over FUSE. Elsewhere a passthrough of its own asks
//! the interceptor (`windows`, `macos`); nothing mounts it yet, because there is no engine there.

#[cfg(target_os = "linux")]
mod acl;
#[cfg(target_os = "linux")]
mod adapter;
#[cfg(target_os = "linux")]
mod attach;
#[cfg(target_os = "linux")]
mod attributes;
#[cfg(target_os = "linux")]
mod claim;
#[cfg(target_os = "linux")]
mod front_end;
#[cfg(target_os = "linux")]
mod kernel_cache;
#[cfg(target_os = "linux")]
mod local;
#[cfg(all(target_os = "macos", feature = "macfuse"))]
mod macos;
#[cfg(any(test, all(target_os = "macos", feature = "macfuse")))]
mod macos_nodes;
#[cfg(target_os = "linux")]
mod mounted;
#[cfg(target_os = "linux")]
mod passthrough;
#[cfg(target_os = "linux")]
mod plain;
#[cfg(target_os = "linux")]
mod replies;
#[cfg(target_os = "linux")]
mod stale;
#[cfg(target_os = "linux")]
mod supervised;
#[cfg(all(windows, feature = "winfsp"))]
mod windows;

#[cfg(target_os = "linux")]
pub use {
    attach::attach,
    claim::Claim,
    codeagent_fs::{Cache, raise_descriptor_limit},
    front_end::{MountFrontEnd, Session, live_options, serve},
    mounted::{Mount, MountOptions, Unmounted},
    passthrough::WORTHWHILE_BYTES,
    plain::PlainMount,
    stale::{is_ours, recover, unmount},
    supervised::{Report, Signal, Supervised, SupervisedError},
};

#[cfg(all(windows, feature = "winfsp"))]
pub use windows::{Mount, MountError};

#[cfg(all(target_os = "macos", feature = "macfuse"))]
pub use macos::{Mount, MountError};
