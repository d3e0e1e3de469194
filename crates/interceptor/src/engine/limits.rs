//! Keeping the store within its bounds.

use codeagent_common::StepId;

use super::UndoEngine;
use super::state::{ClosedEntry, State};
use crate::error::{Result, UndoError};
use crate::events::EngineEvent;
use crate::store::{Counted, Counters, StepDir};

impl UndoEngine {
    /// Drops the oldest steps until the log fits. Never the newest, never a pinned one. What cannot
    /// be dropped now stays until the next time.
    pub(super) fn evict(&self, state: &mut State) -> Vec<StepId> {
        self.account(state);
        let mut evicted = Vec::new();
        while let Some(oldest) = self.next_to_evict(state) {
            let step = &state.history[oldest];
            let id = step.info.id;
            if let Err(error) = self.evict_one(state, step) {
                self.warn("dropping an old step", Err(error));
                break;
            }
            evicted.push(id);
            state.history.remove(oldest);
        }
        if !evicted.is_empty() {
            let oldest = state.history.first().map_or(u64::MAX, |step| step.sequence);
            let lifted = state.barriers.lift(|barrier| barrier.after_sequence < oldest);
            self.warn("writing the barriers", lifted);
            self.config.events.event(EngineEvent::Evicted { steps: evicted.clone() });
        }
        evicted
    }

    fn next_to_evict(&self, state: &State) -> Option<usize> {
        let limits = *self.limits.read();
        let redo_bytes: u64 = state.redo.lock().iter().map(ClosedEntry::bytes).sum();
        let total = redo_bytes + state.history.iter().map(ClosedEntry::bytes).sum::<u64>();
        let over = state.history.len() > limits.max_steps || total > limits.max_log_bytes;
        let candidates = state.history.len().saturating_sub(1);
        let oldest = || state.history[..candidates].iter().position(|step| !step.info.pinned);
        if over { oldest() } else { None }
    }

    fn evict_one(&self, state: &State, step: &ClosedEntry) -> Result<()> {
        let failed = || UndoError::io("dropping an old step");
        let store = &self.workspace.store;
        // What this one has inverted must not outlive it.
        store.discard_spent([]).map_err(failed())?;
        // First the note that it is gone, then the step: a crash between the two leaves a step that
        // undo does not go past, never a gap that it does not see.
        let mut counters = state.counters.lock();
        let evicted_up_to = counters.evicted_up_to.max(step.sequence);
        let mut noted: Counters = *counters;
        noted.evicted_up_to = evicted_up_to;
        self.save_counters(&noted)?;
        store.discard(&step.dir, step.sequence).map_err(failed())?;
        *counters = noted;
        Ok(())
    }

    /// Begins to count what lies below the directories that a closed step has moved.
    pub(super) fn count_below(&self, dir: &StepDir, directories: Vec<u32>) -> Option<Counted> {
        if directories.is_empty() {
            return None;
        }
        // If not, the next start does it.
        self.workspace.store.count_later(dir, directories).ok()
    }

    /// Writes down what has been counted meanwhile.
    fn account(&self, state: &mut State) {
        let probe = &self.workspace.store.probe;
        for entry in state.history.iter_mut().chain(state.redo.get_mut()) {
            let Some(&bytes) = entry.counting.as_ref().and_then(|counting| counting.get()) else {
                continue;
            };
            entry.info.held_bytes = entry.info.held_bytes.saturating_add(bytes);
            entry.counting = None;
            // If not, the next start counts again.
            let _ = entry.dir.set_held_below(bytes, probe);
        }
    }

    /// If something has been counted since the last time, the log may have become too large.
    pub(super) fn settle_counted(&self) {
        let counted = |entry: &ClosedEntry| {
            entry.counting.as_ref().is_some_and(|counting| counting.get().is_some())
        };
        let settle = {
            let state = self.state.read();
            let redo = state.redo.lock();
            state.history.iter().chain(redo.iter()).any(counted)
        };
        if settle {
            self.evict(&mut self.state.write());
        }
    }

    /// Keeps a step from being dropped, or lets it go again.
    pub fn pin(&self, id: StepId, pinned: bool) -> Result<()> {
        let mut state = self.state.write();
        let state = self.ready(&mut state)?;
        let missing = state.why_missing(id);
        let step = state.history.iter_mut().find(|step| step.info.id == id).ok_or(missing)?;
        step.dir
            .set_pinned(pinned, &self.workspace.store.probe)
            .map_err(UndoError::io("pinning the step"))?;
        step.info.pinned = pinned;
        Ok(())
    }
}
