//! The mount as a worker's front end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use codeagent_interceptor::ClientCache;
use codeagent_worker::{Ended, FrontEnd, WorkerFs};
use fuser::{BackgroundSession, Config, SessionACL};
use virtiofsd::filesystem::FileSystem;

use crate::adapter::Adapter;
use crate::attach::Access;
use crate::kernel_cache::KernelCache;
use crate::passthrough::{Helper, Modes};

/// Serves a worker's filesystem to this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct MountFrontEnd;

impl FrontEnd for MountFrontEnd {
    fn serve(
        &self,
        fs: Arc<WorkerFs>,
        channel: OwnedFd,
        helper: Option<OwnedFd>,
        options: &[u8],
        ended: Ended,
    ) -> io::Result<()> {
        let Options { threads, passthrough_from } = Options::decode(options)?;
        let passthrough = match helper.zip(passthrough_from) {
            Some((helper, from)) => Some(Modes::new(Box::new(Helper::new(helper)?), from)),
            None => None,
        };
        let session = serve_with(fs, channel, threads, passthrough)?;
        std::thread::Builder::new().name("mount".into()).spawn(move || {
            let _ = session.join(); // however it went: the mount is no more
            ended();
        })?;
        Ok(())
    }
}

/// What [`MountFrontEnd`] has to know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) threads: usize,
    /// Files of so many bytes may be read by the kernel itself.
    pub(crate) passthrough_from: Option<u64>,
}

impl Options {
    pub(crate) fn encode(self) -> Vec<u8> {
        let threads = u32::try_from(self.threads).unwrap_or(u32::MAX).to_le_bytes();
        let from = self.passthrough_from.map(u64::to_le_bytes);
        threads.into_iter().chain(from.into_iter().flatten()).collect()
    }

    fn decode(bytes: &[u8]) -> io::Result<Self> {
        let invalid = |_| io::ErrorKind::InvalidInput;
        let (threads, from) = bytes.split_at_checked(4).ok_or(io::ErrorKind::InvalidInput)?;
        let threads = u32::from_le_bytes(threads.try_into().map_err(invalid)?) as usize;
        let from = (!from.is_empty()).then(|| from.try_into().map(u64::from_le_bytes));
        Ok(Self { threads, passthrough_from: from.transpose().map_err(invalid)? })
    }
}

/// What [`MountFrontEnd`] is told with a device, to serve it with this many threads.
pub fn live_options(threads: usize) -> Vec<u8> {
    Options { threads, passthrough_from: None }.encode()
}

/// A mount that is being served. Dropping this does not end it.
#[derive(Debug)]
pub struct Session {
    background: BackgroundSession,
    /// The engine holds it for as long as this lives.
    _cache: Arc<KernelCache>,
}

impl Session {
    /// Whether the kernel has ended it.
    pub fn is_finished(&self) -> bool {
        self.background.guard.is_finished()
    }

    /// Waits until the kernel has ended it.
    pub fn join(self) -> io::Result<()> {
        self.background.join()
    }
}

/// Serves a mount that is attached already, with this many threads.
pub fn serve(fs: Arc<WorkerFs>, channel: OwnedFd, threads: usize) -> io::Result<Session> {
    serve_with(fs, channel, threads, None)
}

pub(crate) fn serve_with(
    fs: Arc<WorkerFs>,
    channel: OwnedFd,
    threads: usize,
    passthrough: Option<Modes>,
) -> io::Result<Session> {
    let may_wait = {
        let fs = Arc::clone(&fs);
        move || fs.may_wait()
    };
    let adapter = Adapter::new(Arc::clone(&fs), fs.cache(), fs.root(), passthrough, may_wait)?;
    let background = serve_anything(adapter, channel, threads)?;
    let cache = KernelCache::start(&fs, background.notifier())?;
    let weak: Weak<KernelCache> = Arc::downgrade(&cache);
    fs.interceptor().add_cache(weak as Weak<dyn ClientCache>);
    Ok(Session { background, _cache: cache })
}

pub(crate) fn serve_anything<F>(
    adapter: Adapter<F>,
    channel: OwnedFd,
    threads: usize,
) -> io::Result<BackgroundSession>
where
    F: FileSystem<Inode = u64, Handle = u64> + Send + Sync + 'static,
{
    let mut config = Config::default();
    config.acl = match Access::possible() {
        Access::Everybody => SessionACL::All,
        Access::Owner => SessionACL::Owner,
    };
    config.n_threads = Some(threads);
    config.clone_fd = true;
    fuser::Session::from_fd(adapter, channel, config.acl, config)?.spawn()
}
