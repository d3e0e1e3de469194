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

/// What the kernel has sent. Of a time before 1970, fuser takes the nanoseconds, which count forwards,
/// as if they counted backwards like the seconds.
fn seconds(at: SystemTime) -> (u64, u32) {
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => (since.as_secs(), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            (before.as_secs().wrapping_neg(), before.subsec_nanos())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn as_fuser_reads(seconds: i64, nanoseconds: u32) -> SystemTime {
        match u64::try_from(seconds) {
            Ok(seconds) => UNIX_EPOCH + Duration::new(seconds, nanoseconds),
            Err(_) => UNIX_EPOCH - Duration::new(seconds.unsigned_abs(), nanoseconds),
        }
    }

    #[test]
    fn times_that_are_set_are_those_that_the_kernel_has_sent() {
        for (whole, rest) in
            [(0, 0), (1, 999_999_999), (-1, 0), (-1, 1), (-1, 999_999_999), (-5_000_000_000, 7)]
        {
            assert_eq!(seconds(as_fuser_reads(whole, rest)), (whole as u64, rest));
        }
    }

    #[test]
    fn of_times_that_are_told_the_nanoseconds_count_forwards() {
        assert_eq!(time(-1_i64 as u64, 999_999_999), UNIX_EPOCH - Duration::from_nanos(1));
        assert_eq!(time(1, 1), UNIX_EPOCH + Duration::new(1, 1));
    }
}
