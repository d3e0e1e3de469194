//! What Linux knows of files and Windows does not: mode, owner, extended attributes, and targets of
//! links where the host cannot make any. A database outside the folder, beside the undo log.
//!
//! It is kept by name, because names are what survives: an editor that saves a file writes a new
//! one and renames it, and `chmod +x` is meant to outlive that. Several names of one file share
//! what is known of it. Who changes names tells it so after the host has done it.
//!
//! Each change belongs to a step, and a step can be rolled back and redone; an engine calls
//! [`Overlay::begin_step`] and its like beside what it does itself. What a step changed is kept
//! with it as it was before and as it is since, so that neither way needs anything else.
//!
//! What is said of a name counts only while the host has the same kind of thing there: whoever
//! replaces a directory by a file on the host means another file.

mod facts;
mod record;
mod steps;
mod store;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use codeagent_common::{RelPath, StepId};
use parking_lot::Mutex;

use crate::errno::{EEXIST, EIO, ENAMETOOLONG, ENODATA, ENOSPC, Errno};
use facts::Facts;
use record::Record;
use store::Store;

/// The name of the database in the undo directory.
pub const FILE_NAME: &str = "posix-metadata.sqlite";

/// How long the name of an extended attribute can be on Linux.
const MAX_XATTR_NAME_BYTES: usize = 255;

pub type Result<T, E = OverlayError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    #[error("the metadata {path} cannot be opened: {source}")]
    Unusable { path: PathBuf, source: rusqlite::Error },
    #[error("the metadata {0} is in use by another process")]
    InUse(PathBuf),
    #[error("{0} is a database of something else")]
    NotOurs(PathBuf),
    #[error("the metadata has format {found}, this program writes format {expected}")]
    Version { found: i64, expected: i64 },
    #[error("the metadata is damaged: {0}")]
    Damaged(String),
    #[error("the metadata cannot be read or written: {0}")]
    Database(rusqlite::Error),
    #[error("there is metadata of {0} names already")]
    TooManyNames(u64),
    #[error("the step has changed metadata {0} times already")]
    StepTooLarge(u64),
    #[error("the extended attributes of a file are at most {0} bytes")]
    XattrsTooLarge(usize),
    #[error(
        "the name of an extended attribute is at most {MAX_XATTR_NAME_BYTES} bytes, and at least one"
    )]
    XattrName,
    #[error("there is no such extended attribute")]
    NoXattr,
    #[error("there is such an extended attribute already")]
    XattrExists,
    #[error("step {0} is open")]
    StepOpen(StepId),
    #[error("no step is open, and there are steps that could not be rolled back any more")]
    NoStepOpen,
    #[error("step {0} is known already")]
    StepKnown(StepId),
    #[error("step {0} is not the one whose turn it is")]
    NotItsTurn(StepId),
}

impl OverlayError {
    /// What a guest is told.
    pub fn errno(&self) -> Errno {
        match self {
            Self::TooManyNames(_) | Self::StepTooLarge(_) | Self::XattrsTooLarge(_) => ENOSPC,
            Self::XattrName => ENAMETOOLONG,
            Self::NoXattr => ENODATA,
            Self::XattrExists => EEXIST,
            Self::Database(error)
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) =>
            {
                ENOSPC
            }
            _ => EIO,
        }
    }
}

impl From<rusqlite::Error> for OverlayError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match error.sqlite_error_code() {
            Some(DatabaseCorrupt | NotADatabase) => Self::Damaged(error.to_string()),
            _ => Self::Database(error),
        }
    }
}

/// How much is kept. A guest can ask for as much as it likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How many names something is known of.
    pub names: u64,
    /// How many facts one step changes.
    pub changes_in_step: u64,
    /// Names and values of the extended attributes of one file.
    pub xattr_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { names: 1_000_000, changes_in_step: 4_000_000, xattr_bytes: 64 << 10 }
    }
}

/// What a name is on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A plain file. A link that the host could not make is one, too.
    File,
    Directory,
    /// A link of the host's own.
    Link,
}

/// What is known of a file. What is not is for [`crate::default_mode`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Posix {
    /// Permission bits, without the type.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// The host has a plain file with this content in place of a link. Who finds another content
    /// knows that somebody has made a file of it.
    pub target: Option<Vec<u8>>,
}

/// What is to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

/// How an extended attribute is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattr {
    Always,
    /// Only if there is none of that name.
    Create,
    /// Only if there is one.
    Replace,
}

/// The database of one folder.
#[derive(Debug)]
pub struct Overlay {
    store: Mutex<Store>,
}

impl Overlay {
    /// Opens the database, or makes it. One that is damaged, of another format or not ours is
    /// refused and left as it is.
    pub fn open(path: &Path, limits: Limits) -> Result<Self> {
        Ok(Self { store: Mutex::new(Store::open(path, limits)?) })
    }

    /// What is known of a name that is a `kind` on the host.
    pub fn get(&self, path: RelPath<'_>, kind: Kind) -> Result<Posix> {
        let store = self.store.lock();
        let known = Facts::reading(&store).file_at(path)?;
        Ok(known.filter(|(_, record)| record.kind == kind).map_or_else(Posix::default, posix))
    }

    /// Sets what is given; the rest stays.
    pub fn set(&self, path: RelPath<'_>, kind: Kind, change: Change) -> Result<()> {
        self.store.lock().change(|facts| {
            let (id, mut record) = facts.file_or_new(path, kind)?;
            record.mode = change.mode.map(|mode| mode & 0o7777).or(record.mode);
            record.uid = change.uid.or(record.uid);
            record.gid = change.gid.or(record.gid);
            facts.put_record(id, Some(&record))
        })
    }

    /// The new plain file at `path` stands in for a link.
    pub fn set_target(&self, path: RelPath<'_>, target: &[u8]) -> Result<()> {
        self.store.lock().change(|facts| {
            let (id, mut record) = facts.file_or_new(path, Kind::File)?;
            record.target = Some(target.to_vec());
            facts.put_record(id, Some(&record))
        })
    }

    pub fn xattr(&self, path: RelPath<'_>, kind: Kind, name: &[u8]) -> Result<Vec<u8>> {
        let store = self.store.lock();
        let facts = Facts::reading(&store);
        let (id, _) = facts.file_of_kind(path, kind)?.ok_or(OverlayError::NoXattr)?;
        facts.xattr(id, name)?.ok_or(OverlayError::NoXattr)
    }

    /// The names of all extended attributes, in order.
    pub fn xattrs(&self, path: RelPath<'_>, kind: Kind) -> Result<Vec<Vec<u8>>> {
        let store = self.store.lock();
        let facts = Facts::reading(&store);
        match facts.file_of_kind(path, kind)? {
            Some((id, _)) => Ok(facts.xattrs(id)?.into_iter().map(|(name, _)| name).collect()),
            None => Ok(Vec::new()),
        }
    }

    pub fn set_xattr(
        &self,
        path: RelPath<'_>,
        kind: Kind,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        if name.is_empty() || name.len() > MAX_XATTR_NAME_BYTES {
            return Err(OverlayError::XattrName);
        }
        self.store.lock().change(|facts| {
            let (id, _) = facts.file_or_new(path, kind)?;
            let all = facts.xattrs(id)?;
            let others = all.iter().filter(|(other, _)| other != name);
            let bytes: usize = others.map(|(name, value)| name.len() + value.len()).sum();
            match (how, all.iter().any(|(other, _)| other == name)) {
                (SetXattr::Create, true) => return Err(OverlayError::XattrExists),
                (SetXattr::Replace, false) => return Err(OverlayError::NoXattr),
                _ => {}
            }
            let limit = facts.limits().xattr_bytes;
            if bytes + name.len() + value.len() > limit {
                return Err(OverlayError::XattrsTooLarge(limit));
            }
            facts.put_xattr(id, name, Some(value))
        })
    }

    pub fn remove_xattr(&self, path: RelPath<'_>, kind: Kind, name: &[u8]) -> Result<()> {
        self.store.lock().change(|facts| {
            let (id, _) = facts.file_of_kind(path, kind)?.ok_or(OverlayError::NoXattr)?;
            facts.xattr(id, name)?.ok_or(OverlayError::NoXattr)?;
            facts.put_xattr(id, name, None)
        })
    }

    /// Something new has this name. What was known of it was of something else, which somebody has
    /// removed without a word.
    pub fn created(&self, path: RelPath<'_>) -> Result<()> {
        self.removed(path)
    }

    /// `path` is a further name of the file at `existing`.
    pub fn linked(&self, existing: RelPath<'_>, path: RelPath<'_>, kind: Kind) -> Result<()> {
        self.store.lock().change(|facts| {
            facts.drop_tree(path)?;
            // Also if nothing is known of it: what will be known holds for both names.
            let (id, mut record) = facts.file_or_new(existing, kind)?;
            record.names += 1;
            facts.put_record(id, Some(&record))?;
            facts.put_name(path, Some(id))
        })
    }

    /// What was at `from`, with everything below, is at `to`; what was there is gone.
    pub fn renamed(&self, from: RelPath<'_>, to: RelPath<'_>) -> Result<()> {
        if from == to {
            return Ok(());
        }
        self.store.lock().change(|facts| {
            facts.drop_tree(to)?;
            for (path, id) in facts.names_within(from)? {
                let below = path.as_path().strip(from).unwrap_or(RelPath::ROOT);
                facts.put_name(path.as_path(), None)?;
                facts.put_name(to.concat(below).as_path(), Some(id))?;
            }
            Ok(())
        })
    }

    /// Nothing is at `path` any more, nor below.
    pub fn removed(&self, path: RelPath<'_>) -> Result<()> {
        self.store.lock().change(|facts| facts.drop_tree(path))
    }

    /// The step that was open when the process died. Nothing can be changed by others before it
    /// has been rolled back or ended.
    pub fn open_step(&self) -> Option<StepId> {
        self.store.lock().open_step()
    }

    /// What changes from now on belongs to `step`.
    pub fn begin_step(&self, step: StepId) -> Result<()> {
        self.store.lock().begin_step(step)
    }

    /// The step is complete. If it changed anything, steps that were rolled back cannot be redone
    /// any more.
    pub fn end_step(&self, step: StepId) -> Result<()> {
        self.store.lock().end_step(step)
    }

    /// Everything is as it was before `step`, the newest one that has not been rolled back. It can
    /// be redone, unless it was still open.
    pub fn rollback(&self, step: StepId) -> Result<()> {
        self.store.lock().rollback(step)
    }

    /// Everything is as it was after `step`, the one that was rolled back last.
    pub fn redo(&self, step: StepId) -> Result<()> {
        self.store.lock().redo(step)
    }

    /// `step` and all before it will never be rolled back.
    pub fn forget(&self, step: StepId) -> Result<()> {
        self.store.lock().forget(step)
    }

    /// No step that was rolled back will be redone.
    pub fn forget_undone(&self) -> Result<()> {
        self.store.lock().forget_undone()
    }
}

fn posix((_, record): (i64, Record)) -> Posix {
    Posix { mode: record.mode, uid: record.uid, gid: record.gid, target: record.target }
}
