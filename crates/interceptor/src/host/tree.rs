//! A directory tree reached from one descriptor, entry by entry.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use codeagent_common::RelPath;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, SeekFrom};
use rustix::io::Errno;

use super::lend::{LIST, Need, is_refusal, lend};
use super::{Entry, FileId, Stamp};

/// Directory descriptors kept open between operations; beyond this the cache starts afresh.
const CACHED_DIRS: usize = 512;

/// Bytes of a directory that are read at once.
pub(super) const LISTED_AT_ONCE: usize = 32 << 10;

/// Fewer are not worth another thread.
const STATS_PER_THREAD: usize = 512;

/// Longest stretch of a path handed to the kernel at once (its own limit is 4096).
const PATH_STRETCH: usize = 3072;

/// An open directory.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    pub(crate) id: FileId,
    /// It was opened to be listed, not only to be worked in; and whether it has been.
    lists: Option<AtomicBool>,
}

impl Dir {
    /// Opens a directory by an ordinary path; only for roots the user named.
    pub(crate) fn open(path: &Path) -> io::Result<Arc<Self>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::from_fd(rustix::fs::open(path, flags, Mode::empty())?)
    }

    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<Arc<Self>> {
        let id = FileId::of(&fd)?;
        Ok(Arc::new(Self { fd, id, lists: None }))
    }

    pub(crate) fn entry<'a>(self: &Arc<Self>, name: impl Into<Cow<'a, [u8]>>) -> Entry<'a> {
        Entry::new(Arc::clone(self), name.into())
    }

    /// Names in this directory, without `.` and `..`, in no order.
    pub(crate) fn names(&self) -> io::Result<Vec<Vec<u8>>> {
        Ok(self.listing()?.into_iter().map(|(name, _)| name).collect())
    }

    /// As [`Dir::names`], with what each is, as far as the filesystem says so.
    pub(crate) fn listing(&self) -> io::Result<Vec<(Vec<u8>, FileType)>> {
        if let Some(has_been) = &self.lists {
            if has_been.swap(true, Ordering::Relaxed) {
                rustix::fs::seek(&self.fd, SeekFrom::Start(0))?;
            }
            return read_listing(&self.fd);
        }
        let listing = self.open_listing().or_else(|error| match is_refusal(&error) {
            true => lend(&[Need::of(self.as_fd(), LIST)], &mut || self.open_listing()),
            false => Err(error),
        })?;
        read_listing(listing)
    }

    fn open_listing(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, ".", flags, Mode::empty())?)
    }

    /// As [`Dir::names`], unless they take more than `limit_bytes`: then `None`.
    pub(crate) fn names_up_to<S: Default + std::hash::BuildHasher>(
        &self,
        limit_bytes: usize,
    ) -> io::Result<Option<HashSet<Box<[u8]>, S>>> {
        let listing = self.open_listing()?;
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

fn read_listing(dir: impl AsFd) -> io::Result<Vec<(Vec<u8>, FileType)>> {
    let mut buffer = [const { MaybeUninit::uninit() }; LISTED_AT_ONCE];
    let mut listing = rustix::fs::RawDir::new(dir, &mut buffer);
    let mut entries = Vec::new();
    while let Some(entry) = listing.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            entries.push((name.to_vec(), entry.file_type()));
        }
    }
    Ok(entries)
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

    /// Writes everything on its filesystem to the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(rustix::fs::openat(
            &self.root,
            ".",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?)?)
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
        self.keep(path, &dir, generation);
        Ok(dir)
    }

    /// Remembers a directory that was opened at a time of this generation.
    fn keep(&self, path: RelPath<'_>, dir: &Arc<Dir>, generation: u64) {
        let mut cache = self.cache.lock();
        if self.generation() != generation {
            return; // may be on its way out
        }
        if cache.len() >= CACHED_DIRS {
            cache.clear();
        }
        cache.insert(path.as_bytes().into(), Arc::clone(dir));
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
            // Nobody may look there: what is known of it has to do.
            Err(Errno::ACCESS) => true,
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

    /// The directory at `path`, for what the engine does of its own accord.
    pub(crate) fn owned_dir(&self, path: RelPath<'_>) -> io::Result<Arc<Dir>> {
        match self.dir(path) {
            Err(error) if is_refusal(&error) => reach_dir(&self.root, path),
            result => result,
        }
    }

    /// As [`Tree::owned_dir`], to be listed, in a tree of one filesystem that nobody else uses. What
    /// is there was looked at, and has this inode.
    pub(crate) fn dir_to_list(&self, path: RelPath<'_>, inode: u64) -> io::Result<Arc<Dir>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let name = if path.is_root() { b"." } else { path.as_bytes() };
        let generation = self.generation();
        match openat_beneath(self.root.as_fd(), name, flags) {
            Ok(fd) => {
                let dir = Arc::new(Dir {
                    id: FileId { inode, ..self.root.id },
                    fd,
                    lists: Some(AtomicBool::new(false)),
                });
                self.keep(path, &dir, generation);
                Ok(dir)
            }
            Err(Errno::ACCESS | Errno::NAMETOOLONG) => self.owned_dir(path),
            Err(errno) => Err(errno.into()),
        }
    }

    /// As [`Tree::entry`], for what the engine does of its own accord.
    pub(crate) fn owned_entry<'a>(&self, path: RelPath<'a>) -> io::Result<Entry<'a>> {
        match self.entry(path) {
            Err(error) if is_refusal(&error) => reach(&self.root, path),
            result => result.map(Entry::owned),
        }
    }

    /// As [`Tree::owned_entry`], with `None` if its directory is not there.
    pub(crate) fn find_owned<'a>(&self, path: RelPath<'a>) -> io::Result<Option<Entry<'a>>> {
        match self.owned_entry(path) {
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
        // Asking how many there are takes longer than looking at a few paths.
        let threads = match items.len() > STATS_PER_THREAD {
            true => std::thread::available_parallelism().map_or(1, NonZero::get),
            false => 1,
        };
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

    /// The stamp of what is at `path`. What is not even its owner's to reach counts as absent:
    /// nothing could be done about it.
    pub(crate) fn stat(&self, path: RelPath<'_>) -> io::Result<Option<Stamp>> {
        match self.find_owned(path).and_then(|found| found.map_or(Ok(None), |entry| entry.stat())) {
            Err(error) if is_refusal(&error) => Ok(None),
            result => result,
        }
    }
}

/// The name at `path` below `from`, with permission lent on the way. Not for the cache: others
/// would get through where they may not.
pub(super) fn reach<'a>(from: &Arc<Dir>, path: RelPath<'a>) -> io::Result<Entry<'a>> {
    Ok(match path.split() {
        None => from.entry(&b"."[..]),
        Some((parent, name)) => reach_dir(from, parent)?.entry(name),
    }
    .owned())
}

pub(super) fn reach_dir(from: &Arc<Dir>, path: RelPath<'_>) -> io::Result<Arc<Dir>> {
    path.components().try_fold(Arc::clone(from), |dir, name| dir.entry(name).owned().open_dir())
}

pub(super) fn open_beneath(from: &Arc<Dir>, path: RelPath<'_>) -> io::Result<Arc<Dir>> {
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

pub(super) fn open_dir_at(dir: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat_beneath(dir, path, flags)
}

pub(super) fn openat_beneath(
    dir: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) => {}
            result => return result,
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
