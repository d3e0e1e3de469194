//! A directory tree reached from one descriptor, entry by entry.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use codeagent_common::{RelPath, RelPathBuf};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use super::metadata::fd_path;
use super::{FileId, Meta, MetaScope, Stamp, clone_file, copy_range, data_segments};

/// Directory descriptors kept open between operations; beyond this the cache starts afresh.
const CACHED_DIRS: usize = 512;

/// Fewer are not worth another thread.
const STATS_PER_THREAD: usize = 512;

/// Longest stretch of a path handed to the kernel at once (its own limit is 4096).
const PATH_STRETCH: usize = 3072;

/// An open directory.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    pub(crate) id: FileId,
}

impl Dir {
    /// Opens a directory by an ordinary path; only for roots the user named.
    pub(crate) fn open(path: &Path) -> io::Result<Arc<Self>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::from_fd(rustix::fs::open(path, flags, Mode::empty())?)
    }

    fn from_fd(fd: OwnedFd) -> io::Result<Arc<Self>> {
        let id = FileId::of(&fd)?;
        Ok(Arc::new(Self { fd, id }))
    }

    pub(crate) fn entry<'a>(self: &Arc<Self>, name: impl Into<Cow<'a, [u8]>>) -> Entry<'a> {
        Entry { dir: Arc::clone(self), name: name.into() }
    }

    /// Names in this directory, without `.` and `..`, in no order.
    pub(crate) fn names(&self) -> io::Result<Vec<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listing = rustix::fs::openat(&self.fd, ".", flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&listing)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        Ok(names)
    }
}

impl Dir {
    /// As [`Dir::names`], unless they take more than `limit_bytes`: then `None`.
    pub(crate) fn names_up_to<S: Default + std::hash::BuildHasher>(
        &self,
        limit_bytes: usize,
    ) -> io::Result<Option<HashSet<Box<[u8]>, S>>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listing = rustix::fs::openat(&self.fd, ".", flags, Mode::empty())?;
        let mut names = HashSet::default();
        let mut buffer = vec![MaybeUninit::uninit(); limit_bytes];
        let mut entries = rustix::fs::RawDir::new(listing, &mut buffer);
        while let Some(entry) = entries.next() {
            names.insert(entry?.file_name().to_bytes().into());
            // The next one would come from another read: the buffer was too small for all.
            if entries.is_buffer_empty() {
                return Ok(entries.next().is_none().then_some(names));
            }
        }
        Ok(Some(names))
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A working directory.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Arc<Dir>,
    cache: Mutex<HashMap<Box<[u8]>, Arc<Dir>, foldhash::fast::FixedState>>,
    /// Grows whenever a directory may have lost its name: what was resolved before may be stale.
    generation: AtomicU64,
}

impl Tree {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { root: Dir::open(path)?, cache: Mutex::default(), generation: AtomicU64::new(0) })
    }

    pub(crate) fn root(&self) -> &Arc<Dir> {
        &self.root
    }

    /// Forgets every cached directory: called whenever a directory may have changed its name.
    pub(crate) fn forget_dirs(&self) {
        let mut cache = self.cache.lock();
        self.generation.fetch_add(1, Ordering::SeqCst);
        cache.clear();
    }

    /// Forgets one cached directory that has been removed.
    pub(crate) fn forget_dir(&self, path: RelPath<'_>) {
        let mut cache = self.cache.lock();
        self.generation.fetch_add(1, Ordering::SeqCst);
        cache.remove(path.as_bytes());
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Opens the directory at `path`, following no symlink on the way.
    pub(crate) fn dir(&self, path: RelPath<'_>) -> io::Result<Arc<Dir>> {
        if path.is_root() {
            return Ok(Arc::clone(&self.root));
        }
        if let Some(dir) = self.cache.lock().get(path.as_bytes()) {
            return Ok(Arc::clone(dir));
        }
        let generation = self.generation();
        let dir = open_beneath(&self.root, path)?;
        let mut cache = self.cache.lock();
        if self.generation() != generation {
            return Ok(dir); // may be on its way out
        }
        if cache.len() >= CACHED_DIRS {
            cache.clear();
        }
        cache.insert(path.as_bytes().into(), Arc::clone(&dir));
        Ok(dir)
    }

    /// Whether `dir` is still what has the name `path`: somebody outside may have renamed it.
    pub(crate) fn is_current(&self, path: RelPath<'_>, dir: &Dir) -> bool {
        if path.is_root() {
            return true;
        }
        let now = rustix::fs::statat(&self.root, path.as_bytes(), AtFlags::SYMLINK_NOFOLLOW);
        match now {
            Ok(now) => Stamp::device_and_stamp(&now).0 == dir.id,
            // Too long to be asked for at once: opened piece by piece.
            Err(Errno::NAMETOOLONG) => {
                open_beneath(&self.root, path).is_ok_and(|now| now.id == dir.id)
            }
            Err(_) => false,
        }
    }

    /// The name at `path`, whether or not something has it. Fails if its directory is not there.
    pub(crate) fn entry<'a>(&self, path: RelPath<'a>) -> io::Result<Entry<'a>> {
        Ok(match path.split() {
            None => self.root.entry(&b"."[..]),
            Some((parent, name)) => self.dir(parent)?.entry(name),
        })
    }

    /// As [`Tree::entry`], with `None` if its directory is not there.
    pub(crate) fn find<'a>(&self, path: RelPath<'a>) -> io::Result<Option<Entry<'a>>> {
        match self.entry(path) {
            Ok(entry) => Ok(Some(entry)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The stamps of many paths, looked at by as many threads as there are processors.
    pub(crate) fn stat_all<T: Sync>(
        &self,
        items: &[T],
        path: impl Fn(&T) -> RelPath<'_> + Sync,
    ) -> io::Result<Vec<Option<Stamp>>> {
        let stat = |items: &[T]| items.iter().map(|item| self.stat(path(item))).collect();
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let share = items.len().div_ceil(threads).max(STATS_PER_THREAD);
        let mut shares = items.chunks(share);
        let first = shares.next().unwrap_or_default();
        std::thread::scope(|scope| {
            let others: Vec<_> = shares.map(|items| scope.spawn(|| stat(items))).collect();
            let mut stamps: Vec<Option<Stamp>> = stat(first)?;
            for other in others {
                let found: io::Result<Vec<Option<Stamp>>> =
                    other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                stamps.append(&mut found?);
            }
            Ok(stamps)
        })
    }

    pub(crate) fn stat(&self, path: RelPath<'_>) -> io::Result<Option<Stamp>> {
        match self.find(path)? {
            Some(entry) => entry.stat(),
            None => Ok(None),
        }
    }
}

fn open_beneath(from: &Arc<Dir>, path: RelPath<'_>) -> io::Result<Arc<Dir>> {
    let mut at = Arc::clone(from);
    let mut rest = path.as_bytes();
    while !rest.is_empty() {
        let cut = if rest.len() <= PATH_STRETCH {
            rest.len()
        } else {
            rest[..PATH_STRETCH].iter().rposition(|byte| *byte == b'/').unwrap_or(rest.len())
        };
        at = Dir::from_fd(open_dir_at(at.as_fd(), &rest[..cut])?)?;
        rest = rest.get(cut + 1..).unwrap_or(b"");
    }
    Ok(at)
}

fn open_dir_at(dir: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) => {}
            result => return Ok(result?),
        }
    }
}

/// Errors that mean "no such path", a symlink in the way included.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG)
    )
}

/// A name in an open directory.
#[derive(Debug, Clone)]
pub(crate) struct Entry<'a> {
    dir: Arc<Dir>,
    name: Cow<'a, [u8]>,
}

impl Entry<'_> {
    /// The same, with a name of its own.
    pub(crate) fn into_owned(self) -> Entry<'static> {
        Entry { dir: self.dir, name: Cow::Owned(self.name.into_owned()) }
    }

    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    pub(crate) fn dir_handle(&self) -> &Arc<Dir> {
        &self.dir
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    pub(crate) fn stat(&self) -> io::Result<Option<Stamp>> {
        Ok(self.stat_id()?.map(|(_, stamp)| stamp))
    }

    pub(crate) fn stat_id(&self) -> io::Result<Option<(FileId, Stamp)>> {
        match rustix::fs::statat(&self.dir, self.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Stamp::device_and_stamp(&stat))),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// When the entry was made; `None` where the filesystem does not say.
    pub(crate) fn born(&self) -> io::Result<Option<(i64, u32)>> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let found = rustix::fs::statx(&self.dir, self.name(), flags, StatxFlags::BTIME)?;
        let says = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(says.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec)))
    }

    /// A descriptor that names the entry itself, also when it is a symlink.
    pub(crate) fn open_path(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.dir, self.name(), flags, Mode::empty())?)
    }

    pub(crate) fn open_dir(&self) -> io::Result<Arc<Dir>> {
        Dir::from_fd(open_dir_at(self.dir(), self.name())?)
    }

    pub(crate) fn open_read(&self) -> io::Result<File> {
        self.open_regular(OFlags::RDONLY, 0o400)
    }

    pub(crate) fn open_write(&self) -> io::Result<File> {
        self.open_regular(OFlags::RDWR, 0o600)
    }

    /// Opens a regular file. Its owner may lack the permission itself (mode 0200, or a write
    /// through a handle opened before a chmod): then it is lent for the moment of opening.
    fn open_regular(&self, access: OFlags, needed: u32) -> io::Result<File> {
        // NONBLOCK: a FIFO swapped in at this name must not hang us.
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = match rustix::fs::openat(&self.dir, self.name(), flags, Mode::empty()) {
            Err(Errno::ACCESS) => self.open_with_lent_mode(access, needed)?,
            result => result?,
        };
        let file = File::from(opened);
        if !Stamp::of(&file)?.1.is_file() {
            return Err(Errno::INVAL.into());
        }
        Ok(file)
    }

    fn open_with_lent_mode(&self, access: OFlags, needed: u32) -> io::Result<OwnedFd> {
        let handle = self.open_path()?;
        let stamp = Stamp::of(&handle)?.1;
        if !stamp.is_file() {
            return Err(Errno::ACCESS.into());
        }
        let by_handle = fd_path(&handle);
        let lend = |permissions| rustix::fs::chmod(&by_handle, Mode::from_raw_mode(permissions));
        lend(stamp.permissions() | needed)?;
        let opened = rustix::fs::open(&by_handle, access | OFlags::CLOEXEC, Mode::empty());
        lend(stamp.permissions())?;
        Ok(opened?)
    }

    pub(crate) fn create_file(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        Ok(File::from(rustix::fs::openat(&self.dir, self.name(), flags, mode)?))
    }

    pub(crate) fn mkdir(&self) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&self.dir, self.name(), Mode::from_raw_mode(0o700))?)
    }

    pub(crate) fn symlink(&self, target: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, &self.dir, self.name())?)
    }

    pub(crate) fn mknod(&self, kind: FileType, device: u64) -> io::Result<()> {
        let mode = Mode::from_raw_mode(0o600);
        Ok(rustix::fs::mknodat(&self.dir, self.name(), kind, mode, device)?)
    }

    pub(crate) fn read_link(&self) -> io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.dir, self.name(), Vec::new())?.into_bytes())
    }

    pub(crate) fn unlink(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir, self.name(), AtFlags::empty())?)
    }

    pub(crate) fn rmdir(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir, self.name(), AtFlags::REMOVEDIR)?)
    }

    /// Renames onto a free name; never replaces anything.
    pub(crate) fn rename_to(&self, to: &Entry<'_>) -> io::Result<()> {
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(&self.dir, self.name(), &to.dir, to.name(), flags) {
            Err(Errno::INVAL | Errno::NOSYS) => {
                if to.stat()?.is_some() {
                    return Err(Errno::EXIST.into());
                }
                Ok(rustix::fs::renameat(&self.dir, self.name(), &to.dir, to.name())?)
            }
            result => Ok(result?),
        }
    }

    pub(crate) fn exchange_with(&self, other: &Entry<'_>) -> io::Result<()> {
        let flags = RenameFlags::EXCHANGE;
        Ok(rustix::fs::renameat_with(&self.dir, self.name(), &other.dir, other.name(), flags)?)
    }

    pub(crate) fn link_to(&self, to: &Entry<'_>) -> io::Result<()> {
        Ok(rustix::fs::linkat(&self.dir, self.name(), &to.dir, to.name(), AtFlags::empty())?)
    }
}

/// Visits everything below `dir` (not itself), directories before their contents.
pub(crate) fn walk(
    dir: &Arc<Dir>,
    path: RelPath<'_>,
    visit: &mut dyn FnMut(RelPath<'_>, FileId, &Stamp, &Entry<'_>) -> io::Result<()>,
) -> io::Result<()> {
    for name in dir.names()? {
        let below: RelPathBuf = path.join(&name).map_err(|_| Errno::INVAL)?;
        let entry = dir.entry(name);
        let Some((id, stamp)) = entry.stat_id()? else {
            continue;
        };
        visit(below.as_path(), id, &stamp, &entry)?;
        if stamp.is_dir() {
            walk(&entry.open_dir()?, below.as_path(), visit)?;
        }
    }
    Ok(())
}

/// As [`walk`], no more than `limit` entries; `false` if there are more.
pub(crate) fn walk_some(
    dir: &Arc<Dir>,
    path: RelPath<'_>,
    limit: usize,
    visit: &mut dyn FnMut(RelPath<'_>, &Stamp),
) -> io::Result<bool> {
    let mut left = limit;
    let walked = walk(dir, path, &mut |path, _, stamp, _| {
        left = left.checked_sub(1).ok_or(io::ErrorKind::QuotaExceeded)?;
        visit(path, stamp);
        Ok(())
    });
    match walked {
        Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => Ok(false),
        result => result.map(|()| true),
    }
}

/// Where the first copy of a hard-linked file went, by the inode of its source.
pub(crate) type CopiedLinks = HashMap<FileId, (Arc<Dir>, Vec<u8>)>;

/// Copies an entry, recursively, with all its metadata; hard links below it stay hard links.
pub(crate) fn copy_entry(source: &Entry<'_>, target: &Entry<'_>) -> io::Result<()> {
    copy_linked(source, target, &mut CopiedLinks::new())
}

/// As [`copy_entry`]; files that were copied before under another name are linked.
pub(crate) fn copy_linked(
    source: &Entry<'_>,
    target: &Entry<'_>,
    links: &mut CopiedLinks,
) -> io::Result<()> {
    let (id, stamp) = source.stat_id()?.ok_or(Errno::NOENT)?;
    if !stamp.is_dir() && stamp.links > 1 {
        if let Some((dir, name)) = links.get(&id) {
            return dir.entry(name.as_slice()).link_to(target);
        }
        links.insert(id, (Arc::clone(target.dir_handle()), target.name().to_vec()));
    }
    let meta = Meta::read(source, stamp, MetaScope::Full)?;
    match stamp.file_type() {
        FileType::Directory => {
            target.mkdir()?;
            let (from, to) = (source.open_dir()?, target.open_dir()?);
            for name in from.names()? {
                copy_linked(&from.entry(name.as_slice()), &to.entry(name.as_slice()), links)?;
            }
        }
        FileType::RegularFile => copy_content(source, target, stamp.size)?,
        FileType::Symlink => target.symlink(&source.read_link()?)?,
        special => target.mknod(special, stamp.rdev)?,
    }
    meta.apply(target)
}

fn copy_content(source: &Entry<'_>, target: &Entry<'_>, size: u64) -> io::Result<()> {
    let (from, to) = (source.open_read()?, target.create_file()?);
    if size > 0 && clone_file(&to, &from)? {
        return Ok(());
    }
    to.set_len(size)?;
    for (start, end) in data_segments(&from, 0, size)? {
        copy_range(&from, &to, start, end)?;
    }
    Ok(())
}
