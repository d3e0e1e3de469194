//! What can be asked without changing anything.

use codeagent_common::{BarrierInfo, Change, ChangeKind, StepId, StepInfo};
use serde::{Deserialize, Serialize};

use super::UndoEngine;
use super::state::ClosedEntry;
use crate::conflict::Conflict;
use crate::error::{Result, UndoError};
use crate::fold::net_changes_of;
use crate::store::StoredChange;

/// One line of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum HistoryEntry {
    Step(StepInfo),
    Barrier(BarrierInfo),
}

/// What an undo would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preview {
    /// Newest first.
    pub steps: Vec<StepId>,
    /// Net effect on the working directory, sorted by path.
    pub changes: Vec<Change>,
    /// What would be refused, skipped or overwritten.
    pub conflicts: Vec<Conflict>,
}

/// How full the store is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStatus {
    pub steps: usize,
    pub redoable: usize,
    pub stored_bytes: u64,
    pub held_bytes: u64,
    pub free_bytes: u64,
    pub open_step: Option<StepId>,
    /// Steps that cannot be undone.
    pub unprotected: Vec<StepId>,
    /// The other format found, if nothing is being recorded because of it.
    pub disabled_by_version: Option<String>,
}

impl UndoEngine {
    /// Steps and barriers, oldest first; a barrier stands behind the step it came after.
    pub fn history(&self) -> Vec<HistoryEntry> {
        let state = self.state.read();
        let mut entries = Vec::new();
        for step in &state.history {
            entries.push(HistoryEntry::Step(step.info.clone()));
            let after = state
                .barriers
                .standing()
                .iter()
                .filter(|barrier| barrier.after_sequence == step.info.sequence);
            entries.extend(after.cloned().map(HistoryEntry::Barrier));
        }
        entries
    }

    /// Steps only, oldest first.
    pub fn steps(&self) -> Vec<StepInfo> {
        self.state.read().history.iter().map(|step| step.info.clone()).collect()
    }

    /// What redo would re-apply, next one first.
    pub fn redoable(&self) -> Vec<StepInfo> {
        self.state.read().redo.lock().iter().rev().map(|entry| entry.info.clone()).collect()
    }

    pub fn barriers(&self) -> Vec<BarrierInfo> {
        self.state.read().barriers.standing().to_vec()
    }

    /// Net changes of one step, sorted by path.
    pub fn changes(&self, id: StepId) -> Result<Vec<Change>> {
        let state = self.state.read();
        let step = state.step(id)?;
        let mut changes: Vec<Change> =
            step.table()?.changes.iter().map(StoredChange::to_change).collect();
        changes.sort();
        Ok(changes)
    }

    /// What undoing the newest `count` steps would do.
    pub fn preview(&self, count: usize) -> Result<Preview> {
        let mut guard = self.state.write();
        let state = self.ready(&mut guard)?;
        self.end_ambient(state)?;
        if let Some(step) = state.begun() {
            return Err(step.in_the_way());
        }
        let steps = self.newest(state, count)?;
        let (conflicts, _) = self.obstacles(state, &steps)?;
        let mut changes: Vec<Change> = self.net_since(&steps)?.iter().map(inverse).collect();
        changes.sort();
        Ok(Preview { steps: steps.iter().map(|step| step.info.id).collect(), changes, conflicts })
    }

    /// Net changes of several steps, newest first, taken together.
    fn net_since(&self, steps: &[ClosedEntry]) -> Result<Vec<Change>> {
        let damaged = |error: std::io::Error| UndoError::Corrupt(error.to_string());
        let journals: std::io::Result<Vec<_>> =
            steps.iter().rev().map(|step| step.dir.journal()).collect();
        let net =
            net_changes_of(&journals.map_err(damaged)?, &self.workspace.tree).map_err(damaged)?;
        Ok(net.changes.iter().map(StoredChange::to_change).collect())
    }

    pub fn status(&self) -> Result<StoreStatus> {
        let state = self.state.read();
        let redo = state.redo.lock();
        let all = || state.history.iter().chain(redo.iter());
        Ok(StoreStatus {
            steps: state.history.len(),
            redoable: redo.len(),
            stored_bytes: all().map(|entry| entry.info.stored_bytes).sum(),
            held_bytes: all().map(ClosedEntry::held_bytes).sum(),
            free_bytes: self
                .workspace
                .store
                .free_bytes()
                .map_err(UndoError::io("looking for free space"))?,
            open_step: state.begun().map(|step| step.id),
            unprotected: state
                .history
                .iter()
                .filter(|step| !step.info.protection.is_protected())
                .map(|step| step.info.id)
                .collect(),
            disabled_by_version: state.disabled.clone(),
        })
    }
}

/// The change that takes this one back.
fn inverse(change: &Change) -> Change {
    let mut inverse = change.clone();
    inverse.kind = match change.kind {
        ChangeKind::Added => ChangeKind::Deleted,
        ChangeKind::Deleted => ChangeKind::Added,
        ChangeKind::Modified => ChangeKind::Modified,
        ChangeKind::Renamed => ChangeKind::Renamed,
    };
    if let Some(from) = &change.from {
        inverse.path = from.clone();
        inverse.from = Some(change.path.clone());
    }
    inverse
}
