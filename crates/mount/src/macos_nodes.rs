//! Which name each node of the kernel stands for, where nodes cannot be held open.
//!
//! Plain data, so that it can be tested anywhere.

use std::collections::HashMap;

use codeagent_common::{RelPath, RelPathBuf};
use codeagent_interceptor::FileId;

/// The working directory itself, as the protocol has it.
pub(crate) const ROOT: u64 = 1;

/// Every node the kernel knows.
#[derive(Debug)]
pub(crate) struct Nodes {
    next: u64,
    known: HashMap<u64, Node>,
    places: HashMap<(u64, Vec<u8>), u64>,
}

#[derive(Debug)]
struct Node {
    parent: u64,
    name: Vec<u8>,
    /// Which file had the name when it was looked up.
    file: FileId,
    /// How often the kernel was told of it.
    lookups: u64,
    /// Nodes whose parent this is; their paths need it.
    children: u64,
    /// The name is (as far as we know) still its own.
    in_place: bool,
}

/// A node, as it is found on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) path: RelPathBuf,
    /// Its name was removed or given to another file: only an open file leads to it.
    pub(crate) in_place: bool,
}

impl Nodes {
    pub(crate) fn new() -> Self {
        Self { next: ROOT + 1, known: HashMap::new(), places: HashMap::new() }
    }

    /// The node of a name that was just looked up, and counts as one lookup.
    pub(crate) fn looked_up(&mut self, parent: u64, name: &[u8], file: FileId) -> u64 {
        let place = (parent, name.to_vec());
        if let Some(number) = self.places.get(&place).copied() {
            match self.known.get_mut(&number) {
                Some(node) if node.file == file => {
                    node.lookups += 1;
                    return number;
                }
                _ => self.take_place(&place),
            }
        }
        let number = self.next;
        self.next += 1;
        let name = place.1.clone();
        let node = Node { parent, name, file, lookups: 1, children: 0, in_place: true };
        self.known.insert(number, node);
        self.places.insert(place, number);
        self.count_child(parent, 1);
        number
    }

    pub(crate) fn forget(&mut self, number: u64, lookups: u64) {
        if let Some(node) = self.known.get_mut(&number) {
            node.lookups = node.lookups.saturating_sub(lookups);
        }
        self.drop_unused(number);
    }

    /// Where a node is, or was when it last had a name; `None` for numbers nobody was told.
    pub(crate) fn find(&self, number: u64) -> Option<Found> {
        let mut names = Vec::new();
        let (mut at, mut in_place) = (number, true);
        while at != ROOT {
            let node = self.known.get(&at)?;
            names.push(node.name.as_slice());
            in_place &= node.in_place;
            at = node.parent;
        }
        names.reverse();
        let path = RelPathBuf::new(names.join(&b'/')).ok()?;
        Some(Found { path, in_place })
    }

    /// Where a name in a directory is; `None` also if it is not a name.
    pub(crate) fn child(&self, parent: u64, name: &[u8]) -> Option<RelPathBuf> {
        let parent = self.find(parent).filter(|found| found.in_place)?;
        let path: RelPath<'_> = parent.path.as_path();
        path.join(name).ok()
    }

    pub(crate) fn removed(&mut self, parent: u64, name: &[u8]) {
        self.take_place(&(parent, name.to_vec()));
    }

    pub(crate) fn renamed(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) {
        let (from, to) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        if from == to {
            return;
        }
        self.take_place(&to);
        let Some(number) = self.places.remove(&from) else { return };
        self.move_to(number, to);
    }

    fn move_to(&mut self, number: u64, place: (u64, Vec<u8>)) {
        let Some(node) = self.known.get_mut(&number) else { return };
        let before = std::mem::replace(&mut node.parent, place.0);
        node.name.clone_from(&place.1);
        self.count_child(place.0, 1);
        self.places.insert(place, number);
        self.count_child(before, -1);
        self.drop_unused(before);
    }

    fn take_place(&mut self, place: &(u64, Vec<u8>)) {
        if let Some(number) = self.places.remove(place)
            && let Some(node) = self.known.get_mut(&number)
        {
            node.in_place = false;
        }
    }

    fn count_child(&mut self, parent: u64, change: i64) {
        if let Some(node) = self.known.get_mut(&parent) {
            node.children = node.children.saturating_add_signed(change);
        }
    }

    /// Drops a node that neither the kernel nor a child needs, then its parent if need be.
    fn drop_unused(&mut self, number: u64) {
        let mut at = number;
        while let Some(node) = self.known.get(&at).filter(|n| n.lookups == 0 && n.children == 0) {
            let (parent, place) = (node.parent, (node.parent, node.name.clone()));
            self.known.remove(&at);
            if self.places.get(&place) == Some(&at) {
                self.places.remove(&place);
            }
            self.count_child(parent, -1);
            at = parent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> FileId {
        FileId { device: 1, inode }
    }

    fn path_of(nodes: &Nodes, number: u64) -> (String, bool) {
        let found = nodes.find(number).unwrap();
        (found.path.to_string(), found.in_place)
    }

    #[test]
    fn a_node_follows_its_directory() {
        let mut nodes = Nodes::new();
        let dir = nodes.looked_up(ROOT, b"a", file(1));
        let leaf = nodes.looked_up(dir, b"x", file(2));
        nodes.renamed((ROOT, b"a"), (ROOT, b"b"));
        assert_eq!(path_of(&nodes, leaf), ("b/x".into(), true));
        assert_eq!(nodes.looked_up(dir, b"x", file(2)), leaf);
    }

    #[test]
    fn a_replaced_file_keeps_its_node_and_loses_its_place() {
        let mut nodes = Nodes::new();
        let old = nodes.looked_up(ROOT, b"config", file(1));
        let new = nodes.looked_up(ROOT, b"config.tmp", file(2));
        nodes.renamed((ROOT, b"config.tmp"), (ROOT, b"config"));
        assert_eq!(path_of(&nodes, old), ("config".into(), false));
        assert_eq!(path_of(&nodes, new), ("config".into(), true));
    }

    #[test]
    fn a_name_that_somebody_gave_to_another_file_is_another_node() {
        let mut nodes = Nodes::new();
        let first = nodes.looked_up(ROOT, b"a", file(1));
        let second = nodes.looked_up(ROOT, b"a", file(2));
        assert_ne!(first, second);
        assert!(!nodes.find(first).unwrap().in_place);
    }

    #[test]
    fn nodes_are_kept_while_the_kernel_or_a_child_needs_them() {
        let mut nodes = Nodes::new();
        let dir = nodes.looked_up(ROOT, b"a", file(1));
        let leaf = nodes.looked_up(dir, b"x", file(2));
        nodes.forget(dir, 1);
        assert_eq!(path_of(&nodes, leaf), ("a/x".into(), true));
        nodes.forget(leaf, 1);
        assert!(nodes.find(leaf).is_none() && nodes.find(dir).is_none());
        assert!(nodes.places.is_empty());
    }

    #[test]
    fn no_name_leads_outside() {
        let mut nodes = Nodes::new();
        let dir = nodes.looked_up(ROOT, b"a", file(1));
        for name in [&b".."[..], b".", b"", b"a/b", b"a\0"] {
            assert_eq!(nodes.child(dir, name), None);
        }
        assert_eq!(nodes.child(77, b"x"), None);
        nodes.removed(ROOT, b"a");
        assert_eq!(nodes.child(dir, b"x"), None);
    }
}
