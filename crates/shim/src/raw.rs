//! The unsafe code of this crate: what the operating system hands over without an owner.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Takes over a descriptor that the parent process left open for us, and keeps it from our own
/// children. To be called once for each number, before anything else is opened.
pub fn inherited_fd(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 {
        return Err(io::Error::other("descriptors 0, 1 and 2 belong to the standard streams"));
    }
    // SAFETY: only asks whether the number is open; the borrow ends with this function.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = fcntl_getfd(borrowed)?;
    fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and the parent gave it to us: nothing in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The command becomes the leader of its own session; with a terminal on its standard input, that
/// is its controlling terminal.
pub(crate) fn start_session(command: &mut Command, has_terminal: bool) {
    let enter = move || {
        rustix::process::setsid()?;
        if has_terminal {
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes two system calls; it allocates and locks nothing.
    unsafe { command.pre_exec(enter) };
}
