//! The undo directory: making it, locking it, finding one's way in it.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::{Reaper, StepDir, sealed};
use crate::error::{Result, UndoError};
use crate::probe::{Point, Probe};

pub(crate) const FORMAT_VERSION: u32 = 1;

/// Numbers that are never given out twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counters {
    pub(crate) next_step: i64,
    pub(crate) next_ambient: i64,
    pub(crate) next_sequence: u64,
    /// Steps up to here may be missing: undo cannot go past it.
    pub(crate) evicted_up_to: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self { next_step: 1, next_ambient: -1, next_sequence: 1, evicted_up_to: 0 }
    }
}

#[derive(Serialize, Deserialize)]
struct Workdir {
    #[serde(with = "serde_bytes")]
    path: Vec<u8>,
    inode: u64,
}

/// An open undo directory, locked by this process.
pub(crate) struct Store {
    root: PathBuf,
    /// Holds the lock until dropped.
    _lock: Lock,
    pub(crate) probe: Probe,
    /// Where the directory of each sequence number is now.
    places: Mutex<HashMap<u64, PathBuf>>,
    reaper: Reaper,
    /// Inverted journals that could not be dropped yet.
    pub(crate) spent: Mutex<Vec<(StepDir, u64)>>,
}

/// An undo directory of this format, or of another one.
pub(crate) enum Versioned {
    Current(Store),
    Other { store: Store, found: String },
}

impl Store {
    /// Opens or makes the undo directory for `working`, which must be canonical.
    pub(crate) fn open(undo: &Path, working: &Path, probe: Probe) -> Result<Versioned> {
        let unusable = |source| UndoError::UndoDirUnusable { path: undo.into(), source };
        let root = planned_location(undo).map_err(unusable)?;
        check_apart(&root, working)?;
        match fs::DirBuilder::new().mode(0o700).create(&root) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(unusable(error));
            }
            _ => {}
        }
        refuse_foreign(&root, undo)?;
        let lock = lock(&root, undo)?;
        let version = read_version(&root).map_err(unusable)?;
        let store = Self {
            root,
            _lock: lock,
            probe,
            places: Mutex::new(HashMap::new()),
            reaper: Reaper::start().map_err(unusable)?,
            spent: Mutex::default(),
        };
        match version {
            Some(found) if found != FORMAT_VERSION.to_string() => {
                Ok(Versioned::Other { store, found })
            }
            Some(_) => {
                store.make_dirs().map_err(unusable)?;
                store.check_workdir(working)?;
                store.empty_trash().map_err(unusable)?;
                Ok(Versioned::Current(store))
            }
            None => {
                store.initialise(working).map_err(unusable)?;
                Ok(Versioned::Current(store))
            }
        }
    }

    fn initialise(&self, working: &Path) -> io::Result<()> {
        self.make_dirs()?;
        self.write_workdir(working)?;
        // Last: a directory with a version file is complete.
        let new = self.root.join("version.new");
        fs::write(&new, format!("{FORMAT_VERSION}\n"))?;
        fs::rename(new, self.root.join("version"))
    }

    fn make_dirs(&self) -> io::Result<()> {
        for name in ["wal", "steps", "redo", "trash"] {
            match fs::create_dir(self.root.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Throws away a log of another format, and starts a new one in its place.
    pub(crate) fn reinitialise(&self, working: &Path) -> Result<()> {
        let unusable = |source| UndoError::UndoDirUnusable { path: self.root.clone(), source };
        let stale = self.root.join("trash");
        for entry in fs::read_dir(&self.root).map_err(unusable)? {
            let entry = entry.map_err(unusable)?;
            if entry.file_name() == "lock" || entry.path() == stale {
                continue;
            }
            let is_dir = entry.file_type().map_err(unusable)?.is_dir();
            if is_dir { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) }
                .map_err(unusable)?;
        }
        self.places.lock().clear();
        self.initialise(working).map_err(unusable)
    }

    fn check_workdir(&self, working: &Path) -> Result<()> {
        use std::os::unix::ffi::{OsStrExt, OsStringExt};
        let damaged = |error: io::Error| UndoError::Corrupt(error.to_string());
        let recorded: Option<Workdir> =
            sealed::read(&self.root.join("workdir")).map_err(damaged)?;
        let Some(recorded) = recorded else {
            return self.write_workdir(working).map_err(UndoError::io("writing workdir"));
        };
        if recorded.path == working.as_os_str().as_bytes() {
            return Ok(());
        }
        // The same directory under another name was moved, with its history.
        let metadata =
            fs::metadata(working).map_err(UndoError::io("reading the working directory"))?;
        if recorded.inode == metadata.ino() {
            return self.write_workdir(working).map_err(UndoError::io("writing workdir"));
        }
        let recorded = PathBuf::from(std::ffi::OsString::from_vec(recorded.path));
        Err(UndoError::WrongWorkingDir { recorded, given: working.into() })
    }

    fn write_workdir(&self, working: &Path) -> io::Result<()> {
        use std::os::unix::ffi::OsStrExt;
        let record = Workdir {
            path: working.as_os_str().as_bytes().to_vec(),
            inode: fs::metadata(working)?.ino(),
        };
        sealed::write(&self.root.join("workdir"), &record, &self.probe)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn barriers_path(&self) -> PathBuf {
        self.root.join("barriers")
    }

    pub(crate) fn remade_path(&self) -> PathBuf {
        self.root.join("remade")
    }

    pub(crate) fn wal_path(&self) -> PathBuf {
        self.root.join("wal/in_progress")
    }

    /// What an interrupted process left behind.
    pub(crate) fn wal(&self) -> Option<StepDir> {
        let path = self.wal_path();
        path.symlink_metadata().is_ok().then(|| StepDir::at(path))
    }

    /// Closed steps or redo entries, in no order.
    pub(crate) fn list(&self, which: &str) -> io::Result<Vec<StepDir>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.root.join(which))? {
            found.push(StepDir::at(entry?.path()));
        }
        Ok(found)
    }

    pub(crate) fn remember(&self, sequence: u64, dir: &StepDir) {
        self.places.lock().insert(sequence, dir.path().into());
    }

    /// The directory that holds the objects of `sequence`.
    pub(crate) fn find(&self, sequence: u64) -> Option<StepDir> {
        self.places.lock().get(&sequence).cloned().map(StepDir::at)
    }

    pub(crate) fn load_counters(&self) -> io::Result<Option<Counters>> {
        sealed::read(&self.root.join("counters"))
    }

    pub(crate) fn save_counters(&self, counters: &Counters) -> io::Result<()> {
        sealed::write(&self.root.join("counters"), counters, &self.probe)
    }

    /// Makes the finished `wal/in_progress` a step.
    pub(crate) fn promote_to_step(&self, id: i64, sequence: u64) -> io::Result<StepDir> {
        self.promote(self.root.join(format!("steps/{id}")), sequence)
    }

    /// Makes the finished `wal/in_progress` a redo entry.
    pub(crate) fn promote_to_redo(&self, sequence: u64) -> io::Result<StepDir> {
        self.promote(self.root.join(format!("redo/{sequence}")), sequence)
    }

    fn promote(&self, place: PathBuf, sequence: u64) -> io::Result<StepDir> {
        if place.symlink_metadata().is_ok() {
            // Spent by an undo or redo, and could not be dropped at the time.
            self.discard(&StepDir::at(place.clone()), sequence)?;
        }
        self.probe.reach(Point::Promotion)?;
        fs::rename(self.wal_path(), &place)?;
        let dir = StepDir::at(place);
        self.remember(sequence, &dir);
        Ok(dir)
    }

    /// Puts a directory out of sight at once, and deletes it in the background.
    pub(crate) fn discard(&self, dir: &StepDir, sequence: u64) -> io::Result<()> {
        self.probe.reach(Point::Promotion)?;
        let gone = self.free_name("trash", sequence);
        fs::rename(dir.path(), &gone)?;
        self.places.lock().retain(|_, place| place != dir.path());
        self.reaper.delete_later(gone);
        Ok(())
    }

    pub(crate) fn discard_spent(&self) -> io::Result<()> {
        let mut spent = self.spent.lock();
        while let Some((dir, sequence)) = spent.last() {
            // A promotion to the same name may have dropped it already.
            if self.find(*sequence).is_some_and(|place| place == *dir) {
                self.discard(dir, *sequence)?;
            }
            spent.pop();
        }
        Ok(())
    }

    /// Sets a journal aside that must not be replayed.
    pub(crate) fn quarantine(&self, dir: &StepDir, sequence: u64) -> io::Result<PathBuf> {
        self.probe.reach(Point::Promotion)?;
        match fs::create_dir(self.root.join("quarantine")) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let place = self.free_name("quarantine", sequence);
        fs::rename(dir.path(), &place)?;
        Ok(place)
    }

    fn free_name(&self, which: &str, sequence: u64) -> PathBuf {
        (0_u32..)
            .map(|n| self.root.join(format!("{which}/{sequence}.{n}")))
            .find(|path| path.symlink_metadata().is_err())
            .unwrap_or_else(|| self.root.join(which))
    }

    fn empty_trash(&self) -> io::Result<()> {
        for dir in self.list("trash")? {
            self.reaper.delete_later(dir.path().into());
        }
        Ok(())
    }

    pub(crate) fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Against power loss: what was renamed stays renamed.
    pub(crate) fn sync_dirs(&self) -> io::Result<()> {
        for name in ["wal", "steps", "redo"] {
            File::open(self.root.join(name))?.sync_all()?;
        }
        Ok(())
    }
}

/// Where the directory is or will be, with symlinks resolved.
fn planned_location(undo: &Path) -> io::Result<PathBuf> {
    match undo.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = undo.file_name().ok_or(io::ErrorKind::InvalidInput)?;
            let parent = match undo.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            Ok(parent.canonicalize()?.join(name))
        }
        result => result,
    }
}

fn check_apart(undo: &Path, working: &Path) -> Result<()> {
    let (undo, working) = (undo.to_path_buf(), working.to_path_buf());
    if undo.starts_with(&working) {
        return Err(UndoError::UndoDirInsideWorkingDir { undo, working });
    }
    if working.starts_with(&undo) {
        return Err(UndoError::WorkingDirInsideUndoDir { undo, working });
    }
    Ok(())
}

/// A directory with other people's files in it is not ours to manage.
fn refuse_foreign(root: &Path, undo: &Path) -> Result<()> {
    let unusable = |source| UndoError::UndoDirUnusable { path: undo.into(), source };
    if root.join("version").exists() {
        return Ok(());
    }
    const OURS: [&str; 8] =
        ["lock", "version.new", "workdir", "workdir.new", "wal", "steps", "redo", "trash"];
    for entry in fs::read_dir(root).map_err(unusable)? {
        let name = entry.map_err(unusable)?.file_name();
        if !OURS.iter().any(|ours| name == *ours) {
            return Err(UndoError::NotAnUndoDir { path: undo.into() });
        }
    }
    Ok(())
}

/// The lock on an undo directory. Given back by name, not by closing the file: a child that was
/// forked at the wrong moment has a copy of the descriptor.
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

fn lock(root: &Path, undo: &Path) -> Result<Lock> {
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
    file.set_len(0).map_err(unusable)?;
    file.rewind().map_err(unusable)?;
    writeln!(file, "{}", std::process::id()).map_err(unusable)?;
    Ok(Lock(file))
}

fn read_version(root: &Path) -> io::Result<Option<String>> {
    match fs::read(root.join("version")) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// For `verify`.
pub(crate) fn check_workdir_file(root: &Path) -> io::Result<()> {
    sealed::read::<Workdir>(&root.join("workdir")).map(|_| ())
}

/// For `verify`.
pub(crate) fn check_counters(root: &Path) -> io::Result<()> {
    sealed::read::<Counters>(&root.join("counters")).map(|_| ())
}
