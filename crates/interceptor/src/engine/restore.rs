//! Bringing paths back from before a step, as a step of its own.
//!
//! Names change hands, so a restore works on what had them (`lineage.rs`). What has left the
//! restored paths for another place, or for the store, is built beside the working directory
//! while everything is still in its place. Only then do entries change places: parents before what
//! is in them, what is in the way stepping aside. What did not belong there goes, and what stayed
//! is changed back in place.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use codeagent_common::{RelPath, RelPathBuf, StepId, StepInfo, StepKind};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::past::Past;
use super::placing::{Placing, is_within_any};
use super::rebuild::Rebuild;
use super::state::{OpenStep, State};
use super::{ClosedStep, UndoEngine};
use crate::error::{Result, UndoError};
use crate::fold::{NodeId, RecordAt};
use crate::host::{Dir, FileId, Meta, Tree, remove_all};
use crate::lineage::Former;

/// What a restore did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreReport {
    /// The new step; undoing it takes the restore back. `None` if nothing had to change.
    pub step: Option<StepInfo>,
    pub restored: Vec<RelPathBuf>,
    pub removed: Vec<RelPathBuf>,
}

/// What a restore has to do.
#[derive(Default)]
pub(super) struct Plan {
    /// What was there, parents before what was in them.
    pub(super) former: Vec<(NodeId, RelPathBuf)>,
    /// Those of them that are still somewhere below the restored paths.
    pub(super) movers: HashSet<NodeId>,
    /// What is there and was not.
    pub(super) strangers: HashSet<NodeId>,
    restored: Vec<RelPathBuf>,
    /// Names that nothing had.
    pub(super) removed: Vec<RelPathBuf>,
}

/// How an entry comes to its former place.
pub(super) enum Way {
    /// It is in the working directory; these records are taken back, newest first.
    Move(Vec<RecordAt>),
    /// It has been built.
    Place(RelPathBuf),
    /// As a further name of another one that moves.
    Link(NodeId),
}

type Ways = HashMap<NodeId, Way>;

impl UndoEngine {
    /// Brings `paths` back to what they were before `step`, whatever happened to them since.
    /// Everything else stays as it is.
    pub fn restore(&self, step: StepId, paths: &[RelPathBuf]) -> Result<RestoreReport> {
        let _changing = self.change_contents();
        let mut guard = self.state.write();
        let state = self.ready(&mut guard)?;
        self.end_ambient(state)?;
        if let Some(step) = state.begun() {
            return Err(step.in_the_way());
        }
        let mut past = Past::since(state, step)?;
        let plan = self.plan(&mut past, paths)?;
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
        let outcome = self
            .restore_planned(state, past, &plan, paths, &staging)
            .and_then(|()| self.finish(state));
        // Emptied like everything in the trash; a crash leaves it to the next start.
        let _ = std::fs::remove_dir_all(&staging);
        match outcome {
            Ok(closed) => {
                let step = match closed {
                    ClosedStep::Recorded { step, .. } => Some(step),
                    _ => None,
                };
                Ok(RestoreReport { step, restored: plan.restored, removed: plan.removed })
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
        self.extract_in(&self.state.read(), step, path, target)
    }

    pub(super) fn extract_in(
        &self,
        state: &State,
        step: StepId,
        path: RelPath<'_>,
        target: &Path,
    ) -> Result<bool> {
        self.workspace.tree.forget_dirs();
        let mut past = Past::since(state, step)?;
        self.plan(&mut past, &[path.to_buf()])?;
        let Former::Known(node) = past.lineages.find_then(path) else {
            return Ok(false);
        };
        let failed = || UndoError::io("opening the place to extract to");
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let dir = Dir::open(parent.unwrap_or(Path::new("."))).map_err(failed())?;
        let name = target.file_name().unwrap_or_default();
        let entry = dir.entry(std::os::unix::ffi::OsStrExt::as_bytes(name).to_vec());
        if entry.stat().map_err(failed())?.is_some() {
            return Err(failed()(Errno::EXIST.into()));
        }
        let mut rebuild = Rebuild::new(self, state, &past);
        let built = rebuild.build(node, &entry).and_then(|()| rebuild.finish());
        if built.is_err()
            && let Ok(Some(stamp)) = entry.stat()
        {
            // Half of it is worse than nothing.
            let _ = if stamp.is_dir() { remove_all(&entry) } else { entry.unlink() };
        }
        built.map(|_| true)
    }

    fn plan(&self, past: &mut Past, paths: &[RelPathBuf]) -> Result<Plan> {
        let mut plan = Plan::default();
        for path in paths {
            let former = past.former(self, path.as_path())?;
            let found = match (&past.gap, former) {
                (None, former) => plan.survey(past, path) || former == Former::Nothing,
                (Some(_), Former::Known(node)) => plan.add_former(node, path.clone(), true),
                (Some(_), Former::Nothing) => plan.add_removed(path.clone()),
                (Some(_), Former::Untouched(_)) => false,
            };
            if !found {
                return Err(UndoError::PathNotInStep { step: past.step, path: path.clone() });
            }
        }
        plan.sort();
        for (node, _) in plan.former.iter().filter(|_| past.gap.is_none()) {
            let now = past.lineages.path_now(*node).filter(|now| is_within_any(now, paths));
            if let Some(now) = now
                && self.workspace.tree.stat(now.as_path()).map_err(UndoError::host)?.is_some()
            {
                plan.movers.insert(*node);
            }
        }
        Ok(plan)
    }

    fn restore_planned(
        &self,
        state: &State,
        past: Past,
        plan: &Plan,
        paths: &[RelPathBuf],
        staging: &Path,
    ) -> Result<()> {
        std::fs::create_dir(staging).map_err(UndoError::io("making room for the restore"))?;
        let staging = Tree::open(staging).map_err(UndoError::io("making room for the restore"))?;
        let (ways, directories) = self.build_planned(state, &past, plan, &staging)?;
        let recorder = self.recorder(state)?;
        let mut placing = Placing::new(self, recorder, past, plan, staging, directories);
        let ways = || {
            let planned = plan.former.iter();
            planned.filter_map(|(node, home)| Some((*node, home.as_path(), ways.get(node)?)))
        };
        for (node, home, way) in ways() {
            placing.bring_home(node, home, way)?;
        }
        placing.remove_strangers(paths)?;
        for (_, home, way) in ways() {
            if let Way::Move(back) = way {
                placing.change_back(home, back)?;
            }
        }
        placing.finish_directories()
    }

    /// Builds what cannot be moved, and tells how everything comes to its place and what
    /// directories have to be in the end. Changes nothing.
    fn build_planned(
        &self,
        state: &State,
        past: &Past,
        plan: &Plan,
        staging: &Tree,
    ) -> Result<(Ways, Vec<(RelPathBuf, Meta)>)> {
        let mut ways = Ways::new();
        let mut directories = Vec::new();
        let mut rebuild = Rebuild::new(self, state, past).beside_movers(&plan.movers);
        let mut in_place: HashMap<FileId, NodeId> = HashMap::new();
        for (node, home) in plan.former.iter().filter(|(node, _)| plan.movers.contains(node)) {
            let now = past.lineages.path_now(*node).unwrap_or_default();
            let Some(found) = self.find_entry(now.as_path())? else { continue };
            let mut back = Vec::new();
            if found.stamp.is_dir() {
                directories.extend(past.directory_meta(*node)?.map(|meta| (home.clone(), meta)));
            } else if now != *home || !past.lineages.preimages(*node).is_empty() {
                back = past.recipe(self, state, *node)?.back;
            }
            ways.insert(*node, Way::Move(back));
            if !found.stamp.is_dir() && found.stamp.links > 1 {
                in_place.insert(found.id, *node);
                rebuild.link_to(&found, staging.root().id.device);
            }
        }
        for (nth, (node, _)) in plan.former.iter().enumerate() {
            if plan.movers.contains(node) || rebuild.has_built(*node) {
                continue;
            }
            if let Some(other) = past.file_id(self, *node)?.and_then(|id| in_place.get(&id)) {
                ways.insert(*node, Way::Link(*other));
                continue;
            }
            let staged = RelPathBuf::new(nth.to_string().into_bytes())?;
            let entry = staging.owned_entry(staged.as_path()).map_err(UndoError::host)?;
            rebuild.build(*node, &entry)?;
            ways.insert(*node, Way::Place(staged));
        }
        directories.extend(rebuild.finish()?);
        Ok((ways, directories))
    }
}

impl Plan {
    /// Notes what was at `path` and below it, and what is there and was not.
    /// `false`: no step had anything to do with it.
    fn survey(&mut self, past: &Past, path: &RelPathBuf) -> bool {
        let mut found = false;
        let is_below = |other: &RelPathBuf| other.as_path().is_within(path.as_path());
        for node in past.lineages.nodes() {
            let (then, now) = (past.lineages.path_then(node), past.lineages.path_now(node));
            if let Some(then) = then.filter(|then| past.lineages.existed(node) && is_below(then)) {
                let lineage = past.lineages.get(node);
                let moved = now.as_ref() != Some(&then) || lineage.removal.is_some();
                let changed = moved || !lineage.preimages.is_empty();
                found |= self.add_former(node, then, changed);
            } else if let Some(now) = now.filter(is_below) {
                self.strangers.insert(node);
                found |= self.add_removed(now);
            }
        }
        found
    }

    fn add_former(&mut self, node: NodeId, path: RelPathBuf, changed: bool) -> bool {
        if changed {
            self.restored.push(path.clone());
        }
        self.former.push((node, path));
        changed
    }

    /// Nothing had this name.
    fn add_removed(&mut self, path: RelPathBuf) -> bool {
        self.removed.push(path);
        true
    }

    fn sort(&mut self) {
        self.former.sort_by(|a, b| a.1.cmp(&b.1));
        self.former.dedup();
        // What one path lost, another may have got.
        for (node, _) in &self.former {
            self.strangers.remove(node);
        }
        self.restored.sort();
        self.restored.dedup();
        let names: HashSet<&RelPathBuf> = self.former.iter().map(|(_, path)| path).collect();
        self.removed.retain(|path| !names.contains(path));
        self.removed.sort();
        // What goes with a directory goes without saying.
        self.removed.dedup_by(|below, above| below.as_path().is_within(above.as_path()));
    }
}
