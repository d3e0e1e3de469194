//! A 9P2000.L server: gives a guest a folder of the host over any stream of bytes.
//!
//! [`wire`] is the protocol, [`Share`] is what a folder has to offer. On Linux, `linux` is a folder
//! in which nothing changes without a question to the undo engine.
#![forbid(unsafe_code)]

mod errno;
#[cfg(target_os = "linux")]
pub mod linux;
mod locks;
pub mod memory;
mod server;
mod share;
pub mod wire;

pub use errno::Errno;
pub use server::{LEAST_MSIZE, Limits, ServeError, Server};
pub use share::{
    Attributes, Caller, Change, Created, Entry, FileSystemFigures, Found, NewNode, NewTime,
    OpenFlags, Result, Share, Time, XattrFlags,
};
