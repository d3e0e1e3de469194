//! The filesystems that are measured, and throw-away directories on them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use codeagent_interceptor::{EngineConfig, UndoEngine};
use tempfile::TempDir;

/// Where a folder is mounted, beside it.
pub(crate) const MOUNT_POINT: &str = "mount";

/// Directories that an interrupt must remove. Empty again when all scratches are dropped.
static IN_USE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Removes what is in use when the process is interrupted or told to end, then ends it.
pub(crate) fn clean_up_when_interrupted() -> Result<()> {
    ctrlc::set_handler(|| {
        INTERRUPTED.store(true, Ordering::Relaxed);
        let in_use = IN_USE.lock().map(|dirs| dirs.clone()).unwrap_or_default();
        for dir in in_use {
            let _ = codeagent_mount::unmount(&dir.join(MOUNT_POINT), true); // if there is one
            // The measurement goes on meanwhile, and may put a file into a directory that has
            // just been emptied: try again until it is gone.
            for _ in 0..100 {
                if fs::remove_dir_all(&dir).is_ok() || !dir.exists() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        std::process::exit(130);
    })
    .context("cannot handle Ctrl-C")
}

/// One filesystem.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) name: &'static str,
    dir: PathBuf,
    /// Whether the bars are meant for this filesystem.
    pub(crate) counts: bool,
}

/// A filesystem that cannot be measured.
#[derive(Debug)]
pub(crate) struct MissingPlace {
    pub(crate) name: &'static str,
    pub(crate) reason: String,
}

impl Place {
    pub(crate) fn all(disk: bool) -> Vec<Result<Self, MissingPlace>> {
        let mut places = vec![Self::open("tmpfs", PathBuf::from("/dev/shm"), true)];
        if disk {
            let dir = std::env::var_os("CODEAGENT_TEST_EXT4")
                .map_or_else(std::env::temp_dir, PathBuf::from);
            places.push(Self::open("disk", dir, false));
        }
        places
    }

    fn open(name: &'static str, dir: PathBuf, counts: bool) -> Result<Self, MissingPlace> {
        if dir.is_dir() {
            Ok(Self { name, dir, counts })
        } else {
            Err(MissingPlace { name, reason: format!("{} is not a directory", dir.display()) })
        }
    }

    /// What a person should know about the filesystem.
    pub(crate) fn describe(&self) -> String {
        format!("{} ({})", self.name, self.dir.display())
    }

    /// A new directory here that goes when it is dropped. Fails if less than `needed` bytes are
    /// free, so that a row can say why it was not measured.
    pub(crate) fn scratch(&self, needed_bytes: u64) -> Result<Scratch> {
        let space = rustix::fs::statvfs(&self.dir)?;
        let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
        if free_bytes < needed_bytes {
            bail!(NotMeasured(format!(
                "needs {} MiB, {} MiB are free",
                needed_bytes >> 20,
                free_bytes >> 20
            )));
        }
        Scratch::new(&self.dir)
    }
}

/// Why a row cannot run on this machine; not a failure.
#[derive(Debug)]
pub(crate) struct NotMeasured(pub(crate) String);

impl std::fmt::Display for NotMeasured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotMeasured {}

/// A working directory with room for an undo directory and more beside it.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: TempDir,
}

impl Scratch {
    fn new(parent: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("codeagent-bench.")
            .tempdir_in(parent)
            .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
        if let Ok(mut in_use) = IN_USE.lock() {
            in_use.push(dir.path().to_path_buf());
        }
        let scratch = Self { dir };
        fs::create_dir(scratch.work())?;
        Ok(scratch)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.path("work")
    }

    /// A new engine for the working directory, its undo directory at `undo`.
    pub(crate) fn engine(&self, undo: &str) -> Result<UndoEngine> {
        Ok(UndoEngine::open(EngineConfig::new(self.work(), self.path(undo)))?)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if INTERRUPTED.load(Ordering::Relaxed) {
            return; // the handler is at it
        }
        if let Ok(mut in_use) = IN_USE.lock() {
            in_use.retain(|dir| dir != self.dir.path());
        }
    }
}
