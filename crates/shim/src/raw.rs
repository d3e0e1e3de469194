//! The unsafe code of this crate: what the operating system hands over without an owner.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Takes over a descriptor that the parent process left open for us, and keeps it from our own
/// children. What this process has opened itself, or taken over before, is refused: it is closed on
/// exec, and what we inherit cannot be.
pub fn inherited_fd(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 {
        return Err(io::Error::other("descriptors 0, 1 and 2 belong to the standard streams"));
    }
    // SAFETY: only asks whether the number is open; the borrow ends with this function.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = fcntl_getfd(borrowed)?;
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(io::Error::other(format!("descriptor {number} was not left open for us")));
    }
    fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and was when this process began: nothing in it owns the descriptor.
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

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[test]
    fn what_we_own_cannot_be_taken_over() {
        let (reader, _writer) = io::pipe().unwrap();
        let owned = OwnedFd::from(reader);
        let error = inherited_fd(std::os::fd::AsRawFd::as_raw_fd(&owned)).unwrap_err();
        assert!(error.to_string().contains("not left open for us"), "{error}");
    }

    #[test]
    fn what_is_inherited_is_taken_over_once() {
        let (reader, _writer) = io::pipe().unwrap();
        fcntl_setfd(&reader, FdFlags::empty()).unwrap();
        let number = OwnedFd::from(reader).into_raw_fd();
        let taken = inherited_fd(number).unwrap();
        assert!(inherited_fd(number).is_err());
        drop(taken);
    }
}
