//! Building what entries were before a step, beside the working directory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use codeagent_common::RelPathBuf;

use super::UndoEngine;
use super::past::{Base, Past};
use super::state::State;
use crate::error::{Result, UndoError};
use crate::fold::{NodeId, RecordAt};
use crate::host::{CopiedLinks, Dir, Entry, FileId, Found, Meta, MetaScope, copy_linked};

pub(super) struct Rebuild<'a> {
    engine: &'a UndoEngine,
    state: &'a State,
    past: &'a Past,
    /// In a restore: entries that come to their former place by themselves.
    movers: Option<&'a HashSet<NodeId>>,
    /// Files with several names, by what they were built from.
    links: CopiedLinks,
    /// Those that are in the working directory, and only get a further name.
    in_place: HashSet<FileId>,
    built: HashSet<NodeId>,
    /// Directories that movers still have to come to, and what they have to be then.
    unfinished: HashMap<NodeId, Option<Meta>>,
}

impl<'a> Rebuild<'a> {
    pub(super) fn new(engine: &'a UndoEngine, state: &'a State, past: &'a Past) -> Self {
        Self {
            engine,
            state,
            past,
            movers: None,
            links: CopiedLinks::new(),
            in_place: HashSet::new(),
            built: HashSet::new(),
            unfinished: HashMap::new(),
        }
    }

    /// Builds for the working directory, in which these will move.
    pub(super) fn beside_movers(mut self, movers: &'a HashSet<NodeId>) -> Self {
        self.movers = Some(movers);
        self
    }

    pub(super) fn has_built(&self, node: NodeId) -> bool {
        self.built.contains(&node)
    }

    /// A file in the working directory: what was another name of it becomes one again, where that
    /// can be done from `device`.
    pub(super) fn link_to(&mut self, found: &Found<'_>, device: u64) {
        let Found { entry, id, .. } = found;
        if id.device == device {
            self.in_place.insert(*id);
            self.links.insert(*id, (Arc::clone(entry.dir_handle()), entry.name().to_vec()));
        }
    }

    /// To be called when everything is built. The directories that are not complete yet.
    pub(super) fn finish(self) -> Result<Vec<(RelPathBuf, Meta)>> {
        // Copied without a look: their content may have been changed by another name.
        let copied = self.links.iter().filter(|(id, _)| !self.in_place.contains(*id));
        for (id, (dir, name)) in copied {
            let back: Vec<RecordAt> = self.past.lineages.shared_preimages(id.inode).rev().collect();
            self.change_back(&back, &dir.entry(name.as_slice()))?;
        }
        let home = |node| self.past.lineages.path_then(node).unwrap_or_default();
        let unfinished = self.unfinished.into_iter();
        Ok(unfinished.filter_map(|(node, meta)| Some((home(node), meta?))).collect())
    }

    /// Builds what the node was, with everything that was below it.
    pub(super) fn build(&mut self, node: NodeId, target: &Entry<'_>) -> Result<()> {
        self.built.insert(node);
        let lineage = self.past.lineages.get(node);
        let device = self.engine.workspace.tree.root().id.device;
        let shared = lineage.shared_inode.map(|inode| FileId { device, inode });
        if let Some((dir, name)) = shared.and_then(|id| self.links.get(&id)) {
            return dir.entry(name.as_slice()).link_to(target).map_err(UndoError::host);
        }
        let recipe = self.past.recipe(self.engine, self.state, node)?;
        match &recipe.base {
            Base::Here(path) => {
                let source = self.engine.workspace.tree.owned_entry(path.as_path());
                self.copy(node, &source.map_err(UndoError::host)?, target)?;
            }
            Base::Kept(source) => self.copy(node, source, target)?,
            Base::Packed(at) => self.past.unpack(*at, target)?,
            Base::Empty => {
                target.mkdir().map_err(UndoError::host)?;
                self.build_children(node, &target.open_dir().map_err(UndoError::host)?)?;
            }
            Base::Blank => drop(target.create_file().map_err(UndoError::host)?),
        }
        self.change_back(&recipe.back, target)?;
        if let Some(meta) = self.unfinished.get_mut(&node) {
            let stamp = target.stat().map_err(UndoError::host)?;
            let read = stamp.map(|stamp| Meta::read(target, stamp, MetaScope::Full));
            *meta = read.transpose().map_err(UndoError::host)?;
        }
        if let Some(id) = shared {
            self.links.insert(id, (Arc::clone(target.dir_handle()), target.name().to_vec()));
        }
        Ok(())
    }

    fn change_back(&self, newest_first: &[RecordAt], target: &Entry<'_>) -> Result<()> {
        newest_first.iter().try_for_each(|at| self.past.change_back(*at, target))
    }

    fn copy(&mut self, node: NodeId, source: &Entry<'_>, target: &Entry<'_>) -> Result<()> {
        let lineages = &self.past.lineages;
        let Some(stamp) = source.stat().map_err(UndoError::host)? else {
            let home = lineages.path_then(node).unwrap_or_default();
            return Err(self.past.not_kept(&home, "it was removed outside the sandbox since"));
        };
        if !stamp.is_dir() {
            if self.movers.is_some() && self.past.is_name_of_another(node, &stamp) {
                return source.link_to(target).map_err(UndoError::host);
            }
            return copy_linked(source, target, &mut self.links).map_err(UndoError::host);
        }
        let meta = Meta::read(source, stamp, MetaScope::Full).map_err(UndoError::host)?;
        target.mkdir().map_err(UndoError::host)?;
        let from = source.open_dir().map_err(UndoError::host)?;
        let to = target.open_dir().map_err(UndoError::host)?;
        for name in from.names().map_err(UndoError::host)? {
            // Names the journals speak of are those of another time, or get their turn below.
            if !lineages.knows_name(node, &name) {
                let (from, to) = (from.entry(name.as_slice()), to.entry(name.as_slice()));
                copy_linked(&from, &to, &mut self.links).map_err(UndoError::host)?;
            }
        }
        self.build_children(node, &to)?;
        meta.apply(target).map_err(UndoError::host)
    }

    fn build_children(&mut self, node: NodeId, dir: &Arc<Dir>) -> Result<()> {
        let lineages = &self.past.lineages;
        for child in lineages.children_then(node).iter().filter(|child| lineages.existed(**child)) {
            if self.movers.is_some_and(|movers| movers.contains(child)) {
                self.unfinished.insert(node, None);
            } else if let Some(then) = &lineages.get(*child).then {
                self.build(*child, &dir.entry(&then.name[..]))?;
            }
        }
        Ok(())
    }
}
