//! Opening and closing steps.

use std::sync::atomic::Ordering;
use std::time::Duration;

use codeagent_common::{
    ChangeKind, Protection, Refusal, RelPathBuf, SafeguardId, StepId, StepInfo, StepKind, Timestamp,
};
use serde::{Deserialize, Serialize};

use super::UndoEngine;
use super::invert::{Inversion, Inverted};
use super::safeguard::Refused;
use super::state::{ClosedEntry, Denial, Interrupted, OpenStep, State, StepSafeguards};
use crate::capture::Recorder;
use crate::error::{Result, UndoError};
use crate::events::EngineEvent;
use crate::fold::net_changes;
use crate::store::StepDir;

/// How long who goes away cleans up.
const FAREWELL: Duration = Duration::from_millis(200);

/// A step somebody wants to begin.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StepRequest {
    pub kind: StepKind,
    /// Shown in the history.
    pub command: String,
    /// It takes nothing but what is adopted, and what comes through
    /// [`OwnChanges`](super::OwnChanges).
    pub own: bool,
}

impl StepRequest {
    pub fn command(line: impl Into<String>) -> Self {
        Self { kind: StepKind::Command, command: line.into(), own: false }
    }

    /// A command whose changes are staged, and adopted when it has ended.
    pub fn staged_command(line: impl Into<String>) -> Self {
        Self { own: true, ..Self::command(line) }
    }

    /// Changes of a file tool.
    pub fn api(call: impl Into<String>) -> Self {
        Self { kind: StepKind::Api, command: call.into(), own: true }
    }
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClosedStep {
    /// It is in the history now.
    Recorded {
        step: StepInfo,
        evicted: Vec<StepId>,
        /// A command in the background wrote to the folder meanwhile, or may have.
        shared: bool,
        /// Operations that were refused in it.
        denied: Vec<Refusal>,
    },
    /// It changed nothing, and is not in the history.
    Empty { step: StepId, denied: Vec<Refusal> },
    /// A safeguard was denied: everything it did has been taken back.
    Denied { step: StepId, safeguard: SafeguardId, asked: String },
    /// It was part of a transaction, which goes on.
    Joined { step: StepId, denied: Vec<Refusal> },
}

impl ClosedStep {
    pub fn empty(step: StepId) -> Self {
        Self::Empty { step, denied: vec![] }
    }

    pub fn joined(step: StepId) -> Self {
        Self::Joined { step, denied: vec![] }
    }
}

impl UndoEngine {
    /// Begins a step. Within a transaction the command joins it; an ambient step ends first.
    pub fn open_step(&self, request: StepRequest) -> Result<StepId> {
        self.write_out_caches();
        let mut state = self.state.write();
        self.finish_interrupted(&mut state)?;
        self.workspace.tree.forget_dirs();
        let is_abandoned = state.open.as_ref().is_some_and(|step| step.abandoned);
        if !request.own || is_abandoned {
            self.end_ambient(&mut state)?; // an own one does so with its first change
        }
        if let Some(reserved) = &state.reserved {
            return Err(UndoError::StepOpen(reserved.id));
        }
        if let Some(step) = state.open.as_mut().filter(|step| !step.id.is_ambient()) {
            if step.kind != StepKind::Transaction || request.kind == StepKind::Transaction {
                return Err(step.in_the_way());
            }
            step.nested += 1;
            if !request.command.is_empty() {
                step.commands.push(request.command);
            }
            return Ok(step.id);
        }
        let id = {
            let mut counters = state.counters.lock();
            let id = StepId(counters.next_step);
            counters.next_step = counters.next_step.saturating_add(1);
            id
        };
        if state.disabled.is_none() {
            // A command may be there to make room.
            self.with_reserve(&mut state, |state| self.save_counters(&state.counters.lock()))?;
        }
        let mut step = OpenStep::new(id, request.kind, request.command, self.now());
        step.shared = state.background > 0 && !request.own;
        let step = Some(step);
        *(if request.own { &mut state.reserved } else { &mut state.open }) = step;
        Ok(id)
    }

    /// Ends the open step. If this fails the step stays open: try again, or abort it.
    pub fn close_step(&self, exit_code: Option<i32>) -> Result<ClosedStep> {
        // Clients hear of own changes only now: before, they may have waited for this end.
        let _changing = self.is_alone().then(|| self.change_contents());
        self.write_out_caches();
        let mut state = self.state.write();
        self.finish_interrupted(&mut state)?;
        if let Some(step) = state.reserved.take() {
            return Ok(ClosedStep::empty(step.id));
        }
        let step = state.open.as_mut().ok_or(UndoError::NoStepOpen)?;
        if step.kind == StepKind::Transaction {
            if step.nested == 0 {
                return Err(step.in_the_way());
            }
            step.nested -= 1;
            step.exit_code = exit_code.or(step.exit_code);
            let denied = step.take_refusals();
            if step.nested == 0 {
                // What was refused to this command, the next one may be allowed.
                step.safeguards.lock().denied.clear();
            }
            return Ok(ClosedStep::Joined { step: step.id, denied });
        }
        step.exit_code = exit_code;
        self.finish(&mut state)
    }

    /// Begins a transaction: all commands until its end are one step.
    pub fn begin_transaction(&self, label: impl Into<String>) -> Result<StepId> {
        let (kind, command) = (StepKind::Transaction, label.into());
        self.open_step(StepRequest { kind, command, own: false })
    }

    pub fn commit_transaction(&self) -> Result<ClosedStep> {
        self.write_out_caches();
        let mut state = self.state.write();
        self.finish_interrupted(&mut state)?;
        self.expect_transaction(&state)?;
        self.finish(&mut state)
    }

    /// Ends an ambient step that has been quiet for long enough, and drops old steps if large
    /// directories have been counted meanwhile. To be called now and then.
    pub fn tick(&self) -> Result<Option<ClosedStep>> {
        let due = |state: &State| {
            let now = self.now();
            state.open.as_ref().is_some_and(|step| self.ambient_expired(step, now))
        };
        self.settle_counted();
        if !due(&self.state.read()) {
            return Ok(None);
        }
        self.write_out_caches();
        let mut state = self.state.write();
        if due(&state) { self.finish(&mut state).map(Some) } else { Ok(None) }
    }

    /// Ends the ambient step that may be open, however quiet it was: its front end goes away.
    pub fn end_ambient_step(&self) -> Result<Option<ClosedStep>> {
        let mut state = self.state.write();
        self.finish_interrupted(&mut state)?;
        self.end_ambient(&mut state)
    }

    /// Ends the step that is open, whoever began it, because nothing more will be served: one that
    /// is left open counts as interrupted, and would be taken back. A transaction stays open for
    /// that very reason.
    pub fn end_open_step(&self) -> Result<Option<ClosedStep>> {
        self.write_out_caches();
        let mut state = self.state.write();
        self.finish_interrupted(&mut state)?;
        state.reserved = None;
        match &state.open {
            Some(step) if step.kind != StepKind::Transaction => self.finish(&mut state).map(Some),
            _ => Ok(None),
        }
    }

    /// As [`UndoEngine::end_open_step`], and nothing is recorded any more: what still arrives is
    /// refused, or it would be done in a step that nobody ends. If it is step `unfinished` that is
    /// open, nobody knows its end, and it is given up.
    pub fn retire(&self, unfinished: Option<StepId>) -> Result<Option<ClosedStep>> {
        self.write_out_caches();
        self.state.write().retired = true;
        if let Some(unfinished) = unfinished
            && self.give_up_unfinished(unfinished)?.is_some()
        {
            return Ok(None);
        }
        let ended = self.end_open_step();
        self.workspace.store.finish_cleaning(FAREWELL);
        ended
    }

    pub(super) fn ambient_expired(&self, step: &OpenStep, now: Timestamp) -> bool {
        let quiet = now.0.saturating_sub(step.last_activity_ms.load(Ordering::Relaxed));
        step.is_nobodys() && u128::from(quiet) >= self.config.ambient_timeout.as_millis()
    }

    /// Ends the open ambient step, or one that was given up and could not be ended, if there is one.
    pub(super) fn end_ambient(&self, state: &mut State) -> Result<Option<ClosedStep>> {
        if state.open.as_ref().is_some_and(OpenStep::is_nobodys) {
            return self.finish(state).map(Some);
        }
        Ok(None)
    }

    /// Makes sure that there is a step for a mutation that nobody announced.
    pub(super) fn renew_ambient_step(&self) -> Result<()> {
        let mut state = self.state.write();
        self.workspace.tree.forget_dirs();
        let now = self.now();
        if state.open.as_ref().is_some_and(|step| self.ambient_expired(step, now)) {
            self.finish(&mut state)?;
        }
        if state.open.is_none() {
            let id = {
                let mut counters = state.counters.lock();
                let id = StepId(counters.next_ambient);
                counters.next_ambient = counters.next_ambient.saturating_sub(1);
                self.save_counters(&counters)?;
                id
            };
            let mut step = OpenStep::new(id, StepKind::Ambient, String::new(), now);
            step.shared = state.background > 0;
            state.open = Some(step);
        }
        Ok(())
    }

    pub(super) fn finish(&self, state: &mut State) -> Result<ClosedStep> {
        self.with_reserve(state, |state| self.try_finish(state))
    }

    fn try_finish(&self, state: &mut State) -> Result<ClosedStep> {
        let step = state.open.as_ref().ok_or(UndoError::NoStepOpen)?;
        let id = step.id;
        if let Some(Denial { safeguard, asked }) = step.denied.get().cloned() {
            state.open = None;
            return Ok(ClosedStep::Denied { step: id, safeguard, asked });
        }
        let Some(recorder) = step.recorder() else {
            let denied = step.take_refusals();
            state.open = None;
            return Ok(ClosedStep::Empty { step: id, denied });
        };
        if recorder.is_empty() {
            self.drop_wal(recorder)?;
            let denied = step.take_refusals();
            state.open = None;
            return Ok(ClosedStep::Empty { step: id, denied });
        }
        let info = self.seal(recorder, |info| {
            info.command = step.commands.join("\n");
            info.exit_code = step.exit_code;
            info.flagged.extend(step.flagged.lock().iter().cloned());
            info.flagged.sort();
            info.flagged.dedup();
        })?;
        let (store, sequence) = (&self.workspace.store, recorder.sequence());
        let dir = store
            .sync_finished(&recorder.dir)
            .and_then(|()| store.promote_to_step(id.0, sequence))
            .map_err(UndoError::io("closing the step"))?;
        let counting = self.count_below(&dir, recorder.recorded().directories);
        let (shared, denied) = (step.shared, step.take_refusals());
        // From here on the step is closed, whatever becomes of the rest.
        state.open = None;
        self.warn("syncing the undo directory", store.sync_promoted());
        self.warn("dropping what could be redone", self.drop_redo(state));
        let mut entry = ClosedEntry::new(info.clone(), sequence, dir);
        entry.counting = counting;
        state.history.push(entry);
        let evicted = self.evict(state);
        Ok(ClosedStep::Recorded { step: info, evicted, shared, denied })
    }

    /// Folds a journal, stamps what it touched, and writes both down.
    pub(super) fn seal(
        &self,
        recorder: &Recorder,
        complete: impl FnOnce(&mut StepInfo),
    ) -> Result<StepInfo> {
        let failed = || UndoError::io("closing the step");
        recorder.journal().finish().map_err(failed())?;
        let journal = recorder.journal().read_back().map_err(failed())?;
        let net = net_changes(&journal, &self.workspace.tree).map_err(failed())?;
        let count = |kind| net.changes.iter().filter(|change| change.kind == kind).count() as u64;
        let header = &recorder.header;
        let mut info = StepInfo {
            id: header.id,
            sequence: header.sequence,
            kind: header.kind,
            command: header.command.clone(),
            started_at: header.started_at,
            finished_at: self.now(),
            exit_code: None,
            added: count(ChangeKind::Added),
            modified: count(ChangeKind::Modified),
            deleted: count(ChangeKind::Deleted),
            renamed: count(ChangeKind::Renamed),
            stored_bytes: recorder.stored_bytes(),
            held_bytes: recorder.held_bytes(),
            protection: match recorder.unprotected() {
                None => Protection::Protected,
                Some(reason) => Protection::Unprotected(reason.to_owned()),
            },
            pinned: false,
            flagged: net.privileged().cloned().collect(),
        };
        complete(&mut info);
        let probe = &self.workspace.store.probe;
        let sealed = recorder.dir.seal(&info, &net, recorder.recorded(), probe);
        info.stored_bytes += sealed.map_err(failed())?;
        Ok(info)
    }

    /// Against power loss: what was put back is there before the store's copy of it goes.
    pub(super) fn sync_restored(&self) -> Result<()> {
        if self.workspace.store.durable {
            self.workspace.tree.sync().map_err(UndoError::io("syncing the working directory"))?;
        }
        Ok(())
    }

    /// Undoes the open step for good; the step itself stays open.
    pub(super) fn take_back_open(&self, state: &mut State) -> Result<Option<Inverted>> {
        let Some(step) = state.open.as_mut() else {
            return Ok(None);
        };
        let Some(recorder) = step.take_recorder() else {
            return Ok(None);
        };
        if let Some(reason) = recorder.unprotected() {
            // What it had removed before is nowhere else.
            let (step, reason) = (step.id, reason.to_owned());
            self.keep_aside(&recorder.dir, recorder.sequence(), step)?;
            return Err(UndoError::StepUnprotected { step, reason });
        }
        state.interrupted = Some(Interrupted::new(recorder));
        self.finish_interrupted(state)
    }

    /// Inverts an unfinished journal for good. What could not be done now can be tried again.
    pub(super) fn finish_interrupted(&self, state: &mut State) -> Result<Option<Inverted>> {
        if state.interrupted.is_none() {
            return Ok(None);
        }
        self.with_reserve(state, |state| self.try_finish_interrupted(state))
    }

    fn try_finish_interrupted(&self, state: &mut State) -> Result<Option<Inverted>> {
        let Some(interrupted) = state.interrupted.take() else { return Ok(None) };
        let outcome = self.take_back(state, &interrupted);
        match outcome {
            Ok(inverted) => {
                self.tell_set_aside(&inverted);
                Ok(Some(inverted))
            }
            Err(error) => {
                state.interrupted = Some(interrupted);
                Err(error)
            }
        }
    }

    fn take_back(&self, state: &State, interrupted: &Interrupted) -> Result<Inverted> {
        let Interrupted { dir, sequence, provenance } = interrupted;
        self.forget_refreshed(state, *sequence)?;
        let (workspace, symlinks) = (&self.workspace, self.config.symlinks);
        let touched = dir.journal().and_then(|journal| net_changes(&journal, &workspace.tree));
        let inverted = Inversion::final_(workspace, dir, *sequence, symlinks, provenance)?.run()?;
        let changes = touched.map(|net| net.changes).unwrap_or_default();
        let paths = changes.into_iter().flat_map(|change| [Some(change.path), change.from]);
        let left =
            |path: RelPathBuf| Some((path.clone(), workspace.tree.stat(path.as_path()).ok()?));
        state.left.lock().note(paths.flatten().filter_map(left));
        self.settle_final_inversion(state, dir, *sequence, &inverted)?;
        Ok(inverted)
    }

    fn tell_set_aside(&self, inverted: &Inverted) {
        if let Some(first) = inverted.set_aside.first() {
            self.config.events.event(EngineEvent::Warning(format!(
                "somebody else had written to what the step made; {} such files, {first} among \
                 them, were moved to the quarantine of the undo directory",
                inverted.set_aside.len()
            )));
        }
    }

    /// Keeps a journal that will not be inverted, with everything it holds.
    pub(super) fn keep_aside(&self, dir: &StepDir, sequence: u64, step: StepId) -> Result<()> {
        let place = self
            .workspace
            .store
            .quarantine(dir, sequence)
            .map_err(UndoError::io("setting the journal aside"))?;
        self.config.events.event(EngineEvent::Warning(format!(
            "what step {step} had removed is kept in {}",
            place.display()
        )));
        Ok(())
    }

    fn drop_wal(&self, recorder: &Recorder) -> Result<()> {
        self.workspace
            .store
            .discard(&recorder.dir, recorder.sequence())
            .map_err(UndoError::io("dropping the step"))
    }

    /// Undoes a step whose safeguard was denied; it takes no more mutations until it is closed. Of a
    /// shared one nothing is undone, and nothing is refused but what was asked about.
    pub(super) fn deny_open_step(
        &self,
        id: StepId,
        denial: Denial,
        refused: Refused,
    ) -> Result<Option<Refusal>> {
        // Before the lock: its end comes after that of the lock.
        let mut _changing = None;
        let mut state = self.state.write();
        let Some(step) = state.open.as_ref().filter(|step| step.id == id) else {
            // Its command has ended meanwhile; it is refused, and that is all.
            return Ok(Some(StepSafeguards::default().deny(denial, refused)));
        };
        if step.shared {
            step.refuses.store(true, Ordering::Relaxed);
            return Ok(Some(step.safeguards.lock().deny(denial, refused)));
        }
        _changing = Some(self.change_in_a_request());
        let _ = step.denied.set(denial);
        self.take_back_open(&mut state).map(|_| None)
    }
}
