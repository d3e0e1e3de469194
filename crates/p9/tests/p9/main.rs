//! The 9P server, talked to as a client would: over a stream, byte by byte.
//!
//! SO sessions and numbers, WK walks, RO reading, WR writing, LK locks, RB undo.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod client;
mod containment;
mod diod;
mod fixtures;
mod hostile;
mod load;
mod locks;
mod questions;
mod reading;
mod rollback;
mod round_trip;
mod sessions;
mod waiting;
mod walks;
mod writing;
