//! The folder below, from a descriptor.
//!
//! A path is walked name by name, each directory opened within the one before and never through a
//! symlink: whatever is renamed or replaced meanwhile, nothing outside is reached.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use codeagent_common::RelPath;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The folder that is served.
#[derive(Debug)]
pub(super) struct Root(OwnedFd);

/// A name within a directory that is open.
#[derive(Debug)]
pub(super) struct Place {
    dir: OwnedFd,
    name: Vec<u8>,
}

/// An entry of a directory.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) name: Vec<u8>,
    pub(super) inode: u64,
    pub(super) kind: FileType,
}

impl Root {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::openat(CWD, path, flags, Mode::empty())?))
    }

    /// The directory an entry is in, opened, and its name there. The root is `.` in itself.
    pub(super) fn place(&self, path: RelPath<'_>) -> io::Result<Place> {
        match path.split() {
            None => Ok(Place { dir: self.0.try_clone()?, name: b".".to_vec() }),
            Some((parent, name)) => Ok(Place { dir: self.dir(parent)?, name: name.to_vec() }),
        }
    }

    pub(super) fn space(&self) -> io::Result<rustix::fs::StatVfs> {
        Ok(rustix::fs::fstatvfs(&self.0)?)
    }

    fn dir(&self, path: RelPath<'_>) -> io::Result<OwnedFd> {
        let mut dir = self.0.try_clone()?;
        for name in path.components() {
            dir = rustix::fs::openat(&dir, name, DIRECTORY, Mode::empty())?;
        }
        Ok(dir)
    }
}

impl Place {
    fn name(&self) -> &[u8] {
        &self.name
    }

    pub(super) fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.dir, self.name(), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The name as the disk spells it, where names that differ in case are one: the engine must
    /// know each file by one name.
    pub(super) fn spelled(&self) -> Vec<u8> {
        // To open a FIFO or a device can mean something to whoever is at the other end.
        let kind = self.stat().map(|stat| FileType::from_raw_mode(stat.st_mode));
        if !matches!(kind, Ok(FileType::RegularFile | FileType::Directory | FileType::Symlink)) {
            return self.name.clone();
        }
        let flags = OFlags::RDONLY | OFlags::SYMLINK | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let full = rustix::fs::openat(&self.dir, self.name(), flags, Mode::empty())
            .and_then(rustix::fs::getpath);
        let Ok(full) = full else { return self.name.clone() };
        let last = full.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        // Of a file with several names, the system may give out any.
        let folded = |name: &[u8]| String::from_utf8_lossy(name).to_lowercase();
        if folded(last) == folded(self.name()) { last.to_vec() } else { self.name.clone() }
    }

    /// Opens what exists: a file or a directory, never a symlink, and without waiting for whoever
    /// has the other end of a FIFO.
    pub(super) fn open(&self, access: OFlags) -> io::Result<File> {
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(&self.dir, self.name(), flags, Mode::empty())?))
    }

    /// Opens a file or a symlink itself, to get at its extended attributes.
    pub(super) fn open_itself(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::SYMLINK | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(&self.dir, self.name(), flags, Mode::empty())?))
    }

    /// Makes a file that must not exist, and opens it.
    pub(super) fn make_file(&self, access: OFlags, mode: u32) -> io::Result<File> {
        let flags = access | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.dir, self.name(), flags, permissions(mode))?;
        Ok(File::from(made))
    }

    pub(super) fn make_dir(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&self.dir, self.name(), permissions(mode))?)
    }

    pub(super) fn make_symlink(&self, target: &Path) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, &self.dir, self.name())?)
    }

    pub(super) fn link_to(&self, new: &Place) -> io::Result<()> {
        Ok(rustix::fs::linkat(&self.dir, self.name(), &new.dir, new.name(), AtFlags::empty())?)
    }

    pub(super) fn read_link(&self) -> io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.dir, self.name(), Vec::new())?.into_bytes())
    }

    pub(super) fn unlink(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir, self.name(), AtFlags::empty())?)
    }

    pub(super) fn rmdir(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir, self.name(), AtFlags::REMOVEDIR)?)
    }

    pub(super) fn rename_to(&self, new: &Place) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.dir, self.name(), &new.dir, new.name())?)
    }

    pub(super) fn chmod(&self, mode: u32) -> io::Result<()> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::chmodat(&self.dir, self.name(), permissions(mode), flags)?)
    }

    pub(super) fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let uid = uid.map(rustix::fs::Uid::from_raw);
        let gid = gid.map(rustix::fs::Gid::from_raw);
        Ok(rustix::fs::chownat(&self.dir, self.name(), uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    pub(super) fn set_times(&self, times: &rustix::fs::Timestamps) -> io::Result<()> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::utimensat(&self.dir, self.name(), times, flags)?)
    }
}

/// Everything in a directory, `.` and `..` too, in the host's order.
pub(super) fn list(dir: &File) -> io::Result<Vec<Listed>> {
    let entry = |entry: rustix::io::Result<rustix::fs::DirEntry>| {
        let entry = entry?;
        Ok(Listed {
            name: entry.file_name().to_bytes().to_vec(),
            inode: entry.ino(),
            kind: entry.file_type(),
        })
    };
    Dir::read_from(dir)?.map(entry).collect()
}

/// The value of an extended attribute.
pub(super) fn get_xattr(file: &File, name: &OsStr) -> io::Result<Vec<u8>> {
    sized(|buffer| rustix::fs::fgetxattr(file, name.as_bytes(), buffer))
}

pub(super) fn list_xattrs(file: &File) -> io::Result<Vec<u8>> {
    sized(|buffer| rustix::fs::flistxattr(file, buffer))
}

/// Asks for the size, then for the bytes; again if there were more by then.
fn sized(read: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> io::Result<Vec<u8>> {
    loop {
        let mut value = vec![0; read(&mut [])?];
        match read(&mut value) {
            Ok(bytes) => {
                value.truncate(bytes);
                return Ok(value);
            }
            Err(Errno::RANGE) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

pub(super) fn set_xattr(file: impl AsFd, name: &OsStr, value: &[u8], flags: i32) -> io::Result<()> {
    let flags = rustix::fs::XattrFlags::from_bits_retain(flags as u32);
    Ok(rustix::fs::fsetxattr(file, name.as_bytes(), value, flags)?)
}

pub(super) fn remove_xattr(file: impl AsFd, name: &OsStr) -> io::Result<()> {
    Ok(rustix::fs::fremovexattr(file, name.as_bytes())?)
}

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode((mode & 0o7777) as rustix::fs::RawMode)
}
