//! The filesystem itself, and the questions it asks.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use codeagent_interceptor::{
    Entered, FileId, Mutation, Permit, UndoError, Whereabouts, WriteInterceptor,
};
use parking_lot::RwLock;
use rustix::fs::{Mode, OFlags};
use rustix::process::Resource;
use serde::{Deserialize, Serialize};
use virtiofsd::filesystem::{Context, Entry, FileSystem, FsOptions};
use virtiofsd::fuse::Attr;
use virtiofsd::passthrough::{CachePolicy, Config, NegotiationMode, PassthroughFs};

use crate::handles::{Handle, Handles, Writable, Writers};
use crate::host_file;
use crate::in_flight::{InFlight, Mutating, Unanswered};
use crate::look_again::OpenDir;
use crate::paths::{ClientId, Name, PathMap};
use crate::thread;

/// Descriptors that are not given to clients: the engine needs some for itself.
const RESERVED_DESCRIPTORS: u64 = 128;
/// Directories that are kept open to look at names in them, if there are enough descriptors.
const MAX_OPEN_DIRS: u64 = 1024;

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
    pub(crate) fn timeout(self) -> Duration {
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

/// What the filesystem below is told that clients can do. The umask comes with the requests: where a
/// directory has a default ACL, that counts instead. Clients that mask modes themselves lose
/// nothing by it.
const CAPABLE: FsOptions = FsOptions::HANDLE_KILLPRIV_V2
    .union(FsOptions::POSIX_ACL)
    .union(FsOptions::DONT_MASK)
    .union(FsOptions::SETXATTR_EXT);

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

/// A directory of the host, in which nothing changes without the interceptor's permission, as one
/// client sees it: a mount, a guest, requests for single files.
///
/// Read-only operations go straight to the host. Any number of threads may call in; one that waits
/// for the answer to a safeguard keeps no lock that a read-only operation takes.
///
/// Clients share what is known of names: a directory that one of them renames has its new path for
/// all. What a client was told of and has open is given back when it ends.
pub struct InterceptedFs<I> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) interceptor: Arc<I>,
    pub(crate) client: ClientId,
    pub(crate) handles: Handles,
    pub(crate) read_only: bool,
    /// Of a client that takes answers only while it runs.
    unanswered: Arc<InFlight>,
}

/// What all clients of a directory have in common.
pub(crate) struct Shared {
    pub(crate) fs: PassthroughFs,
    pub(crate) paths: PathMap,
    in_flight: InFlight,
    /// Paths are true while this is held: shared by mutations, owned by renames of directories.
    pub(crate) names: RwLock<()>,
    pub(crate) writers: Writers,
    next_client: AtomicU32,
    /// What clients are offered.
    pub(crate) offered: FsOptions,
    /// The filesystem of the root.
    pub(crate) device: u64,
    cache: Cache,
    /// Open for as long as the filesystem below finds its root through it.
    root: OwnedFd,
}

impl<I: WriteInterceptor> InterceptedFs<I> {
    /// Opens `config.root`; what is mounted over it later does not matter.
    pub fn new(config: &FsConfig, interceptor: Arc<I>) -> io::Result<Self> {
        let Plain { fs, root } = Plain::new(config)?;
        let offered = fs.init(CAPABLE)?;
        let FileId { device, inode: number } = FileId::of(&root)?;
        let paths = PathMap::new(number, usize::try_from(open_dirs()).unwrap_or(usize::MAX));
        paths.root_is_open(OpenDir::new(root.try_clone()?)?);
        let shared = Shared {
            fs,
            paths,
            in_flight: InFlight::default(),
            names: RwLock::new(()),
            writers: Writers::default(),
            next_client: AtomicU32::new(1),
            offered,
            device,
            cache: config.cache,
            root,
        };
        Ok(Self {
            shared: Arc::new(shared),
            interceptor,
            client: ClientId(0),
            handles: Handles::new(config.max_handles),
            read_only: config.read_only,
            unanswered: Arc::default(),
        })
    }

    /// The same directory, for another client.
    #[must_use]
    pub fn another(&self) -> Self {
        self.another_with(Arc::clone(&self.interceptor))
    }

    /// The same, whose mutations somebody else is asked about.
    #[must_use]
    pub fn another_with<J>(&self, interceptor: Arc<J>) -> InterceptedFs<J> {
        InterceptedFs {
            shared: Arc::clone(&self.shared),
            interceptor,
            client: ClientId(self.shared.next_client.fetch_add(1, Ordering::Relaxed)),
            handles: Handles::new(self.handles.limit()),
            read_only: self.read_only,
            unanswered: Arc::default(),
        }
    }

    pub fn interceptor(&self) -> &Arc<I> {
        &self.interceptor
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.shared.root.as_fd()
    }

    /// What clients may keep.
    pub fn cache(&self) -> Cache {
        self.shared.cache
    }

    /// The inodes of files that clients have open, mapped ones among them.
    pub fn open_files(&self) -> Vec<u64> {
        self.handles.files()
    }

    /// The inodes of files that clients may have mapped and write to through memory.
    pub fn mappable_files(&self) -> Vec<u64> {
        self.handles.mappable_files()
    }

    /// Whether a mutation that comes now might have to wait for somebody's answer, or for an undo.
    pub fn may_wait(&self) -> bool {
        self.interceptor.may_wait()
    }

    /// Counts a mutation as on its way until its client has been told how it went, too.
    pub fn until_told<T>(&self, work: impl FnOnce() -> T) -> T {
        let _on_its_way = self.shared.in_flight.enter();
        work()
    }

    /// A request was taken from the client, of whichever kind. To be dropped when it has its answer.
    pub fn taken(&self) -> Unanswered {
        Unanswered::among(&self.unanswered)
    }

    /// Waits until every request that was [taken](Self::taken) has its answer; `false` if that took
    /// longer than `limit`.
    pub fn wait_until_answered(&self, limit: Duration) -> bool {
        self.unanswered.wait_until_quiet(Duration::ZERO, limit)
    }

    /// Mutations that have begun and not ended.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.count()
    }

    /// Waits until no mutation has been on its way for as long as `quiet`; `false` if that took longer
    /// than `limit`.
    pub fn wait_until_quiet(&self, quiet: Duration, limit: Duration) -> bool {
        self.shared.in_flight.wait_until_quiet(quiet, limit)
    }

    /// Calls `tell` whenever clients know so many nodes that descriptors may run out. It must
    /// return at once; [`InterceptedFs::surplus`] says what they should forget.
    pub fn when_crowded(&self, tell: impl Fn() + Send + Sync + 'static) {
        let limit = usize::try_from(client_descriptors()).unwrap_or(usize::MAX);
        self.shared.paths.when_crowded(self.client, limit, Box::new(tell));
    }

    /// Names of files that clients should forget, so that there is room again.
    pub fn surplus(&self) -> Vec<Name> {
        self.shared.paths.surplus()
    }

    /// Lets clients forget something first, if there is hardly room for what they ask for.
    pub(crate) fn give_way(&self) {
        if let Some(delay) = self.shared.paths.delay() {
            std::thread::sleep(delay);
        }
    }

    /// Names that clients know and that stand for something else, or for nothing, on the host.
    pub fn outdated(&self) -> Vec<Name> {
        let ctx = nobody();
        let is_outdated = |(name, node): &(Name, u64)| {
            let Ok(c_name) = CString::new(name.name.clone()) else { return false };
            match self.shared.fs.lookup(ctx, name.parent, &c_name) {
                Ok(entry) => {
                    self.shared.fs.forget(ctx, entry.inode, 1);
                    entry.inode != *node
                }
                Err(_) => true,
            }
        };
        self.shared.paths.names().into_iter().filter(is_outdated).map(|(name, _)| name).collect()
    }

    /// Every node that clients know, and whether it is a directory.
    pub fn nodes(&self) -> Vec<(u64, bool)> {
        self.shared.paths.nodes()
    }

    /// A file was opened for writing, while no rename could touch its name.
    pub(crate) fn remember(&self, handle: u64, open: Writable) {
        self.shared.writers.add(open.inode);
        self.handles.remember(handle, open);
    }

    /// The client has closed it, or will never hear of it.
    pub(crate) fn closed(&self, handle: u64, open: Handle) -> io::Result<()> {
        if let Some(open) = self.handles.close(handle, open)? {
            self.shared.writers.remove(open.inode);
        }
        Ok(())
    }

    /// Gives back what the client has: it has gone, or begins anew.
    pub(crate) fn leave(&self) {
        give_back(&self.shared, self.client, &self.handles);
    }

    /// Every mutation begins here, after its names have been checked.
    pub(crate) fn begin(&self) -> io::Result<(Mutating<'_>, Entered<'_>)> {
        if self.read_only {
            return Err(read_only());
        }
        thread::prepare()?;
        self.give_way();
        let mutating = self.shared.in_flight.enter();
        let entered = self.interceptor.enter();
        let refused = |error: UndoError| io::Error::from_raw_os_error(error.errno());
        Ok((mutating, entered.map_err(refused)?))
    }

    /// As many names as clients can find: not those that the interceptor has of removed files.
    pub(crate) fn count_names(&self, ctx: Context, inode: u64, attr: &mut Attr) {
        if attr.mode & libc::S_IFMT != libc::S_IFREG {
            return;
        }
        let probably = FileId { device: self.shared.device, inode: attr.ino };
        let kept = self.interceptor.kept_names(probably);
        if kept > 0
            && let Ok(Some(file)) = host_file::behind_inode(&self.shared.fs, ctx, inode)
            && FileId::of(&file).is_ok_and(|id| id == probably)
        {
            attr.nlink = attr.nlink.saturating_sub(kept);
        }
    }

    /// For a mutation in a directory that the client knows, whatever that is called by now.
    pub(crate) fn ask_within(
        &self,
        parent: u64,
        mutation: &Mutation<'_>,
    ) -> io::Result<Permit<'_>> {
        let dir = self.shared.paths.number(parent);
        self.ask(mutation, Whereabouts { dir, ..Whereabouts::default() })
    }

    pub(crate) fn ask(
        &self,
        mutation: &Mutation<'_>,
        whereabouts: Whereabouts,
    ) -> io::Result<Permit<'_>> {
        self.interceptor
            .before_at(mutation, whereabouts)
            .map_err(|error| io::Error::from_raw_os_error(error.errno()))
    }
}

impl<I> Drop for InterceptedFs<I> {
    fn drop(&mut self) {
        give_back(&self.shared, self.client, &self.handles);
    }
}

fn give_back(shared: &Shared, client: ClientId, handles: &Handles) {
    let ctx = nobody();
    let (open, writable) = handles.take();
    for open in writable {
        shared.writers.remove(open.inode);
    }
    for (handle, open) in open {
        // Closed meanwhile, at the worst.
        let _ = match open.is_dir {
            true => shared.fs.releasedir(ctx, open.inode, 0, handle),
            false => shared.fs.release(ctx, open.inode, 0, handle, false, false, None),
        };
    }
    let known = shared.paths.leave(client);
    shared.fs.batch_forget(ctx, known.into_iter().map(|inode| (inode, 1)).collect());
}

/// Where no client asks.
fn nobody() -> Context {
    let user = rustix::process::geteuid().as_raw();
    Context { uid: user.into(), gid: user.into(), pid: 0 }
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
    descriptors().saturating_sub(RESERVED_DESCRIPTORS + open_dirs())
}

fn open_dirs() -> u64 {
    (descriptors() / 16).min(MAX_OPEN_DIRS)
}

fn descriptors() -> u64 {
    rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

impl<I> fmt::Debug for InterceptedFs<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InterceptedFs")
            .field("read_only", &self.read_only)
            .field("in_flight", &self.shared.in_flight.count())
            .finish_non_exhaustive()
    }
}
