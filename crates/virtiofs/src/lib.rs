//! The working directory in a guest: a vhost-user device around the intercepting filesystem, served
//! by a worker like any other front end.
//!
//! ```text
//!   guest ── virtqueue in its memory ── device.rs ── request.rs ── GuestView ── InterceptedFs
//!   QEMU ─── socket (front_end.rs) ──────┘    └ pool.rs: what may have to wait
//! ```
#![cfg(target_os = "linux")]

mod device;
mod front_end;
mod options;
mod request;

pub use codeagent_fs::{Ids, Owners};
pub use front_end::{GuestFrontEnd, connection, serve};
pub use options::GuestOptions;
