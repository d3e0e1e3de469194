//! Names that a client has heard of before, and asks about again before each use, because nothing
//! of names is kept where changes on the host are to be seen at once.
//!
//! The filesystem below opens what a name stands for, looks at it and closes it again. For a name
//! that is known, one look by its directory is enough: the filesystem below has the file open, so
//! that no other one can get its number.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use codeagent_interceptor::WriteInterceptor;
use rustix::fs::{AtFlags, Statx, StatxFlags};
use virtiofsd::filesystem::{Context, Entry};
use virtiofsd::fuse::Attr;

use crate::host_file;
use crate::intercepted::InterceptedFs;
use crate::paths::Known;

/// A directory of the host in which names are looked at.
#[derive(Debug)]
pub(crate) struct OpenDir {
    fd: OwnedFd,
    /// The mount it was reached through: what is mounted on a name in it is another file.
    mount: u64,
}

impl OpenDir {
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let found = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
        Ok(Self { fd, mount: found.stx_mnt_id })
    }

    /// What the name stands for, if that is in the same mount.
    fn look(&self, name: &CStr) -> io::Result<Option<Statx>> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let found = rustix::fs::statx(&self.fd, name, flags, wanted)?;
        let is_complete = StatxFlags::from_bits_retain(found.stx_mask).contains(wanted);
        Ok((is_complete && found.stx_mnt_id == self.mount).then_some(found))
    }
}

impl<I: WriteInterceptor> InterceptedFs<I> {
    /// What a known name stands for, if that is what it stood for when it became known; otherwise
    /// the filesystem below has to be asked.
    pub(crate) fn look_again(&self, ctx: Context, parent: u64, name: &CStr) -> Option<Entry> {
        let paths = &self.shared.paths;
        let Known { inode, number, dir } = paths.known(self.client, parent, name.to_bytes())?;
        let dir = match dir {
            Some(dir) => dir,
            None => {
                let file = host_file::behind_inode(&self.shared.fs, ctx, parent).ok()??;
                paths.keep_open(parent, OpenDir::new(file.into()).ok()?)
            }
        };
        let found = dir.look(name).ok()??;
        let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
        if (found.stx_ino, device) != (number, self.shared.device)
            || !paths.told_again(self.client, inode)
        {
            return None;
        }
        let mut attr = attributes(&found);
        if attr.nlink > 1 {
            self.count_names(ctx, inode, &mut attr);
        }
        let kept_for = self.cache().timeout();
        Some(Entry { inode, generation: 0, attr, attr_timeout: kept_for, entry_timeout: kept_for })
    }
}

fn attributes(found: &Statx) -> Attr {
    let rdev = rustix::fs::makedev(found.stx_rdev_major, found.stx_rdev_minor);
    Attr {
        ino: found.stx_ino,
        size: found.stx_size,
        blocks: found.stx_blocks,
        atime: found.stx_atime.tv_sec as u64,
        mtime: found.stx_mtime.tv_sec as u64,
        ctime: found.stx_ctime.tv_sec as u64,
        atimensec: found.stx_atime.tv_nsec,
        mtimensec: found.stx_mtime.tv_nsec,
        ctimensec: found.stx_ctime.tv_nsec,
        mode: found.stx_mode.into(),
        nlink: found.stx_nlink,
        uid: found.stx_uid.into(),
        gid: found.stx_gid.into(),
        rdev: rdev as u32,
        blksize: found.stx_blksize,
        flags: 0,
    }
}
