//! System calls for which there is no safe function.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::mount::MountAttrFlags;
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Closes whatever was left open by those who started this process, but for the standard streams.
/// To be called before anything is opened.
pub(crate) fn close_what_was_inherited() {
    // SAFETY: nothing in this process has opened these descriptors, so nothing uses them.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
}

/// A copy of all mounts, for this process alone.
pub(crate) fn leave_the_mount_namespace() -> io::Result<()> {
    // SAFETY: memory and descriptors stay shared with whoever shares them.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    Ok(())
}

/// Adds to what is forbidden in a mount, and in those below it.
pub(crate) fn restrict_mount(mount: impl AsFd, forbidden: MountAttrFlags) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: forbidden.bits().into(),
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path is a C string, and the structure is as long as the call is told.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The process at the other end of a local socket; none if it is not to be seen from here.
pub(crate) fn process_at_the_other_end(socket: impl AsFd) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the structure is as long as the call is told, and any bytes are one of it.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    u32::try_from(peer.pid).ok().filter(|pid| result == 0 && *pid > 0)
}
