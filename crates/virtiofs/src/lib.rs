//! The working directory in a guest: a vhost-user device around the intercepting filesystem, served
//! by a worker like any other front end.
//!
//! ```text
//!   guest ── virtqueue in its memory ── device.rs ── request.rs ── guest_view.rs ── InterceptedFs
//!   QEMU ─── socket (front_end.rs) ──────┘    └ pool.rs: what may have to wait
//! ```
#![cfg(target_os = "linux")]

mod device;
mod front_end;
mod guest_view;
mod options;
mod pool;
mod request;

pub use front_end::{GuestFrontEnd, connection, serve};
pub use options::{GuestOptions, Ids, Owners};
