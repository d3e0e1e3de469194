//! Undo, redo, and everything else that is about steps.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use codeagent_common::{
    Change, ErrorCode, RelPathBuf, ResourceLimits, SafeguardConfig, SafeguardDecision, SafeguardId,
    StepId, StepInfo,
};
use codeagent_interceptor::{
    ClosedStep, HistoryEntry, OnConflict, Preview, RestoreReport, RollbackReport,
};
use codeagent_worker::Request;
use serde::de::DeserializeOwned;

use super::folder::{Folder, Keeper};
use super::lane::Patience;
use super::{Access, Active, Session};
use crate::diff::{self, FileDiff};
use crate::error::{Result, SandboxError};

/// How long to wait for a command that runs.
const PATIENCE: Duration = Duration::from_secs(10);

/// All of them are about one working directory: the one with this label, or the first.
impl Session {
    /// Oldest first.
    pub fn history(&self, directory: Option<&str>) -> Result<Vec<HistoryEntry>> {
        self.ask(directory, |keeper| Ok(keeper.client().history()?))
    }

    pub fn redoable(&self, directory: Option<&str>) -> Result<Vec<StepInfo>> {
        self.ask(directory, |keeper| Ok(keeper.client().redoable()?))
    }

    /// The net changes of a step.
    pub fn changes(&self, directory: Option<&str>, step: StepId) -> Result<Vec<Change>> {
        self.ask(directory, |keeper| Ok(keeper.client().changes(step)?))
    }

    /// What a step did to the contents of files.
    pub fn diff(&self, directory: Option<&str>, step: StepId) -> Result<Vec<FileDiff>> {
        self.ask(directory, |keeper| diff::of_step(keeper.client(), step))
    }

    pub fn preview(&self, directory: Option<&str>, count: usize) -> Result<Preview> {
        self.ask(directory, |keeper| Ok(keeper.client().preview(count)?))
    }

    pub fn undo(
        &self,
        directory: Option<&str>,
        count: usize,
        conflicts: OnConflict,
    ) -> Result<RollbackReport> {
        let report =
            self.change(directory, |keeper| Ok(keeper.client().undo(count, conflicts)?))?;
        self.tell_commands(report.steps.iter().copied());
        Ok(report)
    }

    pub fn redo(
        &self,
        directory: Option<&str>,
        count: usize,
        conflicts: OnConflict,
    ) -> Result<RollbackReport> {
        let report =
            self.change(directory, |keeper| Ok(keeper.client().redo(count, conflicts)?))?;
        self.tell_commands(report.steps.iter().copied());
        Ok(report)
    }

    /// Those that run in a guest hear that files have changed under them.
    fn tell_commands(&self, steps: impl IntoIterator<Item = StepId>) {
        if let Ok(active) = self.active() {
            steps.into_iter().for_each(|step| active.executor.rolled_back(step));
        }
    }

    /// Brings paths back to what they were before a step, as a step of its own.
    pub fn restore(
        &self,
        directory: Option<&str>,
        step: StepId,
        paths: Vec<RelPathBuf>,
    ) -> Result<RestoreReport> {
        let report =
            self.change(directory, |keeper| Ok(keeper.client().restore(step, paths)?))?;
        self.tell_commands(report.step.as_ref().map(|step| step.id));
        Ok(report)
    }

    pub fn pin(&self, directory: Option<&str>, step: StepId, pinned: bool) -> Result<()> {
        self.ask(directory, |keeper| Ok(keeper.client().call(Request::Pin { step, pinned })?))
    }

    /// Throws the history away.
    pub fn discard_history(&self, directory: Option<&str>) -> Result<()> {
        self.change(directory, |keeper| Ok(keeper.client().call(Request::Discard)?))
    }

    pub fn limits(&self, directory: Option<&str>) -> Result<ResourceLimits> {
        Ok(self.active()?.folder(directory)?.limits())
    }

    pub fn set_limits(&self, directory: Option<&str>, limits: ResourceLimits) -> Result<()> {
        self.active()?.folder(directory)?.set_limits(limits)
    }

    /// In all working directories.
    pub fn set_safeguards(&self, config: SafeguardConfig) -> Result<()> {
        let active = self.active()?;
        let mut writable =
            active.folders.iter().filter(|folder| folder.access == Access::ReadWrite);
        writable.try_for_each(|folder| folder.set_safeguards(config))
    }

    /// Answers the question of a safeguard.
    pub fn answer(
        &self,
        directory: Option<&str>,
        question: SafeguardId,
        decision: SafeguardDecision,
    ) -> Result<()> {
        self.active()?.folder(directory)?.answer(question, decision)
    }

    /// From here on all commands are one step, until it is committed or rolled back.
    pub fn begin(&self, label: &str) -> Result<Vec<StepId>> {
        let active = self.active()?;
        if let Some(command) = self.background_command() {
            return Err(SandboxError::InBackground(command));
        }
        let turn = active.take_turn(&Patience::of(PATIENCE))?;
        let mut begun = Vec::new();
        for keeper in turn.workers().iter().flatten() {
            let request = Request::BeginTransaction { label: label.into() };
            match keeper.client().call(request) {
                Ok(step) => begun.push((Arc::clone(keeper), step)),
                Err(error) => {
                    let begun = begun.into_iter().map(|(keeper, _)| Ok(keeper));
                    let _: Result<Vec<Option<StepId>>> =
                        active.end_transaction(begun, &Request::RollbackTransaction);
                    return Err(error.into());
                }
            }
        }
        active.in_transaction.store(true, Ordering::SeqCst);
        Ok(begun.into_iter().map(|(_, step)| step).collect())
    }

    /// For each working directory that can be changed, in their order; `None` where it was not open any
    /// more.
    pub fn commit(&self) -> Result<Vec<Option<ClosedStep>>> {
        let active = self.active()?;
        let turn = active.take_turn(&Patience::of(PATIENCE))?;
        let keepers = turn.workers().iter().flatten().cloned().map(Ok);
        active.end_transaction(keepers, &Request::CommitTransaction)
    }

    /// Takes back everything since [`Session::begin`], in the folders that [`Session::commit`] has.
    pub fn rollback(&self) -> Result<Vec<Option<StepId>>> {
        let active = self.active()?;
        let _turn = active.take_turn(&Patience::of(PATIENCE))?;
        let rolled_back = active.roll_back()?;
        self.tell_commands(rolled_back.iter().flatten().copied());
        Ok(rolled_back)
    }

    fn ask<T>(&self, directory: Option<&str>, ask: impl FnOnce(&Keeper) -> Result<T>) -> Result<T> {
        let active = self.active()?;
        let keeper = active.folder(directory)?.keeper()?;
        ask(&keeper)
    }

    /// As `ask`, while no command has a step.
    fn change<T>(
        &self,
        directory: Option<&str>,
        change: impl FnOnce(&Keeper) -> Result<T>,
    ) -> Result<T> {
        let active = self.active()?;
        let folder = active.folder(directory)?;
        if folder.access == Access::ReadOnly {
            return Err(SandboxError::ReadOnly(folder.path.clone()));
        }
        let _turn = active.take_turn_in(folder, &Patience::of(PATIENCE))?;
        let keeper = folder.keeper()?;
        change(&keeper)
    }
}

impl Active {
    pub(super) fn roll_back(&self) -> Result<Vec<Option<StepId>>> {
        let writable = self.folders.iter().filter(|folder| folder.access == Access::ReadWrite);
        self.end_transaction(writable.map(Folder::keeper), &Request::RollbackTransaction)
    }

    /// In all folders, whatever fails in one of them: nobody could end what is left in the others. The
    /// first error comes back; in folders that it was about, the transaction may be open still.
    fn end_transaction<T: DeserializeOwned>(
        &self,
        keepers: impl Iterator<Item = Result<Arc<Keeper>>>,
        how: &Request,
    ) -> Result<Vec<Option<T>>> {
        let (mut ended, mut failed, mut over) = (Vec::new(), None, None);
        let mut is_left = false;
        for keeper in keepers {
            let outcome = keeper.and_then(|keeper| {
                let outcome = keeper.client().call(how.clone());
                // If the worker is gone, the next one takes it back.
                is_left |= outcome.is_err() && has_step(&keeper);
                Ok(outcome?)
            });
            match outcome {
                Ok(step) => ended.push(Some(step)),
                // Somebody has ended it there, or the worker has died and with it the transaction.
                Err(error) if error.code() == ErrorCode::NoStepOpen => {
                    over = Some(error);
                    ended.push(None);
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        self.in_transaction.store(is_left, Ordering::SeqCst);
        match failed.or(over.filter(|_| ended.iter().all(Option::is_none))) {
            Some(error) => Err(error),
            None => Ok(ended),
        }
    }
}

/// While nobody has a step but the transaction.
fn has_step(keeper: &Keeper) -> bool {
    let open = keeper.client().status().ok().and_then(|status| status.open_step);
    open.is_some_and(|step| !step.is_ambient())
}
