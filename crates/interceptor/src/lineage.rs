//! What became of every entry that several journals speak of: where it was before the first of
//! them, where it is now, and what they keep of it.
//!
//! Entries are known by identity, not by name: names change hands. Whoever moves entries tells
//! the lineages, and goes on with where they are then.

use std::collections::{BTreeSet, HashMap};

use codeagent_common::{RelPath, RelPathBuf};

use crate::fold::{NodeId, ROOT, RecordAt};

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) dir: NodeId,
    pub(crate) name: Box<[u8]>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Lineage {
    /// Before the first journal; `None`: the journals made it.
    pub(crate) then: Option<Place>,
    /// `None`: it was removed.
    pub(crate) now: Option<Place>,
    /// Oldest first.
    pub(crate) preimages: Vec<RecordAt>,
    pub(crate) removal: Option<RecordAt>,
    /// Of a file that has had several names at once, by which its content may have changed.
    pub(crate) shared_inode: Option<u64>,
}

/// Where an entry of long ago is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    Here(RelPathBuf),
    /// Removed, or below something that was removed as a whole.
    Within(NodeId, RelPathBuf),
}

/// What had a name before the first journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Former {
    Known(NodeId),
    /// No journal speaks of it; it has shared the fate of this directory above it.
    Untouched(NodeId),
    Nothing,
}

type Names = HashMap<NodeId, HashMap<Box<[u8]>, Option<NodeId>>>;

#[derive(Debug, Default)]
pub(crate) struct Lineages {
    all: Vec<Lineage>,
    children_then: HashMap<NodeId, Vec<NodeId>>,
    /// Every name the journals know; `None`: nothing has it any more.
    names_now: Names,
    /// Preimages of files with several names, by whichever name they were taken.
    shared: HashMap<u64, BTreeSet<RecordAt>>,
    /// How many names such files are known by.
    names: HashMap<u64, u64>,
}

impl Lineages {
    pub(crate) fn new(
        all: Vec<Lineage>,
        names: impl Iterator<Item = (Place, Option<NodeId>)>,
    ) -> Self {
        let mut lineages = Self { all, ..Self::default() };
        for (Place { dir, name }, node) in names {
            lineages.names_now.entry(dir).or_default().insert(name, node);
        }
        for (node, lineage) in lineages.all.iter().enumerate() {
            if let Some(then) = &lineage.then {
                lineages.children_then.entry(then.dir).or_default().push(node as NodeId);
            }
            if let Some(inode) = lineage.shared_inode {
                lineages.shared.entry(inode).or_default().extend(&lineage.preimages);
                *lineages.names.entry(inode).or_default() += 1;
            }
        }
        lineages
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        0..self.all.len() as NodeId
    }

    pub(crate) fn get(&self, node: NodeId) -> &Lineage {
        &self.all[node as usize]
    }

    /// Whether there was such an entry. A name may have been looked at that nothing had.
    pub(crate) fn existed(&self, node: NodeId) -> bool {
        let lineage = self.get(node);
        let known = lineage.now.is_some() || lineage.removal.is_some();
        node == ROOT || (lineage.then.is_some() && (known || !lineage.preimages.is_empty()))
    }

    /// All preimages of what the node is, oldest first.
    pub(crate) fn preimages(&self, node: NodeId) -> Vec<RecordAt> {
        let lineage = self.get(node);
        let mut all: BTreeSet<RecordAt> = lineage.preimages.iter().copied().collect();
        all.extend(lineage.shared_inode.into_iter().flat_map(|inode| self.shared_preimages(inode)));
        all.into_iter().collect()
    }

    /// Preimages of a file with several names, oldest first.
    pub(crate) fn shared_preimages(&self, inode: u64) -> impl DoubleEndedIterator<Item = RecordAt> {
        self.shared.get(&inode).into_iter().flatten().copied()
    }

    /// How many names of a file with several names are known, in the store and elsewhere.
    pub(crate) fn names_of(&self, inode: u64) -> u64 {
        self.names.get(&inode).copied().unwrap_or(0)
    }

    pub(crate) fn children_then(&self, dir: NodeId) -> &[NodeId] {
        self.children_then.get(&dir).map_or(&[], Vec::as_slice)
    }

    /// Whether the journals speak of this name in a directory.
    pub(crate) fn knows_name(&self, dir: NodeId, name: &[u8]) -> bool {
        self.names_now.get(&dir).is_some_and(|names| names.contains_key(name))
    }

    pub(crate) fn path_then(&self, node: NodeId) -> Option<RelPathBuf> {
        match self.climb(node, |lineage| lineage.then.as_ref()) {
            (ROOT, path) => Some(path),
            _ => None,
        }
    }

    /// `None` if it, or a directory above it, is gone.
    pub(crate) fn path_now(&self, node: NodeId) -> Option<RelPathBuf> {
        match self.whereabouts(node) {
            Whereabouts::Here(path) => Some(path),
            Whereabouts::Within(..) => None,
        }
    }

    pub(crate) fn whereabouts(&self, node: NodeId) -> Whereabouts {
        match self.climb(node, |lineage| lineage.now.as_ref()) {
            (ROOT, path) => Whereabouts::Here(path),
            (top, path) => Whereabouts::Within(top, path),
        }
    }

    /// From a node to the topmost directory above it, and the path between.
    fn climb<'a>(
        &'a self,
        node: NodeId,
        up: impl Fn(&'a Lineage) -> Option<&'a Place>,
    ) -> (NodeId, RelPathBuf) {
        let mut names = Vec::new();
        let mut at = node;
        while let Some(place) = up(&self.all[at as usize]) {
            names.push(&place.name[..]);
            at = place.dir;
        }
        names.reverse();
        (at, RelPathBuf::new(names.join(&b'/')).unwrap_or_default())
    }

    pub(crate) fn find_then(&self, path: RelPath<'_>) -> Former {
        let mut at = ROOT;
        for name in path.components() {
            let had = |node: &&NodeId| {
                self.get(**node).then.as_ref().is_some_and(|then| *then.name == *name)
            };
            match self.children_then(at).iter().find(had) {
                Some(child) => at = *child,
                // What appeared under a name found it free.
                None if self.knows_name(at, name) => return Former::Nothing,
                None => return Former::Untouched(at),
            }
        }
        if self.existed(at) { Former::Known(at) } else { Former::Nothing }
    }

    /// The node that has a path now, if the journals speak of it.
    pub(crate) fn find_now(&self, path: RelPath<'_>) -> Option<NodeId> {
        path.components().try_fold(ROOT, |dir, name| *self.names_now.get(&dir)?.get(name)?)
    }

    /// Adds an entry that no journal speaks of, below one that is known.
    pub(crate) fn discover(&mut self, path: RelPath<'_>) -> Former {
        while let Former::Untouched(dir) = self.find_then(path) {
            let known = self.path_then(dir).map_or(0, |dir| dir.as_path().components().count());
            let Some(name) = path.components().nth(known) else { break };
            let place = Some(Place { dir, name: name.into() });
            let node = self.add(Lineage { then: place.clone(), now: place, ..Lineage::default() });
            self.children_then.entry(dir).or_default().push(node);
        }
        self.find_then(path)
    }

    fn add(&mut self, lineage: Lineage) -> NodeId {
        let node = self.all.len() as NodeId;
        if let Some(Place { dir, name }) = lineage.now.clone() {
            self.names_now.entry(dir).or_default().insert(name, Some(node));
        }
        self.all.push(lineage);
        node
    }

    /// The node is gone, with everything below it.
    pub(crate) fn remove(&mut self, node: NodeId) {
        if let Some(Place { dir, name }) = self.all[node as usize].now.take() {
            self.names_now.entry(dir).or_default().insert(name, None);
        }
    }

    /// The node is at `path` now.
    pub(crate) fn settle(&mut self, node: NodeId, path: RelPath<'_>) {
        let Some((parent, name)) = path.split() else { return };
        self.remove(node);
        let dir = parent.components().fold(ROOT, |dir, name| {
            let known = self.names_now.get(&dir).and_then(|names| *names.get(name)?);
            let place = Some(Place { dir, name: name.into() });
            known.unwrap_or_else(|| self.add(Lineage { now: place, ..Lineage::default() }))
        });
        self.names_now.entry(dir).or_default().insert(name.into(), Some(node));
        self.all[node as usize].now = Some(Place { dir, name: name.into() });
    }
}
