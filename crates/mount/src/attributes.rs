//! Attributes, in the words of the filesystem and in those of FUSE.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use virtiofsd::filesystem::SetattrValid;
use virtiofsd::fuse::{Attr, SetattrIn};
use virtiofsd::soft_idmap::Id;

/// The library answers lookups with one number for the node and its inode number, so the node's it
/// is, everywhere.
pub(crate) fn to_fuse(inode: u64, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(inode),
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime, attr.atimensec),
        mtime: time(attr.mtime, attr.mtimensec),
        ctime: time(attr.ctime, attr.ctimensec),
        crtime: UNIX_EPOCH,
        kind: kind(attr.mode),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid.into_inner(),
        gid: attr.gid.into_inner(),
        rdev: attr.rdev,
        blksize: attr.blksize,
        flags: 0,
    }
}

pub(crate) fn kind(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

/// What a client wants to change.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wish {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<TimeOrNow>,
    pub(crate) mtime: Option<TimeOrNow>,
}

impl Wish {
    pub(crate) fn to_request(self) -> (SetattrIn, SetattrValid) {
        let mut valid = SetattrValid::empty();
        let mut request = SetattrIn::default();
        if let Some(mode) = self.mode {
            (request.mode, valid) = (mode, valid | SetattrValid::MODE);
        }
        if let Some(uid) = self.uid {
            (request.uid, valid) = (uid.into(), valid | SetattrValid::UID);
        }
        if let Some(gid) = self.gid {
            (request.gid, valid) = (gid.into(), valid | SetattrValid::GID);
        }
        if let Some(size) = self.size {
            (request.size, valid) = (size, valid | SetattrValid::SIZE);
        }
        match self.atime {
            None => {}
            Some(TimeOrNow::Now) => valid |= SetattrValid::ATIME | SetattrValid::ATIME_NOW,
            Some(TimeOrNow::SpecificTime(at)) => {
                (request.atime, request.atimensec) = seconds(at);
                valid |= SetattrValid::ATIME;
            }
        }
        match self.mtime {
            None => {}
            Some(TimeOrNow::Now) => valid |= SetattrValid::MTIME | SetattrValid::MTIME_NOW,
            Some(TimeOrNow::SpecificTime(at)) => {
                (request.mtime, request.mtimensec) = seconds(at);
                valid |= SetattrValid::MTIME;
            }
        }
        (request, valid)
    }
}

/// Times before 1970 have negative seconds, which the protocol writes as large ones.
fn time(seconds: u64, nanoseconds: u32) -> SystemTime {
    let seconds = seconds as i64;
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let at =
        if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    at.and_then(|at| at.checked_add(Duration::from_nanos(nanoseconds.into()))).unwrap_or(UNIX_EPOCH)
}

fn seconds(at: SystemTime) -> (u64, u32) {
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => (since.as_secs(), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let (whole, rest) = (before.as_secs() as i64, before.subsec_nanos());
            match rest {
                0 => (-whole as u64, 0),
                _ => ((-whole - 1) as u64, 1_000_000_000 - rest),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_way_there_and_back() {
        for (whole, rest) in [(0, 0), (1, 999_999_999), (-1, 0), (-1, 1), (-5_000_000_000, 7)] {
            let there: (u64, u32) = (whole as u64, rest);
            let _: i64 = whole;
            assert_eq!(seconds(time(there.0, there.1)), there);
        }
    }
}
