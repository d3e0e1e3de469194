//! The unsafe code of this crate: what happens between fork and exec, and system calls that nobody
//! wraps.

#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal};

/// Closes whatever was left open by those who started this process, but for the standard streams:
/// QEMU would inherit it. To be called before anything is opened.
pub(crate) fn close_what_was_inherited() {
    // SAFETY: nothing in this process has opened these descriptors, so nothing uses them.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
}

/// The program dies with this thread, which has to be its process's only one.
pub(crate) fn die_with_us(command: &mut Command) {
    let us = rustix::process::getpid();
    let bind = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have died before it was bound.
        if rustix::process::getppid().map(Pid::as_raw_nonzero) == Some(us.as_raw_nonzero()) {
            Ok(())
        } else {
            Err(rustix::io::Errno::CHILD.into())
        }
    };
    // SAFETY: between fork and exec it makes two system calls; it allocates and locks nothing.
    unsafe { command.pre_exec(bind) };
}
