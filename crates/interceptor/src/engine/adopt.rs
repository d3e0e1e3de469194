//! Committing a staged tree: whole directories by one rename and one record each.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use codeagent_common::{PathUse, RelPath, RelPathBuf, StepId, SymlinkPolicy};
use serde::{Deserialize, Serialize};

use super::UndoEngine;
use super::hooks::Stop;
use super::invert::remove_dir_recorded;
use super::state::{OpenStep, State};
use crate::capture::{Recorder, Removal, Wanted};
use crate::error::{Result, UndoError};
use crate::host::{Found, Meta, MetaScope, Stamp, Tree, copy_entry};
use crate::probe::Point;
use crate::store::{At, ObjectRef, Owner, Record, Time};
use rustix::io::Errno;

/// One difference between a staged tree and the working directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StagedChange {
    /// What is at `path`, with everything below it, goes.
    Remove { path: RelPathBuf },
    /// What lies at `staged` in the staging directory, with everything below it, comes to `path`
    /// and replaces what is there.
    Place { path: RelPathBuf, staged: RelPathBuf },
    /// As [`StagedChange::Place`], but it is the file at `path`, with other content.
    Edit { path: RelPathBuf, staged: RelPathBuf },
    /// Mode, owner, times and attributes of the directory at `path` become those of `staged`.
    Attributes { path: RelPathBuf, staged: RelPathBuf },
}

impl StagedChange {
    pub(super) fn path(&self) -> RelPath<'_> {
        match self {
            Self::Remove { path }
            | Self::Place { path, .. }
            | Self::Edit { path, .. }
            | Self::Attributes { path, .. } => path.as_path(),
        }
    }
}

/// How often what somebody else makes in the same place at the same time is taken.
const MOST_ATTEMPTS: u32 = 100;

/// Attributes of staged entries.
pub(super) type Attributes = HashMap<RelPathBuf, Meta>;

/// What is known already about a staged tree.
pub(super) struct Known {
    /// When it was made: what has changed in the folder since, somebody else has changed.
    pub(super) since: Option<Time>,
    /// They need not be those of the staged entries any more.
    pub(super) attributes: Attributes,
    /// Nothing is left in its directories that the path policy denies.
    pub(super) judged: bool,
}

/// What an adoption did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AdoptReport {
    pub placed: u64,
    pub removed: u64,
    /// Not adopted, because the path policy does not allow it; with the rule.
    pub protected: Vec<(RelPathBuf, String)>,
    /// Entries that made room and that somebody else had changed by then. Workers of an older session
    /// do not say that.
    #[serde(default)]
    pub changed_meanwhile: Vec<RelPathBuf>,
}

impl UndoEngine {
    /// Applies staged changes, in order, to the open step. `staging` should lie on the filesystem
    /// of the working directory: then nothing is copied. On failure the changes made so far
    /// belong to the step, which can be aborted.
    pub fn adopt(&self, staging: &Path, changes: &[StagedChange]) -> Result<AdoptReport> {
        let staging =
            Tree::open(staging).map_err(UndoError::io("opening the staging directory"))?;
        self.open_reserved()?;
        self.workspace.tree.forget_dirs();
        let known = Known { since: None, attributes: Attributes::new(), judged: false };
        self.adopt_known(&staging, changes, &known)
    }

    /// As [`UndoEngine::adopt`], by somebody who has looked at both trees just now.
    pub(super) fn adopt_known(
        &self,
        staging: &Tree,
        changes: &[StagedChange],
        known: &Known,
    ) -> Result<AdoptReport> {
        if self.config.read_only {
            return Err(UndoError::ReadOnly);
        }
        let _changing = self.change_contents();
        loop {
            let safeguards = *self.safeguards.read();
            self.desk.wait_until_clear(&safeguards)?;
            let state = self.state.write();
            let step = state.open.as_ref().ok_or(UndoError::NoStepOpen)?;
            let id = step.id;
            if let Some(denial) = step.denied.get() {
                return Err(denial.error(id));
            }
            let allowed = self.sort_out(&state, staging, changes, known.judged)?;
            self.check_protected(&allowed.1.protected)?;
            match self.ask_about(&state, id, staging, &allowed.0) {
                Ok(()) => return self.adopt_allowed(&state, staging, allowed, known),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Ask(question)) => {
                    drop(state);
                    self.ask(id, question)?;
                    // People take their time.
                    self.workspace.tree.forget_dirs();
                }
            }
        }
    }

    /// What was left out may be a reason to keep nothing.
    pub(super) fn check_protected(&self, protected: &[(RelPathBuf, String)]) -> Result<()> {
        match protected.first().filter(|_| self.config.paths.refuses_step()) {
            Some((path, rule)) => {
                Err(UndoError::PathProtected { path: path.clone(), rule: rule.clone() })
            }
            None => Ok(()),
        }
    }

    /// Leaves out what the path policy denies.
    fn sort_out<'c>(
        &self,
        state: &State,
        staging: &Tree,
        changes: &'c [StagedChange],
        judged: bool,
    ) -> Result<(Vec<&'c StagedChange>, AdoptReport)> {
        let mut report = AdoptReport::default();
        let mut allowed = Vec::new();
        for change in changes {
            match self.judge_staged(state, staging, change, judged) {
                Ok(()) => allowed.push(change),
                Err(UndoError::PathProtected { rule, .. }) => {
                    report.protected.push((change.path().to_buf(), rule));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((allowed, report))
    }

    fn judge_staged(
        &self,
        state: &State,
        staging: &Tree,
        change: &StagedChange,
        judged: bool,
    ) -> Result<()> {
        let step = state.open.as_ref();
        match change {
            StagedChange::Remove { path } => {
                self.judge_path(path.as_path(), PathUse::Disappear, step)?;
                self.judge_contents(path.as_path(), step)
            }
            StagedChange::Attributes { path, .. } => {
                self.judge_path(path.as_path(), PathUse::Attributes, step)
            }
            StagedChange::Edit { path, .. } => {
                self.judge_path(path.as_path(), PathUse::Write, step)
            }
            StagedChange::Place { path, staged } => {
                let exists =
                    self.workspace.tree.stat(path.as_path()).map_err(UndoError::host)?.is_some();
                let policy = &self.config.paths;
                // What takes the name as a whole can be looked at.
                let is_write = exists && !policy.inspects(path.as_path());
                let usage = if is_write { PathUse::Write } else { PathUse::Appear };
                self.judge_path(path.as_path(), usage, step)?;
                let entry = staging.owned_entry(staged.as_path()).map_err(UndoError::host)?;
                self.inspect(path.as_path(), &entry, step)?;
                self.judge_contents(path.as_path(), step)?;
                if judged || !policy.guards_below(path.as_path(), PathUse::Appear) {
                    return Ok(());
                }
                let Ok(dir) = staging.owned_dir(staged.as_path()) else {
                    return Ok(());
                };
                let mut verdict = Ok(());
                crate::host::walk(&dir, path.as_path(), &mut |below, _, _, _| {
                    if verdict.is_ok() {
                        let inside = below.strip(path.as_path()).unwrap_or(RelPath::ROOT);
                        let source = staged.as_path().concat(inside);
                        verdict = self.judge_path(below, PathUse::Appear, step).and_then(|()| {
                            let entry = staging.owned_entry(source.as_path());
                            self.inspect(below, &entry.map_err(UndoError::host)?, step)
                        });
                    }
                    Ok(())
                })
                .map_err(UndoError::host)?;
                verdict
            }
        }
    }

    /// A directory goes with everything below it, which the policy may want to keep.
    fn judge_contents(&self, path: RelPath<'_>, step: Option<&OpenStep>) -> Result<()> {
        if !self.config.paths.guards_below(path, PathUse::Disappear) {
            return Ok(());
        }
        let Ok(dir) = self.workspace.tree.owned_dir(path) else { return Ok(()) };
        let mut verdict = Ok(());
        crate::host::walk(&dir, path, &mut |below, _, _, _| {
            if verdict.is_ok() {
                verdict = self.judge_path(below, PathUse::Disappear, step);
            }
            Ok(())
        })
        .map_err(UndoError::host)?;
        verdict
    }

    /// Raises the questions that these changes would raise one by one, before any of them.
    fn ask_about(
        &self,
        state: &State,
        id: StepId,
        staging: &Tree,
        changes: &[&StagedChange],
    ) -> std::result::Result<(), Stop> {
        let Some(step) = state.open.as_ref() else {
            return Ok(());
        };
        let config = self.safeguards.read();
        if config.asks_nothing() {
            return Ok(());
        }
        let mut safeguards = step.safeguards.lock();
        let deletes_before = safeguards.deletes;
        for change in changes {
            let present = self.workspace.tree.stat(change.path()).map_err(UndoError::host)?;
            let (Some(present), path) = (present, change.path()) else {
                continue;
            };
            let question = match change {
                StagedChange::Remove { .. } => {
                    let count = self.entries_at(path, &present, config.delete_threshold)?;
                    safeguards.on_delete(&config, id, path, count)
                }
                StagedChange::Edit { .. } => {
                    safeguards.on_overwrite(&config, id, path, present.size)
                }
                StagedChange::Place { staged, .. } => {
                    let stays = staging
                        .stat(staged.as_path())
                        .map_err(UndoError::host)?
                        .is_some_and(|staged| staged.file_type() == present.file_type());
                    if stays && present.is_file() {
                        safeguards
                            .on_overwrite(&config, id, path, present.size)
                            .or_else(|| safeguards.on_rename_over(&config, id, path))
                    } else {
                        let count = self.entries_at(path, &present, config.delete_threshold)?;
                        safeguards.on_delete(&config, id, path, count)
                    }
                }
                StagedChange::Attributes { .. } => None,
            };
            if let Some(question) = question {
                safeguards.deletes = deletes_before;
                return Err(safeguards.stop(id, question));
            }
        }
        Ok(())
    }

    /// How many entries go with a path, itself included; counted no further than `enough`.
    fn entries_at(&self, path: RelPath<'_>, stamp: &Stamp, enough: Option<u64>) -> Result<u64> {
        let (true, Some(enough)) = (stamp.is_dir(), enough) else { return Ok(1) };
        let dir = self.workspace.tree.owned_dir(path).map_err(UndoError::host)?;
        let mut count = 1;
        let counted = crate::host::walk(&dir, path, &mut |_, _, _, _| {
            count += 1;
            if count >= enough { Err(io::ErrorKind::QuotaExceeded.into()) } else { Ok(()) }
        });
        match counted {
            Err(error) if error.kind() != io::ErrorKind::QuotaExceeded => {
                Err(UndoError::host(error))
            }
            _ => Ok(count),
        }
    }

    fn adopt_allowed(
        &self,
        state: &State,
        staging: &Tree,
        (changes, mut report): (Vec<&StagedChange>, AdoptReport),
        known: &Known,
    ) -> Result<AdoptReport> {
        if changes.is_empty() {
            return Ok(report);
        }
        let recorder = self.recorder(state)?;
        let is_since = |taken: &Stamp| {
            !taken.is_dir() && known.since.is_some_and(|since| taken.ctime >= since)
        };
        for change in changes {
            let taken = match change {
                StagedChange::Remove { path } => {
                    report.removed += 1;
                    self.adopt_removal(recorder, path.as_path())?
                }
                StagedChange::Place { path, staged } | StagedChange::Edit { path, staged } => {
                    report.placed += 1;
                    self.adopt_entry(recorder, path.as_path(), staging, staged.as_path())?
                }
                StagedChange::Attributes { path, staged } => {
                    let wanted = match known.attributes.get(staged) {
                        Some(meta) => meta.clone(),
                        None => attributes_of(staging, staged.as_path())?,
                    };
                    self.adopt_attributes(recorder, path.as_path(), wanted)?;
                    None
                }
            };
            if taken.as_ref().is_some_and(is_since) {
                report.changed_meanwhile.push(change.path().to_buf());
            }
        }
        Ok(report)
    }

    /// Returns what was there.
    pub(super) fn adopt_removal(
        &self,
        recorder: &Recorder,
        path: RelPath<'_>,
    ) -> Result<Option<Stamp>> {
        let Some(found) = self.find_entry(path)? else {
            return Ok(None);
        };
        let workspace = &self.workspace;
        if found.stamp.is_dir() {
            remove_dir_recorded(workspace, recorder, path, &found)?;
            return Ok(Some(found.stamp));
        }
        let Found { entry, id, stamp } = found;
        match recorder.remove(workspace, path, &entry, id, stamp)? {
            Removal::Done(taken) => Ok(Some(taken.stamp)),
            Removal::Recorded => {
                workspace.store.probe.reach(Point::HostMutation).map_err(UndoError::host)?;
                entry.unlink().map_err(UndoError::host)?;
                recorder.inodes.forget(id);
                Ok(Some(stamp))
            }
        }
    }

    pub(super) fn find_entry<'p>(&self, path: RelPath<'p>) -> Result<Option<Found<'p>>> {
        let Some(entry) = self.workspace.tree.find_owned(path).map_err(UndoError::host)? else {
            return Ok(None);
        };
        let found = entry.stat_id().map_err(UndoError::host)?;
        Ok(found.map(|(id, stamp)| Found { entry, id, stamp }))
    }

    /// Returns what was there.
    pub(super) fn adopt_entry(
        &self,
        recorder: &Recorder,
        path: RelPath<'_>,
        staging: &Tree,
        staged: RelPath<'_>,
    ) -> Result<Option<Stamp>> {
        let mut attempts = 1;
        loop {
            if let Some(taken) = self.swap_entry(recorder, path, (staging, staged))? {
                return Ok(Some(taken));
            }
            let taken = self.adopt_removal(recorder, path)?;
            match self.place_entry(recorder, path, (staging, staged)) {
                // Somebody has made something there meanwhile: that goes as well, and is kept as well.
                Err(error) if error.errno() == libc::EEXIST && attempts < MOST_ATTEMPTS => {
                    attempts += 1;
                }
                outcome => return outcome.map(|()| taken),
            }
        }
    }

    /// In the place of what is there, so that there is never nothing, and returns what that was.
    /// `None`: that cannot be done.
    fn swap_entry(
        &self,
        recorder: &Recorder,
        path: RelPath<'_>,
        (staging, staged): (&Tree, RelPath<'_>),
    ) -> Result<Option<Stamp>> {
        let source = staging.owned_entry(staged).map_err(UndoError::host)?;
        let may = |found: &Found<'_>| {
            self.config.symlinks == SymlinkPolicy::ReadWrite || !found.stamp.is_symlink()
        };
        let found = source.stat_id().map_err(UndoError::host)?;
        let placed = found.map(|(id, stamp)| Found { entry: source, id, stamp });
        let Some(placed) = placed.filter(may) else { return Ok(None) };
        let Some(present) = self.find_entry(path)?.filter(may) else { return Ok(None) };
        let from = ObjectRef { owner: Owner::Staging, number: recorder.next_object() };
        let swapped = recorder.swap(&self.workspace, path, (&placed, from), &present)?;
        // With another name it may be a file that was here before.
        if swapped.is_some() && !placed.stamp.is_dir() && placed.stamp.links <= 1 {
            recorder.inodes.mark_created(placed.id);
        }
        Ok(swapped.map(|taken| taken.stamp))
    }

    /// Where there is nothing.
    fn place_entry(
        &self,
        recorder: &Recorder,
        path: RelPath<'_>,
        (staging, staged): (&Tree, RelPath<'_>),
    ) -> Result<()> {
        let workspace = &self.workspace;
        let source = staging.owned_entry(staged).map_err(UndoError::host)?;
        let (id, stamp) = source
            .stat_id()
            .map_err(UndoError::host)?
            .ok_or_else(|| UndoError::host(Errno::NOENT.into()))?;
        let target = workspace.tree.owned_entry(path).map_err(UndoError::host)?;
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        let from = ObjectRef { owner: Owner::Staging, number: recorder.next_object() };
        let dirs = [(target.dir_handle(), parent)];
        let put = Record::Put { path, from, stamp };
        let record = recorder.append_touching(workspace, &dirs, put)?;
        workspace.store.probe.reach(Point::HostMutation).map_err(UndoError::host)?;
        let (mut id, mut has_begun) = (id, false);
        let mut placed = source.rename_to(&target);
        if matches!(&placed, Err(error) if Errno::from_io_error(error) == Some(Errno::XDEV)) {
            has_begun = target.stat().map_err(UndoError::host)?.is_none();
            placed = match has_begun {
                true => copy_entry(&source, &target),
                false => Err(Errno::EXIST.into()),
            };
            id = target.stat_id().map_err(UndoError::host)?.map_or(id, |(id, _)| id);
        }
        if placed.is_err() && !has_begun {
            recorder.cancel([record]);
        }
        placed.map_err(UndoError::host)?;
        // With another name it may be a file that was here before.
        if !stamp.is_dir() && stamp.links <= 1 {
            recorder.inodes.mark_created(id);
        }
        Ok(())
    }

    fn adopt_attributes(
        &self,
        recorder: &Recorder,
        path: RelPath<'_>,
        mut meta: Meta,
    ) -> Result<()> {
        let workspace = &self.workspace;
        let Some(found) = self.find_entry(path)? else {
            return Err(UndoError::host(Errno::NOENT.into()));
        };
        let present =
            Meta::read(&found.entry, found.stamp, MetaScope::Full).map_err(UndoError::host)?;
        if found.stamp.is_dir() && meta.differs_in_times_only(&present) {
            // Mostly because something in it was placed or removed: that is recorded with it.
            meta.scope = MetaScope::Times;
            let dir = workspace.tree.owned_dir(path).map_err(UndoError::host)?;
            recorder.touch_dir(workspace, &dir, path)?;
        } else {
            self.capture_attributes(recorder, path, &found)?;
        }
        workspace.store.probe.reach(Point::HostMutation).map_err(UndoError::host)?;
        meta.apply_over(&found.entry, &found.stamp).map_err(UndoError::host)
    }

    pub(super) fn capture_attributes(
        &self,
        recorder: &Recorder,
        path: RelPath<'_>,
        found: &Found<'_>,
    ) -> Result<()> {
        let (at, wanted) = (At::Path(path), Wanted::Attributes);
        recorder.capture(&self.workspace, at, &found.entry, found.id, wanted)
    }
}

fn attributes_of(staging: &Tree, staged: RelPath<'_>) -> Result<Meta> {
    let read = || -> io::Result<Meta> {
        let entry = staging.owned_entry(staged)?;
        let stamp = entry.stat()?.ok_or(Errno::NOENT)?;
        Meta::read(&entry, stamp, MetaScope::Full)
    };
    read().map_err(UndoError::host)
}
