//! One process writes an undo log.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::FlockOperation;

use crate::error::{Result, UndoError};

/// The lock on an undo directory. Given back by name, not by closing the file: a child that was
/// forked at the wrong moment has a copy of the descriptor.
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl Lock {
    pub(super) fn take(root: &Path, undo: &Path) -> Result<Self> {
        let unusable = |source| UndoError::UndoDirUnusable { path: undo.into(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(root.join("lock"))
            .map_err(unusable)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                return Err(UndoError::Locked { pid: pid.trim().into() });
            }
            Err(errno) => return Err(unusable(errno.into())),
        }
        // For people only: on a full disk the lock holds all the same.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self(file))
    }
}
