//! Giving entries their former places, recorded as the mutations of a step.

use std::collections::HashMap;

use codeagent_common::{RelPath, RelPathBuf};
use rustix::io::Errno;

use super::UndoEngine;
use super::invert::capture_current;
use super::past::Past;
use super::restore::{Plan, Way};
use crate::capture::Recorder;
use crate::error::{Result, UndoError};
use crate::fold::{NodeId, RecordAt};
use crate::host::{FileId, Found, Meta, Tree};
use crate::lineage::Former;
use crate::probe::Point;
use crate::store::{At, Record};

pub(super) struct Placing<'a> {
    engine: &'a UndoEngine,
    recorder: &'a Recorder,
    past: Past,
    plan: &'a Plan,
    staging: Tree,
    /// Directories and what they have to be in the end, when nothing in them changes any more.
    directories: Vec<(RelPathBuf, Meta)>,
    /// Where things stepped aside to.
    asides: Vec<RelPathBuf>,
    /// Where built files with several names have their first one.
    placed: HashMap<FileId, RelPathBuf>,
}

impl<'a> Placing<'a> {
    pub(super) fn new(
        engine: &'a UndoEngine,
        recorder: &'a Recorder,
        past: Past,
        plan: &'a Plan,
        staging: Tree,
        directories: Vec<(RelPathBuf, Meta)>,
    ) -> Self {
        let (asides, placed) = (Vec::new(), HashMap::new());
        Self { engine, recorder, past, plan, staging, directories, asides, placed }
    }

    /// Gives a node its former place. The directories above it have theirs already.
    pub(super) fn bring_home(&mut self, node: NodeId, home: RelPath<'_>, way: &Way) -> Result<()> {
        let now = self.past.lineages.path_now(node);
        if matches!(way, Way::Move(_)) && now.as_ref().is_some_and(|now| now.as_path() == home) {
            return Ok(());
        }
        if let Some(parent) = home.parent() {
            self.make_missing_directory(parent)?;
        }
        self.make_way(home)?;
        match way {
            // What was in the way may have been above it: where is it now?
            Way::Move(_) => match self.past.lineages.path_now(node) {
                Some(now) => self.rename(now.as_path(), home)?,
                None => return Err(UndoError::host(Errno::NOENT.into())),
            },
            Way::Place(staged) => self.place(staged.as_path(), home)?,
            Way::Link(other) => match self.past.lineages.path_now(*other) {
                Some(other) => self.link(other.as_path(), home)?,
                None => return Err(UndoError::host(Errno::NOENT.into())),
            },
        }
        self.past.lineages.settle(node, home);
        Ok(())
    }

    /// Frees a name. What still has a place to go to, or may have such things in it, steps aside.
    fn make_way(&mut self, path: RelPath<'_>) -> Result<()> {
        let occupant = self.past.lineages.find_now(path).filter(|_| self.past.gap.is_none());
        let found = self.engine.find_entry(path)?;
        if let (Some(found), Some(node)) = (&found, occupant)
            && (found.stamp.is_dir() || self.plan.movers.contains(&node))
        {
            let aside = self.free_name_beside(path)?;
            self.rename(path, aside.as_path())?;
            self.past.lineages.settle(node, aside.as_path());
            self.asides.push(aside);
            return Ok(());
        }
        if let Some(node) = occupant {
            self.past.lineages.remove(node);
        }
        self.engine.adopt_removal(self.recorder, path).map(drop)
    }

    fn free_name_beside(&self, path: RelPath<'_>) -> Result<RelPathBuf> {
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        loop {
            let name = format!(".restoring-{}", self.recorder.next_object());
            let aside = parent.join(name.as_bytes())?;
            if self.engine.find_entry(aside.as_path())?.is_none() {
                return Ok(aside);
            }
        }
    }

    /// A directory above a restored path may be gone, or something else may have its name.
    fn make_missing_directory(&mut self, path: RelPath<'_>) -> Result<()> {
        let Some(parent) =
            path.parent().filter(|_| self.engine.workspace.tree.owned_dir(path).is_err())
        else {
            return Ok(());
        };
        self.make_missing_directory(parent)?;
        self.make_way(path)?;
        let entry = self.engine.workspace.tree.owned_entry(path).map_err(UndoError::host)?;
        let dirs = [(entry.dir_handle(), parent)];
        self.record(&dirs, Record::Mkdir { path })?;
        entry.mkdir().map_err(UndoError::host)?;
        if let Some((id, _)) = entry.stat_id().map_err(UndoError::host)? {
            self.recorder.inodes.mark_created(id);
        }
        if let Former::Known(node) = self.past.lineages.find_then(path) {
            let meta = self.past.former_meta(node)?;
            self.directories.extend(meta.map(|meta| (path.to_buf(), meta)));
        }
        Ok(())
    }

    /// Records a mutation that is about to happen.
    fn record(
        &self,
        dirs: &[(&std::sync::Arc<crate::host::Dir>, RelPath<'_>)],
        record: Record<'_>,
    ) -> Result<()> {
        let workspace = &self.engine.workspace;
        self.recorder.append_touching(workspace, dirs, record)?;
        workspace.store.probe.reach(Point::HostMutation).map_err(UndoError::host)
    }

    fn rename(&self, from: RelPath<'_>, to: RelPath<'_>) -> Result<()> {
        let tree = &self.engine.workspace.tree;
        let Some(Found { entry: source, stamp, .. }) = self.engine.find_entry(from)? else {
            return Err(UndoError::host(Errno::NOENT.into()));
        };
        let target = tree.owned_entry(to).map_err(UndoError::host)?;
        let dirs = [
            (source.dir_handle(), from.parent().unwrap_or(RelPath::ROOT)),
            (target.dir_handle(), to.parent().unwrap_or(RelPath::ROOT)),
        ];
        self.record(&dirs, Record::Rename { from, to, stamp })?;
        source.rename_to(&target).map_err(UndoError::host)?;
        if stamp.is_dir() {
            tree.forget_dirs();
        }
        Ok(())
    }

    fn link(&self, existing: RelPath<'_>, path: RelPath<'_>) -> Result<()> {
        let Some(Found { entry: source, stamp, .. }) = self.engine.find_entry(existing)? else {
            return Err(UndoError::host(Errno::NOENT.into()));
        };
        let target = self.engine.workspace.tree.owned_entry(path).map_err(UndoError::host)?;
        let dirs = [(target.dir_handle(), path.parent().unwrap_or(RelPath::ROOT))];
        self.record(&dirs, Record::Link { path, existing: Some((existing, stamp)) })?;
        source.link_to(&target).map_err(UndoError::host)
    }

    /// Brings what has been built into the working directory.
    fn place(&mut self, staged: RelPath<'_>, home: RelPath<'_>) -> Result<()> {
        let entry = self.staging.owned_entry(staged).map_err(UndoError::host)?;
        let built = entry.stat_id().map_err(UndoError::host)?;
        let shared = built.filter(|(_, stamp)| !stamp.is_dir() && stamp.links > 1);
        if let Some((id, _)) = shared {
            if let Some(other) = self.placed.get(&id) {
                return self.link(other.as_path(), home);
            }
            self.placed.insert(id, home.to_buf());
        }
        self.engine.adopt_entry(self.recorder, home, &self.staging, staged).map(drop)
    }

    /// Removes what is below the restored paths, or stepped aside, and was not there.
    pub(super) fn remove_strangers(&mut self, paths: &[RelPathBuf]) -> Result<()> {
        if self.past.gap.is_some() {
            return self.plan.removed.iter().try_for_each(|path| self.make_way(path.as_path()));
        }
        let lineages = &self.past.lineages;
        let strangers = self.plan.strangers.iter().filter_map(|node| lineages.path_now(*node));
        let mut strangers: Vec<RelPathBuf> = strangers
            .filter(|now| is_within_any(now, paths) || is_within_any(now, &self.asides))
            .collect();
        // Directories first: they take along what is in them.
        strangers.sort();
        strangers
            .iter()
            .try_for_each(|path| self.engine.adopt_removal(self.recorder, path.as_path()).map(drop))
    }

    /// Takes back, in place, what records speak of.
    pub(super) fn change_back(&self, path: RelPath<'_>, newest_first: &[RecordAt]) -> Result<()> {
        let Some(found) = self.engine.find_entry(path)?.filter(|_| !newest_first.is_empty()) else {
            return Ok(());
        };
        let workspace = &self.engine.workspace;
        for at in newest_first {
            let Record::Preimage { meta, content, .. } = self.past.record(*at)? else { continue };
            let (content, meta) = (content.as_ref(), meta.as_ref());
            capture_current(workspace, self.recorder, At::Path(path), &found, content, meta)?;
            workspace.store.probe.reach(Point::HostMutation).map_err(UndoError::host)?;
            self.past.change_back(*at, &found.entry)?;
        }
        Ok(())
    }

    /// Gives directories their attributes, when their contents are complete.
    pub(super) fn finish_directories(mut self) -> Result<()> {
        let workspace = &self.engine.workspace;
        self.directories.sort_by(|a, b| b.0.cmp(&a.0));
        for (path, meta) in &self.directories {
            let found = self.engine.find_entry(path.as_path())?;
            let Some(found) = found.filter(|found| found.stamp.is_dir()) else { continue };
            let at = At::Path(path.as_path());
            capture_current(workspace, self.recorder, at, &found, None, Some(meta))?;
            workspace.store.probe.reach(Point::HostMutation).map_err(UndoError::host)?;
            meta.apply(&found.entry).map_err(UndoError::host)?;
        }
        Ok(())
    }
}

pub(super) fn is_within_any(path: &RelPathBuf, above: &[RelPathBuf]) -> bool {
    above.iter().any(|above| path.as_path().is_within(above.as_path()))
}
