//! Where the bytes come from and go to.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use codeagent_shim::{Channel, Ended, Shim, ShimConfig, inherited_fd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A serial port does not tell when its host comes; we look so often.
const LOOK_FOR_HOST_EVERY: Duration = Duration::from_millis(50);

pub(crate) fn serve(channel: Channel, config: &ShimConfig) -> io::Result<()> {
    match channel {
        // Unbuffered: a message must not wait for more.
        Channel::Stdio => {
            let from_host = File::from(rustix::io::dup(rustix::stdio::stdin())?);
            let to_host = File::from(rustix::io::dup(rustix::stdio::stdout())?);
            Shim::new(config.clone()).run(from_host, to_host)?;
            Ok(())
        }
        Channel::Fd(number) => {
            let socket = UnixStream::from(inherited_fd(number)?);
            Shim::new(config.clone()).run(socket.try_clone()?, socket)?;
            Ok(())
        }
        Channel::Device(path) => serve_device(&path, config),
    }
}

/// A serial port outlives its host: when one goes, the commands end and we wait for the next.
fn serve_device(path: &Path, config: &ShimConfig) -> io::Result<()> {
    let port = OpenOptions::new().read(true).write(true).open(path)?;
    loop {
        while !host_is_there(&port)? {
            thread::sleep(LOOK_FOR_HOST_EVERY);
        }
        let ended = Shim::new(config.clone()).run(port.try_clone()?, port.try_clone()?)?;
        if ended == Ended::ShutDown {
            return Ok(());
        }
        // A port without the notion of a host being there must not keep us busy.
        thread::sleep(LOOK_FOR_HOST_EVERY);
    }
}

fn host_is_there(port: &File) -> io::Result<bool> {
    let mut fds = [PollFd::new(port, PollFlags::IN | PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once))?;
    Ok(!fds[0].revents().contains(PollFlags::HUP))
}

pub(crate) fn supervise(socket: RawFd) -> io::Result<()> {
    codeagent_shim::supervise(UnixStream::from(inherited_fd(socket)?))
}

/// Ourselves, also when the file has been replaced since we were started.
pub(crate) fn own_binary() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
    }
    std::env::current_exe()
}
