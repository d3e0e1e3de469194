//! Keeping the store within its bounds.

use codeagent_common::StepId;

use super::UndoEngine;
use super::state::{ClosedEntry, State};
use crate::error::{Result, UndoError};
use crate::events::EngineEvent;

impl UndoEngine {
    /// Drops the oldest steps until the log fits. Never the newest, never a pinned one.
    pub(super) fn evict(&self, state: &mut State) -> Result<Vec<StepId>> {
        let limits = *self.limits.read();
        let mut evicted = Vec::new();
        let redo_bytes: u64 = state.redo.lock().iter().map(bytes).sum();
        loop {
            let total = redo_bytes + state.history.iter().map(bytes).sum::<u64>();
            let over = state.history.len() > limits.max_steps || total > limits.max_log_bytes;
            let candidates = state.history.len().saturating_sub(1);
            let oldest = state.history[..candidates].iter().position(|step| !step.info.pinned);
            let (true, Some(oldest)) = (over, oldest) else {
                break;
            };
            let step = &state.history[oldest];
            {
                // First the note that it is gone, then the step: a crash between the two leaves a
                // step that undo does not use, never one it should not.
                let mut counters = state.counters.lock();
                counters.evicted_up_to = counters.evicted_up_to.max(step.sequence);
                self.save_counters(&counters)?;
            }
            self.workspace
                .store
                .discard(&step.dir, step.sequence)
                .map_err(UndoError::io("dropping an old step"))?;
            evicted.push(step.info.id);
            state.history.remove(oldest);
        }
        if !evicted.is_empty() {
            let oldest = state.history.first().map_or(u64::MAX, |step| step.sequence);
            state
                .barriers
                .lift(|barrier| barrier.after_sequence < oldest)
                .map_err(UndoError::io("writing the barriers"))?;
            self.config.events.event(EngineEvent::Evicted { steps: evicted.clone() });
        }
        Ok(evicted)
    }

    /// Keeps a step from being dropped, or lets it go again.
    pub fn pin(&self, id: StepId, pinned: bool) -> Result<()> {
        let mut state = self.state.write();
        let state = self.ready(&mut state)?;
        let step = state
            .history
            .iter_mut()
            .find(|step| step.info.id == id)
            .ok_or(UndoError::StepNotFound(id))?;
        step.dir
            .set_pinned(pinned, &self.workspace.store.probe)
            .map_err(UndoError::io("pinning the step"))?;
        step.info.pinned = pinned;
        Ok(())
    }
}

fn bytes(step: &ClosedEntry) -> u64 {
    step.info.stored_bytes + step.info.held_bytes
}
