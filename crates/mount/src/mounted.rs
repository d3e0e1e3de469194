//! A mount, from its beginning to its end.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use codeagent_fs::{Cache, FsConfig, InterceptedFs};
use codeagent_interceptor::{Onlooker, UndoEngine};
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};

use crate::adapter::Adapter;
use crate::kernel_cache::KernelCache;
use crate::{local, stale};

/// The shortest time the kernel can keep attributes: until its clock ticks. A path is looked up name
/// by name; without this, each directory on the way would be asked for a second time, for the
/// permissions that came with its name.
const ONE_TICK: Duration = Duration::from_nanos(1);

/// How long an unmount waits for mutations that are on their way.
const QUIET_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct MountOptions {
    pub source: PathBuf,
    /// May be the source itself, which then lies below its own mount.
    pub mount_point: PathBuf,
    pub cache: Cache,
    pub read_only: bool,
    /// Requests that are served at once.
    pub threads: usize,
}

impl MountOptions {
    pub fn new(source: impl Into<PathBuf>, mount_point: impl Into<PathBuf>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            source: source.into(),
            mount_point: mount_point.into(),
            cache: Cache::default(),
            read_only: false,
            threads: (2 * cores).clamp(4, 16),
        }
    }
}

/// How a mount ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    Cleanly,
    /// Some program still had files open in it; it can go on until it closes them, or until this
    /// process ends.
    WhileInUse,
}

/// A folder that is served. Unmounted when it is dropped.
pub struct Mount {
    engine: Arc<UndoEngine>,
    fs: Arc<InterceptedFs<UndoEngine>>,
    mount_point: PathBuf,
    /// Gone once the mount has ended.
    session: Option<BackgroundSession>,
    /// Told by the engine what it changes.
    _kernel_cache: Arc<KernelCache>,
}

impl Mount {
    pub fn start(options: &MountOptions, engine: Arc<UndoEngine>) -> io::Result<Self> {
        // Before anything is mounted: the source may be about to disappear below the mount.
        let fs = Arc::new(InterceptedFs::new(&fs_config(options), Arc::clone(&engine))?);
        let mount_point = options.mount_point.canonicalize()?;
        let adapter = adapter(options, Arc::clone(&fs))?;
        let session = Session::new(adapter, &mount_point, &fuse_config(options))?.spawn()?;
        let kernel_cache = KernelCache::start(&fs, options.cache, session.notifier())?;
        let onlooker: Arc<dyn Onlooker> = Arc::<KernelCache>::clone(&kernel_cache);
        engine.set_onlooker(Arc::downgrade(&onlooker));
        let session = Some(session);
        Ok(Self { engine, fs, mount_point, session, _kernel_cache: kernel_cache })
    }

    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    pub fn engine(&self) -> &Arc<UndoEngine> {
        &self.engine
    }

    pub fn fs(&self) -> &Arc<InterceptedFs<UndoEngine>> {
        &self.fs
    }

    /// Ends quiet ambient steps, until somebody says stop or unmounts. Looks every `interval`.
    pub fn serve(
        &self,
        stop: &Receiver<()>,
        interval: Duration,
    ) -> codeagent_interceptor::Result<()> {
        while self.is_mounted() {
            match stop.recv_timeout(interval) {
                Err(RecvTimeoutError::Timeout) => self.engine.tick().map(|_| ())?,
                Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(())
    }

    fn is_mounted(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.guard.is_finished())
    }

    /// Ends the mount, and the ambient step that may be open.
    pub fn unmount(mut self) -> io::Result<Unmounted> {
        let how = self.take_away()?;
        self.fs.wait_until_quiet(QUIET_TIMEOUT);
        self.engine.end_ambient_step()?;
        Ok(how)
    }

    fn take_away(&mut self) -> io::Result<Unmounted> {
        let Some(session) = self.session.take() else { return Ok(Unmounted::Cleanly) };
        if session.guard.is_finished() {
            session.join()?; // somebody else has unmounted
            return Ok(Unmounted::Cleanly);
        }
        match stale::unmount(&self.mount_point, false) {
            // The library would unmount too, and looks whether it has to: after the connection ended.
            Ok(()) => session.join().map(|()| Unmounted::Cleanly),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                stale::unmount(&self.mount_point, true)?;
                // It ends with its last user; to unmount again could hit a mount below.
                std::mem::forget(session);
                Ok(Unmounted::WhileInUse)
            }
            Err(error) => {
                self.session = Some(session);
                Err(error)
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.take_away();
    }
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mount").field("mount_point", &self.mount_point).finish_non_exhaustive()
    }
}

pub(crate) fn fs_config(options: &MountOptions) -> FsConfig {
    let mut config = FsConfig::new(&options.source);
    config.cache = options.cache;
    config.read_only = options.read_only;
    config
}

pub(crate) fn adapter<F>(options: &MountOptions, fs: Arc<F>) -> io::Result<Adapter<F>> {
    let flushes = local::may_fail_to_close(&options.source)?;
    let keeps_directories = match options.cache {
        Cache::Never => Duration::ZERO,
        Cache::Coherent => ONE_TICK,
        Cache::Auto => Duration::ZERO, // the filesystem says how long
    };
    let caches_names = options.cache == Cache::Auto;
    Ok(Adapter { fs, caches_names, keeps_directories, flushes })
}

pub(crate) fn fuse_config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("codeagent".into()),
        MountOption::Subtype("codeagent".into()),
        MountOption::DefaultPermissions,
    ];
    if options.read_only {
        config.mount_options.push(MountOption::RO);
    }
    // Everybody sees what the folder's permissions let them see; only root may allow that.
    if rustix::process::geteuid().is_root() {
        config.acl = SessionACL::All;
    }
    config.n_threads = Some(options.threads);
    config.clone_fd = true;
    config
}
