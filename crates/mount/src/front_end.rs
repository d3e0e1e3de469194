//! The mount as a worker's front end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use codeagent_fs::InterceptedFs;
use codeagent_interceptor::WriteInterceptor;
use codeagent_worker::{Ended, FrontEnd, WorkerFs};
use fuser::{BackgroundSession, Config, Session, SessionACL};

use crate::adapter::Adapter;
use crate::attach::Access;

/// Serves a worker's filesystem to this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct MountFrontEnd;

impl FrontEnd for MountFrontEnd {
    fn serve(
        &self,
        fs: Arc<WorkerFs>,
        channel: OwnedFd,
        options: &[u8],
        ended: Ended,
    ) -> io::Result<()> {
        let threads = options.try_into().map(u32::from_le_bytes);
        let threads = threads.map_err(|_| io::ErrorKind::InvalidInput)?;
        let session = serve(fs, channel, threads as usize)?;
        std::thread::Builder::new().name("mount".into()).spawn(move || {
            let _ = session.join(); // however it went: the mount is no more
            ended();
        })?;
        Ok(())
    }
}

/// What [`MountFrontEnd`] has to know.
pub(crate) fn encode_options(threads: usize) -> Vec<u8> {
    u32::try_from(threads).unwrap_or(u32::MAX).to_le_bytes().to_vec()
}

/// Serves a mount that is attached already, with this many threads.
pub fn serve<I: WriteInterceptor + 'static>(
    fs: Arc<InterceptedFs<I>>,
    channel: OwnedFd,
    threads: usize,
) -> io::Result<BackgroundSession> {
    let mut config = Config::default();
    config.acl = match Access::possible() {
        Access::Everybody => SessionACL::All,
        Access::Owner => SessionACL::Owner,
    };
    config.n_threads = Some(threads);
    config.clone_fd = true;
    Session::from_fd(Adapter(fs), channel, config.acl, config)?.spawn()
}
