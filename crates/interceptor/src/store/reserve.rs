//! Space set aside for the moment when there is none left. Closing, taking back, undoing and
//! recovering need a little of it, and are the way out of a full disk.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

const RESERVE_BYTES: u64 = 1 << 20;

pub(crate) struct Reserve {
    path: PathBuf,
    held: AtomicBool,
    /// Cleared if the filesystem cannot promise space, so that it is not asked again and again.
    possible: AtomicBool,
}

impl Reserve {
    pub(super) fn at(root: &Path) -> Self {
        let path = root.join("reserve");
        let held = path.symlink_metadata().is_ok_and(|file| file.blocks() * 512 >= RESERVE_BYTES);
        Self { path, held: AtomicBool::new(held), possible: AtomicBool::new(true) }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// Sets the space aside if there is some to spare. Nothing depends on it: a filesystem that
    /// cannot promise space has no reserve.
    pub(super) fn fill(&self, free_bytes: impl FnOnce() -> io::Result<u64>) {
        if self.is_held() || !self.possible.load(Ordering::Relaxed) {
            return;
        }
        if free_bytes().map_or(true, |free| free < 2 * RESERVE_BYTES) {
            return;
        }
        let filled = File::create(&self.path).and_then(|file| {
            Ok(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES)?)
        });
        if let Err(error) = &filled {
            let _ = fs::remove_file(&self.path);
            let errno = Errno::from_io_error(error);
            let cannot = matches!(errno, Some(Errno::OPNOTSUPP | Errno::NOSYS));
            self.possible.store(!cannot, Ordering::Relaxed);
        }
        self.held.store(filled.is_ok(), Ordering::Relaxed);
    }

    /// Gives the space back to whoever needs it. `false`: there was none.
    pub(crate) fn release(&self) -> bool {
        self.held.swap(false, Ordering::Relaxed) && fs::remove_file(&self.path).is_ok()
    }
}
