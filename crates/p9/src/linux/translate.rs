//! Values of the protocol in those of the filesystem, and back.

use virtiofsd::filesystem::{Context, SetattrValid};
use virtiofsd::fuse::{Attr, SetattrIn};
use virtiofsd::soft_idmap::Id;

use crate::share::{Attributes, Caller, Change, NewTime, OpenFlags, Time};
use crate::wire::{Qid, QidKind, getattr};

pub(super) fn context(caller: Caller) -> Context {
    Context { uid: caller.uid.into(), gid: caller.gid.into(), pid: 0 }
}

pub(super) fn qid(attr: &Attr) -> Qid {
    Qid { kind: QidKind::of_mode(attr.mode), version: version(attr), path: attr.ino }
}

/// Another one when time or size is another, and never 0: clients keep no contents of such a file.
fn version(attr: &Attr) -> u32 {
    let time = attr.mtime.wrapping_mul(1_000_000_007).wrapping_add(attr.mtimensec.into());
    let both = time ^ attr.size.rotate_left(40);
    ((both >> 32) as u32 ^ both as u32) | 1
}

pub(super) fn attributes(attr: &Attr) -> Attributes {
    let time = |seconds, nanoseconds: u32| Time { seconds, nanoseconds: nanoseconds.into() };
    Attributes {
        valid: getattr::BASIC,
        qid: qid(attr),
        mode: attr.mode,
        uid: attr.uid.into_inner(),
        gid: attr.gid.into_inner(),
        links: attr.nlink.into(),
        device: attr.rdev.into(),
        size: attr.size,
        block_size: attr.blksize.into(),
        blocks: attr.blocks,
        accessed: time(attr.atime, attr.atimensec),
        modified: time(attr.mtime, attr.mtimensec),
        changed: time(attr.ctime, attr.ctimensec),
        ..Attributes::default()
    }
}

pub(super) fn change(change: &Change) -> (SetattrIn, SetattrValid) {
    let mut valid = SetattrValid::empty();
    let mut request = SetattrIn::default();
    if let Some(mode) = change.mode {
        (request.mode, valid) = (mode, valid | SetattrValid::MODE);
    }
    if let Some(uid) = change.uid {
        (request.uid, valid) = (uid.into(), valid | SetattrValid::UID);
    }
    if let Some(gid) = change.gid {
        (request.gid, valid) = (gid.into(), valid | SetattrValid::GID);
    }
    if let Some(size) = change.size {
        (request.size, valid) = (size, valid | SetattrValid::SIZE);
    }
    match change.accessed {
        None => {}
        Some(NewTime::Now) => valid |= SetattrValid::ATIME | SetattrValid::ATIME_NOW,
        Some(NewTime::At(at)) => {
            (request.atime, request.atimensec) = (at.seconds, at.nanoseconds as u32);
            valid |= SetattrValid::ATIME;
        }
    }
    match change.modified {
        None => {}
        Some(NewTime::Now) => valid |= SetattrValid::MTIME | SetattrValid::MTIME_NOW,
        Some(NewTime::At(at)) => {
            (request.mtime, request.mtimensec) = (at.seconds, at.nanoseconds as u32);
            valid |= SetattrValid::MTIME;
        }
    }
    (request, valid)
}

/// The host's numbers for how a file is opened. What concerns only the client is left out.
pub(super) fn open_flags(flags: OpenFlags) -> u32 {
    const SAME: [(u32, i32); 7] = [
        (OpenFlags::WRITE_ONLY, libc::O_WRONLY),
        (OpenFlags::READ_WRITE, libc::O_RDWR),
        (OpenFlags::EXCLUSIVE, libc::O_EXCL),
        (OpenFlags::TRUNCATE, libc::O_TRUNC),
        (OpenFlags::APPEND, libc::O_APPEND),
        (OpenFlags::DATA_SYNC, libc::O_DSYNC),
        (OpenFlags::SYNC, libc::O_SYNC),
    ];
    let host = SAME.iter().filter(|(flag, _)| flags.has(*flag)).map(|(_, host)| host);
    // Nobody waits for whoever might open the other end.
    host.fold(libc::O_NONBLOCK, |all, host| all | host) as u32
}

/// The device as FUSE has it.
pub(super) fn device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_tells_contents_apart_and_is_never_nothing() {
        let attr = Attr { mtime: 1_700_000_000, size: 10, ..Attr::default() };
        assert_ne!(version(&attr), version(&Attr { size: 12, ..attr }));
        assert_ne!(version(&attr), version(&Attr { mtime: attr.mtime + 2, ..attr }));
        assert_ne!(version(&attr), version(&Attr { mtimensec: 2, ..attr }));
        assert_ne!(version(&Attr::default()), 0);
    }

    #[test]
    fn only_flags_that_concern_the_host_reach_it() {
        let all = open_flags(OpenFlags(u32::MAX)) as i32;
        assert_eq!(all & (libc::O_CREAT | libc::O_DIRECT | libc::O_PATH | libc::O_NOATIME), 0);
        let append = open_flags(OpenFlags(OpenFlags::READ_WRITE | OpenFlags::APPEND)) as i32;
        assert_eq!(append, libc::O_RDWR | libc::O_APPEND | libc::O_NONBLOCK);
    }
}
