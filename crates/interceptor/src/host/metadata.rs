//! Reading and restoring mode, owner, times and extended attributes.

use std::io;

use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::lend::{READ, SEARCH, WRITE, fd_path};
use super::{Entry, Stamp, xattr};

pub(crate) type Xattrs = Vec<(ByteBuf, ByteBuf)>;

/// How much of an entry's metadata a preimage holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MetaScope {
    /// Modification time only: what making or removing an entry does to its directory.
    Times,
    /// Mode, owner, times, extended attributes.
    Full,
}

/// Metadata as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    pub(crate) stamp: Stamp,
    pub(crate) scope: MetaScope,
    /// Empty for `MetaScope::Times`.
    pub(crate) xattrs: Xattrs,
}

impl Meta {
    pub(crate) fn read(entry: &Entry<'_>, stamp: Stamp, scope: MetaScope) -> io::Result<Self> {
        let xattrs = match scope {
            MetaScope::Times => Xattrs::new(),
            MetaScope::Full => read_xattrs(entry)?,
        };
        Ok(Self { stamp, scope, xattrs })
    }

    /// Mode, owner and attributes are the same.
    pub(crate) fn differs_in_times_only(&self, other: &Self) -> bool {
        let shown = |meta: &Self| (meta.stamp.mode, meta.stamp.uid, meta.stamp.gid);
        shown(self) == shown(other) && self.xattrs == other.xattrs
    }

    /// Makes the entry look like this again. Owner first, because changing it clears set-id bits;
    /// attributes before the mode, because setting an ACL rewrites it; the time last.
    pub(crate) fn apply(&self, entry: &Entry<'_>) -> io::Result<()> {
        let Some(now) = entry.stat()? else {
            return Err(io::Error::from_raw_os_error(Errno::NOENT.raw_os_error()));
        };
        self.apply_over(entry, &now)
    }

    /// As [`Meta::apply`], by somebody who has just looked at the entry.
    pub(crate) fn apply_over(&self, entry: &Entry<'_>, now: &Stamp) -> io::Result<()> {
        if self.scope == MetaScope::Full {
            self.apply_identity(entry, now)?;
        }
        if now.mtime != self.stamp.mtime || self.scope == MetaScope::Full {
            set_mtime(entry, self.stamp.mtime)?;
        }
        Ok(())
    }

    fn apply_identity(&self, entry: &Entry<'_>, now: &Stamp) -> io::Result<()> {
        if (now.uid, now.gid) != (self.stamp.uid, self.stamp.gid) {
            let uid = Some(Uid::from_raw(self.stamp.uid));
            let gid = Some(Gid::from_raw(self.stamp.gid));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            entry.permitted(SEARCH, || {
                rustix::fs::chownat(entry.dir(), entry.name(), uid, gid, flags)
            })?;
        }
        apply_xattrs(entry, &self.xattrs)?;
        if !now.is_symlink() {
            let changed = entry.stat()?.is_none_or(|now| now.mode != self.stamp.mode);
            if changed {
                set_mode(entry, self.stamp.permissions())?;
            }
        }
        Ok(())
    }
}

fn set_mtime(entry: &Entry<'_>, mtime: (i64, u32)) -> io::Result<()> {
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.0, tv_nsec: mtime.1.into() },
    };
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    entry.permitted(SEARCH, || rustix::fs::utimensat(entry.dir(), entry.name(), &times, flags))
}

/// Changes the permissions of an entry that is not a symlink, without ever following one.
fn set_mode(entry: &Entry<'_>, permissions: u32) -> io::Result<()> {
    // chmod by name would follow a symlink swapped in at this moment; a descriptor opened with
    // O_PATH | O_NOFOLLOW cannot change its mind.
    let handle = entry.open_path()?;
    if Stamp::of(&handle)?.1.is_symlink() {
        return Ok(());
    }
    rustix::fs::chmod(fd_path(&handle), Mode::from_raw_mode(permissions))?;
    Ok(())
}

/// All attributes the kernel lists for the entry, sorted by name.
fn read_xattrs(entry: &Entry<'_>) -> io::Result<Xattrs> {
    entry.permitted_itself(READ, || list_xattrs(entry))
}

fn list_xattrs(entry: &Entry<'_>) -> io::Result<Xattrs> {
    let mut xattrs = Xattrs::new();
    for name in xattr::names(entry)? {
        if let Some(value) = xattr::get(entry, &name)? {
            xattrs.push((ByteBuf::from(name), ByteBuf::from(value)));
        }
    }
    xattrs.sort();
    Ok(xattrs)
}

fn apply_xattrs(entry: &Entry<'_>, wanted: &Xattrs) -> io::Result<()> {
    let present = read_xattrs(entry)?;
    if present == *wanted {
        return Ok(());
    }
    entry.permitted_itself(READ | WRITE, || replace_xattrs(entry, wanted))
}

/// Whatever a refused attempt has done already, the next one finds done.
fn replace_xattrs(entry: &Entry<'_>, wanted: &Xattrs) -> io::Result<()> {
    let present = list_xattrs(entry)?;
    for (name, _) in &present {
        if !wanted.iter().any(|(kept, _)| kept == name) {
            xattr::remove(entry, name)?;
        }
    }
    for pair in wanted {
        if !present.contains(pair) {
            xattr::set(entry, &pair.0, &pair.1)?;
        }
    }
    Ok(())
}
