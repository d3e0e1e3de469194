//! Large files that are read without us: the kernel goes to the host's file itself.
//!
//! The kernel serves an inode in one way at a time, and who opens it first decides which (`modes`):
//!
//! | the inode is | to read | to write | to do both |
//! |---|---|---|---|
//! | closed | passthrough, if it is large | ordinarily | ordinarily |
//! | open ordinarily | ordinarily | ordinarily | ordinarily |
//! | open in passthrough | passthrough | reads and writes come to us | waits for the readers |
//!
//! Only readers go past us. Whoever may read and write could map the file, and a mapping of a file
//! in passthrough is one of the host's file: nobody would be asked before it changes, and the kernel
//! does not even say when it ends, because such a mapping outlives the file it was made of. By then
//! the file may have been moved into the undo log. So nobody gets one.
//!
//! To tell the kernel about a file takes `CAP_SYS_ADMIN` (`backing`), which a worker does not have:
//! its owner does it (`broker`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

mod backing;
mod broker;
mod modes;
mod opening;

pub(crate) use backing::Device;
pub(crate) use broker::{Broker, Helper};
pub(crate) use modes::Modes;
pub(crate) use opening::{Opening, reply_created};

/// Why the kernel will not read files of `folder` itself, through a mount that is served already;
/// `None` if it will.
pub(crate) fn why_not(channel: &OwnedFd, folder: BorrowedFd<'_>) -> Option<String> {
    const OVERLAYFS: i64 = 0x794C_7630;
    if rustix::fs::fstatfs(folder).is_ok_and(|found| found.f_type == OVERLAYFS) {
        return Some("the folder lies on an overlay filesystem".into());
    }
    let tried = rustix::fs::memfd_create("probe", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(io::Error::from)
        .and_then(|file| {
            let device = Device(channel.try_clone()?);
            backing::Backing::open(&device, file.as_fd())
                .map(|number| backing::Backing::close(&device, number))
        });
    let error = tried.err()?;
    Some(match Errno::from_io_error(&error) {
        Some(Errno::PERM | Errno::NOTTY | Errno::INVAL) => {
            "it takes root, not in a user namespace, and Linux 6.9 or newer".into()
        }
        _ => error.to_string(),
    })
}

/// To open a file in passthrough takes longer, and files below this hardly gain anything. Every one
/// that is left out is one less to wait for.
pub const WORTHWHILE_BYTES: u64 = 128 << 10;
