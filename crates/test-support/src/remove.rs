//! Deletes a tree whatever its modes and depth.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags};
use rustix::io::{Errno, Result};

/// As in snapshots: deeper directories are found again by `..`.
const LEVELS_HELD_OPEN: usize = 64;

/// Deletes the directory `root` with all below it: opens up directories whose mode
/// forbids it, follows no symlink, and stays out of anything mounted inside.
///
/// # Errors
/// The first error met; what could be deleted until then is gone.
pub fn remove_tree(root: &Path) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::open(root, flags, Mode::empty());
    let fd = open().or_else(|error| match error {
        Errno::ACCESS => rustix::fs::chmod(root, Mode::RWXU).and_then(|()| open()),
        error => Err(error),
    })?;
    empty_directory(fd)?;
    rustix::fs::unlinkat(CWD, root, AtFlags::REMOVEDIR)?;
    Ok(())
}

struct Level {
    /// Absent while the walk is below a directory deeper than [`LEVELS_HELD_OPEN`].
    fd: Option<OwnedFd>,
    subdirectories: Vec<CString>,
}

fn empty_directory(root: OwnedFd) -> Result<()> {
    let mut buffer = Vec::with_capacity(32 * 1024);
    let mut levels = vec![unlink_files(root, &mut buffer)?];
    while let Some(level) = levels.last_mut() {
        // A name stays in its list until the directory is empty and can go.
        if let Some(name) = level.subdirectories.last() {
            let parent = level.fd.take().expect("the level at hand is open");
            let child = open_directory(parent.as_fd(), name)?;
            if levels.len() <= LEVELS_HELD_OPEN {
                levels.last_mut().expect("parent").fd = Some(parent);
            }
            levels.push(unlink_files(child, &mut buffer)?);
            continue;
        }
        let left = levels.pop().expect("level");
        let Some(parent) = levels.last_mut() else {
            break;
        };
        if parent.fd.is_none() {
            let fd = left.fd.as_ref().expect("the level at hand is open");
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            parent.fd = Some(rustix::fs::openat(fd, c"..", flags, Mode::empty())?);
        }
        let name = parent.subdirectories.pop().expect("the one just emptied");
        let fd = parent.fd.as_ref().expect("just opened");
        rustix::fs::unlinkat(fd, &name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Deletes all in a directory but its subdirectories, which it returns.
fn unlink_files(fd: OwnedFd, buffer: &mut Vec<u8>) -> Result<Level> {
    if rustix::fs::fstat(&fd)?.st_mode & 0o700 != 0o700 {
        rustix::fs::fchmod(&fd, Mode::RWXU)?;
    }
    let mut subdirectories = Vec::new();
    let mut names = RawDir::new(fd.as_fd(), buffer.spare_capacity_mut());
    while let Some(entry) = names.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            subdirectories.push(name.to_owned());
            continue;
        }
        match rustix::fs::unlinkat(&fd, name, AtFlags::empty()) {
            // On a filesystem that lists no types.
            Err(Errno::ISDIR) => subdirectories.push(name.to_owned()),
            result => result?,
        }
    }
    Ok(Level { fd: Some(fd), subdirectories })
}

fn open_directory(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
    let open = || {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // A test that died may have left something mounted: never delete in there.
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve)
    };
    match open() {
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            open()
        }
        result => result,
    }
}
