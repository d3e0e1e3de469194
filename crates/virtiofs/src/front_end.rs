//! A guest as one of those that a worker serves.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use codeagent_worker::{Ended, FrontEnd, WorkerFs};
use rustix::event::EventfdFlags;
use rustix::fs::{AtFlags, Mode, OFlags};
use vhost::vhost_user::Listener;
use vhost_user_backend::VhostUserDaemon;
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;

use crate::device::{Device, QUEUES, SharedDevice};
use crate::options::GuestOptions;

/// Not one of a queue's, nor the one behind them, which the library keeps for itself.
const STOP: u64 = QUEUES as u64 + 1;

/// Serves guests, and leaves to another front end what is not for a guest.
#[derive(Debug, Clone, Copy, Default)]
pub struct GuestFrontEnd<Other>(pub Other);

impl<Other: FrontEnd> FrontEnd for GuestFrontEnd<Other> {
    /// For a guest, `channel` is a socket that listens; QEMU is the first to connect to it.
    fn serve(
        &self,
        fs: Arc<WorkerFs>,
        channel: OwnedFd,
        helper: Option<OwnedFd>,
        options: &[u8],
        ended: Ended,
    ) -> io::Result<()> {
        match GuestOptions::decode(options)? {
            Some(options) => serve(fs, channel.into(), options, ended),
            None => self.0.serve(fs, channel, helper, options, ended),
        }
    }
}

type Daemon = VhostUserDaemon<SharedDevice>;

/// Serves the first who connects to `listener`, in threads of its own, until it hangs up.
pub fn serve(
    fs: Arc<WorkerFs>,
    listener: UnixListener,
    options: GuestOptions,
    ended: Ended,
) -> io::Result<()> {
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
    let device = Arc::new(Device::new(fs, options, memory.clone()));
    let shared = SharedDevice(Arc::clone(&device));
    let daemon = Daemon::new("guest-messages".into(), shared, memory).map_err(failed)?;
    let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
    for thread in daemon.get_epoll_handlers() {
        thread.register_listener(stop.as_raw_fd(), EventSet::IN, STOP)?;
    }
    let end = move || {
        // Before the daemon is dropped, which waits for its threads.
        let _ = rustix::io::write(&stop, &1_u64.to_ne_bytes());
    };
    let life = move |mut daemon: Daemon, end: &dyn Fn()| {
        let connected = daemon.start(&mut Listener::from(listener));
        if connected.is_ok() {
            let _ = daemon.wait(); // however it went: QEMU is no more
        }
        end();
        drop(daemon);
        device.finish();
        drop(device);
        ended();
    };
    std::thread::Builder::new().name("guest".into()).spawn(move || life(daemon, &end))?;
    Ok(())
}

fn failed(error: vhost_user_backend::Error) -> io::Error {
    io::Error::other(error.to_string())
}

/// A connection to a guest that is about to start: the socket that the worker is to serve, and the
/// one that QEMU inherits (`-chardev socket,id=…,fd=…`). Nobody else can connect, and no name is
/// left, if `dir` is a directory that only this user may write to.
pub fn connection(dir: &Path) -> io::Result<(UnixListener, UnixStream)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags, Mode::empty())?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("guest-{}-{number}", std::process::id());
    // Through the descriptor: the path of a socket may not be long.
    let path = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
    let listener = UnixListener::bind(&path)?;
    let stream = UnixStream::connect(&path);
    rustix::fs::unlinkat(&dir, name, AtFlags::empty())?;
    Ok((listener, stream?))
}
