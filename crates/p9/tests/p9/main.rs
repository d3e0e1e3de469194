//! The 9P server, talked to as a client would: over a stream, byte by byte.
//!
//! SO sessions and numbers, WK walks, RO reading, WR writing, LK locks, RB undo. What needs no folder
//! of Linux runs everywhere.
#![allow(clippy::unwrap_used, clippy::panic)]

mod client;
#[cfg(target_os = "linux")]
mod containment;
#[cfg(target_os = "linux")]
mod cost;
#[cfg(target_os = "linux")]
mod diod;
mod fixtures;
#[cfg(target_os = "linux")]
mod folder;
mod hostile;
mod load;
mod locks;
#[cfg(target_os = "linux")]
mod questions;
#[cfg(target_os = "linux")]
mod reading;
#[cfg(target_os = "linux")]
mod rollback;
mod round_trip;
mod sessions;
mod waiting;
#[cfg(target_os = "linux")]
mod walks;
#[cfg(target_os = "linux")]
mod writing;
