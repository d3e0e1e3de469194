//! Walks a tree by directory descriptors and records what it meets.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use super::{Entry, EntryKind, TreeSnapshot};

/// Directories further down give up their descriptor while their children are walked,
/// and are found again by `..`, so that depth never runs into the limit of open files.
const LEVELS_HELD_OPEN: usize = 64;

/// Holds any xattr too: XATTR_SIZE_MAX is as much.
const READ_BUFFER_BYTES: usize = 64 * 1024;
const DIRECTORY_BUFFER_BYTES: usize = 32 * 1024;

pub(super) fn capture(root: &Path) -> TreeSnapshot {
    let mut walk = Walk::default();
    let fd = open(CWD, root, OFlags::RDONLY | OFlags::DIRECTORY)
        .unwrap_or_else(|error| panic!("snapshot of {}: {error}", root.display()));
    walk.tree(fd);
    walk.finish()
}

/// A directory on the way from the root to where the walk is.
struct Level {
    /// Absent while the walk is below a directory deeper than [`LEVELS_HELD_OPEN`].
    fd: Option<OwnedFd>,
    subdirectories: Vec<CString>,
    /// How much of [`Walk::path`] names this directory.
    path_len: usize,
}

#[derive(Default)]
struct Walk {
    /// Of the directory at hand, relative to the root.
    path: Vec<u8>,
    found: Vec<(Vec<u8>, Entry)>,
    /// The inode of each member of `found` that has several names, by (device, inode).
    linked: Vec<(usize, (u64, u64))>,
    read_buffer: Vec<u8>,
    directory_buffer: Vec<u8>,
}

impl Walk {
    fn tree(&mut self, root: OwnedFd) {
        self.read_buffer = vec![0; READ_BUFFER_BYTES];
        self.directory_buffer.reserve(DIRECTORY_BUFFER_BYTES);
        let mut levels = vec![self.directory(root)];
        while let Some(level) = levels.last_mut() {
            let path_len = level.path_len;
            if let Some(name) = level.subdirectories.pop() {
                let parent = level.fd.take().expect("the level at hand is open");
                self.enter(path_len, &name);
                let child = self.check(open(
                    parent.as_fd(),
                    name.as_c_str(),
                    OFlags::RDONLY | OFlags::DIRECTORY,
                ));
                if levels.len() <= LEVELS_HELD_OPEN {
                    levels.last_mut().expect("parent").fd = Some(parent);
                }
                let child = self.directory(child);
                levels.push(child);
            } else {
                let left = levels.pop().expect("level");
                let Some(parent) = levels.last_mut() else {
                    break;
                };
                if parent.fd.is_none() {
                    let fd = left.fd.expect("the level at hand is open");
                    let up = open(fd.as_fd(), c"..", OFlags::RDONLY | OFlags::DIRECTORY);
                    parent.fd = Some(self.check(up));
                }
            }
        }
    }

    /// Records the directory at [`Self::path`] and all in it but its subdirectories,
    /// which it returns.
    fn directory(&mut self, fd: OwnedFd) -> Level {
        let stat = self.check(rustix::fs::fstat(&fd));
        let xattrs = self.xattrs(Handle::Open(fd.as_fd()));
        self.record(self.path.clone(), &stat, EntryKind::Directory, xattrs);

        let path_len = self.path.len();
        let mut subdirectories = Vec::new();
        let mut buffer = std::mem::take(&mut self.directory_buffer);
        let mut names = RawDir::new(fd.as_fd(), buffer.spare_capacity_mut());
        while let Some(entry) = names.next() {
            let entry = self.check(entry);
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            self.enter(path_len, name);
            if self.child(fd.as_fd(), name, entry.file_type()) {
                subdirectories.push(name.to_owned());
            }
            self.path.truncate(path_len);
        }
        self.directory_buffer = buffer;
        Level { fd: Some(fd), subdirectories, path_len }
    }

    /// Records the entry at [`Self::path`], unless it is a directory, which returns true.
    fn child(&mut self, parent: BorrowedFd<'_>, name: &CStr, listed_as: FileType) -> bool {
        if listed_as == FileType::Directory {
            return true;
        }
        if listed_as == FileType::RegularFile {
            self.regular(parent, name);
            return false;
        }
        // Symlinks, special files, and anything on a filesystem that lists no types.
        let stat = self.check(rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW));
        let rdev = stat.st_rdev;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return true,
            FileType::RegularFile => {
                self.regular(parent, name);
                return false;
            }
            FileType::Symlink => {
                let target = self.check(rustix::fs::readlinkat(parent, name, Vec::new()));
                EntryKind::Symlink { target: target.into_bytes() }
            }
            FileType::Fifo => EntryKind::Fifo,
            FileType::Socket => EntryKind::Socket,
            FileType::CharacterDevice => EntryKind::CharDevice { rdev },
            FileType::BlockDevice => EntryKind::BlockDevice { rdev },
            FileType::Unknown => panic!("{}: unknown file type", self.path.escape_ascii()),
        };
        let xattrs = self.xattrs(Handle::Named(parent, name));
        self.record(self.path.clone(), &stat, kind, xattrs);
        false
    }

    fn regular(&mut self, parent: BorrowedFd<'_>, name: &CStr) {
        // NONBLOCK: a fifo that took the file's place must not make the test hang.
        let fd = self.check(open(parent, name, OFlags::RDONLY | OFlags::NONBLOCK));
        let stat = self.check(rustix::fs::fstat(&fd));
        let content = self.content(fd.as_fd(), u64::try_from(stat.st_size).unwrap_or(0));
        let xattrs = self.xattrs(Handle::Open(fd.as_fd()));
        let kind = EntryKind::Regular { content };
        self.record(self.path.clone(), &stat, kind, xattrs);
    }

    fn content(&mut self, fd: BorrowedFd<'_>, size_bytes: u64) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let mut done: u64 = 0;
        loop {
            let result = rustix::io::read(fd, &mut self.read_buffer[..]);
            let length = self.check(result);
            hasher.update(&self.read_buffer[..length]);
            done += length as u64;
            // The end is known without one more call, for nearly every file.
            if length == 0 || done == size_bytes {
                return hasher.finalize().into();
            }
        }
    }

    fn xattrs(&mut self, handle: Handle<'_>) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let handle = handle.resolve();
        // Nearly every entry has no xattrs or few: the stack holds their names.
        let mut few = [0; 512];
        let mut many;
        let names: &[u8] = match handle.list(&mut few) {
            Ok(length) => &few[..length],
            Err(Errno::OPNOTSUPP) => &[],
            Err(Errno::RANGE) => {
                many = vec![0; 64 * 1024]; // XATTR_LIST_MAX
                let length = self.check(handle.list(&mut many));
                &many[..length]
            }
            Err(error) => self.fail(error),
        };
        let mut xattrs = BTreeMap::new();
        for name in names.split_inclusive(|byte| *byte == 0) {
            let name = CStr::from_bytes_with_nul(name).expect("names end with a NUL");
            let result = handle.get(name, &mut self.read_buffer);
            let length = self.check(result);
            let value = self.read_buffer[..length].to_vec();
            xattrs.insert(name.to_bytes().to_vec(), value);
        }
        xattrs
    }

    fn record(
        &mut self,
        path: Vec<u8>,
        stat: &Stat,
        kind: EntryKind,
        xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    ) {
        let is_directory = kind == EntryKind::Directory;
        if !is_directory && stat.st_nlink > 1 {
            let inode = (stat.st_dev, stat.st_ino);
            self.linked.push((self.found.len(), inode));
        }
        let size_bytes = u64::try_from(stat.st_size).expect("sizes are not negative");
        let entry = Entry {
            kind,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size_bytes: if is_directory { 0 } else { size_bytes },
            mtime_ns: i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec),
            xattrs,
            hard_link_group: None,
            #[allow(clippy::useless_conversion)] // narrower on some architectures
            link_count: if is_directory { 0 } else { u64::from(stat.st_nlink) },
        };
        self.found.push((path, entry));
    }

    fn finish(mut self) -> TreeSnapshot {
        let mut names: HashMap<(u64, u64), Vec<usize>> = HashMap::new();
        for (index, inode) in &self.linked {
            names.entry(*inode).or_default().push(*index);
        }
        let mut groups: Vec<Vec<usize>> = names.into_values().filter(|g| g.len() > 1).collect();
        groups.sort_by_key(|group| group.iter().map(|index| &self.found[*index].0).min());
        for (number, group) in groups.iter().enumerate() {
            for index in group {
                self.found[*index].1.hard_link_group = Some(number);
            }
        }
        TreeSnapshot { entries: self.found.into_iter().collect() }
    }

    /// Makes [`Self::path`] name the child `name` of the directory it named before.
    fn enter(&mut self, parent_len: usize, name: &CStr) {
        self.path.truncate(parent_len);
        if parent_len > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name.to_bytes());
    }

    fn check<T>(&self, result: Result<T, Errno>) -> T {
        result.unwrap_or_else(|error| self.fail(error))
    }

    fn fail(&self, error: Errno) -> ! {
        panic!("snapshot of \"{}\": {error}", self.path.escape_ascii());
    }
}

/// How to reach an entry for its xattrs.
enum Handle<'a> {
    Open(BorrowedFd<'a>),
    /// Not to be opened, or nothing that can be: a symlink, a fifo, a device.
    Named(BorrowedFd<'a>, &'a CStr),
}

enum Resolved<'a> {
    Open(BorrowedFd<'a>),
    /// Leads through `/proc/self/fd`, because there are no `*at` calls for xattrs.
    Path(Vec<u8>),
}

impl<'a> Handle<'a> {
    fn resolve(self) -> Resolved<'a> {
        match self {
            Self::Open(fd) => Resolved::Open(fd),
            Self::Named(parent, name) => {
                let mut path = format!("/proc/self/fd/{}/", parent.as_raw_fd()).into_bytes();
                path.extend_from_slice(name.to_bytes());
                Resolved::Path(path)
            }
        }
    }
}

impl Resolved<'_> {
    fn list(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(fd) => rustix::fs::flistxattr(fd, buffer),
            Self::Path(path) => rustix::fs::llistxattr(path.as_slice(), buffer),
        }
    }

    fn get(&self, name: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(fd) => rustix::fs::fgetxattr(fd, name, buffer),
            Self::Path(path) => rustix::fs::lgetxattr(path.as_slice(), name, buffer),
        }
    }
}

/// Opens without following a symlink at the end, and where allowed without a new atime.
fn open(
    parent: BorrowedFd<'_>,
    name: impl rustix::path::Arg + Copy,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, name, flags | OFlags::NOATIME, Mode::empty()) {
        // Only the owner and root may ask for it.
        Err(Errno::PERM) => rustix::fs::openat(parent, name, flags, Mode::empty()),
        result => result,
    }
}
