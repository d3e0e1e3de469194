//! Folds a journal into net changes: what a person would say the step did.
//!
//! The records are played forwards over a sketch of the tree that holds only the names they
//! mention. A directory rename moves one node of the sketch; everything below moves with it.

use std::collections::{HashMap, HashSet};
use std::io;

use codeagent_common::{ChangeKind, RelPath, RelPathBuf};

use crate::host::{MetaScope, Stamp, Tree, walk_some};
use crate::lineage::{Lineage, Lineages, Place};
use crate::store::{At, JournalReader, ObjectRef, Owner, Record, StoredChange};

pub(crate) type NodeId = u32;
/// The working directory itself.
pub(crate) const ROOT: NodeId = 0;

struct Node<'j> {
    /// Where it is now; `None` once it has been removed.
    place: Option<(NodeId, &'j [u8])>,
    /// Where it was before the step; `None` if the step made it.
    home: Option<(NodeId, &'j [u8])>,
    before: Option<Stamp>,
    /// As what the step brought it from elsewhere.
    placed: Option<Stamp>,
    touched: bool,
    /// A directory that came or went with everything below it.
    whole: bool,
}

/// A record in one of several journals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordAt {
    pub(crate) journal: usize,
    pub(crate) index: u64,
}

pub(crate) struct Sketch<'j> {
    nodes: Vec<Node<'j>>,
    /// What has a name; `None`: nothing has it any more.
    names: HashMap<(NodeId, &'j [u8]), Option<NodeId>, foldhash::fast::FixedState>,
    /// The directory most recently looked up: records come in runs.
    recent: Option<(RelPath<'j>, NodeId)>,
    /// What each file was when a record first spoke of it, by whichever of its names.
    first: HashMap<u64, Stamp, foldhash::fast::FixedState>,
    /// A directory changed its name: names below it can stand for other entries now.
    dirs_moved: bool,
    /// Inodes whose ctime moved because one of their names came, went or changed.
    relinked: HashSet<u64>,
    /// Kept only where it is asked for.
    history: Option<Box<History>>,
}

/// What the journals keep of each node.
#[derive(Default)]
struct History {
    /// Preimages, oldest first, and removal.
    records: HashMap<NodeId, (Vec<RecordAt>, Option<RecordAt>)>,
    /// Which node became which object.
    objects: HashMap<ObjectRef, NodeId>,
    /// Of nodes that are not directories.
    inodes: HashMap<NodeId, u64>,
    /// Inodes that have had several names at once.
    shared: HashSet<u64>,
}

/// Records that were cancelled, and those known to be done.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub(crate) cancelled: HashSet<u64>,
    pub(crate) done: HashSet<u64>,
    pub(crate) unprotected: Option<String>,
}

impl Marks {
    pub(crate) fn read(journal: &JournalReader) -> io::Result<Self> {
        let mut marks = Self::default();
        for (_, record) in journal.marks() {
            match record? {
                Record::Cancelled { record } => {
                    marks.cancelled.insert(record);
                }
                Record::Done { record } => {
                    marks.done.insert(record);
                }
                Record::Unprotected { reason } => marks.unprotected = Some(reason),
                _ => {}
            }
        }
        Ok(marks)
    }
}

/// Entries below directories that came as a whole which are stamped. One rename takes such a
/// directory away again, and that must not cost a look at everything below it.
pub(crate) const STAMPED_BELOW: usize = 512;

/// What journals did, all in all.
#[derive(Debug, Clone, Default)]
pub(crate) struct NetChanges {
    pub(crate) changes: Vec<StoredChange>,
    /// Files below directories that came as a whole, as far as they were looked at.
    pub(crate) below: Vec<(RelPathBuf, Stamp)>,
    /// Those of these directories of which no file was left out.
    pub(crate) whole: Vec<RelPathBuf>,
    /// Inodes whose ctime moved because one of their names came, went or changed.
    pub(crate) relinked: Vec<u64>,
}

impl NetChanges {
    /// Files that run with the rights of their owner or group, whoever starts them, and did not
    /// before; as far as they were looked at.
    pub(crate) fn privileged(&self) -> impl Iterator<Item = &RelPathBuf> {
        let gained = |change: &&StoredChange| {
            let has_been = change.before.as_ref().is_some_and(Stamp::is_privileged);
            !has_been && change.after.as_ref().is_some_and(Stamp::is_privileged)
        };
        let changed = self.changes.iter().filter(gained).map(|change| &change.path);
        let below = self.below.iter().filter(|(_, stamp)| stamp.is_privileged());
        changed.chain(below.map(|(path, _)| path))
    }
}

/// The net changes of a journal, stamped with what the tree holds now.
pub(crate) fn net_changes(journal: &JournalReader, tree: &Tree) -> io::Result<NetChanges> {
    net_changes_of(std::slice::from_ref(journal), tree)
}

/// The net changes of several journals, oldest first, taken together.
pub(crate) fn net_changes_of(journals: &[JournalReader], tree: &Tree) -> io::Result<NetChanges> {
    let mut sketch = Sketch::new(false);
    sketch.play_all(journals)?;
    sketch.into_changes(tree)
}

/// The files a journal speaks of that were there before it: where they were, and as what.
pub(crate) fn found_files(journal: &JournalReader) -> io::Result<Vec<(RelPathBuf, Stamp)>> {
    let mut sketch = Sketch::new(false);
    sketch.play_all(std::slice::from_ref(journal))?;
    let old = sketch.nodes.iter().enumerate().filter(|(_, node)| node.home.is_some());
    let found = old.filter_map(|(index, node)| {
        let stamp = node.before.filter(|stamp| !stamp.is_dir())?;
        Some((sketch.original_path(index as NodeId)?, stamp))
    });
    Ok(found.collect())
}

/// What became of every entry that the journals (oldest first) speak of.
pub(crate) fn lineages(journals: &[JournalReader]) -> io::Result<Lineages> {
    let mut sketch = Sketch::new(true);
    sketch.play_all(journals)?;
    let history = sketch.history.take().unwrap_or_default();
    let place = |(dir, name): (NodeId, &[u8])| Place { dir, name: name.into() };
    let all = sketch.nodes.iter().enumerate().map(|(index, node)| {
        let id = index as NodeId;
        let (preimages, removal) = history.records.get(&id).cloned().unwrap_or_default();
        let inode = history.inodes.get(&id).filter(|inode| history.shared.contains(inode));
        let (then, now) = (node.home.map(place), node.place.map(place));
        Lineage { then, now, preimages, removal, shared_inode: inode.copied() }
    });
    let names = sketch.names.iter().map(|(slot, node)| (place(*slot), *node));
    Ok(Lineages::new(all.collect(), names))
}

impl<'j> Node<'j> {
    fn new(
        place: Option<(NodeId, &'j [u8])>,
        home: Option<(NodeId, &'j [u8])>,
        whole: bool,
    ) -> Self {
        Self { place, home, before: None, placed: None, touched: false, whole }
    }

    /// What the step has left, where `now` is there. Somebody else may have put something of his own
    /// in its place since: that is nothing the step has left.
    fn left(&self, now: Stamp) -> Stamp {
        let in_place = self.before.filter(|_| self.is_at_home());
        let is_copy = |placed: Stamp| (placed.size, placed.mtime) == (now.size, now.mtime);
        match self.placed.or(in_place) {
            Some(left) if left.is_dir() || left.inode == now.inode => now,
            // From another filesystem, with its times.
            Some(_) if self.placed.is_some_and(is_copy) => now,
            Some(left) => left,
            None => now,
        }
    }

    fn is_at_home(&self) -> bool {
        self.home.is_some() && self.home == self.place
    }
}

impl<'j> Sketch<'j> {
    pub(crate) fn new(with_history: bool) -> Self {
        Self {
            nodes: vec![Node::new(None, None, false)],
            names: HashMap::default(),
            recent: None,
            first: HashMap::default(),
            relinked: HashSet::new(),
            dirs_moved: false,
            history: with_history.then(Box::default),
        }
    }

    fn play_all(&mut self, journals: &'j [JournalReader]) -> io::Result<()> {
        for (number, journal) in journals.iter().enumerate() {
            let marks = Marks::read(journal)?;
            // Growing in steps would copy everything several times.
            let records = usize::try_from(journal.end()).unwrap_or(0);
            self.nodes.reserve(records);
            self.names.reserve(records);
            let sequence = journal.header().map_or(0, |header| header.sequence);
            for (index, record) in journal.records() {
                if marks.cancelled.contains(&index) {
                    continue;
                }
                let record = record?;
                if let Some(mut history) = self.history.take() {
                    self.keep(&mut history, &record, RecordAt { journal: number, index }, sequence);
                    self.play(&record);
                    self.keep_new_name(&mut history, &record);
                    self.history = Some(history);
                } else {
                    self.play(&record);
                }
            }
        }
        Ok(())
    }

    /// Notes a record with the node it concerns, which is still where the record says.
    fn keep(&mut self, history: &mut History, record: &Record<'j>, at: RecordAt, sequence: u64) {
        for (path, stamp) in mentions(record).filter(|(_, stamp)| !stamp.is_dir()) {
            if let Some(node) = self.look_up(path) {
                history.inodes.insert(node, stamp.inode);
            }
            if stamp.links > 1 {
                history.shared.insert(stamp.inode);
            }
        }
        let node = match record {
            Record::Take { path, .. }
            | Record::Swap { path, .. }
            | Record::Removed { path, .. }
            | Record::Rmdir { path, .. }
            | Record::Preimage { at: At::Path(path), .. } => self.look_up(*path),
            Record::Preimage { at: At::Object(object), .. } => history.objects.get(object).copied(),
            _ => None,
        };
        let Some(node) = node else { return };
        let (preimages, removal) = history.records.entry(node).or_default();
        match record {
            Record::Preimage { .. } => preimages.push(at),
            _ => *removal = Some(at),
        }
        if let Record::Take { object, .. } | Record::Swap { object, .. } = record {
            let owner = Owner::Sequence(sequence);
            history.objects.insert(ObjectRef { owner, number: *object }, node);
        }
    }

    /// A node that has just appeared may be a further name of a file.
    fn keep_new_name(&mut self, history: &mut History, record: &Record<'j>) {
        let (path, stamp) = match record {
            Record::Link { path, existing: Some((_, stamp)) } => (*path, stamp),
            Record::Put { path, stamp, .. } | Record::Swap { path, placed: stamp, .. }
                if stamp.links > 1 && !stamp.is_dir() =>
            {
                (*path, stamp)
            }
            _ => return,
        };
        history.shared.insert(stamp.inode);
        if let Some(node) = self.look_up(path) {
            history.inodes.insert(node, stamp.inode);
        }
    }

    pub(crate) fn play(&mut self, record: &Record<'j>) {
        match record {
            Record::Create { path, .. } | Record::Mkdir { path } => {
                self.appear(*path, false);
            }
            Record::Link { path, existing } => {
                if let Some((existing, stamp)) = existing {
                    self.note_before(*existing, *stamp);
                }
                self.appear(*path, false);
            }
            Record::Put { path, stamp, .. } => {
                self.note_link(stamp);
                self.come(*path, stamp);
            }
            Record::Rmdir { path, meta } => self.disappear(*path, meta.stamp, false),
            Record::Removed { path, meta, .. } => {
                self.note_link(&meta.stamp);
                self.disappear(*path, meta.stamp, false);
            }
            Record::Take { path, stamp, .. } => {
                self.note_link(stamp);
                self.disappear(*path, *stamp, stamp.is_dir());
            }
            Record::Swap { path, taken, placed, .. } => {
                [taken, placed].into_iter().for_each(|stamp| self.note_link(stamp));
                self.disappear(*path, *taken, taken.is_dir());
                self.come(*path, placed);
            }
            Record::Rename { from, to, stamp } => {
                self.dirs_moved |= stamp.is_dir();
                self.note_before(*from, *stamp);
                self.rename(*from, *to);
            }
            Record::Exchange { a, b, stamp_a, stamp_b } => {
                self.dirs_moved |= stamp_a.is_dir() || stamp_b.is_dir();
                self.note_before(*a, *stamp_a);
                self.note_before(*b, *stamp_b);
                self.exchange(*a, *b);
            }
            Record::Preimage { at: At::Path(path), meta, content } => {
                let times_only = meta.as_ref().is_some_and(|meta| meta.scope == MetaScope::Times);
                if content.is_none() && times_only {
                    return;
                }
                let before = meta.as_ref().map(|meta| self.first(meta.stamp));
                if let Some(node) = self.look_up(*path) {
                    let node = &mut self.nodes[node as usize];
                    node.touched = true;
                    node.before = node.before.or(before);
                }
            }
            Record::Preimage { at: At::Object(_), meta, .. } => {
                if let Some(meta) = meta {
                    self.first(meta.stamp);
                }
            }
            Record::Cancelled { .. } | Record::Done { .. } | Record::Unprotected { .. } => {}
        }
    }

    /// A step may have changed a file by one name before it touched another.
    fn first(&mut self, stamp: Stamp) -> Stamp {
        if stamp.is_dir() { stamp } else { *self.first.entry(stamp.inode).or_insert(stamp) }
    }

    fn note_link(&mut self, stamp: &Stamp) {
        if !stamp.is_dir() && stamp.links > 1 {
            self.relinked.insert(stamp.inode);
        }
    }

    fn note_before(&mut self, path: RelPath<'j>, stamp: Stamp) {
        if !stamp.is_dir() {
            // Renamed there and back is no change, but the ctime has moved.
            self.relinked.insert(stamp.inode);
        }
        let stamp = self.first(stamp);
        if let Some(node) = self.look_up(path) {
            let before = &mut self.nodes[node as usize].before;
            *before = before.or(Some(stamp));
        }
    }

    fn add(&mut self, node: Node<'j>) -> NodeId {
        self.nodes.push(node);
        NodeId::try_from(self.nodes.len() - 1).unwrap_or(NodeId::MAX)
    }

    /// The node at a path; names never seen before are taken to have been there all along.
    pub(crate) fn look_up(&mut self, path: RelPath<'j>) -> Option<NodeId> {
        let Some((parent, name)) = path.split() else {
            return Some(ROOT);
        };
        let parent = self.look_up_dir(parent)?;
        match self.names.get(&(parent, name)) {
            Some(found) => *found,
            // A directory the step made holds only what the step put there.
            None if self.is_new(parent) => None,
            None => Some(self.discover(parent, name)),
        }
    }

    /// A directory whose contents the step knows, because it made it.
    fn is_new(&self, dir: NodeId) -> bool {
        let node = &self.nodes[dir as usize];
        dir != ROOT && node.home.is_none() && !node.whole
    }

    fn discover(&mut self, parent: NodeId, name: &'j [u8]) -> NodeId {
        let place = Some((parent, name));
        let node = self.add(Node::new(place, place, false));
        self.names.insert((parent, name), Some(node));
        node
    }

    fn look_up_dir(&mut self, path: RelPath<'j>) -> Option<NodeId> {
        if let Some((recent, node)) = self.recent
            && recent == path
        {
            return Some(node);
        }
        let node = self.look_up(path)?;
        self.recent = Some((path, node));
        Some(node)
    }

    /// Something comes from elsewhere, a directory with all that is in it.
    fn come(&mut self, path: RelPath<'j>, stamp: &Stamp) {
        if let Some(node) = self.appear(path, stamp.is_dir()) {
            self.nodes[node as usize].placed = Some(*stamp);
        }
    }

    fn appear(&mut self, path: RelPath<'j>, whole: bool) -> Option<NodeId> {
        let (parent, name) = path.split()?;
        let parent = self.look_up_dir(parent)?;
        let place = Some((parent, name));
        let node = self.add(Node::new(place, None, whole));
        self.occupy(parent, name, node);
        Some(node)
    }

    /// Gives a name to a node; a file the step made and dropped again may still hold it.
    fn occupy(&mut self, parent: NodeId, name: &'j [u8], node: NodeId) {
        if let Some(Some(former)) = self.names.insert((parent, name), Some(node)) {
            self.nodes[former as usize].place = None;
        }
        self.nodes[node as usize].place = Some((parent, name));
        self.recent = None;
    }

    fn disappear(&mut self, path: RelPath<'j>, stamp: Stamp, whole: bool) {
        let Some((parent, name)) = path.split() else {
            return;
        };
        let (Some(node), Some(parent)) = (self.look_up(path), self.look_up_dir(parent)) else {
            return;
        };
        self.names.insert((parent, name), None);
        // A file that loses its only name will not be spoken of by another one.
        let stamp = if stamp.links > 1 {
            self.first(stamp)
        } else {
            self.first.get(&stamp.inode).copied().filter(|_| !stamp.is_dir()).unwrap_or(stamp)
        };
        let node = &mut self.nodes[node as usize];
        node.place = None;
        node.before = node.before.or(Some(stamp));
        node.whole |= whole;
        self.recent = None;
    }

    fn rename(&mut self, from: RelPath<'j>, to: RelPath<'j>) {
        let (Some(node), Some((old_parent, old_name)), Some((parent, name))) =
            (self.look_up(from), from.split(), to.split())
        else {
            return;
        };
        let (Some(old_parent), Some(parent)) =
            (self.look_up_dir(old_parent), self.look_up_dir(parent))
        else {
            return;
        };
        self.names.insert((old_parent, old_name), None);
        self.occupy(parent, name, node);
    }

    fn exchange(&mut self, a: RelPath<'j>, b: RelPath<'j>) {
        let (Some(node_a), Some(node_b)) = (self.look_up(a), self.look_up(b)) else {
            return;
        };
        let (place_a, place_b) =
            (self.nodes[node_a as usize].place, self.nodes[node_b as usize].place);
        let (Some(place_a), Some(place_b)) = (place_a, place_b) else {
            return;
        };
        self.names.insert(place_a, Some(node_b));
        self.names.insert(place_b, Some(node_a));
        self.nodes[node_a as usize].place = Some(place_b);
        self.nodes[node_b as usize].place = Some(place_a);
        self.recent = None;
    }

    /// Whether the journals played so far made this node, or a directory above it.
    pub(crate) fn is_below_made(&self, node: NodeId) -> bool {
        let mut at = node;
        while at != ROOT {
            let Node { home, place, .. } = &self.nodes[at as usize];
            match (home, place) {
                (None, _) => return true,
                (_, Some((parent, _))) | (Some((parent, _)), None) => at = *parent,
            }
        }
        false
    }

    /// The directory and name of a path; `None` if the directory is not there.
    pub(crate) fn slot(&mut self, path: RelPath<'j>) -> Option<(NodeId, &'j [u8])> {
        let (parent, name) = path.split()?;
        Some((self.look_up_dir(parent)?, name))
    }

    /// Whether a name is known to be free.
    pub(crate) fn is_free(&self, slot: (NodeId, &[u8])) -> bool {
        match self.names.get(&slot) {
            Some(node) => node.is_none(),
            None => self.is_new(slot.0),
        }
    }

    /// Whether a path below `dir` has been added there by somebody the journals know nothing of.
    /// Not of what lies in a directory that they brought there from elsewhere.
    pub(crate) fn is_addition(&self, dir: NodeId, below: RelPath<'_>) -> bool {
        let mut at = dir;
        for name in below.components() {
            match self.names.get(&(at, name)) {
                None => return true,
                Some(Some(node)) if self.nodes[*node as usize].is_at_home() => at = *node,
                Some(_) => return false,
            }
        }
        false
    }

    /// Directories the journals made whose contents they know.
    pub(crate) fn made_dirs(&self) -> impl Iterator<Item = NodeId> {
        (1..self.nodes.len() as NodeId).filter(|node| self.is_new(*node))
    }

    pub(crate) fn has_name(&self, dir: NodeId, name: &[u8]) -> bool {
        matches!(self.names.get(&(dir, name)), Some(Some(_)))
    }

    fn path_by(
        &self,
        node: NodeId,
        step: impl Fn(&Node<'j>) -> Option<(NodeId, &'j [u8])>,
    ) -> Option<RelPathBuf> {
        let mut length = 0;
        let mut at = node;
        while at != ROOT {
            let (parent, name) = step(&self.nodes[at as usize])?;
            length += name.len() + usize::from(parent != ROOT);
            at = parent;
        }
        // Filled from its end: the names are met from the last to the first.
        let mut path = vec![b'/'; length];
        let (mut at, mut end) = (node, length);
        while at != ROOT {
            let (parent, name) = step(&self.nodes[at as usize])?;
            path[end - name.len()..end].copy_from_slice(name);
            end = end.saturating_sub(name.len() + 1);
            at = parent;
        }
        RelPathBuf::new(path).ok()
    }

    /// `None` if the node, or a directory above it, is gone.
    pub(crate) fn current_path(&self, node: NodeId) -> Option<RelPathBuf> {
        self.path_by(node, |node| node.place)
    }

    fn original_path(&self, node: NodeId) -> Option<RelPathBuf> {
        self.path_by(node, |node| node.home)
    }

    /// Whether some directory above the node's former place left as a whole, taking it along.
    fn left_with_parent(&self, node: &Node<'j>) -> bool {
        let mut at = node.home;
        while let Some((parent, _)) = at {
            let above = &self.nodes[parent as usize];
            if parent != ROOT && above.place.is_none() && above.whole {
                return true;
            }
            at = above.home;
        }
        false
    }

    /// What has a name that was given up. Nothing, unless a directory from elsewhere brought it.
    fn under_former_name(&self, tree: &Tree, path: &RelPathBuf) -> io::Result<Option<Stamp>> {
        if self.dirs_moved { tree.stat(path.as_path()) } else { Ok(None) }
    }

    /// How a node that has not been removed itself has changed, if it has.
    fn kind_if_there(&self, index: NodeId) -> Option<ChangeKind> {
        let node = &self.nodes[index as usize];
        match (node.home, node.place) {
            (None, None) if index == ROOT && node.touched => Some(ChangeKind::Modified),
            (None, Some(_)) => Some(ChangeKind::Added),
            (Some(home), Some(place)) if home != place => Some(ChangeKind::Renamed),
            (Some(_), Some(_)) if node.touched => Some(ChangeKind::Modified),
            _ => None,
        }
    }

    fn into_changes(mut self, tree: &Tree) -> io::Result<NetChanges> {
        let mut changes = self.removals(tree)?;
        let placed: Vec<(NodeId, ChangeKind, RelPathBuf)> = (0..self.nodes.len() as NodeId)
            .filter_map(|index| {
                Some((index, self.kind_if_there(index)?, self.current_path(index)?))
            })
            .collect();
        let stamps = tree.stat_all(&placed, |(_, _, path)| path.as_path())?;
        let mut removed = HashMap::new();
        if !placed.is_empty() {
            removed
                .extend(changes.iter().enumerate().map(|(at, change)| (change.path.clone(), at)));
        }
        for (placed, after) in placed.into_iter().zip(stamps) {
            let Some(mut change) = self.placement(tree, placed, after)? else { continue };
            // What was removed under a name that is taken again is one change, not two.
            if let Some(&former) = removed.get(&change.path) {
                if change.kind == ChangeKind::Added {
                    change.kind = ChangeKind::Modified;
                    change.before = changes[former].before;
                    changes[former] = change;
                    continue;
                }
                changes[former].after = change.after;
            }
            changes.push(change);
        }
        let linked = changes.iter().filter_map(|change| change.after);
        let linked: Vec<Stamp> = linked.filter(|stamp| stamp.links > 1).collect();
        linked.iter().for_each(|stamp| self.note_link(stamp));
        let relinked = self.relinked.into_iter().collect();
        let mut net = NetChanges { changes, relinked, ..NetChanges::default() };
        stamp_below(tree, &mut net)?;
        Ok(net)
    }

    /// What was there before and is gone.
    fn removals(&self, tree: &Tree) -> io::Result<Vec<StoredChange>> {
        let mut removals = Vec::new();
        for (index, node) in self.nodes.iter().enumerate().skip(1) {
            let gone = node.place.is_none() && node.home.is_some();
            if !gone || self.left_with_parent(node) {
                continue;
            }
            let Some(path) = self.original_path(index as NodeId) else {
                continue;
            };
            let after = self.under_former_name(tree, &path)?;
            removals.push(StoredChange {
                path,
                kind: ChangeKind::Deleted,
                from: None,
                whole_directory: node.whole,
                before: node.before,
                after,
                from_after: None,
            });
        }
        Ok(removals)
    }

    /// What is there and was not, or was elsewhere, or was different.
    fn placement(
        &self,
        tree: &Tree,
        (index, kind, path): (NodeId, ChangeKind, RelPathBuf),
        after: Option<Stamp>,
    ) -> io::Result<Option<StoredChange>> {
        if kind == ChangeKind::Added && after.is_none() {
            return Ok(None); // made and dropped within the step
        }
        let after = after.map(|now| self.nodes[index as usize].left(now));
        // A file that was changed in a renamed directory had another name, too.
        let from = match kind {
            ChangeKind::Added => None,
            _ => self.original_path(index).filter(|original| *original != path),
        };
        let from_after = match &from {
            Some(from) => self.under_former_name(tree, from)?.map(Box::new),
            None => None,
        };
        let Node { before, whole, .. } = self.nodes[index as usize];
        let whole_directory = whole;
        Ok(Some(StoredChange { path, kind, from, whole_directory, before, after, from_after }))
    }
}

/// Stamps files below directories that came as a whole.
fn stamp_below(tree: &Tree, net: &mut NetChanges) -> io::Result<()> {
    let NetChanges { changes, below, whole, .. } = net;
    let is_dir = |change: &&StoredChange| change.after.is_some_and(|after| after.is_dir());
    for change in changes.iter().filter(|change| change.whole_directory).filter(is_dir) {
        let Ok(dir) = tree.owned_dir(change.path.as_path()) else { continue };
        let room = STAMPED_BELOW.saturating_sub(below.len());
        let complete = walk_some(&dir, change.path.as_path(), room, &mut |path, stamp| {
            if !stamp.is_dir() {
                below.push((path.to_buf(), *stamp));
            }
        })?;
        if complete {
            whole.push(change.path.clone());
        }
    }
    Ok(())
}

/// The inodes that a record says something about, by whichever name.
pub(crate) fn mentioned_inodes(record: &Record<'_>) -> impl Iterator<Item = u64> {
    let by_path = mentions(record).map(|(_, stamp)| stamp.inode);
    let changed = match record {
        Record::Preimage { meta: Some(meta), .. } => Some(meta.stamp.inode),
        _ => None,
    };
    by_path.chain(changed)
}

/// The entries a record speaks of, as they were when it was written.
pub(crate) fn mentions<'r, 'j>(
    record: &'r Record<'j>,
) -> impl Iterator<Item = (RelPath<'j>, &'r Stamp)> {
    let (first, second) = match record {
        Record::Take { path, stamp, .. } | Record::Swap { path, taken: stamp, .. } => {
            (Some((*path, stamp)), None)
        }
        Record::Removed { path, meta, .. } | Record::Rmdir { path, meta } => {
            (Some((*path, &meta.stamp)), None)
        }
        Record::Preimage { at: At::Path(path), meta: Some(meta), .. }
            if meta.scope == MetaScope::Full =>
        {
            (Some((*path, &meta.stamp)), None)
        }
        Record::Rename { from: path, stamp, .. }
        | Record::Link { existing: Some((path, stamp)), .. } => (Some((*path, stamp)), None),
        Record::Exchange { a, b, stamp_a, stamp_b } => (Some((*a, stamp_a)), Some((*b, stamp_b))),
        _ => (None, None),
    };
    first.into_iter().chain(second)
}
