//! Whose directory an undo directory is, and which working directory it belongs to.

use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::sealed;
use crate::error::{Result, UndoError};

pub(crate) const FORMAT_VERSION: u32 = 1;

/// Begins `version`. Other programs write files of that name, too.
const VERSION_MAGIC: &str = "codeagent-undo ";

/// Everything the engine makes at the top of an undo directory; nothing else is ever deleted.
/// In this order a history is discarded: each leaves a log that can be opened.
pub(super) const DIRS: [&str; 6] = ["wal", "redo", "steps", "quarantine", "staging", "trash"];
const FILES: [&str; 9] =
    ["version", "lock", "workdir", "counters", "barriers", "remade", "loans", "reserve", SOCKET];

/// Where the process that holds the lock listens, if it does.
pub const SOCKET: &str = "socket";

pub(super) fn version_text() -> String {
    format!("{VERSION_MAGIC}{FORMAT_VERSION}\n")
}

/// The format of the log in `root`; `None` if there is none yet. A directory that is not known to
/// be ours is refused.
pub(super) fn claimed_version(root: &Path, undo: &Path) -> Result<Option<String>> {
    let unusable = |source| UndoError::UndoDirUnusable { path: undo.into(), source };
    let ours = match read_version(root).map_err(unusable)? {
        Some(Version::Marked(found)) => return Ok(Some(found)),
        Some(Version::Unmarked(found)) => {
            let holds_log = root.join("workdir").is_file() && root.join("steps").is_dir();
            return holds_log
                .then_some(Some(found))
                .ok_or_else(|| UndoError::NotAnUndoDir { path: undo.into() });
        }
        None => is_unfinished(root).map_err(unusable)?,
    };
    if ours { Ok(None) } else { Err(UndoError::NotAnUndoDir { path: undo.into() }) }
}

/// For `verify`.
pub(crate) fn is_current_format(root: &Path) -> io::Result<bool> {
    Ok(fs::read(root.join("version"))? == version_text().as_bytes())
}

enum Version {
    Marked(String),
    Unmarked(String),
}

fn read_version(root: &Path) -> io::Result<Option<Version>> {
    let text = match fs::read(root.join("version")) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).trim().to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some(match text.strip_prefix(VERSION_MAGIC) {
        Some(found) => Version::Marked(found.to_owned()),
        None => Version::Unmarked(text),
    }))
}

/// Whether a directory without a version is a new one, or one that a crash left unfinished: only
/// our names, and things in our directories only if `workdir` says that they are ours.
fn is_unfinished(root: &Path) -> io::Result<bool> {
    let mut holds_things = false;
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        if DIRS.contains(&name) && entry.file_type()?.is_dir() {
            holds_things |= fs::read_dir(entry.path())?.next().is_some();
        } else if !FILES.contains(&name.strip_suffix(".new").unwrap_or(name)) {
            return Ok(false);
        }
    }
    Ok(!holds_things || sealed::read::<Workdir>(&root.join("workdir").into())?.is_some())
}

/// Where the directory is or will be, with symlinks resolved.
pub(super) fn planned_location(undo: &Path) -> io::Result<PathBuf> {
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

pub(super) fn check_apart(undo: &Path, working: &Path) -> Result<()> {
    let (undo, working) = (undo.to_path_buf(), working.to_path_buf());
    if undo.starts_with(&working) {
        return Err(UndoError::UndoDirInsideWorkingDir { undo, working });
    }
    if working.starts_with(&undo) {
        return Err(UndoError::WorkingDirInsideUndoDir { undo, working });
    }
    Ok(())
}

/// `workdir`: which working directory a log belongs to.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Workdir {
    #[serde(with = "serde_bytes")]
    path: Vec<u8>,
    inode: u64,
    /// Inode numbers repeat from one filesystem to the next.
    filesystem: u64,
    /// And within one, as soon as a directory is gone. Not every filesystem knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    born: Option<Duration>,
}

impl Workdir {
    pub(super) fn of((working, way_in): (&Path, &Path)) -> io::Result<Self> {
        let metadata = fs::metadata(way_in)?;
        // Device numbers are given out anew at each start of the machine; the id of a filesystem
        // stays, where it has one.
        let filesystem = match rustix::fs::statvfs(way_in)?.f_fsid {
            0 => metadata.dev(),
            id => id,
        };
        let path = working.as_os_str().as_bytes().to_vec();
        let born = metadata.created().ok();
        let born = born.and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Ok(Self { path, inode: metadata.ino(), filesystem, born })
    }

    fn belonging(&self, now: &Self) -> Belonging {
        match (self.path == now.path, self.is_born_with(now)) {
            (true, Some(false)) => Belonging::Namesake,
            (true, _) => Belonging::Own,
            (false, Some(true)) if self.is_numbered_as(now) => Belonging::Own,
            (false, _) => Belonging::Foreign,
        }
    }

    /// `None`: the filesystem does not tell.
    fn is_born_with(&self, now: &Self) -> Option<bool> {
        self.born.zip(now.born).map(|(then, now)| then == now)
    }

    fn is_numbered_as(&self, now: &Self) -> bool {
        (self.inode, self.filesystem) == (now.inode, now.filesystem)
    }

    /// Whether a log of `self` may be used for `now`. Somebody has named the two together: where it
    /// cannot be known when a directory was made, its number will do.
    pub(super) fn may_become(&self, now: &Self) -> bool {
        let is_unknown = self.is_born_with(now).is_none();
        self.belonging(now) == Belonging::Own || (is_unknown && self.is_numbered_as(now))
    }

    pub(super) fn path(self) -> PathBuf {
        PathBuf::from(std::ffi::OsString::from_vec(self.path))
    }
}

/// For `verify`: damaged, or missing.
pub(crate) fn check_workdir_file(root: &Path) -> io::Result<()> {
    let found = sealed::read::<Workdir>(&root.join("workdir").into())?;
    found.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// How an undo log and a directory belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Belonging {
    /// It is the log of this directory, whatever that was called before.
    Own,
    /// It is the log of another directory that had this name.
    Namesake,
    Foreign,
}

/// Whose log is in `undo_dir`, seen from `working_dir`, which has to be canonical; `None` if there
/// is no log.
pub fn belonging(undo_dir: &Path, working_dir: &Path) -> io::Result<Option<Belonging>> {
    let Some(then) = sealed::read::<Workdir>(&undo_dir.join("workdir").into())? else {
        return Ok(None);
    };
    Ok(Some(then.belonging(&Workdir::of((working_dir, working_dir))?)))
}

/// The working directory that the undo log in `undo_dir` belongs to; `None` if there is no log.
pub fn working_dir_of(undo_dir: &Path) -> io::Result<Option<PathBuf>> {
    Ok(sealed::read::<Workdir>(&undo_dir.join("workdir").into())?.map(Workdir::path))
}
