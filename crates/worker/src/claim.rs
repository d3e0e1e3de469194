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
/// Longer than anybody takes to look whether an undo directory is locked.
const LOOK: Duration = Duration::from_millis(20);

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

/// Opens what somebody else may have locked just to see whether it is, as [`writer`] does.
pub(crate) fn despite_lookers<T>(
    mut open: impl FnMut() -> Result<T, UndoError>,
) -> Result<T, UndoError> {
    match open() {
        Err(UndoError::Locked { .. }) => {
            std::thread::sleep(LOOK);
            open()
        }
        opened => opened,
    }
}

/// The process that has the name, if it is one that we can see. Never waits: whoever has the name need
/// not be one of us, and nobody takes the connections, of which there can be only so many.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::fs::File;

    use rustix::io::Errno;

    use super::*;

    /// Whoever has the name, it is not ours to take.
    #[test]
    fn a_folder_whose_holder_can_be_asked_no_more_is_still_in_use() {
        let (folder, undo) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (folder, undo) = (File::open(folder.path()).unwrap(), File::open(undo.path()).unwrap());
        let place = rustix::fs::fstat(&folder).unwrap();
        let name = format!("codeagent/folder/{}/{}", place.st_dev, place.st_ino);
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let socket = |flags| {
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
        };
        let holder_of_the_name = socket(SocketFlags::CLOEXEC);
        rustix::net::bind(&holder_of_the_name, &address).unwrap();
        rustix::net::listen(&holder_of_the_name, 1).unwrap();
        let refused = FolderClaim::take(&folder, &undo).unwrap_err();
        let own = format!("session, process {}, works", std::process::id());
        assert!(refused.to_string().contains(&own), "{refused}");
        let asked = |_| {
            let one = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
            let connected = rustix::net::connect(&one, &address);
            (one, connected)
        };
        let all: Vec<_> = (0..10).map(asked).collect();
        assert!(all.iter().any(|(_, connected)| *connected == Err(Errno::AGAIN)), "it is full");
        let refused = FolderClaim::take(&folder, &undo).unwrap_err();
        assert_eq!(refused.code, ErrorCode::FolderInUse);
        assert!(refused.to_string().contains("another session works in this folder"), "{refused}");
        drop(holder_of_the_name);
        FolderClaim::take(&folder, &undo).unwrap();
    }

    #[test]
    fn what_somebody_looks_at_for_a_moment_is_opened_all_the_same() {
        let locked = || UndoError::Locked { pid: "1".into() };
        let run = |results: Vec<Result<(), UndoError>>| {
            let mut left = results.into_iter();
            let result = despite_lookers(|| left.next().unwrap());
            (result.map_err(|error| error.code()), left.len())
        };
        assert_eq!(run(vec![Err(locked()), Ok(())]), (Ok(()), 0));
        let in_use = Err(ErrorCode::UndoLocked);
        assert_eq!(run(vec![Err(locked()), Err(locked()), Ok(())]), (in_use, 1));
        let other = UndoError::ReadOnly;
        assert_eq!(run(vec![Err(other), Ok(())]), (Err(ErrorCode::ReadOnly), 1));
    }
}
