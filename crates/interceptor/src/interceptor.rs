//! What a filesystem front end tells the engine, and what it gets back.

use std::fmt;
use std::io;

use codeagent_common::{EntryKind, RelPath, StepId};

use crate::error::Result;
use crate::file_id::FileId;
use crate::permit::Permit;

/// An open file, as this system knows it.
#[cfg(unix)]
pub type BorrowedFile<'a> = std::os::fd::BorrowedFd<'a>;
/// An open file, as this system knows it.
#[cfg(windows)]
pub type BorrowedFile<'a> = std::os::windows::io::BorrowedHandle<'a>;

/// A file that somebody has open.
pub trait OpenFile: fmt::Debug {
    /// Which file it is. Asked before each first write to a part of it.
    fn id(&self) -> io::Result<FileId>;

    /// The file itself. Rarely needed, so it may cost something.
    fn file(&self) -> io::Result<BorrowedFile<'_>>;
}

#[cfg(unix)]
impl<F: std::os::fd::AsFd + fmt::Debug> OpenFile for F {
    fn id(&self) -> io::Result<FileId> {
        FileId::of(self)
    }

    fn file(&self) -> io::Result<BorrowedFile<'_>> {
        Ok(self.as_fd())
    }
}

/// A file whose content or attributes are about to change.
#[derive(Debug, Clone, Copy)]
pub struct FileRef<'a> {
    /// A name the front end knows it by.
    pub path: RelPath<'a>,
    /// The open file, if there is one: finds it again when its name has changed meanwhile.
    pub open: Option<&'a dyn OpenFile>,
}

impl<'a> FileRef<'a> {
    pub fn at(path: RelPath<'a>) -> Self {
        Self { path, open: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// Whatever has the new name is replaced.
    Replace,
    NoReplace,
    Exchange,
}

/// What `fallocate` is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// Reserve space, growing the file if need be.
    Extend,
    /// Reserve space behind the end without growing.
    KeepSize,
    PunchHole,
    ZeroRange,
    /// Everything behind the range moves.
    CollapseRange,
    /// Everything behind the offset moves.
    InsertRange,
}

/// One operation that is about to change the working directory.
#[derive(Debug, Clone, Copy)]
pub enum Mutation<'a> {
    /// A new file, symlink, FIFO, socket or device, made with O_EXCL semantics: the host operation
    /// fails if the name is taken. Opening an existing file is not a creation.
    Create {
        path: RelPath<'a>,
        kind: EntryKind,
    },
    Mkdir {
        path: RelPath<'a>,
    },
    /// A further name for an existing file, or the first one for an O_TMPFILE (then `existing` is
    /// `None`).
    Link {
        existing: Option<RelPath<'a>>,
        path: RelPath<'a>,
    },
    Unlink {
        path: RelPath<'a>,
    },
    Rmdir {
        path: RelPath<'a>,
    },
    Rename {
        from: RelPath<'a>,
        to: RelPath<'a>,
        mode: RenameMode,
    },
    /// `write`, or `copy_file_range` into the file.
    Write {
        file: FileRef<'a>,
        offset: u64,
        length: u64,
    },
    /// A write to a file opened with O_APPEND.
    Append {
        file: FileRef<'a>,
    },
    /// `truncate`, or `open` with O_TRUNC (length 0).
    Truncate {
        file: FileRef<'a>,
        length: u64,
    },
    Allocate {
        file: FileRef<'a>,
        how: Allocation,
        offset: u64,
        length: u64,
    },
    /// The file is opened for writes that will not be announced: shared mapping, passthrough.
    OpenUnseen {
        file: FileRef<'a>,
    },
    /// `chmod`, `chown`, `utimens`, `setxattr`, `removexattr`.
    SetAttributes {
        file: FileRef<'a>,
    },
}

/// What a mutation really works on, where a front end has that open and knows names only by what it
/// has seen of them: somebody else, or an undo, may have renamed it since. Inode numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// The directory of the name; of the old one, for a rename.
    pub dir: Option<u64>,
    /// The directory of the new name of a rename.
    pub new_dir: Option<u64>,
    /// The file that gets a further name, or that changes without being open.
    pub file: Option<u64>,
}

/// A mutation is on its way for as long as this lives.
#[derive(Debug, Default)]
#[must_use = "it is to be kept until the mutation is done"]
pub struct Entered<'e> {
    _others: Option<parking_lot::RwLockReadGuard<'e, ()>>,
}

impl<'e> Entered<'e> {
    /// Keeps out whoever wants to own what was shared.
    pub fn sharing(others: parking_lot::RwLockReadGuard<'e, ()>) -> Self {
        Self { _others: Some(others) }
    }
}

/// Called for every mutation, before it happens.
pub trait WriteInterceptor: Send + Sync {
    /// To be called before a mutation takes any lock of its front end, once, and kept until it is
    /// done. Waits while a step is being made that takes nothing of this front end's clients.
    fn enter(&self) -> Result<Entered<'_>> {
        Ok(Entered::default())
    }

    /// Records what is needed to undo `mutation`, or refuses it.
    ///
    /// On success the front end carries the mutation out (unless [`Permit::performed`] says that
    /// it has happened already) and then tells the permit how it went. It holds one permit at a
    /// time in each thread.
    fn before<'e>(&'e self, mutation: &Mutation<'_>) -> Result<Permit<'e>> {
        self.before_at(mutation, Whereabouts::default())
    }

    /// As [`WriteInterceptor::before`]. Refused with ESTALE if the names of the mutation lead
    /// somewhere else than where it would happen.
    fn before_at<'e>(
        &'e self,
        mutation: &Mutation<'_>,
        whereabouts: Whereabouts,
    ) -> Result<Permit<'e>>;

    /// The short way for a write to a file that this step has captured already.
    /// `None`: take the long way through [`WriteInterceptor::before`].
    fn repeat_write<'e>(&'e self, file: FileId, offset: u64, length: u64) -> Option<Permit<'e>>;

    /// How many of the names that the host counts for this file are none for clients, because only
    /// the interceptor has them. Asked for almost every file, and almost always none.
    fn kept_names(&self, file: FileId) -> u32;

    /// Whether content is looked at before it takes this name. Nobody may have it open for writing
    /// then, and every write to it is asked for with [`WriteInterceptor::before`].
    fn inspects(&self, _path: RelPath<'_>) -> bool {
        false
    }

    /// Whether a mutation that is asked for now might have to wait: for the answer to a question, or
    /// for the end of an undo. Who serves others meanwhile has it done by another thread then.
    fn may_wait(&self) -> bool {
        false
    }

    /// The step that mutations are attributed to now.
    fn current_step(&self) -> Option<StepId>;
}
