//! Files that the kernel knows by a number, so that it can read them itself.
#![allow(
    unsafe_code,
    reason = "a number of the kernel's is closed by an ioctl, and wrapped unsafely"
)]

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use fuser::{BackingId, FileHandle, FopenFlags, ReplyCreate, ReplyOpen};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use virtiofsd::filesystem::Entry;

use crate::attributes::to_fuse;

/// Tells the kernel about files.
pub(crate) trait Backing: fmt::Debug + Send + Sync {
    /// The number of a file from now on, which the kernel holds open.
    fn open(&self, file: BorrowedFd<'_>) -> io::Result<u32>;
    fn close(&self, number: u32);
}

/// The kernel's end of a mount, in the hands of somebody who has `CAP_SYS_ADMIN`.
#[derive(Debug)]
pub(crate) struct Device(pub(crate) OwnedFd);

const CLOSE: Opcode = opcode::write::<u32>(229, 2);

impl Backing for Device {
    fn open(&self, file: BorrowedFd<'_>) -> io::Result<u32> {
        BackingId::create_raw(&self.0, file)
    }

    fn close(&self, number: u32) {
        // SAFETY: the kernel reads one number. Should it be no longer known, it says so.
        let _ = unsafe { ioctl(&self.0, Setter::<CLOSE, u32>::new(number)) };
    }
}

pub(crate) fn reply_open(reply: ReplyOpen, handle: u64, flags: FopenFlags, number: u32) {
    // SAFETY: the number belongs to this session, and is closed only when the kernel has released
    // what is opened here. By us: the wrapping is taken off before it could close it.
    let wrapped = unsafe { reply.wrap_backing(number) };
    reply.opened_passthrough(FileHandle(handle), flags, &wrapped);
    wrapped.into_raw();
}

pub(crate) fn reply_create(
    reply: ReplyCreate,
    entry: &Entry,
    handle: u64,
    flags: FopenFlags,
    number: u32,
) {
    // SAFETY: as above.
    let wrapped = unsafe { reply.wrap_backing(number) };
    reply.created_passthrough(
        &entry.attr_timeout,
        &to_fuse(entry.inode, &entry.attr),
        fuser::Generation(entry.generation),
        FileHandle(handle),
        flags,
        &wrapped,
    );
    wrapped.into_raw();
}
