//! Folders that are mounted over themselves while commands run on the host, so that what these do
//! is recorded before it happens.
//!
//! Everybody on the machine sees the mount for as long as it is there, and whatever is done through
//! it meanwhile belongs to the command's step. Several commands share one.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use codeagent_namespace::WorkFolder;
use parking_lot::Mutex;

/// Threads that serve a mount.
const THREADS: usize = 4;

/// The mounts of one session, with the number of commands that use each.
#[derive(Debug, Default)]
pub(super) struct HostMounts(Mutex<HashMap<PathBuf, usize>>);

/// Folders that are mounted for a command.
#[derive(Debug)]
pub(super) struct InUse<'m> {
    mounts: &'m HostMounts,
    paths: Vec<PathBuf>,
}

impl HostMounts {
    /// All of them, or none.
    pub(super) fn enter(&self, folders: &[WorkFolder<'_>]) -> io::Result<InUse<'_>> {
        let mut in_use = InUse { mounts: self, paths: Vec::new() };
        for folder in folders {
            self.mount(folder)?;
            in_use.paths.push(folder.path.into());
        }
        Ok(in_use)
    }

    fn mount(&self, folder: &WorkFolder<'_>) -> io::Result<()> {
        let mut mounts = self.0.lock();
        // One that somebody stands in outlives the worker that served it.
        codeagent_mount::recover(folder.path)?;
        if let Some(users) = mounts.get_mut(folder.path)
            && codeagent_mount::is_ours(folder.path)?
        {
            *users += 1;
            return Ok(());
        }
        let worker = folder.worker.ok_or(io::ErrorKind::ReadOnlyFilesystem)?;
        let device = codeagent_mount::attach(folder.path, false)?;
        let options = codeagent_mount::live_options(THREADS);
        if let Err(error) = worker.attach(&device, None, options) {
            codeagent_mount::unmount(folder.path, true)?;
            return Err(io::Error::other(error));
        }
        // Somebody may have taken away the one that others use; they share the new one.
        *mounts.entry(folder.path.into()).or_default() += 1;
        Ok(())
    }

    /// Takes all of them away.
    pub(super) fn end(&self) {
        for (path, _) in self.0.lock().drain() {
            let _ = codeagent_mount::unmount(&path, true); // or it is gone already
        }
    }

    /// One that somebody still works in stays for the next command, and goes with the session.
    fn leave(&self, path: &Path) {
        let mut mounts = self.0.lock();
        let Some(users) = mounts.get_mut(path) else { return };
        *users -= 1;
        if *users == 0 && codeagent_mount::unmount(path, false).is_ok() {
            mounts.remove(path);
        }
    }
}

impl InUse<'_> {
    /// Nobody has taken a mount away, and so left a command to work unrecorded.
    pub(super) fn are_all_there(&self) -> bool {
        self.paths.iter().all(|path| codeagent_mount::is_ours(path).unwrap_or(false))
    }

    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.paths.iter().for_each(|path| self.mounts.leave(path));
    }
}
