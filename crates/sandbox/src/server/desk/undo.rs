//! `undo.*`

use codeagent_common::{RelPathBuf, ResourceLimits};
use codeagent_interceptor::{Conflict, ConflictKind, HistoryEntry, OnConflict, RollbackReport};
use codeagent_stdio::operations::{
    FileDiff, RestoreReport, RollbackReport as Told, StepDiff, UndoConfigure, UndoDiff,
    UndoDiscard, UndoHistory, UndoHistoryReply, UndoLimits, UndoPin, UndoPreview, UndoPreviewed,
    UndoRedo, UndoRestore, UndoRollback,
};
use codeagent_stdio::{
    Barrier, Conflict as ToldConflict, ConflictKind as ToldKind, HistoryEntry as ToldEntry,
    Outcome, StepSummary,
};

use super::{Desk, failure, summary, within};
use crate::diff::Body;

impl Desk {
    pub(crate) fn rollback(&self, request: UndoRollback) -> Outcome<Told> {
        let (session, folder) = self.directory(request.directory.as_ref())?;
        let on_conflict = on_conflict(request.force, request.skip_conflicts);
        let count = request.count as usize;
        let done = session.undo(Some(&folder.label), count, on_conflict).map_err(failure)?;
        Ok(report(done, on_conflict))
    }

    pub(crate) fn redo(&self, request: UndoRedo) -> Outcome<Told> {
        let (session, folder) = self.directory(request.directory.as_ref())?;
        let on_conflict = on_conflict(request.force, request.skip_conflicts);
        let count = request.count as usize;
        let done = session.redo(Some(&folder.label), count, on_conflict).map_err(failure)?;
        Ok(report(done, on_conflict))
    }

    pub(crate) fn preview(&self, request: UndoPreview) -> Outcome<UndoPreviewed> {
        let (session, folder) = self.directory(request.directory.as_ref())?;
        let count = request.count as usize;
        let mut preview = session.preview(Some(&folder.label), count).map_err(failure)?;
        let change_count = preview.changes.len() as u64;
        preview.changes.truncate(request.limit as usize);
        Ok(UndoPreviewed {
            step_ids: preview.steps,
            changes: preview.changes,
            change_count,
            conflicts: conflicts(preview.conflicts),
        })
    }

    pub(crate) fn restore(&self, request: UndoRestore) -> Outcome<RestoreReport> {
        let (session, folder) = self.directory(request.directory.as_ref())?;
        let paths = request.paths.iter().map(|path| within(&folder, path));
        let paths = paths.collect::<Outcome<Vec<RelPathBuf>>>()?;
        let restored =
            session.restore(Some(&folder.label), request.step_id, paths).map_err(failure)?;
        Ok(RestoreReport {
            step: restored.step.map(|step| summary(&session, &folder.label, step)),
            restored: restored.restored,
            removed: restored.removed,
        })
    }

    pub(crate) fn history(&self, request: UndoHistory) -> Outcome<UndoHistoryReply> {
        let (session, folder) = self.directory(request.directory.as_ref())?;
        let label = folder.label.as_str();
        let mut history = session.history(Some(label)).map_err(failure)?;
        history.reverse();
        let entry_count = history.len() as u64;
        let entry = |entry| match entry {
            HistoryEntry::Step(step) => ToldEntry::Step(Box::new(summary(&session, label, step))),
            HistoryEntry::Barrier(barrier) => ToldEntry::Barrier(barrier.into()),
        };
        let redoable = session.redoable(Some(label)).map_err(failure)?;
        Ok(UndoHistoryReply {
            entries: history.into_iter().take(request.limit as usize).map(entry).collect(),
            entry_count,
            redoable: redoable
                .into_iter()
                .map(|step| StepSummary::new(label, step, vec![]))
                .collect(),
        })
    }

    pub(crate) fn diff(&self, request: UndoDiff) -> Outcome<StepDiff> {
        let (session, folder) = self.directory(request.directory.as_ref())?;
        let wanted = request.paths.iter().map(|path| within(&folder, path));
        let wanted = wanted.collect::<Outcome<Vec<RelPathBuf>>>()?;
        let mut diffs = session.diff(Some(&folder.label), request.step_id).map_err(failure)?;
        diffs.retain(|file| {
            let path = file.change.path.as_path();
            wanted.is_empty() || wanted.iter().any(|wanted| path.is_within(wanted.as_path()))
        });
        let mut room = request.max_bytes as usize;
        let file_count = diffs.len() as u64;
        let files = diffs.into_iter().map(|file| file_diff(file, &mut room)).collect();
        Ok(StepDiff { step_id: request.step_id, files, file_count })
    }

    pub(crate) fn pin(&self, request: UndoPin) -> Outcome<()> {
        let (session, folder) = self.directory(request.directory.as_ref())?;
        session.pin(Some(&folder.label), request.step_id, request.pinned).map_err(failure)
    }

    pub(crate) fn configure(&self, request: UndoConfigure) -> Outcome<UndoLimits> {
        let (session, folder) = self.directory(request.directory.as_ref())?;
        let wanted = UndoLimits {
            max_log_size_bytes: request.max_log_size_bytes,
            max_step_count: request.max_step_count,
            max_single_step_size_bytes: request.max_single_step_size_bytes,
        };
        let limits = limits(&wanted, session.limits(Some(&folder.label)).map_err(failure)?);
        session.set_limits(Some(&folder.label), limits).map_err(failure)?;
        Ok(UndoLimits {
            max_log_size_bytes: Some(limits.max_log_bytes),
            max_step_count: Some(limits.max_steps as u64),
            max_single_step_size_bytes: Some(limits.max_step_bytes),
        })
    }

    pub(crate) fn discard(&self, request: UndoDiscard) -> Outcome<()> {
        let (session, folder) = self.directory(request.directory.as_ref())?;
        session.discard_history(Some(&folder.label)).map_err(failure)
    }
}

fn on_conflict(force: bool, skip: bool) -> OnConflict {
    match (force, skip) {
        (true, _) => OnConflict::Force,
        (_, true) => OnConflict::Skip,
        _ => OnConflict::Refuse,
    }
}

fn report(report: RollbackReport, on_conflict: OnConflict) -> Told {
    let in_the_way = report.conflicts.len();
    let became = if on_conflict == OnConflict::Skip { "kept" } else { "overwritten" };
    let elsewhere = report
        .kept
        .as_ref()
        .map(|kept| format!("; what would have been brought back there is in {}", kept.to_text()));
    let elsewhere = elsewhere.unwrap_or_default();
    Told {
        step_ids: report.steps,
        paths_restored: report.restored,
        paths_removed: report.removed,
        conflicts: conflicts(report.conflicts),
        left: report.left,
        warning: (in_the_way > 0)
            .then(|| format!("edits of others were {became} ({in_the_way} paths){elsewhere}")),
        kept: report.kept,
        crossed_barriers: report.crossed.into_iter().map(Barrier::from).collect(),
    }
}

pub(super) fn conflicts(conflicts: Vec<Conflict>) -> Vec<ToldConflict> {
    let told = |conflict: Conflict| ToldConflict {
        path: conflict.path,
        step_id: conflict.step,
        kind: match conflict.kind {
            ConflictKind::Changed => ToldKind::Changed,
            ConflictKind::Appeared => ToldKind::Appeared,
            ConflictKind::Disappeared => ToldKind::Disappeared,
            ConflictKind::Foreign => ToldKind::Foreign,
            ConflictKind::ChangedBetweenSteps => ToldKind::ChangedBetweenSteps,
            ConflictKind::Barrier => ToldKind::Barrier,
            ConflictKind::WrittenSince => ToldKind::WrittenSince,
        },
    };
    conflicts.into_iter().map(told).collect()
}

/// What is not given stays.
pub(crate) fn limits(wanted: &UndoLimits, limits: ResourceLimits) -> ResourceLimits {
    ResourceLimits {
        max_log_bytes: wanted.max_log_size_bytes.unwrap_or(limits.max_log_bytes),
        max_steps: wanted
            .max_step_count
            .map_or(limits.max_steps, |count| usize::try_from(count).unwrap_or(usize::MAX)),
        max_step_bytes: wanted.max_single_step_size_bytes.unwrap_or(limits.max_step_bytes),
        ..limits
    }
}

/// As long as there is room for text.
fn file_diff(file: crate::diff::FileDiff, room: &mut usize) -> FileDiff {
    let (diff, note) = match file.body {
        Body::Text { text, .. } if text.len() <= *room => {
            *room -= text.len();
            (Some(text), None)
        }
        Body::Text { .. } => (None, Some("there is no room for more".to_owned())),
        Body::Binary { .. } => (None, Some("binary".to_owned())),
        Body::Attributes { .. } => (None, Some("only its attributes have changed".to_owned())),
        Body::NoContent => (None, None),
        Body::Unknown { reason } => (None, Some(reason)),
    };
    let change = file.change;
    FileDiff { path: change.path, kind: change.kind, from: change.from, diff, note }
}
