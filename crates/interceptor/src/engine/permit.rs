//! What a permit means to the engine.

use codeagent_common::{RelPathBuf, StepId};
use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

use super::UndoEngine;
use super::state::State;
use crate::capture::Taken;
use crate::host::FileId;
use crate::permit::Permit;

/// What the engine holds while a mutation happens, and what it has yet to do.
pub(crate) struct Held<'e> {
    engine: Option<&'e UndoEngine>,
    after: After,
    // Dropped in this order: names before the gate.
    _dirs: [Option<MutexGuard<'e, ()>>; 2],
    _names: Names<'e>,
    gate: RwLockReadGuard<'e, State>,
}

/// How much of the namespace a mutation locks.
pub(super) enum Names<'e> {
    None,
    Shared {
        _guard: RwLockReadGuard<'e, ()>,
    },
    /// Directories change their names.
    Exclusive {
        _guard: RwLockWriteGuard<'e, ()>,
    },
}

/// What remains to be done when the outcome is known.
#[derive(Default)]
pub(super) struct After {
    /// Records to cancel if the mutation fails.
    pub(super) records: [Option<u64>; 2],
    /// A creation that has not returned.
    pub(super) creating: Option<u64>,
    /// A new inode appears here.
    pub(super) created: Option<RelPathBuf>,
    /// This inode loses its last name.
    pub(super) forgotten: Option<FileId>,
    /// A replaced entry that has a second name in the store.
    pub(super) replaced: Option<Taken>,
    /// The record needs a confirmation.
    pub(super) confirm: bool,
    /// Cached directories may have other names now.
    pub(super) forget_dirs: bool,
    /// This directory is gone.
    pub(super) removed_dir: Option<RelPathBuf>,
}

impl<'e> Permit<'e> {
    /// Nothing to record, but no step may end meanwhile.
    pub(super) fn gated(gate: RwLockReadGuard<'e, State>) -> Self {
        Permit { performed: false, held: Some(Held::bare(gate)) }
    }

    pub(super) fn performed_by_engine(gate: RwLockReadGuard<'e, State>) -> Self {
        Permit { performed: true, held: Some(Held::bare(gate)) }
    }

    pub(super) fn new(
        engine: &'e UndoEngine,
        gate: RwLockReadGuard<'e, State>,
        names: Names<'e>,
        dirs: [Option<MutexGuard<'e, ()>>; 2],
        after: After,
    ) -> Self {
        let held = Held { engine: Some(engine), after, _dirs: dirs, _names: names, gate };
        Permit { performed: false, held: Some(held) }
    }

    /// The step and the reason, once, if it has just lost its protection.
    pub(super) fn newly_unprotected(&self) -> Option<(StepId, String)> {
        let step = self.held.as_ref()?.gate.open.as_ref()?;
        step.newly_unprotected().map(|reason| (step.id, reason.to_owned()))
    }
}

impl<'e> Held<'e> {
    fn bare(gate: RwLockReadGuard<'e, State>) -> Self {
        let after = After::default();
        Held { engine: None, after, _dirs: [None, None], _names: Names::None, gate }
    }

    pub(crate) fn done(mut self) {
        self.conclude(true);
    }

    pub(crate) fn created(mut self, id: FileId) {
        if self.after.created.take().is_some()
            && let Some(recorder) = self.recorder()
        {
            recorder.inodes.mark_created(id);
        }
        self.conclude(true);
    }

    pub(crate) fn failed(mut self) {
        let after = std::mem::take(&mut self.after);
        if let Some(recorder) = self.recorder() {
            after.creating.inspect(|index| recorder.created(*index));
            recorder.cancel(after.records.into_iter().flatten());
            if let Some(replaced) = after.replaced {
                let _ = recorder.object(replaced.number).unlink();
            }
        }
    }

    fn recorder(&self) -> Option<&crate::capture::Recorder> {
        self.gate.open.as_ref()?.recorder()
    }

    /// What follows from the mutation, or, if nobody said how it went, from its possibility.
    fn conclude(&mut self, certain: bool) {
        let after = std::mem::take(&mut self.after);
        let (Some(engine), Some(recorder)) = (self.engine, self.recorder()) else {
            return;
        };
        let tree = &engine.workspace.tree;
        if let (Some(path), true) = (&after.created, certain)
            && let Ok(Some((id, _))) = tree.entry(path.as_path()).and_then(|e| e.stat_id())
        {
            recorder.inodes.mark_created(id);
        }
        if let (Some(index), true) = (after.creating, certain) {
            recorder.created(index);
        }
        if let Some(id) = after.forgotten {
            recorder.inodes.forget(id);
        }
        if let Some(replaced) = after.replaced {
            recorder.taken(&engine.workspace, replaced.id, replaced.number, &replaced.stamp);
        }
        if after.confirm && certain {
            after.records.into_iter().flatten().for_each(|record| recorder.confirm(record));
        }
        if let Some(path) = &after.removed_dir {
            tree.forget_dir(path.as_path());
        }
        if after.forget_dirs {
            tree.forget_dirs();
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.conclude(false);
    }
}
