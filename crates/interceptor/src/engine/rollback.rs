//! Undo and redo: one inversion for each step.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use codeagent_common::{
    BarrierInfo, ByteString, ExternalModificationPolicy, RelPathBuf, StepId, StepInfo,
};
use serde::{Deserialize, Serialize};

use super::UndoEngine;
use super::continuity::Seen;
use super::invert::{Inversion, Inverted, Outrun, Treatment};
use super::state::{ClosedEntry, Interrupted, State};
use crate::capture::Recorder;
use crate::conflict::{Conflict, ConflictKind};
use crate::error::{Result, UndoError};
use crate::host::FileId;
use crate::inspect::{Problem, check_journal};
use crate::store::{Header, JournalReader, Purpose, StepDir};

/// What to do about other people's edits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// Change nothing, and name them.
    #[default]
    Refuse,
    /// Undo the rest, and leave those paths alone.
    Skip,
    /// Overwrite them. What was there can be brought back by redo.
    Force,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RollbackOptions {
    pub on_conflict: OnConflict,
}

impl RollbackOptions {
    pub fn force() -> Self {
        Self { on_conflict: OnConflict::Force }
    }

    pub fn skip_conflicts() -> Self {
        Self { on_conflict: OnConflict::Skip }
    }
}

/// How often an undo begins anew because of what somebody else does in the same place meanwhile.
const MOST_ATTEMPTS: u32 = 20;

/// Somebody may do something between the look for conflicts and the moment in which it matters. What
/// was done until then is taken back, and another look finds what he did. The last attempt leaves what
/// is his.
fn unless_outrun<T>(mut attempt: impl FnMut(Outrun) -> Result<T>) -> Result<T> {
    for _ in 1..MOST_ATTEMPTS {
        match attempt(Outrun::BeginsAnew) {
            Err(error)
                if error.errno() == libc::EEXIST && !matches!(error, UndoError::Partly { .. }) => {}
            outcome => return outcome,
        }
    }
    attempt(Outrun::Leaves)
}

/// What an undo or redo did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RollbackReport {
    /// In the order they were undone or redone.
    pub steps: Vec<StepId>,
    pub restored: u64,
    pub removed: u64,
    /// Other people's edits that were found: overwritten with `Force`, left with `Skip`.
    pub conflicts: Vec<Conflict>,
    /// Paths that are not as the step would have them, because something was in the way.
    pub left: Vec<RelPathBuf>,
    /// Barriers that were crossed.
    pub crossed: Vec<BarrierInfo>,
    /// Of what was skipped: where that is kept which an undo would have brought back.
    pub kept: Option<ByteString>,
}

impl UndoEngine {
    /// Undoes the newest `count` steps. Either all of them are undone, or it ends at the boundary
    /// of the one that could not be, and the error ([`UndoError::Partly`]) names those that were.
    pub fn rollback(&self, count: usize, options: RollbackOptions) -> Result<RollbackReport> {
        self.rollback_from(None, count, options)
    }

    /// The same, if the newest step is `expected`; otherwise none is undone. For whoever cannot know
    /// that nobody else has made a step meanwhile.
    pub fn rollback_from(
        &self,
        expected: Option<StepId>,
        count: usize,
        options: RollbackOptions,
    ) -> Result<RollbackReport> {
        let _changing = self.change_contents();
        let mut guard = self.state.write();
        let state = self.ready(&mut guard)?;
        self.end_ambient(state)?;
        if let Some(step) = state.begun() {
            return Err(step.in_the_way());
        }
        if let Some(expected) = expected
            && state.history.last().is_none_or(|newest| newest.info.id != expected)
        {
            state.step(expected)?; // if it is not there, that is why
            return Err(UndoError::NotNewest(expected));
        }
        unless_outrun(|outrun| self.undo_newest(state, count, options, outrun))
    }

    /// While no step is open.
    pub(super) fn undo_newest(
        &self,
        state: &mut State,
        count: usize,
        options: RollbackOptions,
        outrun: Outrun,
    ) -> Result<RollbackReport> {
        let steps = self.newest(state, count)?;
        let _read_once = journals(&steps)?;
        let (conflicts, seen) = self.obstacles(state, &steps)?;
        let mut treatment = self.treatment(&conflicts, options)?;
        treatment.outrun = outrun;
        treatment.seen = Some(Arc::new(seen));
        let mut report = RollbackReport { conflicts, ..RollbackReport::default() };
        report.crossed = self.barriers_over(state, &steps);
        let skipped = match options.on_conflict {
            OnConflict::Skip => self.keep_skipped(state, &steps, &report.conflicts)?,
            OnConflict::Refuse | OnConflict::Force => Skipped::default(),
        };
        report.kept.clone_from(&skipped.kept);
        for step in &steps {
            let undo = |state: &mut State| self.undo_one(state, step, treatment.clone(), &skipped);
            match self.with_reserve(state, undo) {
                Ok(inverted) => {
                    treatment.has_begun(&inverted);
                    report.add(step.info.id, inverted);
                }
                Err(error) => return Err(error.after(&report.steps)),
            }
        }
        Ok(report)
    }

    /// Re-applies the `count` most recently undone steps.
    pub fn redo(&self, count: usize, options: RollbackOptions) -> Result<RollbackReport> {
        let _changing = self.change_contents();
        let mut guard = self.state.write();
        let state = self.ready(&mut guard)?;
        self.end_ambient(state)?;
        if let Some(step) = state.begun() {
            return Err(step.in_the_way());
        }
        unless_outrun(|outrun| self.redo_newest(state, count, options, outrun))
    }

    fn redo_newest(
        &self,
        state: &mut State,
        count: usize,
        options: RollbackOptions,
        outrun: Outrun,
    ) -> Result<RollbackReport> {
        let entries: Vec<ClosedEntry> =
            state.redo.lock().iter().rev().take(count).cloned().collect();
        if entries.len() < count || count == 0 {
            return Err(UndoError::NothingToRedo { available: entries.len() });
        }
        for entry in &entries {
            if let codeagent_common::Protection::Unprotected(reason) = &entry.info.protection {
                let (step, reason) = (entry.info.id, reason.clone());
                return Err(UndoError::StepUnprotected { step, reason });
            }
        }
        let _read_once = journals(&entries)?;
        let (conflicts, seen) = self.obstacles(state, &entries)?;
        let mut treatment = self.treatment(&conflicts, options)?;
        treatment.outrun = outrun;
        treatment.seen = Some(Arc::new(seen));
        let is_incomplete = options.on_conflict == OnConflict::Skip && !conflicts.is_empty();
        let skipped = Skipped { kept: None, is_incomplete };
        let mut report = RollbackReport { conflicts, ..RollbackReport::default() };
        for entry in &entries {
            let redo = |state: &mut State| self.redo_one(state, entry, treatment.clone(), &skipped);
            match self.with_reserve(state, redo) {
                Ok(inverted) => {
                    treatment.has_begun(&inverted);
                    report.add(entry.info.id, inverted);
                }
                Err(error) => return Err(error.after(&report.steps)),
            }
        }
        Ok(report)
    }

    /// The newest steps, newest first, if all of them can be undone.
    pub(super) fn newest(&self, state: &State, count: usize) -> Result<Vec<ClosedEntry>> {
        let steps: Vec<ClosedEntry> = state.history.iter().rev().take(count).cloned().collect();
        if steps.len() < count || count == 0 {
            return Err(UndoError::NothingToUndo { available: steps.len() });
        }
        let evicted_up_to = state.counters.lock().evicted_up_to;
        for step in &steps {
            let reason = match &step.info.protection {
                codeagent_common::Protection::Unprotected(reason) => reason.clone(),
                _ if step.sequence < evicted_up_to => "a newer step has been dropped".into(),
                codeagent_common::Protection::Protected => continue,
            };
            return Err(UndoError::StepUnprotected { step: step.info.id, reason });
        }
        Ok(steps)
    }

    /// What undoing or redoing `steps` (newest first) would have to overwrite, or to bring back as
    /// others have made it; and what there is. An error if it cannot be done at all.
    pub(super) fn obstacles(
        &self,
        state: &State,
        steps: &[ClosedEntry],
    ) -> Result<(Vec<Conflict>, Seen)> {
        let written_since = check_all_complete(steps)?;
        let (mut found, seen) = self.conflicts(state, steps)?;
        if !written_since.is_empty() {
            let paths: HashSet<_> = written_since.iter().map(|conflict| &conflict.path).collect();
            found.retain(|conflict| !paths.contains(&conflict.path));
            found.extend(written_since);
            found.sort_by(|a, b| a.path.cmp(&b.path));
        }
        Ok((found, seen))
    }

    fn treatment(&self, conflicts: &[Conflict], options: RollbackOptions) -> Result<Treatment> {
        let mut treatment = Treatment { symlinks: self.config.symlinks, ..Treatment::default() };
        let warn_only = self.config.external_modifications == ExternalModificationPolicy::Warn;
        match options.on_conflict {
            OnConflict::Refuse if conflicts.is_empty() => {}
            OnConflict::Refuse if !warn_only => {
                return Err(UndoError::RollbackBlocked(conflicts.to_vec()));
            }
            OnConflict::Refuse | OnConflict::Force => {
                treatment.force = true;
                treatment.overridden = self.files_at(conflicts)?;
            }
            OnConflict::Skip => {
                treatment.skip = conflicts.iter().map(|conflict| conflict.path.clone()).collect();
                treatment.skip_files = self.files_at(conflicts)?;
            }
        }
        Ok(treatment)
    }

    fn files_at(&self, conflicts: &[Conflict]) -> Result<HashSet<FileId>> {
        let mut files = HashSet::new();
        for conflict in conflicts {
            let found = self.find_entry(conflict.path.as_path())?;
            files.extend(found.filter(|found| !found.stamp.is_dir()).map(|found| found.id));
        }
        Ok(files)
    }

    /// The steps go, and with them what they had kept of paths that are left alone: that is written
    /// down first.
    fn keep_skipped(
        &self,
        state: &State,
        steps: &[ClosedEntry],
        conflicts: &[Conflict],
    ) -> Result<Skipped> {
        let (Some(oldest), false) = (steps.last(), conflicts.is_empty()) else {
            return Ok(Skipped::default());
        };
        let failed = || UndoError::io("keeping what is not undone");
        let mut skipped = Skipped::default();
        let place = self.workspace.store.aside(oldest.info.id.0).map_err(failed())?;
        for conflict in conflicts {
            let path = conflict.path.as_path();
            // What has been written to it since is nowhere but there.
            skipped.is_incomplete |= conflict.kind == ConflictKind::WrittenSince;
            let target = place.join(OsStr::from_bytes(path.as_bytes()));
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent).map_err(failed())?;
            }
            match self.extract_in(state, oldest.info.id, path, &target) {
                Ok(true) => {
                    let place = self.workspace.store.named(place.clone());
                    skipped.kept = Some(place.as_os_str().as_bytes().into());
                }
                Ok(false) => {}
                // It cannot be told from what others have made of it; the journals still can.
                Err(_) => skipped.is_incomplete = true,
            }
        }
        if skipped.kept.is_none() {
            fs::remove_dir_all(&place).map_err(failed())?;
        }
        Ok(skipped)
    }

    fn undo_one(
        &self,
        state: &mut State,
        step: &ClosedEntry,
        treatment: Treatment,
        skipped: &Skipped,
    ) -> Result<Inverted> {
        let done = self.invert_recorded(state, step, Purpose::Undo, treatment)?;
        state.history.retain(|entry| entry.sequence != step.sequence);
        let mut entry = ClosedEntry::new(done.info, done.sequence, done.dir);
        entry.counting = self.count_below(&entry.dir, done.directories);
        state.redo.lock().push(entry);
        self.drop_inverted(step, skipped, &done.inverted);
        // A barrier that stays by accident goes with the next undo, or at the next start.
        let lifted = state.barriers.lift(|barrier| barrier.after_sequence >= step.sequence);
        self.warn("writing the barriers", lifted);
        Ok(done.inverted)
    }

    fn redo_one(
        &self,
        state: &mut State,
        entry: &ClosedEntry,
        treatment: Treatment,
        skipped: &Skipped,
    ) -> Result<Inverted> {
        let done = self.invert_recorded(state, entry, Purpose::Redo, treatment)?;
        state.redo.lock().retain(|other| other.sequence != entry.sequence);
        let mut step = ClosedEntry::new(done.info, done.sequence, done.dir);
        step.counting = self.count_below(&step.dir, done.directories);
        state.history.push(step);
        self.drop_inverted(entry, skipped, &done.inverted);
        Ok(done.inverted)
    }

    /// The journal that was inverted is spent, unless something of it is nowhere else. If it cannot
    /// be dropped now, the next undo or the next start does it.
    fn drop_inverted(&self, entry: &ClosedEntry, skipped: &Skipped, inverted: &Inverted) {
        if skipped.is_incomplete || inverted.was_outrun {
            let kept = self.keep_aside(&entry.dir, entry.sequence, entry.info.id);
            return self.warn("keeping what was skipped", kept);
        }
        let dropped = self.workspace.store.discard_spent([(entry.dir.clone(), entry.sequence)]);
        let id = entry.info.id;
        self.warn(
            &format!("step {id} is still in the undo directory and will be dropped later"),
            dropped,
        );
    }

    /// Inverts a journal into a new one. If that fails half-way, it is taken back.
    fn invert_recorded(
        &self,
        state: &mut State,
        source: &ClosedEntry,
        purpose: fn(u64) -> Purpose,
        treatment: Treatment,
    ) -> Result<Done> {
        // A spent journal is known by the one that inverted it, so it must go first.
        self.workspace
            .store
            .discard_spent([])
            .map_err(UndoError::io("finishing an earlier undo"))?;
        let sequence = self.next_sequence(state)?;
        let header = Header {
            id: source.info.id,
            sequence,
            kind: source.info.kind,
            command: source.info.command.clone(),
            started_at: source.info.started_at,
            purpose: purpose(source.sequence),
        };
        let recorder = Recorder::create(&self.workspace, header, None)?;
        let attempt = self.invert_and_promote(state, source, &recorder, treatment);
        attempt.or_else(|error| {
            state.interrupted = Some(Interrupted::new(recorder));
            self.finish_interrupted(state)?;
            Err(error)
        })
    }

    fn invert_and_promote(
        &self,
        state: &State,
        source: &ClosedEntry,
        recorder: &Recorder,
        treatment: Treatment,
    ) -> Result<Done> {
        let (workspace, sequence) = (&self.workspace, recorder.sequence());
        let journal = source.journal()?;
        let inverted =
            Inversion::recorded(workspace, source, Arc::clone(&journal), recorder, treatment)?
                .run()?;
        let info = self.seal(recorder, |info| {
            info.finished_at = source.info.finished_at;
            info.exit_code = source.info.exit_code;
            info.pinned = source.info.pinned;
            info.flagged.clone_from(&source.info.flagged);
            if let Purpose::Undo(_) = recorder.header.purpose {
                // What can be redone is told as it was done, not as it was undone.
                let StepInfo { added, modified, deleted, renamed, .. } = source.info;
                *info = StepInfo { added, modified, deleted, renamed, ..info.clone() };
            }
        })?;
        let failed = || UndoError::io("finishing the undo or redo");
        if info.pinned {
            recorder.dir.set_pinned(true, &workspace.store.probe).map_err(failed())?;
        }
        self.refresh_older(state, &journal, source.sequence, sequence)?;
        self.sync_restored()?;
        workspace.store.sync_finished(&recorder.dir).map_err(failed())?;
        let dir = match recorder.header.purpose {
            Purpose::Redo(_) => workspace.store.promote_to_step(info.id.0, sequence),
            _ => workspace.store.promote_to_redo(sequence),
        }
        .map_err(failed())?;
        self.warn("syncing the undo directory", workspace.store.sync_promoted());
        let directories = recorder.recorded().directories;
        Ok(Done { inverted, info, sequence, dir, directories })
    }
}

/// What becomes of what is not undone.
#[derive(Default)]
struct Skipped {
    /// Where it is.
    kept: Option<ByteString>,
    /// Not all of it could be written down, so the journals are kept.
    is_incomplete: bool,
}

/// A finished inversion.
struct Done {
    inverted: Inverted,
    info: StepInfo,
    sequence: u64,
    dir: StepDir,
    directories: Vec<u32>,
}

/// For as long as they are held, they are read no more.
fn journals(steps: &[ClosedEntry]) -> Result<Vec<Arc<JournalReader>>> {
    steps.iter().map(ClosedEntry::journal).collect()
}

/// Looks before leaping: every object and every extent must be there, and sound. Returns what
/// somebody has written to since.
fn check_all_complete(newest_first: &[ClosedEntry]) -> Result<Vec<Conflict>> {
    let mut written_since = Vec::new();
    // Files that a later step wrote to while they lay in an earlier one's store: they are changed
    // back before they are needed.
    let mut written = HashSet::new();
    for entry in newest_first {
        let damaged = |what: String| UndoError::Corrupt(format!("step {}: {what}", entry.info.id));
        let (journal, trailer) = (entry.journal()?, Some(entry.trailer()?));
        let problems = check_journal(&entry.dir, &journal, trailer, &mut written)
            .map_err(|error| damaged(error.to_string()))?;
        for problem in problems {
            match problem {
                Problem::Damage(what) => return Err(damaged(what)),
                Problem::WrittenSince(path) => {
                    let kind = ConflictKind::WrittenSince;
                    written_since.push(Conflict::new(path, entry.info.id, kind));
                }
            }
        }
    }
    Ok(written_since)
}

impl RollbackReport {
    fn add(&mut self, step: StepId, inverted: Inverted) {
        self.steps.push(step);
        self.restored += inverted.restored;
        self.removed += inverted.removed;
        self.left.extend(inverted.left);
    }
}
