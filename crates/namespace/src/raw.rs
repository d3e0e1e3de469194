//! The unsafe code of this crate: system calls that nobody wraps.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Closes whatever was left open by those who started this process, but for the standard streams:
/// commands would inherit it. To be called before anything is opened.
pub(crate) fn close_what_was_inherited() {
    // SAFETY: nothing in this process has opened these descriptors, so nothing uses them.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
}

/// Who returns from [`fork_into`].
#[derive(Debug)]
pub(crate) enum Forked {
    Child,
    Parent(OwnedFd),
}

/// The arguments of `clone3`, as far as they are used.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

/// Forks into new namespaces. The parent gets a descriptor of the child.
pub(crate) fn fork_into(namespaces: libc::c_int) -> io::Result<Forked> {
    let mut pidfd: libc::c_int = -1;
    let args = CloneArgs {
        flags: (namespaces | libc::CLONE_PIDFD) as u64,
        pidfd: (&raw mut pidfd).addr() as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    // SAFETY: without a stack and without CLONE_VM it is a fork: the child has its own copy of
    // everything. The process has one thread, so no lock is held in that copy.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) } {
        0 => Ok(Forked::Child),
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has just made it for us.
        _ => Ok(Forked::Parent(unsafe { OwnedFd::from_raw_fd(pidfd) })),
    }
}

/// Changes the attributes of a mount and, if asked to, of everything mounted below it.
pub(crate) fn set_mount_attributes(
    mount: impl AsFd,
    path: &CStr,
    set: u64,
    recursive: bool,
) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    let attributes = libc::mount_attr { attr_set: set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the pointers are valid for the call, which keeps none of them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Loopback is there in a new network namespace, but it is down.
pub(crate) fn raise_loopback() -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: all zeros is a valid value of this plain structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (into, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *into = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the structure is valid for the call, which keeps nothing of it.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
