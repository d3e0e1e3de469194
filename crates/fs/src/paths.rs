//! Which names an inode has, as far as clients have seen them.
//!
//! Clients speak of inodes, the journal of paths. A node knows its places (a parent and a name in
//! it), and a path is the way from a node up to the root. Directories have one place, files one for
//! each name that was seen. The last place stays when its name is removed: an open file without a
//! name is still called by it, and the engine, which gets the open file too, sees that it is stale.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use codeagent_common::RelPathBuf;
use parking_lot::RwLock;
use smallvec::SmallVec;
use virtiofsd::filesystem::Entry;

use crate::intercepted::is_dir;
use crate::look_again::OpenDir;
use crate::names::bad_descriptor;

type Map<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

pub(crate) const ROOT: u64 = virtiofsd::fuse::ROOT_ID;

/// No path of the host is deeper; one that seems so runs in a circle.
const MAX_DEPTH: usize = 4096;

/// Most paths have no more bytes.
const USUAL_PATH: usize = 128;

/// An entry of a directory, as clients know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    pub parent: u64,
    pub name: Vec<u8>,
}

/// One of those who are told of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientId(pub(crate) u32);

/// Called when there are many nodes.
type Crowded = Box<dyn Fn() + Send + Sync>;

pub(crate) struct PathMap {
    tables: RwLock<Tables>,
    /// Renames that have happened, or may have, on the host and not here. Changes with the tables.
    renaming: AtomicU32,
    /// Renames so far. A lookup that overlaps one may have seen a name that is no longer true.
    /// Changes with the tables, when a rename is no longer among those under way.
    renames: AtomicU64,
    /// How many nodes there are, as of the last change.
    count: AtomicUsize,
    /// There cannot be more.
    limit: AtomicUsize,
    /// So many directories are kept open to look at names in them.
    max_open_dirs: usize,
    /// What clients can do about it.
    crowded: RwLock<Vec<(ClientId, Crowded)>>,
}

#[derive(Debug)]
struct Tables {
    nodes: Map<u64, Node>,
    /// Those that were opened, of which some may be gone.
    open_dirs: Vec<u64>,
}

#[derive(Debug, Default)]
struct Node {
    is_dir: bool,
    /// The inode number on the host.
    number: u64,
    /// How often each client was told of it; it forgets as often. Most have one client.
    lookups: SmallVec<[(ClientId, AtomicU64); 1]>,
    places: Vec<Place>,
    /// Its one place is of a name that it no longer has.
    is_nameless: bool,
    children: Map<Arc<[u8]>, u64>,
    /// Places of other nodes in this one, which need it for their paths.
    pins: usize,
    /// Of a directory in which known names were looked for again.
    open: Option<Arc<OpenDir>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    parent: u64,
    name: Arc<[u8]>,
}

/// What a client is told that a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) inode: u64,
    pub(crate) is_dir: bool,
    /// Its inode number on the host.
    pub(crate) number: u64,
}

impl Found {
    pub(crate) fn of(entry: &Entry) -> Self {
        Self { inode: entry.inode, is_dir: is_dir(entry), number: entry.attr.ino }
    }
}

/// Whether a client has heard of something before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    First,
    Again,
}

/// What a name stood for when a client was last told of it.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) inode: u64,
    /// Its inode number on the host.
    pub(crate) number: u64,
    /// The directory, if it is open.
    pub(crate) dir: Option<Arc<OpenDir>>,
}

/// When a lookup began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Since(u64);

/// An announced rename; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Renaming<'a>(&'a PathMap);

impl PathMap {
    /// With the inode number of the root.
    pub(crate) fn new(number: u64, max_open_dirs: usize) -> Self {
        Self {
            tables: RwLock::new(Tables::new(number)),
            renaming: AtomicU32::new(0),
            renames: AtomicU64::new(0),
            count: AtomicUsize::new(1),
            limit: AtomicUsize::new(usize::MAX),
            max_open_dirs,
            crowded: RwLock::default(),
        }
    }

    /// A client has gone; what it had not forgotten.
    pub(crate) fn leave(&self, client: ClientId) -> Vec<u64> {
        self.crowded.write().retain(|(of, _)| *of != client);
        let mut tables = self.tables.write();
        let known = tables.known_to(client);
        for inode in &known {
            tables.forgotten(*inode, client);
        }
        self.count.store(tables.nodes.len(), Ordering::Relaxed);
        known
    }

    pub(crate) fn path(&self, inode: u64) -> io::Result<RelPathBuf> {
        self.tables.read().path(inode, None)
    }

    pub(crate) fn child(&self, parent: u64, name: &[u8]) -> io::Result<RelPathBuf> {
        self.tables.read().path(parent, Some(name))
    }

    /// The inode number on the host of what clients know as `inode`.
    pub(crate) fn number(&self, inode: u64) -> Option<u64> {
        self.tables.read().nodes.get(&inode).map(|node| node.number)
    }

    /// Whether this name stands for a directory; unknown names may.
    pub(crate) fn may_be_dir(&self, parent: u64, name: &[u8]) -> bool {
        let tables = self.tables.read();
        let child = tables.child(parent, name).and_then(|inode| tables.nodes.get(&inode));
        child.is_none_or(|node| node.is_dir)
    }

    /// To be taken before the host is asked what a name stands for.
    pub(crate) fn since(&self) -> Since {
        loop {
            if self.renaming.load(Ordering::SeqCst) == 0 {
                return Since(self.renames.load(Ordering::SeqCst));
            }
            std::thread::yield_now(); // for as long as one system call takes
        }
    }

    /// What a name stands for that the client was told of.
    pub(crate) fn known(&self, client: ClientId, parent: u64, name: &[u8]) -> Option<Known> {
        let tables = self.tables.read();
        let dir = tables.nodes.get(&parent)?;
        let inode = *dir.children.get(name)?;
        let node = tables.nodes.get(&inode)?;
        node.of(client)?;
        Some(Known { inode, number: node.number, dir: dir.open.clone() })
    }

    /// The client is told once more of something it knows. `false`: it has forgotten it meanwhile.
    pub(crate) fn told_again(&self, client: ClientId, inode: u64) -> bool {
        let tables = self.tables.read();
        let lookups = tables.nodes.get(&inode).and_then(|node| node.of(client));
        lookups.map(|lookups| lookups.fetch_add(1, Ordering::Relaxed)).is_some()
    }

    /// The root is open for as long as there is a filesystem.
    pub(crate) fn root_is_open(&self, dir: OpenDir) {
        if let Some(root) = self.tables.write().nodes.get_mut(&ROOT) {
            root.open = Some(Arc::new(dir));
        }
    }

    /// Keeps a directory open for as long as it is known, or until there are too many.
    pub(crate) fn keep_open(&self, inode: u64, dir: OpenDir) -> Arc<OpenDir> {
        let dir = Arc::new(dir);
        let mut tables = self.tables.write();
        if tables.open_dirs.len() >= self.max_open_dirs {
            tables.close_dirs();
        }
        if let Some(node) = tables.nodes.get_mut(&inode)
            && node.open.replace(Arc::clone(&dir)).is_none()
        {
            tables.open_dirs.push(inode);
        }
        dir
    }

    /// A client was told that a name stands for an inode. `None` if a rename came in between, and
    /// the host has to be asked again.
    pub(crate) fn found(
        &self,
        client: ClientId,
        since: Since,
        (parent, name): (u64, &[u8]),
        found: Found,
    ) -> io::Result<Option<Told>> {
        let inode = found.inode;
        {
            let tables = self.tables.read();
            // Most names are the only ones of what they stand for: then one table says it all.
            let node = tables.nodes.get(&inode);
            let is_known = node.is_some_and(|node| node.is_last_at(parent, name))
                || tables.child(parent, name) == Some(inode);
            if is_known && let Some(lookups) = node.and_then(|node| node.of(client)) {
                lookups.fetch_add(1, Ordering::Relaxed);
                return Ok(Some(Told::Again));
            }
        }
        let mut tables = self.tables.write();
        if self.renaming.load(Ordering::SeqCst) > 0
            || self.renames.load(Ordering::SeqCst) != since.0
        {
            return Ok(None);
        }
        let told = tables.add(client, (parent, name), found)?;
        self.counted(&tables);
        Ok(Some(told))
    }

    /// A client was told of a name that was just made, while no rename could touch it.
    pub(crate) fn made(
        &self,
        client: ClientId,
        (parent, name): (u64, &[u8]),
        found: Found,
    ) -> io::Result<Told> {
        let mut tables = self.tables.write();
        let told = tables.add(client, (parent, name), found)?;
        self.counted(&tables);
        Ok(told)
    }

    pub(crate) fn when_crowded(&self, client: ClientId, limit: usize, tell: Crowded) {
        let mut crowded = self.crowded.write();
        crowded.retain(|(of, _)| *of != client);
        crowded.push((client, tell));
        self.limit.store(limit, Ordering::Relaxed);
    }

    fn counted(&self, tables: &Tables) {
        let count = tables.nodes.len();
        self.count.store(count, Ordering::Relaxed);
        if count > self.limit.load(Ordering::Relaxed) / 4 * 3 {
            self.crowded.read().iter().for_each(|(_, tell)| tell());
        }
    }

    /// How long whoever adds nodes should wait first, so that others are forgotten in time.
    pub(crate) fn delay(&self) -> Option<Duration> {
        let limit = self.limit.load(Ordering::Relaxed);
        match self.count.load(Ordering::Relaxed) {
            count if count > limit / 16 * 15 => Some(Duration::from_millis(20)),
            count if count > limit / 8 * 7 => Some(Duration::from_millis(1)),
            _ => None,
        }
    }

    /// Names of files that are to be forgotten, so that half of the nodes can be new ones.
    pub(crate) fn surplus(&self) -> Vec<Name> {
        let tables = self.tables.read();
        let room = self.limit.load(Ordering::Relaxed) / 2;
        let surplus = tables.nodes.len().saturating_sub(room);
        let files = tables.nodes.values().filter(|node| !node.is_dir);
        files.filter_map(|node| Some(node.places.last()?.to_name())).take(surplus).collect()
    }

    /// Every name that is known, and what it stands for.
    pub(crate) fn names(&self) -> Vec<(Name, u64)> {
        let tables = self.tables.read();
        let names = |(&parent, node): (&u64, &Node)| -> Vec<(Name, u64)> {
            let child =
                |(name, &inode): (&Arc<[u8]>, &u64)| (Name { parent, name: name.to_vec() }, inode);
            node.children.iter().map(child).collect()
        };
        tables.nodes.iter().flat_map(names).collect()
    }

    pub(crate) fn nodes(&self) -> Vec<(u64, bool)> {
        self.tables.read().nodes.iter().map(|(&inode, node)| (inode, node.is_dir)).collect()
    }

    pub(crate) fn removed(&self, parent: u64, name: &[u8]) {
        self.tables.write().detach(parent, name);
    }

    pub(crate) fn renaming(&self) -> Renaming<'_> {
        let _tables = self.tables.write();
        self.renaming.fetch_add(1, Ordering::SeqCst);
        Renaming(self)
    }

    /// As often as the client was told of it: what others know is not its business. `true`: it knows
    /// nothing of it any more.
    pub(crate) fn forget(&self, client: ClientId, inode: u64, count: u64) -> bool {
        let before = {
            let tables = self.tables.read();
            let lookups = tables.nodes.get(&inode).and_then(|node| node.of(client));
            let Some(lookups) = lookups else { return false }; // the root, which all have, or forged
            let less = |lookups: u64| Some(lookups.saturating_sub(count));
            lookups.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or(0)
        };
        if before > count {
            return false;
        }
        let mut tables = self.tables.write();
        // It may have been told again meanwhile.
        let lookups = tables.nodes.get(&inode).and_then(|node| node.of(client));
        let is_forgotten = lookups.is_some_and(|lookups| lookups.load(Ordering::Relaxed) == 0);
        if is_forgotten {
            tables.forgotten(inode, client);
            self.count.store(tables.nodes.len(), Ordering::Relaxed);
        }
        is_forgotten
    }
}

impl Node {
    /// Whether this is the last of its names that was seen.
    fn is_last_at(&self, parent: u64, name: &[u8]) -> bool {
        let is_it = |place: &Place| place.parent == parent && *place.name == *name;
        !self.is_nameless && self.places.last().is_some_and(is_it)
    }

    fn of(&self, client: ClientId) -> Option<&AtomicU64> {
        self.lookups.iter().find(|(of, _)| *of == client).map(|(_, lookups)| lookups)
    }
}

impl Place {
    fn to_name(&self) -> Name {
        Name { parent: self.parent, name: self.name.to_vec() }
    }
}

impl fmt::Debug for PathMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathMap").field("tables", &self.tables).finish_non_exhaustive()
    }
}

impl Renaming<'_> {
    /// The host has renamed.
    pub(crate) fn done(self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) {
        let mut tables = self.0.tables.write();
        if exchange {
            tables.exchange(from, to);
        } else {
            tables.rename(from, to);
        }
    }
}

impl Drop for Renaming<'_> {
    fn drop(&mut self) {
        let _tables = self.0.tables.write();
        self.0.renaming.fetch_sub(1, Ordering::SeqCst);
        self.0.renames.fetch_add(1, Ordering::SeqCst);
    }
}

impl Tables {
    fn new(number: u64) -> Self {
        let root = Node { is_dir: true, number, ..Node::default() };
        Self { nodes: Map::from_iter([(ROOT, root)]), open_dirs: Vec::new() }
    }

    fn child(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.nodes.get(&parent)?.children.get(name).copied()
    }

    fn path(&self, inode: u64, last: Option<&[u8]>) -> io::Result<RelPathBuf> {
        // From its end to its beginning, in one piece of memory: every mutation asks for a path.
        let mut reversed = Vec::with_capacity(USUAL_PATH);
        reversed.extend(last.into_iter().flatten().rev());
        let (mut at, mut depth) = (inode, 0);
        while at != ROOT {
            let node = self.nodes.get(&at).ok_or_else(bad_descriptor)?;
            let place = node.places.last().ok_or_else(bad_descriptor)?;
            if !reversed.is_empty() {
                reversed.push(b'/');
            }
            reversed.extend(place.name.iter().rev());
            at = place.parent;
            depth += 1;
            if depth > MAX_DEPTH {
                return Err(io::Error::from_raw_os_error(libc::ESTALE));
            }
        }
        reversed.reverse();
        RelPathBuf::new(reversed).map_err(|_| crate::names::invalid())
    }

    fn add(
        &mut self,
        client: ClientId,
        (parent, name): (u64, &[u8]),
        Found { inode, is_dir, number }: Found,
    ) -> io::Result<Told> {
        if !self.nodes.contains_key(&parent) || inode == ROOT {
            return Err(bad_descriptor());
        }
        let node = self.nodes.entry(inode).or_default();
        node.is_dir = is_dir;
        node.number = number;
        let told = match node.of(client) {
            Some(lookups) => {
                lookups.fetch_add(1, Ordering::Relaxed);
                Told::Again
            }
            None => {
                node.lookups.push((client, AtomicU64::new(1)));
                Told::First
            }
        };
        self.attach(parent, name, inode);
        Ok(told)
    }

    fn close_dirs(&mut self) {
        for inode in std::mem::take(&mut self.open_dirs) {
            if let Some(node) = self.nodes.get_mut(&inode) {
                node.open = None;
            }
        }
    }

    /// From now on, the name stands for the inode, and for nothing else.
    fn attach(&mut self, parent: u64, name: &[u8], inode: u64) {
        if self.child(parent, name) == Some(inode) {
            return;
        }
        self.detach(parent, name);
        let name: Arc<[u8]> = name.into();
        let outdated = match self.nodes.get_mut(&inode) {
            None => return,
            Some(node) if node.is_dir => std::mem::take(&mut node.places),
            Some(node) => {
                // What is left over from a name it no longer has.
                let places = std::mem::take(&mut node.places);
                let (current, outdated) = places
                    .into_iter()
                    .partition(|place| self.child(place.parent, &place.name) == Some(inode));
                if let Some(node) = self.nodes.get_mut(&inode) {
                    node.places = current;
                }
                outdated
            }
        };
        // Before the new name: a former one may be the same.
        outdated.iter().for_each(|place| self.unlink(place, inode));
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.children.insert(Arc::clone(&name), inode);
            parent.pins += 1;
        }
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.places.push(Place { parent, name });
            node.is_nameless = false;
        }
        // Last, because a parent that nobody needs any more goes with it.
        outdated.iter().for_each(|place| self.unpin(place.parent));
    }

    /// The name stands for nothing any more.
    fn detach(&mut self, parent: u64, name: &[u8]) {
        let Some(inode) = self.nodes.get_mut(&parent).and_then(|node| node.children.remove(name))
        else {
            return;
        };
        let Some(node) = self.nodes.get_mut(&inode) else { return };
        let place = node.places.iter().position(|p| p.parent == parent && *p.name == *name);
        match place {
            Some(place) if node.places.len() > 1 => {
                node.places.remove(place);
                self.unpin(parent);
            }
            _ => node.is_nameless = true,
        }
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) {
        let Some(inode) = self.child(from.0, from.1) else {
            return self.detach(to.0, to.1);
        };
        if self.child(to.0, to.1) == Some(inode) {
            return; // two names of one file: rename leaves both
        }
        self.attach(to.0, to.1, inode);
        if self.child(from.0, from.1) == Some(inode) {
            self.detach(from.0, from.1);
        }
    }

    fn exchange(&mut self, a: (u64, &[u8]), b: (u64, &[u8])) {
        let inodes = (self.child(a.0, a.1), self.child(b.0, b.1));
        self.detach(a.0, a.1);
        self.detach(b.0, b.1);
        if let Some(first) = inodes.0 {
            self.attach(b.0, b.1, first);
        }
        if let Some(second) = inodes.1 {
            self.attach(a.0, a.1, second);
        }
    }

    fn unlink(&mut self, place: &Place, inode: u64) {
        if let Some(parent) = self.nodes.get_mut(&place.parent)
            && parent.children.get(&*place.name) == Some(&inode)
        {
            parent.children.remove(&*place.name);
        }
    }

    fn unpin(&mut self, inode: u64) {
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.pins -= 1;
            self.collect(inode);
        }
    }

    /// What this client was told of.
    fn known_to(&self, client: ClientId) -> Vec<u64> {
        let knows = |(_, node): &(&u64, &Node)| node.of(client).is_some();
        self.nodes.iter().filter(knows).map(|(&inode, _)| inode).collect()
    }

    /// By this client.
    fn forgotten(&mut self, inode: u64, client: ClientId) {
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.lookups.retain(|(of, _)| *of != client);
            self.collect(inode);
        }
    }

    /// Drops a node that nobody knows and nobody needs, and then maybe its parents.
    fn collect(&mut self, inode: u64) {
        let mut unneeded = vec![inode];
        while let Some(inode) = unneeded.pop() {
            let free = self
                .nodes
                .get(&inode)
                .is_some_and(|node| node.lookups.is_empty() && node.pins == 0 && inode != ROOT);
            let Some(node) = free.then(|| self.nodes.remove(&inode)).flatten() else { continue };
            for place in node.places {
                self.unlink(&place, inode);
                if let Some(parent) = self.nodes.get_mut(&place.parent) {
                    parent.pins -= 1;
                    unneeded.push(place.parent);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
