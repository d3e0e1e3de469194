//! A folder in memory. Tests and fuzzing serve it: it needs no host, and can be told to wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::errno::Errno;
use crate::share::{
    Attributes, Caller, Change, Created, Entry, FileSystemFigures, Found, NewNode, NewTime,
    OpenFlags, Result, Share, Time, XattrFlags,
};
use crate::wire::{Qid, QidKind, getattr};

/// Nothing in it is larger.
const LARGEST: u64 = 1 << 20;
/// It has no more files, and no more attributes.
const MOST: u64 = 1 << 18;

const TYPE: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;

type Map<V> = BTreeMap<Box<[u8]>, V>;

/// The folder. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Memory {
    root: Arc<Inode>,
    common: Arc<Common>,
}

#[derive(Debug, Default)]
struct Common {
    numbers: AtomicU64,
    /// Held by whatever changes or follows names.
    names: Mutex<()>,
    gate: Mutex<Gate>,
    changed: Condvar,
}

/// What tests want of it.
#[derive(Debug, Default)]
struct Gate {
    closed: bool,
    waiting: usize,
    unanswered: usize,
}

#[derive(Debug)]
pub struct Inode {
    number: u64,
    /// The type, which never changes.
    kind: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    mode: u32,
    uid: u32,
    gid: u32,
    links: u64,
    device: u64,
    accessed: Time,
    modified: Time,
    content: Vec<u8>,
    /// With the order they were made in.
    entries: Map<(u64, Arc<Inode>)>,
    xattrs: Map<Vec<u8>>,
}

/// A request that has no answer yet.
#[derive(Debug)]
pub struct Taken(Arc<Common>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.gate.lock().unanswered -= 1;
        self.0.changed.notify_all();
    }
}

impl Default for Memory {
    fn default() -> Self {
        let common = Arc::new(Common::default());
        common.numbers.store(1, Ordering::Relaxed);
        let root = Inode::new(&common, DIRECTORY | 0o755, Caller { uid: 0, gid: 0 });
        Self { root, common }
    }
}

impl Memory {
    /// From now on every mutation waits, as for an answer to a question.
    pub fn close_gate(&self) {
        self.common.gate.lock().closed = true;
    }

    /// They need not wait any longer.
    pub fn open_gate(&self) {
        self.common.gate.lock().closed = false;
        self.common.changed.notify_all();
    }

    /// Mutations that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.common.gate.lock().waiting
    }

    /// Requests that were taken and have no answer.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.common.gate.lock().unanswered
    }

    /// Every mutation passes here.
    fn pass(&self) {
        let mut gate = self.common.gate.lock();
        gate.waiting += 1;
        while gate.closed {
            self.common.changed.wait(&mut gate);
        }
        gate.waiting -= 1;
    }

    fn names(&self) -> MutexGuard<'_, ()> {
        self.common.names.lock()
    }

    fn add(&self, dir: &Inode, name: &[u8], inode: &Arc<Inode>) -> Result<()> {
        let order = self.common.numbers.fetch_add(1, Ordering::Relaxed);
        if order > MOST {
            return Err(Errno::ENOSPC);
        }
        let mut state = dir.state.lock();
        if state.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        state.entries.insert(name.into(), (order, Arc::clone(inode)));
        Ok(())
    }
}

impl Inode {
    fn new(common: &Common, mode: u32, caller: Caller) -> Arc<Self> {
        let number = common.numbers.fetch_add(1, Ordering::Relaxed);
        let (uid, gid) = (caller.uid, caller.gid);
        let state = State { mode: mode & 0o7777, uid, gid, links: 1, ..State::default() };
        Arc::new(Self { number, kind: mode & TYPE, state: Mutex::new(state) })
    }

    fn qid(&self) -> Qid {
        let version = self.state.lock().modified.nanoseconds as u32 | 1;
        Qid { kind: QidKind::of_mode(self.kind), version, path: self.number }
    }

    fn is_dir(&self) -> bool {
        self.kind == DIRECTORY
    }

    fn child(&self, name: &[u8]) -> Result<Arc<Inode>> {
        let state = self.state.lock();
        state.entries.get(name).map(|(_, inode)| Arc::clone(inode)).ok_or(Errno::ENOENT)
    }
}

fn found(inode: Arc<Inode>) -> Found<Arc<Inode>> {
    let qid = inode.qid();
    Found { node: inode, qid }
}

impl Share for Memory {
    type Node = Arc<Inode>;
    type Open = ();
    type Taken = Taken;

    fn may_wait(&self) -> bool {
        self.common.gate.lock().closed
    }

    fn taken(&self) -> Taken {
        self.common.gate.lock().unanswered += 1;
        Taken(Arc::clone(&self.common))
    }

    fn root(&self, _: Caller) -> Result<Found<Arc<Inode>>> {
        Ok(found(Arc::clone(&self.root)))
    }

    fn lookup(&self, _: Caller, dir: &Arc<Inode>, name: &[u8]) -> Result<Found<Arc<Inode>>> {
        dir.child(name).map(found)
    }

    fn attributes(
        &self,
        _: Caller,
        node: &Arc<Inode>,
        _: Option<&()>,
        _: u64,
    ) -> Result<Attributes> {
        let qid = node.qid();
        let state = node.state.lock();
        Ok(Attributes {
            valid: getattr::BASIC,
            qid,
            mode: node.kind | state.mode,
            uid: state.uid,
            gid: state.gid,
            links: state.links,
            device: state.device,
            size: state.content.len() as u64,
            block_size: 4096,
            blocks: state.content.len().div_ceil(512) as u64,
            accessed: state.accessed,
            modified: state.modified,
            changed: state.modified,
            ..Attributes::default()
        })
    }

    fn change(&self, _: Caller, node: &Arc<Inode>, _: Option<&()>, change: &Change) -> Result<()> {
        self.pass();
        let mut state = node.state.lock();
        let now = Time { seconds: 1, nanoseconds: 0 };
        let time = |new| match new {
            NewTime::Now => now,
            NewTime::At(at) => at,
        };
        if let Some(size) = change.size {
            if size > LARGEST {
                return Err(Errno::EFBIG);
            }
            state.content.resize(size as usize, 0);
        }
        state.mode = change.mode.unwrap_or(state.mode);
        state.uid = change.uid.unwrap_or(state.uid);
        state.gid = change.gid.unwrap_or(state.gid);
        state.accessed = change.accessed.map_or(state.accessed, time);
        state.modified = change.modified.map_or(state.modified, time);
        Ok(())
    }

    fn open(&self, _: Caller, node: &Arc<Inode>, flags: OpenFlags) -> Result<()> {
        match node.kind {
            DIRECTORY | REGULAR => {}
            SYMLINK => return Err(Errno::ELOOP),
            _ => return Err(Errno::ENXIO),
        }
        if flags.mutates() {
            self.pass();
        }
        if flags.has(OpenFlags::TRUNCATE) {
            node.state.lock().content.clear();
        }
        Ok(())
    }

    fn create(
        &self,
        caller: Caller,
        dir: &Arc<Inode>,
        name: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<Created<Arc<Inode>, ()>> {
        self.pass();
        let _names = self.names();
        let inode = match dir.child(name) {
            Ok(_) if flags.has(OpenFlags::EXCLUSIVE) => return Err(Errno::EEXIST),
            Ok(inode) if inode.is_dir() => return Err(Errno::EISDIR),
            Ok(inode) => inode,
            Err(_) => {
                let inode = Inode::new(&self.common, REGULAR | mode, caller);
                self.add(dir, name, &inode)?;
                inode
            }
        };
        self.open(caller, &inode, OpenFlags(flags.0 & OpenFlags::TRUNCATE))?;
        Ok(Created { found: found(inode), open: () })
    }

    fn read(
        &self,
        _: Caller,
        node: &Arc<Inode>,
        (): &(),
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        let state = node.state.lock();
        let rest = usize::try_from(offset).ok().and_then(|offset| state.content.get(offset..));
        let rest = rest.unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write(
        &self,
        _: Caller,
        node: &Arc<Inode>,
        (): &(),
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize> {
        self.pass();
        let end = offset.saturating_add(bytes.len() as u64);
        if end > LARGEST {
            return Err(Errno::EFBIG);
        }
        let mut state = node.state.lock();
        if state.content.len() < end as usize {
            state.content.resize(end as usize, 0);
        }
        state.content[offset as usize..end as usize].copy_from_slice(bytes);
        state.modified.nanoseconds = (state.modified.nanoseconds + 2) % 1_000_000_000;
        Ok(bytes.len())
    }

    fn list(
        &self,
        _: Caller,
        node: &Arc<Inode>,
        (): &(),
        offset: u64,
        give: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let state = node.state.lock();
        let mut entries: Vec<_> =
            state.entries.iter().filter(|(_, (order, _))| *order > offset).collect();
        entries.sort_by_key(|(_, (order, _))| *order);
        for (name, (offset, inode)) in entries {
            let kind = (inode.kind >> 12) as u8;
            let qid = Qid { kind: QidKind::of_entry(kind), version: 0, path: inode.number };
            if !give(Entry { qid, offset: *offset, kind, name }) {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, _: Caller, node: &Arc<Inode>) -> Result<Vec<u8>> {
        match node.kind {
            SYMLINK => Ok(node.state.lock().content.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn make(&self, caller: Caller, dir: &Arc<Inode>, name: &[u8], new: NewNode<'_>) -> Result<Qid> {
        self.pass();
        let _names = self.names();
        let inode = match new {
            NewNode::Directory { mode } => Inode::new(&self.common, DIRECTORY | mode, caller),
            NewNode::Symlink { target } => {
                let inode = Inode::new(&self.common, SYMLINK | 0o777, caller);
                inode.state.lock().content = target.to_vec();
                inode
            }
            NewNode::Node { mode, .. } if matches!(mode & TYPE, DIRECTORY | SYMLINK) => {
                return Err(Errno::EINVAL);
            }
            NewNode::Node { mode, major, minor } => {
                let kind = if mode & TYPE == 0 { REGULAR } else { mode & TYPE };
                let inode = Inode::new(&self.common, kind | mode & 0o7777, caller);
                inode.state.lock().device = u64::from(major) << 8 | u64::from(minor);
                inode
            }
        };
        self.add(dir, name, &inode)?;
        Ok(inode.qid())
    }

    fn link(&self, _: Caller, node: &Arc<Inode>, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        self.pass();
        let _names = self.names();
        self.add(dir, name, node)?;
        node.state.lock().links += 1;
        Ok(())
    }

    fn unlink(&self, _: Caller, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        self.pass();
        let _names = self.names();
        let inode = dir.child(name)?;
        if inode.is_dir() {
            return Err(Errno::EISDIR);
        }
        dir.state.lock().entries.remove(name);
        inode.state.lock().links -= 1;
        Ok(())
    }

    fn remove_dir(&self, _: Caller, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        self.pass();
        let _names = self.names();
        let inode = dir.child(name)?;
        if !inode.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if !inode.state.lock().entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        dir.state.lock().entries.remove(name);
        Ok(())
    }

    fn rename(
        &self,
        _: Caller,
        from: (&Arc<Inode>, &[u8]),
        to: (&Arc<Inode>, &[u8]),
    ) -> Result<()> {
        self.pass();
        let _names = self.names();
        let moved = from.0.child(from.1)?;
        // Nothing becomes its own descendant.
        let mut below = vec![Arc::clone(&moved)];
        while let Some(dir) = below.pop() {
            if Arc::ptr_eq(&dir, to.0) {
                return Err(Errno::EINVAL);
            }
            let state = dir.state.lock();
            below.extend(state.entries.values().map(|(_, inode)| Arc::clone(inode)));
        }
        if let Ok(replaced) = to.0.child(to.1) {
            if Arc::ptr_eq(&replaced, &moved) {
                return Ok(());
            }
            match (moved.is_dir(), replaced.is_dir()) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !replaced.state.lock().entries.is_empty() => {
                    return Err(Errno::ENOTEMPTY);
                }
                _ => {}
            }
            to.0.state.lock().entries.remove(to.1);
            let mut state = replaced.state.lock();
            state.links = state.links.saturating_sub(1);
        }
        from.0.state.lock().entries.remove(from.1);
        self.add(to.0, to.1, &moved)
    }

    fn xattr(&self, _: Caller, node: &Arc<Inode>, name: &[u8]) -> Result<Vec<u8>> {
        node.state.lock().xattrs.get(name).cloned().ok_or(Errno::ENODATA)
    }

    fn xattr_names(&self, _: Caller, node: &Arc<Inode>) -> Result<Vec<u8>> {
        let state = node.state.lock();
        Ok(state.xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    fn set_xattr(
        &self,
        _: Caller,
        node: &Arc<Inode>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.pass();
        let mut state = node.state.lock();
        match state.xattrs.contains_key(name) {
            true if flags.0 & XattrFlags::CREATE != 0 => return Err(Errno::EEXIST),
            false if flags.0 & XattrFlags::REPLACE != 0 => return Err(Errno::ENODATA),
            _ if self.common.numbers.fetch_add(1, Ordering::Relaxed) > MOST => {
                return Err(Errno::ENOSPC);
            }
            _ => state.xattrs.insert(name.into(), value.to_vec()),
        };
        Ok(())
    }

    fn remove_xattr(&self, _: Caller, node: &Arc<Inode>, name: &[u8]) -> Result<()> {
        self.pass();
        node.state.lock().xattrs.remove(name).map(|_| ()).ok_or(Errno::ENODATA)
    }

    /// As long as the gate is closed: a disk can be slow, too.
    fn sync(&self, _: Caller, _: &Arc<Inode>, (): &(), _: bool) -> Result<()> {
        self.pass();
        Ok(())
    }

    fn figures(&self, _: Caller, _: &Arc<Inode>) -> Result<FileSystemFigures> {
        Ok(FileSystemFigures {
            kind: 0x0102_1997,
            block_size: 4096,
            blocks: 1 << 20,
            free: 1 << 19,
            available: 1 << 19,
            files: MOST,
            free_files: MOST.saturating_sub(self.common.numbers.load(Ordering::Relaxed)),
            id: 0,
            longest_name: 255,
        })
    }
}
