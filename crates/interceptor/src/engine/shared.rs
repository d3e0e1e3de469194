//! Steps beside commands in the background, and steps that nobody brings to their end.
//!
//! Where several commands write through one filesystem, nobody can tell whose doing a change was. A
//! step that was open beside a command in the background is therefore *shared*: what is in it may be
//! that command's, so it is never taken back because of something else than an undo. Who denies a
//! question refuses operations, and whoever gives up a step closes it as one that can be undone.
//!
//! ```text
//! open_step ───────────────── close_step      shared, from begin_background on and to its end
//!        begin_background ── end_background
//! ```
//!
//! A step that takes nothing but its own changes ([`own`](super::own)) is never shared.

use codeagent_common::{StepId, StepInfo, StepKind};
use serde::{Deserialize, Serialize};

use super::invert::Inverted;
use super::invert::Outrun;
use super::recovery::RecoveryReport;
use super::state::{OpenStep, State};
use super::steps::ClosedStep;
use super::{RollbackOptions, UndoEngine};
use crate::error::{Result, UndoError};

/// What became of a step that was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AbortedStep {
    /// The folder is as it was before.
    TakenBack(StepId),
    /// It is shared: what was done is in the history, and can be undone.
    Kept(StepInfo),
    /// It was part of a transaction, which goes on with what was done.
    Joined(StepId),
}

impl UndoEngine {
    /// A command begins whose changes come at any time, through the same filesystem as those of
    /// others. To be called before it can change anything.
    pub fn begin_background(&self) {
        let mut state = self.state.write();
        state.background = state.background.saturating_add(1);
        if let Some(step) = state.open.as_mut().filter(|step| step.alone.is_none()) {
            step.shared = true;
        }
    }

    /// Nothing of it is left that could change anything.
    pub fn end_background(&self) {
        let mut state = self.state.write();
        state.background = state.background.saturating_sub(1);
    }

    /// Gives up the open step: what it did is taken back or, if it is shared, kept as a step that can
    /// be undone. What a command did in a transaction stays there until that is rolled back: the
    /// commands before it are not its business.
    pub fn abort_step(&self) -> Result<AbortedStep> {
        {
            let mut state = self.state.write();
            if let Some(step) = state.reserved.take() {
                return Ok(AbortedStep::TakenBack(step.id));
            }
            if let Some(step) = state.open.as_mut().filter(|step| step.nested > 0) {
                step.nested -= 1;
                return Ok(AbortedStep::Joined(step.id));
            }
        }
        self.give_up_open_step(None, |_, _| Ok(()))
    }

    /// Gives up step `unfinished`, should it be open: whoever began it has gone, and nobody knows its
    /// end. If it is taken back, whoever opens the undo log next learns of it. `None`: it is not open.
    pub fn give_up_unfinished(&self, unfinished: StepId) -> Result<Option<AbortedStep>> {
        {
            let mut state = self.state.write();
            if state.begun().is_none_or(|step| step.id != unfinished) {
                return Ok(None);
            }
            if let Some(step) = state.reserved.take() {
                return Ok(Some(AbortedStep::TakenBack(step.id)));
            }
        }
        let given_up = self.give_up_open_step(Some(unfinished), |step, inverted| {
            let report = RecoveryReport::rolled_back(step, inverted);
            let noted = self.workspace.store.note_recovery(&report);
            noted.map_err(UndoError::io("writing to the undo directory"))
        });
        match given_up {
            // Somebody else has just done it.
            Err(UndoError::NoStepOpen) => Ok(None),
            given_up => given_up.map(Some),
        }
    }

    /// `note` is called before anybody else can see that the step has been taken back: a process that
    /// ends as soon as there is none must not end before that.
    fn give_up_open_step(
        &self,
        expected: Option<StepId>,
        note: impl FnOnce(StepId, Inverted) -> Result<()>,
    ) -> Result<AbortedStep> {
        let _changing = self.change_contents();
        let mut state = self.state.write();
        self.finish_interrupted(&mut state)?;
        // By now it may be another one, of somebody else.
        let is_it = |step: &&mut OpenStep| expected.is_none_or(|id| step.id == id);
        let step = state.open.as_mut().filter(is_it).ok_or(UndoError::NoStepOpen)?;
        let id = step.id;
        // Whether it is must not change before it is dealt with: this is one lock.
        if step.is_kept() {
            // If it cannot be closed now, whoever comes next does it.
            step.abandoned = true;
            return Ok(match self.finish(&mut state)? {
                ClosedStep::Recorded { step, .. } => AbortedStep::Kept(step),
                _ => AbortedStep::TakenBack(id),
            });
        }
        self.take_back_for_good(&mut state, note).map(AbortedStep::TakenBack)
    }

    fn take_back_for_good(
        &self,
        state: &mut State,
        note: impl FnOnce(StepId, Inverted) -> Result<()>,
    ) -> Result<StepId> {
        let id = state.open.as_ref().ok_or(UndoError::NoStepOpen)?.id;
        let taken_back = self.take_back_open(state);
        // Without protection there is no way back, and nothing more to wait for.
        if matches!(taken_back, Ok(_) | Err(UndoError::StepUnprotected { .. })) {
            state.open = None;
        }
        if let Some(inverted) = taken_back? {
            note(id, inverted)?;
        }
        Ok(id)
    }

    /// Takes back everything since the transaction began. Somebody wants that, so a shared one goes,
    /// too; but it is undone, and redo brings it back, because not all of it was the transaction's.
    pub fn rollback_transaction(&self) -> Result<StepId> {
        self.expect_transaction(&self.state.read())?;
        let _changing = self.change_contents();
        let mut state = self.state.write();
        self.finish_interrupted(&mut state)?;
        self.expect_transaction(&state)?;
        let step = state.open.as_ref().ok_or(UndoError::NoStepOpen)?;
        let id = step.id;
        if !step.is_kept() {
            return self.take_back_for_good(&mut state, |_, _| Ok(()));
        }
        if let ClosedStep::Recorded { .. } = self.finish(&mut state)? {
            self.undo_newest(&mut state, 1, RollbackOptions::force(), Outrun::Leaves)?;
        }
        Ok(id)
    }

    pub fn is_in_transaction(&self) -> bool {
        self.expect_transaction(&self.state.read()).is_ok()
    }

    pub(super) fn expect_transaction(&self, state: &State) -> Result<()> {
        match &state.open {
            Some(step) if step.kind == StepKind::Transaction => Ok(()),
            _ => Err(UndoError::NoStepOpen),
        }
    }
}
