//! A full disk: growth is refused before there is none left, and the ways back still work.

use codeagent_common::StepId;

use super::UndoEngine;
use super::recovery::RecoveryReport;
use super::state::State;
use crate::error::{Result, UndoError};
use crate::interceptor::{Allocation, FileRef, Mutation};

/// What a new name takes: an inode, and a share of a directory.
const NAME_BYTES: u64 = 4 << 10;
/// What is assumed of a write whose length is not announced.
const UNKNOWN_BYTES: u64 = 128 << 10;

impl UndoEngine {
    /// Refuses what would take more of a disk that is nearly full. What gives space back, or only
    /// moves things, goes on.
    pub(super) fn check_growth(&self, mutation: &Mutation<'_>) -> Result<()> {
        let Some(bytes) = growth_bytes(mutation) else {
            return Ok(());
        };
        match self.workspace.space.take(&self.workspace.store, bytes) {
            Err(UndoError::LowDiskSpace { .. }) if self.shrinks(mutation) => Ok(()),
            outcome => outcome,
        }
    }

    /// Looked at only when it matters.
    fn shrinks(&self, mutation: &Mutation<'_>) -> bool {
        let Mutation::Truncate { file, length } = *mutation else {
            return false;
        };
        self.size(file).is_some_and(|size| length <= size)
    }

    fn size(&self, file: FileRef<'_>) -> Option<u64> {
        match file.open {
            Some(open) => {
                let stat = rustix::fs::fstat(open.file().ok()?).ok()?;
                stat.st_size.try_into().ok()
            }
            None => self.workspace.tree.stat(file.path).ok()?.map(|stamp| stamp.size),
        }
    }

    /// Does something that must work on a full disk. If there is no space for it, it is done again
    /// with what was set aside.
    pub(super) fn with_reserve<T>(
        &self,
        state: &mut State,
        mut work: impl FnMut(&mut State) -> Result<T>,
    ) -> Result<T> {
        let store = &self.workspace.store;
        // Looked at first: what is part of the work may have used it up, and given back.
        let held = store.reserve.is_held();
        let outcome = match work(state) {
            Err(error) if held && error.is_out_of_space() => {
                store.reserve.release();
                work(state)
            }
            outcome => outcome,
        };
        store.fill_reserve();
        outcome
    }

    /// Reads the history, and finishes what a crash left; at need with what was set aside.
    pub(super) fn load_and_recover(&mut self) -> Result<Option<RecoveryReport>> {
        let outcome = self.load().and_then(|()| self.recover());
        match outcome {
            Err(error) if error.is_out_of_space() && self.workspace.store.reserve.release() => {
                self.load().and_then(|()| self.recover())
            }
            outcome => outcome,
        }
    }

    /// Forgets everything that could be redone, which gives its space back. Returns the steps.
    pub fn drop_redoable(&self) -> Result<Vec<StepId>> {
        let mut guard = self.state.write();
        let state = self.ready(&mut guard)?;
        let steps = state.redo.lock().iter().rev().map(|entry| entry.info.id).collect();
        self.with_reserve(state, |state| {
            self.drop_redo(state).map_err(UndoError::io("dropping what could be redone"))
        })?;
        Ok(steps)
    }

    /// What could be redone cannot be any more. If something cannot be deleted now, that is done
    /// later.
    pub(super) fn drop_redo(&self, state: &State) -> std::io::Result<()> {
        let dropped: Vec<_> = state.redo.lock().drain(..).collect();
        for entry in dropped.iter().filter(|entry| entry.is_small()) {
            // Without it, a late watcher takes the undo for somebody else's work.
            if let Ok(table) = entry.table() {
                let left = table.expected().iter().map(|(path, stamp)| (path.clone(), *stamp));
                state.left.lock().note(left);
            }
        }
        let dropped = dropped.into_iter().map(|entry| (entry.dir, entry.sequence));
        self.workspace.store.discard_spent(dropped)
    }
}

/// Bytes that a mutation may add to the disk; `None` if it adds nothing.
fn growth_bytes(mutation: &Mutation<'_>) -> Option<u64> {
    match *mutation {
        Mutation::Create { .. } | Mutation::Mkdir { .. } | Mutation::Link { .. } => {
            Some(NAME_BYTES)
        }
        Mutation::Write { length, .. } => Some(length),
        Mutation::Append { .. } | Mutation::OpenUnseen { .. } => Some(UNKNOWN_BYTES),
        // A longer file has a hole at its end.
        Mutation::Truncate { length, .. } => (length > 0).then_some(0),
        Mutation::Allocate { how, length, .. } => match how {
            Allocation::PunchHole | Allocation::CollapseRange => None,
            Allocation::Extend
            | Allocation::KeepSize
            | Allocation::ZeroRange
            | Allocation::InsertRange => Some(length),
        },
        Mutation::Unlink { .. }
        | Mutation::Rmdir { .. }
        | Mutation::Rename { .. }
        | Mutation::SetAttributes { .. } => None,
    }
}
