//! Answers of the filesystem, as replies to the kernel.

use std::io;
use std::time::Duration;

use fuser::{
    Errno, FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite,
};
use virtiofsd::filesystem::{Entry, OpenOptions};
use virtiofsd::fuse::Attr;

use crate::attributes::to_fuse;

pub(crate) type Answer<T> = Result<T, Errno>;

#[expect(clippy::needless_pass_by_value, reason = "it is given to map_err")]
pub(crate) fn errno(error: io::Error) -> Errno {
    as_errno(&error)
}

pub(crate) fn as_errno(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

pub(crate) fn fopen(options: OpenOptions) -> FopenFlags {
    FopenFlags::from_bits_truncate(options.bits())
}

pub(crate) fn reply_empty(reply: ReplyEmpty, outcome: Answer<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

pub(crate) fn reply_entry(reply: ReplyEntry, outcome: Answer<Entry>) {
    match outcome {
        Ok(entry) => reply.entry_with_ttls(
            &entry.attr_timeout,
            &entry.entry_timeout,
            &to_fuse(entry.inode, &entry.attr),
            Generation(entry.generation),
        ),
        Err(errno) => reply.error(errno),
    }
}

pub(crate) fn reply_attr(reply: ReplyAttr, inode: INodeNo, outcome: io::Result<(Attr, Duration)>) {
    match outcome {
        Ok((attr, timeout)) => reply.attr(&timeout, &to_fuse(inode.0, &attr)),
        Err(error) => reply.error(errno(error)),
    }
}

pub(crate) fn reply_open(reply: ReplyOpen, outcome: io::Result<(Option<u64>, OpenOptions)>) {
    match outcome {
        Ok((handle, options)) => reply.opened(FileHandle(handle.unwrap_or(0)), fopen(options)),
        Err(error) => reply.error(errno(error)),
    }
}

pub(crate) fn reply_written(reply: ReplyWrite, outcome: io::Result<usize>) {
    match outcome {
        Ok(written) => reply.written(written as u32),
        Err(error) => reply.error(errno(error)),
    }
}
