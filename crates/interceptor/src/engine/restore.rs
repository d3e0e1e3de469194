//! Bringing single paths back from a step, as a step of its own.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use codeagent_common::{RelPath, RelPathBuf, StepId, StepInfo, StepKind};
use rustix::fs::FileType;

use super::history::find;
use super::invert::{put_content, put_region};
use super::state::{ClosedEntry, OpenStep, State};
use super::{ClosedStep, UndoEngine};
use crate::capture::Recorder;
use crate::error::{Result, UndoError};
use crate::fold::{Lineage, RecordAt, lineages};
use crate::host::{Dir, Entry, Meta, MetaScope, Tree, copy_entry};
use crate::probe::Point;
use crate::store::{Body, JournalReader, Record};

/// What a restore did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreReport {
    /// The new step; undoing it takes the restore back. `None` if nothing had to change.
    pub step: Option<StepInfo>,
    pub restored: Vec<RelPathBuf>,
    pub removed: Vec<RelPathBuf>,
}

impl UndoEngine {
    /// Brings `paths` back to what they were before `step`, whatever happened to them since.
    /// Everything else stays as it is.
    pub fn restore(&self, step: StepId, paths: &[RelPathBuf]) -> Result<RestoreReport> {
        let mut guard = self.state.write();
        let state = self.ready(&mut guard)?;
        self.end_ambient(state)?;
        if let Some(open) = &state.open {
            return Err(UndoError::StepOpen(open.id));
        }
        let past = Past::since(state, step)?;
        let mut plans = Vec::new();
        for path in paths {
            plans.push(past.plan(step, path.as_path())?);
        }
        let id = {
            let mut counters = state.counters.lock();
            let id = StepId(counters.next_step);
            counters.next_step += 1;
            self.save_counters(&counters)?;
            id
        };
        let names: Vec<String> = paths.iter().map(ToString::to_string).collect();
        let command = format!("restore {} from before step {step}", names.join(" "));
        state.open = Some(OpenStep::new(id, StepKind::Restore, command, self.now()));
        let staging = self.workspace.store.root().join(format!("trash/restore-{id}"));
        let outcome = self.restore_planned(state, &past, &plans, &staging);
        // Emptied like everything in the trash; a crash leaves it to the next start.
        let _ = std::fs::remove_dir_all(&staging);
        match outcome {
            Ok((restored, removed)) => {
                let step = match self.finish(state)? {
                    ClosedStep::Recorded { step, .. } => Some(step),
                    _ => None,
                };
                Ok(RestoreReport { step, restored, removed })
            }
            Err(error) => {
                self.take_back_open(state)?;
                state.open = None;
                Err(error)
            }
        }
    }

    /// Writes what `path` was before `step` to `target`, outside the working directory.
    /// `false`: there was nothing.
    pub fn extract(&self, step: StepId, path: RelPath<'_>, target: &Path) -> Result<bool> {
        let state = self.state.read();
        let past = Past::since(&state, step)?;
        let plan = past.plan(step, path)?;
        let Some(lineage) = plan.kept.iter().find(|lineage| lineage.path.as_path() == path) else {
            return Ok(false);
        };
        if !lineage.existed {
            return Ok(false);
        }
        let failed = || UndoError::io("opening the place to extract to");
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let dir = Dir::open(parent.unwrap_or(Path::new("."))).map_err(failed())?;
        let name = target.file_name().unwrap_or_default();
        let entry = dir.entry(std::os::unix::ffi::OsStrExt::as_bytes(name).to_vec());
        self.rebuild(&past, lineage, &entry)?;
        Ok(true)
    }

    fn restore_planned(
        &self,
        state: &State,
        past: &Past,
        plans: &[Plan],
        staging: &Path,
    ) -> Result<(Vec<RelPathBuf>, Vec<RelPathBuf>)> {
        std::fs::create_dir(staging).map_err(UndoError::io("making room for the restore"))?;
        let staging = Tree::open(staging).map_err(UndoError::io("making room for the restore"))?;
        let (mut restored, mut removed) = (Vec::new(), Vec::new());
        for plan in plans {
            let gone = plan.kept.iter().filter(|lineage| !lineage.existed);
            let made = plan.made.iter().cloned().chain(gone.map(|lineage| lineage.path.clone()));
            for path in made {
                if self.find_entry(path.as_path())?.is_some() {
                    self.adopt_removal(self.recorder(state)?, path.as_path())?;
                    removed.push(path);
                }
            }
            let mut directories: Vec<(&Lineage, Meta)> = Vec::new();
            for lineage in plan.kept.iter().filter(|lineage| lineage.existed) {
                let recorder = self.recorder(state)?;
                match past.directory_meta(lineage)? {
                    Some(meta) => directories.push((lineage, meta)),
                    None => self.restore_entry(recorder, past, lineage, &staging)?,
                }
                if let Some((lineage, _)) = directories.last() {
                    self.remake_directory(recorder, lineage.path.as_path())?;
                }
                restored.push(lineage.path.clone());
            }
            // Deepest first, when their contents are complete.
            for (lineage, meta) in directories.iter().rev() {
                self.restore_attributes(self.recorder(state)?, lineage.path.as_path(), meta)?;
            }
        }
        Ok((restored, removed))
    }

    fn restore_entry(
        &self,
        recorder: &Recorder,
        past: &Past,
        lineage: &Lineage,
        staging: &Tree,
    ) -> Result<()> {
        let name = recorder.next_object().to_string().into_bytes();
        let staged = RelPathBuf::new(name)?;
        self.rebuild(past, lineage, &staging.entry(staged.as_path()).map_err(UndoError::host)?)?;
        self.make_missing_parents(recorder, lineage.path.as_path())?;
        self.adopt_entry(recorder, lineage.path.as_path(), staging, staged.as_path())
    }

    fn make_missing_parents(&self, recorder: &Recorder, path: RelPath<'_>) -> Result<()> {
        match path.parent() {
            Some(parent) if self.workspace.tree.dir(parent).is_err() => {
                self.make_missing_parents(recorder, parent)?;
                self.remake_directory(recorder, parent)
            }
            _ => Ok(()),
        }
    }

    fn remake_directory(&self, recorder: &Recorder, path: RelPath<'_>) -> Result<()> {
        match self.find_entry(path)? {
            Some(found) if found.stamp.is_dir() => return Ok(()),
            Some(_) => self.adopt_removal(recorder, path)?,
            None => self.make_missing_parents(recorder, path)?,
        }
        let entry = self.workspace.tree.entry(path).map_err(UndoError::host)?;
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        let dirs = [(entry.dir_handle(), parent)];
        recorder.append_touching(&self.workspace, &dirs, Record::Mkdir { path })?;
        self.workspace.store.probe.reach(Point::HostMutation).map_err(UndoError::host)?;
        entry.mkdir().map_err(UndoError::host)?;
        if let Some((id, _)) = entry.stat_id().map_err(UndoError::host)? {
            recorder.inodes.mark_created(id);
        }
        Ok(())
    }

    /// Builds what the lineage began with at `target`: from what it has become, backwards.
    fn rebuild(&self, past: &Past, lineage: &Lineage, target: &Entry<'_>) -> Result<()> {
        let mut records = lineage.records.iter().rev().peekable();
        let mut base = None;
        if let (None, Some(at)) = (&lineage.now, records.peek()) {
            base = Some(**at);
            records.next();
        }
        match (&lineage.now, base) {
            (Some(now), _) => {
                let source = self.workspace.tree.entry(now.as_path()).map_err(UndoError::host)?;
                copy_entry(&source, target).map_err(UndoError::host)?;
            }
            (None, Some(at)) => past.rebuild_removed(at, target)?,
            (None, None) => return Ok(()),
        }
        for at in records {
            past.change_back(*at, target)?;
        }
        Ok(())
    }

    pub(super) fn restore_attributes(
        &self,
        recorder: &Recorder,
        path: RelPath<'_>,
        meta: &Meta,
    ) -> Result<()> {
        let Some(found) = self.find_entry(path)? else {
            return Ok(());
        };
        self.capture_attributes(recorder, path, &found)?;
        self.workspace.store.probe.reach(Point::HostMutation).map_err(UndoError::host)?;
        meta.apply(&found.entry).map_err(UndoError::host)
    }
}

/// What a restore of one path has to do.
struct Plan {
    kept: Vec<Lineage>,
    /// Put there since; to be removed.
    made: Vec<RelPathBuf>,
}

/// The journals from a step to the newest.
struct Past {
    steps: Vec<ClosedEntry>,
    journals: Vec<JournalReader>,
}

impl Past {
    fn since(state: &State, id: StepId) -> Result<Self> {
        let first = find(&state.history, id)?.sequence;
        let steps: Vec<ClosedEntry> =
            state.history.iter().filter(|step| step.sequence >= first).cloned().collect();
        let mut journals = Vec::new();
        let evicted_up_to = state.counters.lock().evicted_up_to;
        for step in &steps {
            let unusable = match &step.info.protection {
                codeagent_common::Protection::Unprotected(reason) => Some(reason.clone()),
                _ if step.sequence < evicted_up_to => Some("a newer step has been dropped".into()),
                codeagent_common::Protection::Protected => None,
            };
            if let Some(reason) = unusable {
                return Err(UndoError::StepUnprotected { step: step.info.id, reason });
            }
            journals.push(step.dir.journal().map_err(damaged)?);
        }
        Ok(Self { steps, journals })
    }

    fn plan(&self, step: StepId, path: RelPath<'_>) -> Result<Plan> {
        let (kept, made) = lineages(&self.journals, path).map_err(damaged)?;
        if kept.is_empty() && made.is_empty() {
            return Err(UndoError::PathNotInStep { step, path: path.to_buf() });
        }
        Ok(Plan { kept, made })
    }

    fn record(&self, at: RecordAt) -> Result<Record<'_>> {
        self.journals[at.journal].record(at.index).map_err(damaged)
    }

    fn objects(&self, at: RecordAt) -> Result<Arc<Dir>> {
        self.steps[at.journal].dir.objects().map_err(damaged)
    }

    /// The first known metadata, if the lineage is a directory that did not move as a whole.
    fn directory_meta(&self, lineage: &Lineage) -> Result<Option<Meta>> {
        // The first record has the time; the first full one has the rest.
        let mut mtime = None;
        for at in &lineage.records {
            let mut meta = match self.record(*at)? {
                Record::Rmdir { meta, .. } | Record::Preimage { meta: Some(meta), .. } => meta,
                _ => continue,
            };
            if !meta.stamp.is_dir() {
                continue;
            }
            let first = *mtime.get_or_insert(meta.stamp.mtime);
            if meta.scope == MetaScope::Full {
                meta.stamp.mtime = first;
                return Ok(Some(meta));
            }
        }
        Ok(None)
    }

    fn rebuild_removed(&self, at: RecordAt, target: &Entry<'_>) -> Result<()> {
        match self.record(at)? {
            Record::Take { object, stamp, path, .. } => {
                let source = self.objects(at)?.entry(object.to_string().into_bytes());
                let found = source.stat().map_err(UndoError::host)?;
                if found.is_none_or(|found| found.inode != stamp.inode) {
                    return Err(UndoError::Corrupt(format!("what was kept of {path} is missing")));
                }
                copy_entry(&source, target).map_err(UndoError::host)
            }
            Record::Removed { meta, body, .. } => {
                match &body {
                    Body::File(region) => {
                        let file: File = target.create_file().map_err(UndoError::host)?;
                        file.set_len(meta.stamp.size).map_err(UndoError::host)?;
                        let pack = self.steps[at.journal].dir.pack().map_err(damaged)?;
                        put_region(&pack, &file, region)?;
                    }
                    Body::Symlink(link) => target.symlink(link).map_err(UndoError::host)?,
                    Body::Special => target
                        .mknod(FileType::from_raw_mode(meta.stamp.mode), meta.stamp.rdev)
                        .map_err(UndoError::host)?,
                }
                meta.apply(target).map_err(UndoError::host)
            }
            _ => Err(UndoError::Corrupt("a removal is missing".into())),
        }
    }

    fn change_back(&self, at: RecordAt, target: &Entry<'_>) -> Result<()> {
        let Record::Preimage { meta, content, .. } = self.record(at)? else {
            return Ok(());
        };
        if let Some(content) = &content {
            let file = target.open_write().map_err(UndoError::host)?;
            let pack = self.steps[at.journal].dir.pack().map_err(damaged)?;
            put_content(&pack, &self.objects(at)?, &file, content)?;
        }
        match meta {
            Some(meta) => meta.apply(target).map_err(UndoError::host),
            None => Ok(()),
        }
    }
}

fn damaged(error: std::io::Error) -> UndoError {
    UndoError::Corrupt(error.to_string())
}
