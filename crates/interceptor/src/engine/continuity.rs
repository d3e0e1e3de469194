//! Whether anybody else was at work: journals and stamps played against each other.
//!
//! The journals of the steps in question are played forwards over a sketch of the tree. After
//! each step its stamps say what every path it touched should be; what the next step found, or
//! what is there now, must be just that. Entries are followed by identity, through renames of
//! directories above them and across the several names of a hard-linked file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use codeagent_common::{RelPath, RelPathBuf, StepId};

use super::external::compare;
use crate::conflict::{Conflict, ConflictKind};
use crate::fold::{Marks, NodeId, STAMPED_BELOW, Sketch, mentioned_inodes, mentions};
use crate::host::{Stamp, Tree, walk_some};
use crate::store::{At, ChangeTable, JournalReader, Record, RemadeLog, Time};

/// What somebody who looked for conflicts has met, by inode.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// What there is, as it looks.
    now: HashMap<u64, (u64, Time)>,
    /// Journals speak of them: they may come from the store.
    spoken_of: HashSet<u64>,
}

/// What a comparison has found.
pub(super) struct Survey {
    pub(super) conflicts: Vec<Conflict>,
    pub(super) touched: HashSet<RelPathBuf>,
    pub(super) seen: Seen,
}

impl Seen {
    fn note(&mut self, stamp: &Stamp) {
        self.now.insert(stamp.inode, (stamp.size, stamp.mtime));
    }

    /// Whether somebody must have made a file since, or, if it `is_untouched` by ourselves, changed it.
    pub(super) fn is_outdated_by(&self, found: &Stamp, is_untouched: bool) -> bool {
        match self.now.get(&found.inode) {
            Some(looks) => is_untouched && *looks != (found.size, found.mtime),
            None => !self.spoken_of.contains(&found.inode),
        }
    }
}

pub(super) struct Continuity<'j> {
    sketch: Sketch<'j>,
    /// Files that were made anew have other numbers than the journals know them by.
    remade: &'j RemadeLog,
    /// What files should be, by inode: all names of a file share it.
    files: HashMap<u64, Stamp>,
    /// Files that lost or got a name since: their ctime has moved.
    relinked: HashSet<u64>,
    /// Files that were changed since by a name that is gone.
    unknown: HashSet<u64>,
    /// What each touched entry should be, and the step that left it so.
    entries: HashMap<NodeId, (Stamp, StepId)>,
    /// Names that were given up, by the directory they were in.
    vacated: HashMap<(NodeId, &'j [u8]), StepId>,
    /// Directories that came as a whole, and of which everything below is known.
    whole: HashMap<NodeId, StepId>,
    found: BTreeMap<RelPathBuf, Conflict>,
    seen: Seen,
}

impl<'j> Continuity<'j> {
    pub(super) fn new(remade: &'j RemadeLog) -> Self {
        Self {
            sketch: Sketch::new(false),
            remade,
            files: HashMap::new(),
            relinked: HashSet::new(),
            unknown: HashSet::new(),
            entries: HashMap::new(),
            vacated: HashMap::new(),
            whole: HashMap::new(),
            found: BTreeMap::new(),
            seen: Seen::default(),
        }
    }

    /// Plays one step; the steps come oldest first.
    pub(super) fn step(
        &mut self,
        (id, sequence): (StepId, u64),
        journal: &'j JournalReader,
        table: &ChangeTable,
        paths: &'j [RelPathBuf],
    ) -> io::Result<()> {
        let marks = Marks::read(journal)?;
        let mut seen = HashSet::new();
        let mut made = HashSet::new();
        let mut changed = HashSet::new();
        for (index, record) in journal.records() {
            if marks.cancelled.contains(&index) {
                continue;
            }
            let record = record?;
            let placed = match &record {
                Record::Put { stamp, .. } | Record::Swap { placed: stamp, .. } => Some(stamp.inode),
                _ => None,
            };
            for inode in mentioned_inodes(&record).chain(placed) {
                let now = self.remade.current(inode, sequence).0;
                self.seen.spoken_of.extend([inode, now]);
            }
            if let Record::Preimage { meta: Some(meta), .. } = &record
                && !meta.stamp.is_dir()
            {
                let inode = self.current(meta.stamp, sequence).inode;
                changed.insert(inode);
                if matches!(record, Record::Preimage { at: At::Object(_), .. }) {
                    // Written to by a handle, in the store: later mentions show the change.
                    seen.insert(inode);
                }
            }
            for (path, stamp) in mentions(&record) {
                let stamp = &self.current(*stamp, sequence);
                let node = self.sketch.look_up(path);
                // By whichever name: what is made may be one more name for an old file.
                let first = seen.insert(stamp.inode);
                if !first || node.is_some_and(|node| made.contains(&node)) {
                    continue; // the step has been there before
                }
                self.check_found(id, path, node, stamp);
            }
            self.sketch.play(&record);
            if let Record::Create { path, .. }
            | Record::Link { path, existing: None }
            | Record::Mkdir { path }
            | Record::Put { path, .. }
            | Record::Swap { path, .. } = &record
            {
                made.extend(self.sketch.look_up(*path));
            }
        }
        self.close((id, sequence), table, paths);
        // Changed by a name that is gone: what the other names show now, nobody has looked at.
        for inode in changed {
            let mut stamps = table.expected().values().flatten();
            let stamped = stamps.any(|stamp| self.current(*stamp, sequence).inode == inode);
            if !stamped && self.files.remove(&inode).is_some() {
                self.unknown.insert(inode);
            }
        }
        Ok(())
    }

    /// A stamp with the number its file has now.
    fn current(&self, stamp: Stamp, sequence: u64) -> Stamp {
        let (inode, _) = self.remade.current(stamp.inode, sequence);
        Stamp { inode, ..stamp }
    }

    /// Compares what a step found with what an earlier one had left.
    fn check_found(&mut self, id: StepId, path: RelPath<'_>, node: Option<NodeId>, stamp: &Stamp) {
        let expected = node.and_then(|node| self.entries.get(&node).copied());
        let left_by = expected.map_or(id, |(_, step)| step);
        let deviates = match (node, expected) {
            (None, _) => true, // an earlier step had left nothing here
            (Some(_), None) => {
                let by_inode = self.files.get(&stamp.inode).copied();
                by_inode.is_some_and(|expected| self.differs(&expected, stamp))
            }
            (Some(_), Some((expected, _))) => {
                let expected = self.newest(expected);
                self.differs(&expected, stamp)
            }
        };
        if deviates {
            self.report(path.to_buf(), left_by, ConflictKind::ChangedBetweenSteps);
        }
    }

    /// What is known of a file by any of its names.
    fn newest(&self, expected: Stamp) -> Stamp {
        if expected.is_dir() {
            return expected;
        }
        self.files.get(&expected.inode).copied().unwrap_or(expected)
    }

    fn differs(&self, expected: &Stamp, found: &Stamp) -> bool {
        if expected.inode == found.inode && self.unknown.contains(&found.inode) {
            return false;
        }
        let relinked = self.relinked.contains(&expected.inode);
        compare(Some(*expected), Some(*found), relinked).is_some()
    }

    fn report(&mut self, path: RelPathBuf, step: StepId, kind: ConflictKind) {
        self.found.entry(path.clone()).or_insert_with(|| Conflict::new(path, step, kind));
    }

    /// Takes over what the step left. `paths` are the keys of its table.
    fn close(
        &mut self,
        (id, sequence): (StepId, u64),
        table: &ChangeTable,
        paths: &'j [RelPathBuf],
    ) {
        let relinked = table.relinked.iter().map(|inode| self.remade.current(*inode, sequence).0);
        self.relinked.extend(relinked);
        for path in paths.iter().filter(|path| table.whole.contains(*path)) {
            self.whole.extend(self.sketch.look_up(path.as_path()).map(|node| (node, id)));
        }
        for path in paths {
            let Some(expected) = table.expected().get(path) else { continue };
            let node = self.sketch.look_up(path.as_path());
            match (expected, node) {
                (Some(stamp), Some(node)) => {
                    let stamp = self.current(*stamp, sequence);
                    self.entries.insert(node, (stamp, id));
                    if !stamp.is_dir() {
                        self.files.insert(stamp.inode, stamp);
                        self.relinked.remove(&stamp.inode);
                        self.unknown.remove(&stamp.inode);
                    }
                }
                (None, None) => {
                    if let Some(slot) = self.sketch.slot(path.as_path()) {
                        self.vacated.insert(slot, id);
                    }
                }
                _ => {}
            }
        }
    }

    /// Compares what the last step left with what is there now.
    pub(super) fn finish(
        mut self,
        tree: &Tree,
        is_ignored: impl Fn(RelPath<'_>) -> bool,
    ) -> io::Result<Survey> {
        let mut touched = HashSet::new();
        let entries: Vec<_> = self.entries.iter().map(|(node, left)| (*node, *left)).collect();
        for (node, (expected, step)) in entries {
            let Some(path) = self.sketch.current_path(node) else { continue };
            let now = tree.stat(path.as_path())?;
            now.iter().for_each(|now| self.seen.note(now));
            let expected = self.newest(expected);
            let relinked = self.relinked.contains(&expected.inode);
            // That something the steps made is gone is no loss.
            let gone_anyway = now.is_none() && self.sketch.is_below_made(node);
            let unknown = self.unknown.contains(&expected.inode)
                && now.is_some_and(|now| now.inode == expected.inode);
            let kind = compare(Some(expected), now, relinked);
            if let (Some(kind), false) = (kind, gone_anyway || unknown) {
                self.report(path.clone(), step, kind);
            }
            touched.insert(path);
        }
        let vacated: Vec<_> = self.vacated.iter().map(|(slot, step)| (*slot, *step)).collect();
        for ((dir, name), step) in vacated {
            let Some(dir_path) = self.sketch.current_path(dir) else { continue };
            let Ok(path) = dir_path.as_path().join(name) else { continue };
            if self.sketch.is_free((dir, name)) && tree.stat(path.as_path())?.is_some() {
                self.report(path.clone(), step, ConflictKind::Appeared);
            }
            touched.insert(path);
        }
        self.find_foreign(tree, &is_ignored)?;
        self.find_added_below(tree, &is_ignored)?;
        let conflicts = self.found.into_values().collect();
        Ok(Survey { conflicts, touched, seen: self.seen })
    }

    /// Files somebody put into a directory that the steps made and their undo would remove.
    fn find_foreign(
        &mut self,
        tree: &Tree,
        is_ignored: &impl Fn(RelPath<'_>) -> bool,
    ) -> io::Result<()> {
        let made: Vec<NodeId> = self.sketch.made_dirs().collect();
        for node in made {
            if self.entries.get(&node).is_some_and(|(left, _)| !left.is_dir()) {
                continue;
            }
            let Some(dir_path) = self.sketch.current_path(node) else { continue };
            let Ok(dir) = tree.owned_dir(dir_path.as_path()) else { continue };
            for name in dir.names()? {
                let Ok(path) = dir_path.as_path().join(&name) else { continue };
                if !self.sketch.has_name(node, &name) && !is_ignored(path.as_path()) {
                    let step = self.entries.get(&node).map_or(StepId(0), |(_, step)| *step);
                    self.report(path, step, ConflictKind::Foreign);
                }
            }
        }
        Ok(())
    }

    /// Files that somebody put into a directory that came as a whole.
    fn find_added_below(
        &mut self,
        tree: &Tree,
        is_ignored: &impl Fn(RelPath<'_>) -> bool,
    ) -> io::Result<()> {
        let whole: Vec<_> = self.whole.iter().map(|(node, step)| (*node, *step)).collect();
        for (node, step) in whole {
            let Some(path) = self.sketch.current_path(node) else { continue };
            let Ok(dir) = tree.owned_dir(path.as_path()) else { continue };
            let mut added = Vec::new();
            walk_some(&dir, path.as_path(), 2 * STAMPED_BELOW, &mut |found, stamp| {
                let below = found.strip(path.as_path()).unwrap_or(found);
                let is_new = !stamp.is_dir() && self.sketch.is_addition(node, below);
                if is_new && !is_ignored(found) {
                    added.push(found.to_buf());
                }
            })?;
            added.into_iter().for_each(|path| self.report(path, step, ConflictKind::Foreign));
        }
        Ok(())
    }
}
