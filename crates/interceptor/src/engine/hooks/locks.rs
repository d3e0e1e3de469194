//! What mutations under way keep still: names of directories, and the directories they work in.

use std::sync::Arc;

use codeagent_common::RelPath;
use parking_lot::MutexGuard;
use rustix::io::Errno;

use crate::engine::UndoEngine;
use crate::engine::permit::Names;
use crate::error::{Result, UndoError};
use crate::host::{Dir, Entry, FileId, Tree};

/// Whether what was found by its name is what the front end means, if it knows.
pub(super) fn same(number: Option<u64>, found: FileId) -> Result<()> {
    match number.is_none_or(|number| number == found.inode) {
        true => Ok(()),
        false => Err(UndoError::host(Errno::STALE.into())),
    }
}

/// The directories whose entries change.
pub(super) type DirLocks<'e> = [Option<MutexGuard<'e, ()>>; 2];

impl UndoEngine {
    pub(in crate::engine) fn share_names(&self) -> Names<'_> {
        Names::Shared { _guard: self.names.read() }
    }

    pub(super) fn own_names(&self) -> Names<'_> {
        Names::Exclusive { _guard: self.names.write() }
    }

    /// A name, and the lock on its directory. While a rename or rmdir waits for the lock, the
    /// directory may go: then it is looked up again.
    pub(super) fn resolve_locked<'p>(
        &self,
        path: RelPath<'p>,
        dir: Option<u64>,
    ) -> Result<(Entry<'p>, MutexGuard<'_, ()>)> {
        loop {
            let (entry, guard) = self.locked(|tree| tree.entry(path))?;
            match same(dir, entry.dir_handle().id) {
                Ok(()) => return Ok((entry, guard)),
                Err(stale) if self.is_current(path, &entry) => return Err(stale),
                Err(_) => self.workspace.tree.forget_dirs(),
            }
        }
    }

    pub(super) fn locked<'p>(
        &self,
        resolve: impl Fn(&Tree) -> std::io::Result<Entry<'p>>,
    ) -> Result<(Entry<'p>, MutexGuard<'_, ()>)> {
        let tree = &self.workspace.tree;
        loop {
            let generation = tree.generation();
            let entry = resolve(tree).map_err(UndoError::host)?;
            let guard = self.lock_dir(entry.dir_handle());
            if tree.generation() == generation {
                return Ok((entry, guard));
            }
        }
    }

    /// As [`UndoEngine::resolve_locked`], for what is about to be taken away: the directory must
    /// be the one that has the name now, also if somebody outside has been renaming.
    pub(super) fn resolve_current<'p>(
        &self,
        path: RelPath<'p>,
        dir: Option<u64>,
    ) -> Result<(Entry<'p>, MutexGuard<'_, ()>)> {
        let (entry, guard) = self.current(path, |tree| tree.entry(path))?;
        same(dir, entry.dir_handle().id)?;
        Ok((entry, guard))
    }

    pub(super) fn current<'p>(
        &self,
        path: RelPath<'_>,
        resolve: impl Fn(&Tree) -> std::io::Result<Entry<'p>>,
    ) -> Result<(Entry<'p>, MutexGuard<'_, ()>)> {
        loop {
            let (entry, guard) = self.locked(&resolve)?;
            if self.is_current(path, &entry) {
                return Ok((entry, guard));
            }
            self.workspace.tree.forget_dirs();
        }
    }

    pub(super) fn is_current(&self, path: RelPath<'_>, entry: &Entry<'_>) -> bool {
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        self.workspace.tree.is_current(parent, entry.dir_handle())
    }

    pub(super) fn resolve_both_locked<'p>(
        &self,
        (a, dir_a): (RelPath<'p>, Option<u64>),
        (b, dir_b): (RelPath<'p>, Option<u64>),
    ) -> Result<(Entry<'p>, Entry<'p>, DirLocks<'_>)> {
        let tree = &self.workspace.tree;
        loop {
            let generation = tree.generation();
            let first = tree.entry(a).map_err(UndoError::host)?;
            let second = tree.entry(b).map_err(UndoError::host)?;
            let guards = self.lock_dirs(first.dir_handle(), second.dir_handle());
            if tree.generation() != generation {
                continue;
            }
            if self.is_current(a, &first) && self.is_current(b, &second) {
                same(dir_a, first.dir_handle().id)?;
                same(dir_b, second.dir_handle().id)?;
                return Ok((first, second, guards));
            }
            tree.forget_dirs();
        }
    }

    pub(super) fn stripe(&self, dir: &Dir) -> usize {
        (dir.id.inode as usize) % self.dir_locks.len()
    }

    pub(super) fn lock_dir(&self, dir: &Arc<Dir>) -> MutexGuard<'_, ()> {
        self.dir_locks[self.stripe(dir)].lock()
    }

    /// Locks two directories, always in the same order.
    pub(super) fn lock_dirs(&self, a: &Arc<Dir>, b: &Arc<Dir>) -> DirLocks<'_> {
        let (a, b) = (self.stripe(a), self.stripe(b));
        let first = self.dir_locks[a.min(b)].lock();
        let second = (a != b).then(|| self.dir_locks[a.max(b)].lock());
        [Some(first), second]
    }
}
