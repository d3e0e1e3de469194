//! One history at a time is kept of a folder.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

use codeagent_common::ErrorCode;
use codeagent_interceptor::UndoError;
use rustix::fs::FlockOperation;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::protocol::Failure;
use crate::raw;

/// One that was killed has it for another moment.
const PATIENCE: Duration = Duration::from_secs(1);
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// Held for as long as this lives: the kernel gives it back when the process ends, however it ends.
/// It is a name that is on no disk: nothing is left behind, and nobody else's locks are in the way.
#[derive(Debug)]
pub(crate) struct FolderClaim {
    _name: UnixListener,
}

impl FolderClaim {
    /// Of a folder, whatever path leads there. Two histories of it would know nothing of each other,
    /// and what one takes back the other would take for somebody's edit.
    pub(crate) fn take(working_dir: impl AsFd, undo_dir: impl AsFd) -> Result<Self, Failure> {
        let place = rustix::fs::fstat(working_dir).map_err(io::Error::from)?;
        let name = format!("codeagent/folder/{}/{}", place.st_dev, place.st_ino);
        let address = SocketAddr::from_abstract_name(&name)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match UnixListener::bind_addr(&address) {
                Ok(listener) => return Ok(Self { _name: listener }),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(error.into()),
                Err(_) => {}
            }
            // With the same history: who wants to share it knows that by this error.
            if let Some(pid) = writer(&undo_dir) {
                return Err(UndoError::Locked { pid }.into());
            }
            if Instant::now() >= deadline {
                let who = holder(&name).map_or_else(String::new, |pid| format!(", process {pid},"));
                let message = format!(
                    "another session{who} works in this folder and keeps its history elsewhere"
                );
                return Err(Failure::new(ErrorCode::FolderInUse, message));
            }
            std::thread::sleep(ASK_AGAIN);
        }
    }
}

/// The process that has the name, if it is one that we can see. Never waits: whoever has the name need
/// not be one of us.
fn holder(name: &str) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
    rustix::net::connect(&socket, &address).ok()?;
    raw::process_at_the_other_end(&socket)
}

/// The process that has locked this undo directory, as far as it says which one it is.
fn writer(undo_dir: impl AsFd) -> Option<String> {
    let path = format!("/proc/self/fd/{}/lock", undo_dir.as_fd().as_raw_fd());
    let mut lock = std::fs::File::open(path).ok()?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            let _ = (&mut lock).take(32).read_to_string(&mut pid);
            Some(pid.trim().into())
        }
        _ => None,
    }
}
