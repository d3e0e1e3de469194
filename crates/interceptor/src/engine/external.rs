//! Other people's edits: found by comparing what is there with what the sandbox left there.

use std::collections::{HashMap, HashSet};

use codeagent_common::{BarrierInfo, ExternalModificationPolicy, RelPath, RelPathBuf};

use super::UndoEngine;
use super::continuity::{Continuity, Seen, Survey};
use super::state::{ClosedEntry, State};
use crate::capture::InodeState;
use crate::conflict::{Conflict, ConflictKind};
use crate::error::{Result, UndoError};
use crate::events::EngineEvent;
use crate::fold::Marks;
use crate::host::Stamp;
use crate::store::Record;

impl UndoEngine {
    /// Every path that undoing `steps` (newest first) would touch and that is not as they left it; and
    /// what there is instead.
    pub(super) fn conflicts(
        &self,
        state: &State,
        steps: &[ClosedEntry],
    ) -> Result<(Vec<Conflict>, Seen)> {
        let damaged = |error: std::io::Error| UndoError::Corrupt(error.to_string());
        let mut journals = Vec::new();
        let mut paths: Vec<Vec<RelPathBuf>> = Vec::new();
        for step in steps.iter().rev() {
            journals.push(step.journal()?);
            paths.push(step.table()?.expected().keys().cloned().collect());
        }
        let mut continuity = Continuity::new(&self.workspace.remade);
        for (nth, step) in steps.iter().rev().enumerate() {
            let table = step.table()?;
            continuity
                .step((step.info.id, step.sequence), &journals[nth], &table, &paths[nth])
                .map_err(damaged)?;
        }
        let is_ignored = |path: RelPath<'_>| self.ignored.covers(path, false);
        let Survey { conflicts: mut found, touched, seen } =
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
        Ok((found, seen))
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
        let mut own = OwnWork::default();
        for path in paths {
            if !self.is_own(state, path.as_path(), &mut own)? {
                foreign.push(path.clone());
            }
        }
        self.raise_barrier(state, foreign)
    }

    /// Whether any step, or something that was taken back, tells of this path.
    pub fn knows(&self, path: RelPath<'_>) -> Result<bool> {
        let mut guard = self.state.write();
        let state = self.ready(&mut guard)?;
        Ok(expected_at(state, path)?.is_some())
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
        let mut own = OwnWork::default();
        for (path, expected) in seen {
            let now = self.workspace.tree.stat(path.as_path()).map_err(UndoError::host)?;
            if compare(expected, now, false).is_some()
                && !self.is_own(state, path.as_path(), &mut own)?
            {
                foreign.push(path);
            }
        }
        foreign.sort();
        self.raise_barrier(state, foreign)
    }

    fn is_own(&self, state: &State, path: RelPath<'_>, own: &mut OwnWork) -> Result<bool> {
        if touched_by_open(state, self, path) {
            return Ok(true);
        }
        let now = self.workspace.tree.stat(path).map_err(UndoError::host)?;
        let expected = expected_at(state, path)?;
        if expected.is_some_and(|expected| compare(expected, now, false).is_none()) {
            return Ok(true);
        }
        match now {
            None if self.went_with_parent(state, path, own)? => return Ok(true),
            Some(now) if !now.is_dir() && self.came_with_us(state, path, &now, own)? => {
                return Ok(true);
            }
            _ => {}
        }
        // Its times have changed because we worked in it, and have put them right.
        Ok(expected.is_none()
            && now.is_some_and(|now| now.is_dir())
            && own.worked_in(state)?.contains(&path.to_buf()))
    }

    /// Whether a directory above it is not there any more, because of us.
    fn went_with_parent(
        &self,
        state: &State,
        path: RelPath<'_>,
        own: &mut OwnWork,
    ) -> Result<bool> {
        let mut above = path.parent();
        while let Some(dir) = above.filter(|dir| !dir.is_root()) {
            let now = self.workspace.tree.stat(dir).map_err(UndoError::host)?;
            if now.is_some_and(|now| now.is_dir()) {
                return Ok(false);
            }
            let as_left = |expected| compare(expected, now, false).is_none();
            if expected_at(state, dir)?.is_some_and(as_left)
                || own.names(state)?.lost.contains(&dir.to_buf())
            {
                return Ok(true);
            }
            above = dir.parent();
        }
        Ok(false)
    }

    /// Whether it is a file as a step before the open one has left it, under whatever name: the open
    /// one has renamed it, or given it another name, or renamed a directory above it.
    fn came_with_us(
        &self,
        state: &State,
        path: RelPath<'_>,
        now: &Stamp,
        own: &mut OwnWork,
    ) -> Result<bool> {
        /// It was done a moment ago.
        const STEPS: usize = 8;
        let itself = parent_touched_by_open(state, self, path);
        if !itself {
            let gained = &own.names(state)?.gained;
            let mut above = std::iter::successors(path.parent(), |dir| dir.parent());
            if gained.is_empty() || !above.any(|dir| gained.contains(&dir.to_buf())) {
                return Ok(false);
            }
        }
        // Only what is renamed itself changes by that.
        let is_it = |left: &Stamp| match itself {
            true => left.describes_but_for_links(now),
            false => left.still_describes(now),
        };
        for step in state.history.iter().rev().take(STEPS) {
            if step.table()?.expected().values().flatten().any(is_it) {
                return Ok(true);
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
}

/// What steps have done, read when it is needed.
#[derive(Default)]
struct OwnWork {
    /// The directories in which closed steps changed something.
    worked_in: Option<HashSet<RelPathBuf>>,
    names: Option<Names>,
}

/// Names that the open step has taken from something, or given to something.
#[derive(Default)]
struct Names {
    lost: HashSet<RelPathBuf>,
    gained: HashSet<RelPathBuf>,
}

impl OwnWork {
    fn worked_in(&mut self, state: &State) -> Result<&HashSet<RelPathBuf>> {
        if self.worked_in.is_none() {
            self.worked_in = Some(directories_worked_in(state)?);
        }
        Ok(self.worked_in.get_or_insert_default())
    }

    fn names(&mut self, state: &State) -> Result<&Names> {
        if self.names.is_none() {
            self.names = Some(Names::of_open(state).map_err(UndoError::io("reading the step"))?);
        }
        Ok(self.names.get_or_insert_default())
    }
}

impl Names {
    fn of_open(state: &State) -> std::io::Result<Self> {
        let mut names = Self::default();
        let Some(recorder) = state.open.as_ref().and_then(|step| step.recorder()) else {
            return Ok(names);
        };
        let journal = recorder.journal().read_back()?;
        let marks = Marks::read(&journal)?;
        for (index, record) in journal.records() {
            if marks.cancelled.contains(&index) {
                continue;
            }
            match record? {
                Record::Rename { from, to, .. } => {
                    names.lost.insert(from.to_buf());
                    names.gained.insert(to.to_buf());
                }
                Record::Exchange { a, b, .. } => names.gained.extend([a.to_buf(), b.to_buf()]),
                Record::Take { path, .. }
                | Record::Swap { path, .. }
                | Record::Rmdir { path, .. }
                | Record::Removed { path, .. } => drop(names.lost.insert(path.to_buf())),
                _ => {}
            }
        }
        Ok(names)
    }
}

/// What the sandbox left at a path, if it is known to have left something there, or nothing. What
/// was done last comes first, and what was undone was undone after all that stands.
fn expected_at(state: &State, path: RelPath<'_>) -> Result<Option<Option<Stamp>>> {
    let path = path.to_buf();
    for step in state.redo.lock().iter().rev().chain(state.history.iter().rev()) {
        if let Some(expected) = step.table()?.expected().get(&path) {
            return Ok(Some(*expected));
        }
    }
    Ok(state.left.lock().at(path.as_path()))
}

fn directories_worked_in(state: &State) -> Result<HashSet<RelPathBuf>> {
    let mut found = HashSet::new();
    let mut add = |path: &RelPathBuf| {
        let mut path = path.as_path();
        while let Some(parent) = path.parent() {
            if !found.insert(parent.to_buf()) {
                break; // and so are those above it
            }
            path = parent;
        }
    };
    for step in state.history.iter().chain(state.redo.lock().iter()) {
        step.table()?.expected().keys().for_each(&mut add);
    }
    state.left.lock().paths().for_each(&mut add);
    Ok(found)
}

fn parent_touched_by_open(state: &State, engine: &UndoEngine, path: RelPath<'_>) -> bool {
    let Some(recorder) = state.open.as_ref().and_then(|step| step.recorder()) else {
        return false;
    };
    path.parent()
        .and_then(|parent| engine.workspace.tree.owned_dir(parent).ok())
        .is_some_and(|dir| recorder.inodes.check(dir.id, InodeState::has_times))
}

fn touched_by_open(state: &State, engine: &UndoEngine, path: RelPath<'_>) -> bool {
    let Some(recorder) = state.open.as_ref().and_then(|step| step.recorder()) else {
        return false;
    };
    let parent_touched = || parent_touched_by_open(state, engine, path);
    match engine
        .workspace
        .tree
        .find_owned(path)
        .ok()
        .flatten()
        .and_then(|entry| entry.stat_id().ok()?)
    {
        Some((id, stamp)) => {
            recorder.inodes.check(id, InodeState::has_times)
                // A directory that was renamed is not itself touched; the one it is in is.
                || (stamp.is_dir() && parent_touched())
        }
        // Gone: if the open step removed it, its directory is one the step has touched.
        None => parent_touched(),
    }
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
