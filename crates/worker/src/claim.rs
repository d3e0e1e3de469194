//! One history at a time is kept of a folder.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use codeagent_common::ErrorCode;
use codeagent_interceptor::UndoError;

use crate::protocol::Failure;

/// One that was killed has it for another moment.
const PATIENCE: Duration = Duration::from_secs(1);
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// Held for as long as this lives: the kernel gives it back when the process ends, however it ends.
/// It is a name that is on no disk: nothing is left behind, and nobody else's locks are in the way.
#[derive(Debug)]
pub(crate) struct Claim {
    _name: UnixListener,
}

impl Claim {
    /// Of a folder, whatever path leads there. Two histories of it would know nothing of each other,
    /// and what one takes back the other would take for somebody's edit.
    pub(crate) fn take(working_dir: impl AsFd, undo_dir: impl AsFd) -> Result<Self, Failure> {
        let place = rustix::fs::fstat(working_dir).map_err(io::Error::from)?;
        let name = format!("codeagent/folder/{}/{}", place.st_dev, place.st_ino);
        let address = SocketAddr::from_abstract_name(name)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match UnixListener::bind_addr(&address) {
                Ok(listener) => return Ok(Self { _name: listener }),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(error.into()),
                Err(_) => {}
            }
            let holder = holder(&address);
            // With the same history: who wants to share it knows that by this error.
            if holder.is_some() && holder == writer(&undo_dir) {
                let pid = holder.map(|pid| pid.to_string()).unwrap_or_default();
                return Err(UndoError::Locked { pid }.into());
            }
            if Instant::now() >= deadline {
                let who = holder.map_or_else(String::new, |pid| format!(", process {pid},"));
                let message = format!(
                    "another session{who} works in this folder and keeps its history elsewhere"
                );
                return Err(Failure::new(ErrorCode::FolderInUse, message));
            }
            std::thread::sleep(ASK_AGAIN);
        }
    }
}

/// The process that has the name; it need not be one that we can see.
fn holder(address: &SocketAddr) -> Option<i32> {
    let stream = UnixStream::connect_addr(address).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    Some(peer.pid.as_raw_nonzero().get())
}

/// The process that writes, or wrote last, to this undo directory.
fn writer(undo_dir: impl AsFd) -> Option<i32> {
    let path = format!("/proc/self/fd/{}/lock", undo_dir.as_fd().as_raw_fd());
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
