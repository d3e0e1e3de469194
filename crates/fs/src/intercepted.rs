//! The filesystem itself, and the questions it asks.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use codeagent_interceptor::{FileId, Mutation, Permit, WriteInterceptor};
use parking_lot::RwLock;
use rustix::fs::{Mode, OFlags};
use rustix::process::Resource;
use serde::{Deserialize, Serialize};
use virtiofsd::filesystem::{Context, Entry, FileSystem, FsOptions};
use virtiofsd::fuse::Attr;
use virtiofsd::passthrough::{CachePolicy, Config, NegotiationMode, PassthroughFs};

use crate::handles::Handles;
use crate::host_file;
use crate::in_flight::{InFlight, Mutating};
use crate::paths::{Name, PathMap};
use crate::thread;

/// Descriptors that are not given to clients: the engine needs some for itself.
const RESERVED_DESCRIPTORS: u64 = 128;

/// How long clients may keep names and attributes, where they may at all: so old can be what they
/// see of a change that somebody makes on the host.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// What clients may keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cache {
    /// Nothing. Files cannot be mapped for writing.
    Never,
    /// Contents, but they ask about names and attributes each time. Coherent with changes on the
    /// host, and shared mappings work.
    #[default]
    Coherent,
    /// Contents, names and attributes, the latter for at most a second. The transport has to tell
    /// them what the engine changes.
    Auto,
}

impl Cache {
    fn timeout(self) -> Duration {
        if self == Self::Auto { KEPT_FOR } else { Duration::ZERO }
    }
}

#[derive(Debug, Clone)]
pub struct FsConfig {
    pub root: PathBuf,
    pub cache: Cache,
    /// Mutations fail with EROFS.
    pub read_only: bool,
    /// Files and directories that may be open at once; further ones fail with ENFILE.
    pub max_handles: u64,
}

impl FsConfig {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), cache: Cache::default(), read_only: false, max_handles: 100_000 }
    }
}

/// The filesystem below, by itself: what interception is measured against.
pub struct Plain {
    pub fs: PassthroughFs,
    /// Open for as long as the filesystem finds its root through it.
    pub root: OwnedFd,
}

impl Plain {
    /// Opens `config.root`; what is mounted over it later does not matter.
    pub fn new(config: &FsConfig) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&config.root, flags, Mode::empty())?;
        let below = Config {
            // Not the path itself: it need not be UTF-8, and may soon lead to our own mount.
            root_dir: format!("/proc/self/fd/{}/.", root.as_raw_fd()),
            entry_timeout: config.cache.timeout(),
            attr_timeout: config.cache.timeout(),
            cache_policy: match config.cache {
                Cache::Coherent | Cache::Auto => CachePolicy::Auto,
                Cache::Never => CachePolicy::Never,
            },
            xattr: true,
            // With clients that check permissions themselves and leave the umask to us.
            posix_acl: NegotiationMode::Auto,
            killpriv_v2: true,
            guest_fd_limit: client_descriptors(),
            ..Config::default()
        };
        // In a thread of its own, because it sets the umask.
        let made =
            std::thread::spawn(move || thread::prepare().and_then(|()| PassthroughFs::new(below)));
        let fs = made.join().map_err(|_| io::Error::other("the filesystem failed to start"))??;
        fs.init(FsOptions::HANDLE_KILLPRIV_V2)?;
        Ok(Self { fs, root })
    }
}

impl fmt::Debug for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plain").field("root", &self.root).finish_non_exhaustive()
    }
}

/// A directory of the host, in which nothing changes without the interceptor's permission.
///
/// Read-only operations go straight to the host. Any number of threads may call in; one that waits
/// for the answer to a safeguard keeps no lock that a read-only operation takes.
pub struct InterceptedFs<I> {
    pub(crate) fs: PassthroughFs,
    pub(crate) interceptor: Arc<I>,
    pub(crate) paths: PathMap,
    pub(crate) handles: Handles,
    pub(crate) read_only: bool,
    in_flight: InFlight,
    /// Paths are true while this is held: shared by mutations, owned by renames of directories.
    pub(crate) names: RwLock<()>,
    /// The filesystem of the root.
    device: u64,
    cache: Cache,
    /// Open for as long as the filesystem below finds its root through it.
    root: OwnedFd,
}

impl<I: WriteInterceptor> InterceptedFs<I> {
    /// Opens `config.root`; what is mounted over it later does not matter.
    pub fn new(config: &FsConfig, interceptor: Arc<I>) -> io::Result<Self> {
        let Plain { fs, root } = Plain::new(config)?;
        Ok(Self {
            fs,
            interceptor,
            paths: PathMap::new(),
            handles: Handles::new(config.max_handles),
            read_only: config.read_only,
            in_flight: InFlight::default(),
            names: RwLock::new(()),
            device: FileId::of(&root)?.device,
            cache: config.cache,
            root,
        })
    }

    pub fn interceptor(&self) -> &Arc<I> {
        &self.interceptor
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// What clients may keep.
    pub fn cache(&self) -> Cache {
        self.cache
    }

    /// The inodes of files that clients have open, mapped ones among them.
    pub fn open_files(&self) -> Vec<u64> {
        self.handles.files()
    }

    /// The inodes of files that clients have open for writing.
    pub fn writable_files(&self) -> Vec<u64> {
        self.handles.writable_files()
    }

    /// Mutations that have begun and not ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight.count()
    }

    /// Mutations that have begun since the start.
    pub fn begun(&self) -> u64 {
        self.in_flight.begun()
    }

    /// Waits until no mutation is on its way; `false` if that took longer than `timeout`.
    pub fn wait_until_quiet(&self, timeout: Duration) -> bool {
        self.in_flight.wait_until_quiet(timeout)
    }

    /// Calls `tell` whenever clients know so many nodes that descriptors may run out. It must
    /// return at once; [`InterceptedFs::surplus`] says what they should forget.
    pub fn when_crowded(&self, tell: impl Fn() + Send + Sync + 'static) {
        let limit = usize::try_from(client_descriptors()).unwrap_or(usize::MAX);
        self.paths.when_crowded(limit, Box::new(tell));
    }

    /// Names of files that clients should forget, so that there is room again.
    pub fn surplus(&self) -> Vec<Name> {
        self.paths.surplus()
    }

    /// Lets clients forget something first, if there is hardly room for what they ask for.
    pub(crate) fn give_way(&self) {
        if let Some(delay) = self.paths.delay() {
            std::thread::sleep(delay);
        }
    }

    /// Names that clients know and that stand for something else, or for nothing, on the host.
    pub fn outdated(&self) -> Vec<Name> {
        let (ids, pid) = (rustix::process::geteuid().as_raw(), 0);
        let ctx = Context { uid: ids.into(), gid: ids.into(), pid };
        let is_outdated = |(name, node): &(Name, u64)| {
            let Ok(c_name) = CString::new(name.name.clone()) else { return false };
            match self.fs.lookup(ctx, name.parent, &c_name) {
                Ok(entry) => {
                    self.fs.forget(ctx, entry.inode, 1);
                    entry.inode != *node
                }
                Err(_) => true,
            }
        };
        self.paths.names().into_iter().filter(is_outdated).map(|(name, _)| name).collect()
    }

    /// Every node that clients know, and whether it is a directory.
    pub fn nodes(&self) -> Vec<(u64, bool)> {
        self.paths.nodes()
    }

    /// Every mutation begins here, after its names have been checked.
    pub(crate) fn begin(&self) -> io::Result<Mutating<'_>> {
        if self.read_only {
            return Err(read_only());
        }
        thread::prepare()?;
        self.give_way();
        Ok(self.in_flight.enter())
    }

    /// As many names as clients can find: not those that the interceptor has of removed files.
    pub(crate) fn count_names(&self, ctx: Context, inode: u64, attr: &mut Attr) {
        if attr.mode & libc::S_IFMT != libc::S_IFREG {
            return;
        }
        let probably = FileId { device: self.device, inode: attr.ino };
        let kept = self.interceptor.kept_names(probably);
        if kept > 0
            && let Ok(Some(file)) = host_file::behind_inode(&self.fs, ctx, inode)
            && FileId::of(&file).is_ok_and(|id| id == probably)
        {
            attr.nlink = attr.nlink.saturating_sub(kept);
        }
    }

    pub(crate) fn ask(&self, mutation: &Mutation<'_>) -> io::Result<Permit<'_>> {
        self.interceptor
            .before(mutation)
            .map_err(|error| io::Error::from_raw_os_error(error.errno()))
    }
}

pub(crate) fn has(flags: u32, flag: i32) -> bool {
    flags as i32 & flag != 0
}

pub(crate) fn is_dir(entry: &Entry) -> bool {
    entry.attr.mode & libc::S_IFMT == libc::S_IFDIR
}

pub(crate) fn read_only() -> io::Error {
    io::Error::from_raw_os_error(libc::EROFS)
}

pub(crate) fn finish<T>(permit: Permit<'_>, outcome: io::Result<T>) -> io::Result<T> {
    match outcome {
        Ok(_) => permit.done(),
        Err(_) => permit.failed(),
    }
    outcome
}

/// How many descriptors are for clients: one for each node they know, one for each open handle.
fn client_descriptors() -> u64 {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    limit.saturating_sub(RESERVED_DESCRIPTORS)
}

impl<I> fmt::Debug for InterceptedFs<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InterceptedFs")
            .field("read_only", &self.read_only)
            .field("in_flight", &self.in_flight.count())
            .finish_non_exhaustive()
    }
}
