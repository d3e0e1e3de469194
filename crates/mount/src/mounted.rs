//! A mount, from its beginning to its end.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use codeagent_fs::{Cache, FsConfig, InterceptedFs};
use codeagent_interceptor::UndoEngine;

use crate::attach::attach;
use crate::front_end::{Session, serve_with};
use crate::passthrough::{Broker, Device, Helper, Modes};
use crate::stale;

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
    /// Files of so many bytes are read by the kernel itself, where it can; `None`: no file is.
    pub passthrough_from: Option<u64>,
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
            passthrough_from: None,
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

/// A folder that is served within this process. Unmounted when it is dropped.
pub struct Mount {
    engine: Arc<UndoEngine>,
    fs: Arc<InterceptedFs<UndoEngine>>,
    mount_point: PathBuf,
    /// Gone once the mount has ended.
    session: Option<Session>,
    /// Tells the kernel about files, until this is dropped.
    _broker: Option<Broker>,
}

impl Mount {
    pub fn start(options: &MountOptions, engine: Arc<UndoEngine>) -> io::Result<Self> {
        // Before anything is mounted: the source may be about to disappear below the mount.
        let fs = Arc::new(InterceptedFs::new(&fs_config(options), Arc::clone(&engine))?);
        let mount_point = options.mount_point.canonicalize()?;
        let channel = attach(&mount_point, options.read_only)?;
        let (through, broker) = passthrough(options, &channel, fs.root())?.unzip();
        let session = serve_with(Arc::clone(&fs), channel, options.threads, through)?;
        Ok(Self { engine, fs, mount_point, session: Some(session), _broker: broker })
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
        self.session.as_ref().is_some_and(|session| !session.is_finished())
    }

    /// Ends the mount, and the step that may be open, as a worker does that ends.
    pub fn unmount(mut self) -> io::Result<Unmounted> {
        let how = self.take_away()?;
        self.fs.wait_until_quiet(Duration::ZERO, QUIET_TIMEOUT);
        self.engine.end_open_step()?;
        Ok(how)
    }

    fn take_away(&mut self) -> io::Result<Unmounted> {
        let Some(session) = self.session.take() else { return Ok(Unmounted::Cleanly) };
        if session.is_finished() {
            session.join()?; // somebody else has unmounted
            return Ok(Unmounted::Cleanly);
        }
        match stale::take_away(&self.mount_point) {
            Ok(Unmounted::Cleanly) => session.join().map(|()| Unmounted::Cleanly),
            Ok(Unmounted::WhileInUse) => {
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

/// The way a worker and its owner do it, so that it is what is tested and measured.
pub(crate) fn passthrough(
    options: &MountOptions,
    channel: &OwnedFd,
    folder: BorrowedFd<'_>,
) -> io::Result<Option<(Modes, Broker)>> {
    let Some(from) = options.passthrough_from else { return Ok(None) };
    let (broker, helper) = Broker::start(Device(channel.try_clone()?), folder)?;
    Ok(Some((Modes::new(Box::new(Helper::new(helper)?), from), broker)))
}

pub(crate) fn fs_config(options: &MountOptions) -> FsConfig {
    let mut config = FsConfig::new(&options.source);
    config.cache = options.cache;
    config.read_only = options.read_only;
    config
}
