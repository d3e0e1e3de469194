//! Room for trying an overlay on the filesystem of the undo directory.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Timestamps, utimensat};

use crate::surroundings::remove_tree;

/// A directory that goes with this value, and the one it is in looks as before.
pub(super) struct Room {
    path: PathBuf,
    parent: PathBuf,
    parent_times: Timestamps,
}

impl Room {
    pub(super) fn beside_changes(undo_dir: &Path) -> io::Result<Self> {
        // What is in `staging` is deleted when the log is opened: should we be killed, it goes then.
        let staging = undo_dir.join("staging");
        let parent = [staging.as_path()]
            .into_iter()
            .chain(undo_dir.ancestors())
            .find(|dir| dir.is_dir())
            .ok_or(io::ErrorKind::NotFound)?
            .to_owned();
        let stat = rustix::fs::stat(&parent)?;
        let time = |sec: i64, nsec| rustix::fs::Timespec { tv_sec: sec, tv_nsec: nsec as _ };
        let parent_times = Timestamps {
            last_access: time(stat.st_atime, stat.st_atime_nsec),
            last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
        };
        let path = parent.join(format!(".codeagent-facts-{}", std::process::id()));
        let make = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path);
        make(&path)?;
        let room = Self { path, parent, parent_times };
        for name in ["up", "work", "low"] {
            make(&room.path.join(name))?;
        }
        fs::write(room.path.join("low/file"), "")?;
        Ok(room)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = remove_tree(&self.path);
        let _ = utimensat(CWD, &self.parent, &self.parent_times, AtFlags::empty());
    }
}
