//! Other people's edits: found by comparing what is there with what the sandbox left there.

use std::collections::{HashMap, HashSet};

use codeagent_common::{
    BarrierInfo, ChangeKind, ExternalModificationPolicy, RelPath, RelPathBuf, StepId,
};
use serde::Serialize;

use super::UndoEngine;
use super::continuity::Continuity;
use super::invert::Inverted;
use super::state::{ClosedEntry, State};
use crate::capture::InodeState;
use crate::error::{Result, UndoError};
use crate::events::EngineEvent;
use crate::fold::{NetChanges, net_changes};
use crate::host::Stamp;
use crate::store::{ChangeTable, Content, JournalReader, Record, Refreshed, StepDir, StoredChange};

/// A path that undo would touch, and that somebody else has touched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Conflict {
    pub path: RelPathBuf,
    /// The step whose undo it concerns.
    pub step: StepId,
    pub kind: ConflictKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConflictKind {
    /// It is not as the step left it.
    Changed,
    /// Something is there that the step had removed.
    Appeared,
    /// It is gone.
    Disappeared,
    /// It lies in a directory that undo would remove.
    Foreign,
    /// It was changed between this step and a later one.
    ChangedBetweenSteps,
    /// The watcher saw somebody else write to it.
    Barrier,
}

impl UndoEngine {
    /// Every path that undoing `steps` (newest first) would touch and that is not as they left it.
    pub(super) fn conflicts(&self, state: &State, steps: &[ClosedEntry]) -> Result<Vec<Conflict>> {
        let damaged = |error: std::io::Error| UndoError::Corrupt(error.to_string());
        let mut journals = Vec::new();
        let mut paths: Vec<Vec<RelPathBuf>> = Vec::new();
        for step in steps.iter().rev() {
            journals.push(step.dir.journal().map_err(damaged)?);
            paths.push(step.table()?.expected().keys().cloned().collect());
        }
        let mut continuity = Continuity::new();
        for (nth, step) in steps.iter().rev().enumerate() {
            let table = step.table()?;
            continuity.step(step.info.id, &journals[nth], &table, &paths[nth]).map_err(damaged)?;
        }
        let is_ignored =
            |path: RelPath<'_>| self.ignored.covers(&self.config.working_dir, path, false);
        let (mut found, touched) =
            continuity.finish(&self.workspace.tree, is_ignored).map_err(UndoError::host)?;
        let concerned = |path: RelPath<'_>| {
            touched.iter().any(|touched| {
                path.is_within(touched.as_path()) || touched.as_path().is_within(path)
            })
        };
        for barrier in self.barriers_over(state, steps) {
            for path in barrier.paths {
                let known = found.iter().any(|conflict| conflict.path == path);
                if !known && concerned(path.as_path()) {
                    let kind = ConflictKind::Barrier;
                    found.push(Conflict::new(path, barrier.after_step, kind));
                }
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    pub(super) fn barriers_over(&self, state: &State, steps: &[ClosedEntry]) -> Vec<BarrierInfo> {
        let Some(oldest) = steps.iter().map(|step| step.info.sequence).min() else {
            return Vec::new();
        };
        let over = |barrier: &&BarrierInfo| barrier.after_sequence >= oldest;
        state.barriers.standing().iter().filter(over).cloned().collect()
    }

    /// Tells the engine that a watcher saw these paths change. Paths that are as the sandbox left
    /// them, or that the open step has touched, are our own writes and dropped. Returns the rest.
    pub fn external_modification(&self, paths: &[RelPathBuf]) -> Result<Vec<RelPathBuf>> {
        let mut guard = self.state.write();
        let state = self.ready(&mut guard)?;
        let mut foreign = Vec::new();
        for path in paths {
            if !self.is_own(state, path.as_path())? {
                foreign.push(path.clone());
            }
        }
        self.raise_barrier(state, foreign)
    }

    /// As [`UndoEngine::external_modification`], when the watcher lost events: everything the
    /// history knows is compared, and a warning is sent.
    pub fn watcher_overflowed(&self) -> Result<Vec<RelPathBuf>> {
        let mut guard = self.state.write();
        let state = self.ready(&mut guard)?;
        self.config.events.event(EngineEvent::Warning(
            "the file watcher lost events; every recorded path was compared instead".into(),
        ));
        let mut seen: HashMap<RelPathBuf, Option<Stamp>> = HashMap::new();
        for step in state.history.iter().rev() {
            for (path, stamp) in step.table()?.expected() {
                seen.entry(path.clone()).or_insert(*stamp);
            }
        }
        let mut foreign = Vec::new();
        for (path, expected) in seen {
            let now = self.workspace.tree.stat(path.as_path()).map_err(UndoError::host)?;
            if compare(expected, now, false).is_some()
                && !touched_by_open(state, self, path.as_path())
            {
                foreign.push(path);
            }
        }
        foreign.sort();
        self.raise_barrier(state, foreign)
    }

    fn is_own(&self, state: &State, path: RelPath<'_>) -> Result<bool> {
        if touched_by_open(state, self, path) {
            return Ok(true);
        }
        let now = self.workspace.tree.stat(path).map_err(UndoError::host)?;
        for step in state.history.iter().rev().chain(state.redo.lock().iter()) {
            if let Some(expected) = step.table()?.expected().get(&path.to_buf()) {
                return Ok(compare(*expected, now, false).is_none());
            }
        }
        Ok(false)
    }

    fn raise_barrier(&self, state: &mut State, paths: Vec<RelPathBuf>) -> Result<Vec<RelPathBuf>> {
        if paths.is_empty() {
            return Ok(paths);
        }
        let newest = state.history.last().map(|step| (step.info.id, step.info.sequence));
        let barrier = match (self.config.external_modifications, newest) {
            (ExternalModificationPolicy::Warn, _) | (_, None) => None,
            (_, Some((after_step, after_sequence))) => {
                let (at, paths) = (self.now(), paths.clone());
                let barrier = state
                    .barriers
                    .raise(|id| BarrierInfo { id, after_step, after_sequence, at, paths })
                    .map_err(UndoError::io("writing the barriers"))?;
                Some(barrier)
            }
        };
        self.config
            .events
            .event(EngineEvent::ExternalModification { paths: paths.clone(), barrier });
        Ok(paths)
    }

    /// An inversion gave paths new inodes and times. Older steps that left those paths in exactly
    /// the state that is there again learn to recognise it. `by` is the journal that did it.
    pub(super) fn refresh_older(
        &self,
        state: &State,
        (before_sequence, by): (u64, u64),
        inverted: &ChangeTable,
        now: NetChanges,
    ) -> Result<()> {
        let mut before = Later::default();
        before.add(inverted);
        let now = ChangeTable::new(now);
        let relinked: HashSet<u64> = inverted.relinked.union(&now.relinked).copied().collect();
        let older = |step: &&ClosedEntry| step.sequence < before_sequence;
        let redo = state.redo.lock();
        let chains: [Vec<&ClosedEntry>; 2] = [
            state.history.iter().rev().filter(older).collect(),
            redo.iter().rev().filter(older).collect(),
        ];
        for chain in chains {
            self.refresh_chain(&chain, &before, &now, &relinked, by)?;
        }
        Ok(())
    }

    /// Refreshes steps, nearest first, or what can be redone, next one first.
    fn refresh_chain(
        &self,
        chain: &[&ClosedEntry],
        before: &Later,
        now: &ChangeTable,
        relinked: &HashSet<u64>,
        by: u64,
    ) -> Result<()> {
        let stamps = now.expected();
        let mut later = Later::default();
        for step in chain {
            // A damaged step cannot be undone anyway, and must not keep others from it.
            let Ok(mut table) = step.table() else { continue };
            let mut fresh = Vec::new();
            let mut refresh = |path: &RelPathBuf, expected: &Option<Stamp>| {
                // What a step in between has changed is compared with what that step found.
                let Fate::Untouched(now) = later.follow(path.as_path()) else {
                    return;
                };
                let Fate::Found(before) = before.follow(now.as_path()) else {
                    return;
                };
                let relinked = expected.is_some_and(|stamp| relinked.contains(&stamp.inode));
                if let (None, Some(stamp)) =
                    (compare(*expected, before, relinked), stamps.get(&now))
                {
                    let (path, stamp) = (path.clone(), *stamp);
                    fresh.push(Refreshed { path, stamp, sequence: by });
                }
            };
            if later.layers.iter().all(|layer| layer.renames.is_empty()) {
                for path in stamps.keys() {
                    if let Some(expected) = table.expected().get(path) {
                        refresh(path, expected);
                    }
                }
            } else {
                table.expected().iter().for_each(|(path, expected)| refresh(path, expected));
            }
            self.refresh_other_names(&table, relinked, by, &mut fresh)?;
            later.add(&table);
            if fresh.is_empty() {
                continue;
            }
            let probe = self.workspace.store.probe.clone();
            ChangeTable::add_refreshed(&step.dir.refreshed_path(), &fresh, probe)
                .map_err(UndoError::io("refreshing an older step"))?;
            for refreshed in fresh {
                table.refresh(refreshed.path, refreshed.stamp);
            }
        }
        Ok(())
    }

    /// Further names of files that lost or got a name: their ctime has moved, nothing else.
    fn refresh_other_names(
        &self,
        table: &ChangeTable,
        relinked: &HashSet<u64>,
        by: u64,
        fresh: &mut Vec<Refreshed>,
    ) -> Result<()> {
        if relinked.is_empty() {
            return Ok(());
        }
        for (path, expected) in table.expected() {
            let Some(expected) = expected.filter(|stamp| relinked.contains(&stamp.inode)) else {
                continue;
            };
            let now = self.workspace.tree.stat(path.as_path()).map_err(UndoError::host)?;
            if let Some(now) = now.filter(|now| expected.describes_but_for_links(now)) {
                fresh.push(Refreshed { path: path.clone(), stamp: Some(now), sequence: by });
            }
        }
        Ok(())
    }

    /// Takes back what a journal that did not come to its end taught older steps.
    pub(super) fn forget_refreshed(&self, state: &State, by: u64) -> Result<()> {
        let failed = || UndoError::io("refreshing an older step");
        for step in state.history.iter().chain(state.redo.lock().iter()) {
            let probe = self.workspace.store.probe.clone();
            let dropped = ChangeTable::drop_refreshed(&step.dir.refreshed_path(), by, probe)
                .map_err(failed())?;
            if dropped {
                step.reload_table()?;
            }
        }
        Ok(())
    }

    /// After an inversion for good: older steps learn the new stamps, and the journal goes, or is
    /// kept aside if something in it could not be put back.
    pub(super) fn settle_final_inversion(
        &self,
        state: &State,
        dir: &StepDir,
        sequence: u64,
        inverted: &Inverted,
    ) -> Result<()> {
        let damaged = |error: std::io::Error| UndoError::Corrupt(error.to_string());
        let journal = dir.journal().map_err(damaged)?;
        let net = net_changes(&journal, &self.workspace.tree).map_err(damaged)?;
        let table = ChangeTable::new(net);
        let mut now = NetChanges::default();
        for path in table.expected().keys() {
            let after = self.workspace.tree.stat(path.as_path()).map_err(UndoError::host)?;
            now.changes.push(StoredChange {
                path: path.clone(),
                kind: ChangeKind::Modified,
                from: None,
                whole_directory: false,
                before: None,
                after,
                from_after: None,
            });
        }
        self.refresh_older(state, (sequence, sequence), &table, now)?;
        let store = &self.workspace.store;
        // A file that no record names any more must not go with the journal.
        let orphaned = has_orphans(dir, &journal).map_err(damaged)?;
        if inverted.left.is_empty() && !orphaned {
            store.discard(dir, sequence).map_err(UndoError::io("dropping the journal"))
        } else {
            store
                .quarantine(dir, sequence)
                .map(|_| ())
                .map_err(UndoError::io("setting the journal aside"))
        }
    }
}

/// Whether the store holds files that the journal does not speak of: its end was lost.
fn has_orphans(dir: &StepDir, journal: &JournalReader) -> std::io::Result<bool> {
    let mut named = HashSet::new();
    for (_, record) in journal.records() {
        match record? {
            Record::Take { object, .. }
            | Record::Preimage { content: Some(Content::Clone { object, .. }), .. } => {
                named.insert(object.to_string().into_bytes());
            }
            _ => {}
        }
    }
    let is_number = |name: &Vec<u8>| name.iter().all(u8::is_ascii_digit);
    let names = dir.objects()?.names()?;
    // A clone is made before its record; it is a copy, and a file in the tree has the content.
    let objects = dir.objects()?;
    for name in names.into_iter().filter(|name| is_number(name) && !named.contains(name)) {
        let stamp = objects.entry(name).stat()?;
        if stamp.is_some_and(|stamp| !stamp.is_file() || stamp.permissions() != 0o600) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn touched_by_open(state: &State, engine: &UndoEngine, path: RelPath<'_>) -> bool {
    let Some(recorder) = state.open.as_ref().and_then(|step| step.recorder()) else {
        return false;
    };
    let parent_touched = || {
        path.parent()
            .and_then(|parent| engine.workspace.tree.dir(parent).ok())
            .is_some_and(|dir| recorder.inodes.check(dir.id, InodeState::has_times))
    };
    match engine.workspace.tree.find(path).ok().flatten().and_then(|entry| entry.stat_id().ok()?) {
        Some((id, stamp)) => {
            recorder.inodes.check(id, InodeState::has_times)
                // A directory that was renamed is not itself touched; the one it is in is.
                || (stamp.is_dir() && parent_touched())
        }
        // Gone: if the open step removed it, its directory is one the step has touched.
        None => parent_touched(),
    }
}

/// What later steps found before they changed it.
#[derive(Default)]
struct Later {
    /// Newest step first.
    layers: Vec<Layer>,
    inodes: HashMap<u64, Stamp>,
    relinked: HashSet<u64>,
}

/// What one step found, in the names of its time.
struct Layer {
    paths: HashMap<RelPathBuf, Option<Stamp>>,
    /// Directories that were removed or replaced with everything below them.
    left_whole: Vec<RelPathBuf>,
    /// Directories that were renamed.
    renames: Vec<(RelPathBuf, RelPathBuf)>,
}

/// What became of a path in later steps.
enum Fate {
    /// The next step that touched it found this.
    Found(Option<Stamp>),
    /// It went with its directory, as it was; or another directory has taken its place.
    LeftWithDirectory,
    /// No step touched it; this is its name now.
    Untouched(RelPathBuf),
}

impl Later {
    /// Follows a path of an older step's time through the later steps, nearest first.
    fn follow(&self, path: RelPath<'_>) -> Fate {
        let mut name = path.to_buf();
        for layer in self.layers.iter().rev() {
            if let Some(before) = layer.paths.get(&name) {
                return Fate::Found(*before);
            }
            if layer.left_whole.iter().any(|dir| name.as_path().is_within(dir.as_path())) {
                return Fate::LeftWithDirectory;
            }
            let renamed = layer.renamed(name.clone());
            if renamed == name && layer.covered(&name) {
                return Fate::LeftWithDirectory;
            }
            name = renamed;
        }
        Fate::Untouched(name)
    }

    fn add(&mut self, table: &ChangeTable) {
        let mut paths = HashMap::with_capacity(table.changes.len());
        let mut vacant = Vec::new();
        for change in &table.changes {
            if let Some(before) = change.before.filter(|stamp| !stamp.is_dir()) {
                self.inodes.insert(before.inode, before);
            }
            match (&change.from, change.kind) {
                (Some(from), _) => {
                    paths.insert(from.clone(), change.before);
                    vacant.push(&change.path);
                }
                (None, ChangeKind::Added) => vacant.push(&change.path),
                (None, _) => {
                    paths.insert(change.path.clone(), change.before);
                }
            }
        }
        let changed = |wanted: fn(&StoredChange) -> bool| {
            table.changes.iter().filter(move |change| wanted(change))
        };
        let mut layer = Layer {
            paths,
            left_whole: changed(|change| change.whole_directory && is_dir(change.before))
                .map(|change| change.path.clone())
                .collect(),
            renames: changed(|change| is_dir(change.after))
                .filter_map(|change| Some((change.from.clone()?, change.path.clone())))
                .collect(),
        };
        for path in vacant {
            layer.note_vacant(path);
        }
        self.layers.push(layer);
        self.relinked.extend(&table.relinked);
    }
}

impl Layer {
    /// Something new has this name, so nothing had it before. In the names of before: a directory
    /// above may have come from elsewhere, or have taken the place of another one.
    fn note_vacant(&mut self, path: &RelPathBuf) {
        let came_from = self
            .renames
            .iter()
            .filter(|(_, to)| path != to && path.as_path().is_within(to.as_path()))
            .max_by_key(|(_, to)| to.as_path().as_bytes().len());
        let former = came_from
            .and_then(|(from, to)| Some(from.as_path().concat(path.as_path().strip(to.as_path())?)))
            .unwrap_or_else(|| path.clone());
        let was_elsewhere = self.renamed(former.clone()) != *path
            || self
                .left_whole
                .iter()
                .any(|dir| former != *dir && former.as_path().is_within(dir.as_path()));
        if !was_elsewhere {
            self.paths.entry(former).or_insert(None);
        }
    }

    /// Whether a directory from elsewhere now stands above the name.
    fn covered(&self, name: &RelPathBuf) -> bool {
        self.renames.iter().any(|(_, to)| name != to && name.as_path().is_within(to.as_path()))
    }

    fn renamed(&self, name: RelPathBuf) -> RelPathBuf {
        let nearest = self
            .renames
            .iter()
            .filter(|(from, _)| name.as_path().is_within(from.as_path()))
            .max_by_key(|(from, _)| from.as_path().as_bytes().len());
        let Some((from, to)) = nearest else {
            return name;
        };
        match name.as_path().strip(from.as_path()) {
            Some(below) => to.as_path().concat(below),
            None => name,
        }
    }
}

fn is_dir(stamp: Option<Stamp>) -> bool {
    stamp.is_some_and(|stamp| stamp.is_dir())
}

/// How `now` differs from what is expected, if it does.
pub(super) fn compare(
    expected: Option<Stamp>,
    now: Option<Stamp>,
    relinked: bool,
) -> Option<ConflictKind> {
    match (expected, now) {
        (None, None) => None,
        (None, Some(_)) => Some(ConflictKind::Appeared),
        (Some(_), None) => Some(ConflictKind::Disappeared),
        (Some(expected), Some(now)) => {
            let same = if relinked {
                expected.describes_but_for_links(&now)
            } else {
                expected.still_describes(&now)
            };
            (!same).then_some(ConflictKind::Changed)
        }
    }
}
