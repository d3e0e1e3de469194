//! Attributes and times, in the words of the host and in those of FUSE.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, INodeNo, TimeOrNow};
use rustix::fs::{FileType, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

/// `unseen`: how many of its names only the interceptor has.
#[allow(clippy::unnecessary_cast)] // the fields' widths differ between platforms
pub(super) fn to_fuse(node: u64, stat: &Stat, unseen: u32) -> FileAttr {
    FileAttr {
        ino: INodeNo(node),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime as i64, stat.st_atime_nsec as u32),
        mtime: time(stat.st_mtime as i64, stat.st_mtime_nsec as u32),
        ctime: time(stat.st_ctime as i64, stat.st_ctime_nsec as u32),
        crtime: time(stat.st_birthtime as i64, stat.st_birthtime_nsec as u32),
        kind: kind(FileType::from_raw_mode(stat.st_mode)),
        perm: (stat.st_mode as u32 & 0o7777) as u16,
        nlink: (stat.st_nlink as u32).saturating_sub(unseen),
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev as u32,
        blksize: stat.st_blksize as u32,
        flags: stat.st_flags,
    }
}

pub(super) fn kind(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::CharacterDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        _ => fuser::FileType::RegularFile,
    }
}

/// What `utimensat` takes; `None` stays as it is.
pub(super) fn timestamps(atime: Option<TimeOrNow>, mtime: Option<TimeOrNow>) -> Timestamps {
    Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) }
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(TimeOrNow::SpecificTime(at)) => match at.duration_since(UNIX_EPOCH) {
            Ok(since) => {
                Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() }
            }
            // Of a time before 1970, fuser takes the nanoseconds, which count forwards, as if they
            // counted backwards like the seconds.
            Err(before) => {
                let (whole, rest) = (before.duration().as_secs(), before.duration().subsec_nanos());
                Timespec { tv_sec: -(whole as i64), tv_nsec: rest.into() }
            }
        },
    }
}

/// Times before 1970 have negative seconds.
fn time(seconds: i64, nanoseconds: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let at =
        if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    at.and_then(|at| at.checked_add(Duration::from_nanos(nanoseconds.into()))).unwrap_or(UNIX_EPOCH)
}
