//! Directories that go with whoever made them; those of processes that were killed, with the next
//! one that comes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::surroundings::{make_dir, remove_tree};

const PREFIX: &str = "ephemeral-";

/// Removed with this value.
#[derive(Debug)]
pub(crate) struct Ephemeral {
    path: PathBuf,
    /// Locked: who can lock it himself knows that nobody needs it any more.
    _held: File,
}

impl Ephemeral {
    pub(crate) fn make(within: &Path) -> io::Result<Self> {
        let _turn = turn(within)?;
        let own = |number: u32| within.join(format!("{PREFIX}{}-{number}", std::process::id()));
        let path =
            (0..).map(own).find(|path| !path.exists()).ok_or(io::ErrorKind::AlreadyExists)?;
        make_dir(&path)?;
        let held = File::open(&path)?;
        flock(&held, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { path, _held: held })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Ephemeral {
    fn drop(&mut self) {
        let _ = remove_tree(&self.path);
    }
}

/// Removes what killed processes have left.
pub(crate) fn remove_orphans(within: &Path) -> io::Result<()> {
    let _turn = turn(within)?;
    for entry in fs::read_dir(within)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with(PREFIX))
            && let Ok(dir) = File::open(&path)
            && flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            // What cannot be removed now is tried again next time.
            let _ = remove_tree(&path);
        }
    }
    Ok(())
}

/// One at a time: a directory is made and locked before anybody else looks at it.
fn turn(within: &Path) -> io::Result<File> {
    let dir = File::open(within)?;
    flock(&dir, FlockOperation::LockExclusive)?;
    Ok(dir)
}
