//! Deletes what was thrown away, without anybody waiting for it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;

pub(crate) struct Reaper {
    /// `None` once shutdown began; dropping it ends the thread when its queue is empty.
    queue: Option<mpsc::Sender<PathBuf>>,
    thread: Option<JoinHandle<()>>,
}

impl Reaper {
    pub(crate) fn start() -> io::Result<Self> {
        let (queue, paths) = mpsc::channel::<PathBuf>();
        let thread = std::thread::Builder::new().name("undo-reaper".into()).spawn(move || {
            for path in paths {
                // What cannot be deleted now is tried again at the next start.
                let _ = delete(&path);
            }
        })?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    pub(crate) fn delete_later(&self, path: PathBuf) {
        if let Some(queue) = &self.queue {
            let _ = queue.send(path);
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn delete(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_up(path)?;
            fs::remove_dir_all(path)
        }
        result => result,
    }
}

/// Directories without permissions cannot be emptied by their owner.
fn open_up(dir: &Path) -> io::Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_up(&entry.path())?;
        }
    }
    Ok(())
}
