//! Ways to name what lies outside, and to get at more than files.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Uid, chmodat, chownat, makedev, mknodat, openat,
};

type Attempt = (&'static str, io::Result<()>);

pub(crate) fn try_them(root: BorrowedFd<'_>, outside: &str) -> Vec<Attempt> {
    let mut attempts = vec![("open a device", open_device(root))];
    for name in names_of(root, outside) {
        let mode = chmodat(root, &name, Mode::RWXO, AtFlags::empty());
        attempts.push(("change the mode of what is outside", mode.map_err(io::Error::from)));
        let (user, group) = (Some(Uid::from_raw(65_534)), Some(Gid::from_raw(65_534)));
        let owner = chownat(root, &name, user, group, AtFlags::empty());
        attempts.push(("give away what is outside", owner.map_err(io::Error::from)));
    }
    attempts
}

fn names_of(root: BorrowedFd<'_>, outside: &str) -> [String; 6] {
    let up = format!("{}{outside}", "../".repeat(50));
    [
        outside.to_owned(),
        format!("/proc/self/cwd/{up}"),
        format!("/proc/self/root{outside}"),
        format!("/proc/1/root{outside}"),
        format!("/proc/self/fd/{}/{up}", root.as_raw_fd()),
        up,
    ]
}

/// One that does no harm.
fn open_device(root: BorrowedFd<'_>) -> io::Result<()> {
    mknodat(root, "device", FileType::CharacterDevice, Mode::RWXU, makedev(1, 3))?;
    openat(root, "device", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    Ok(())
}
