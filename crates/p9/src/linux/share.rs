//! The folder itself.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use codeagent_fs::{Outgoing, Served};
use smallvec::SmallVec;
use virtiofsd::filesystem::{
    Context, DirectoryIterator, Extensions, FileSystem, GetxattrReply, ListxattrReply,
    SetattrValid, SetxattrFlags, ZeroCopyWriter,
};
use virtiofsd::oslib::ReadvFlags;

use super::translate;
use crate::errno::Errno;
use crate::share::{
    Attributes, Caller, Change, Created, Entry, FileSystemFigures, Found, NewNode, OpenFlags,
    Result, Share, XattrFlags,
};
use crate::wire::{Qid, QidKind};

const ROOT: u64 = virtiofsd::fuse::ROOT_ID;

/// The number that Linux knows filesystems like this one by.
const V9FS_MAGIC: u32 = 0x0102_1997;

/// Most attributes fit; memory for longer ones is set aside when there are such.
const SHORT_ATTRIBUTE: u32 = 1 << 10;
const LONGEST_ATTRIBUTE: u32 = 64 << 10;

/// Of a directory at once.
const LISTING: u32 = 32 << 10;

/// The client has masked modes itself.
const NO_UMASK: u32 = 0;

/// A filesystem as a share.
#[derive(Debug)]
pub struct Shared<F>(Arc<F>);

impl<F> Shared<F> {
    /// The filesystem is this client's alone: what it was told of is given back through it.
    pub fn new(fs: Arc<F>) -> Self {
        Self(fs)
    }
}

/// A node that the filesystem has told of once.
#[derive(Debug)]
pub struct Node<F: FileSystem<Inode = u64, Handle = u64>> {
    fs: Arc<F>,
    inode: u64,
    kind: QidKind,
}

impl<F: FileSystem<Inode = u64, Handle = u64>> Drop for Node<F> {
    fn drop(&mut self) {
        if self.inode != ROOT {
            self.fs.forget(nobody(), self.inode, 1);
        }
    }
}

#[derive(Debug)]
pub struct Open<F: FileSystem<Inode = u64, Handle = u64>> {
    fs: Arc<F>,
    inode: u64,
    handle: u64,
    is_dir: bool,
    /// As each write says them.
    flags: u32,
}

impl<F: FileSystem<Inode = u64, Handle = u64>> Drop for Open<F> {
    fn drop(&mut self) {
        // Nobody is left to be told that it failed.
        let _ = match self.is_dir {
            true => self.fs.releasedir(nobody(), self.inode, 0, self.handle),
            false => self.fs.release(nobody(), self.inode, 0, self.handle, false, false, None),
        };
    }
}

/// Whether a file that this one changes is set-user-id and set-group-id no longer. Linux asks for a
/// capability, which a guest's root has; the protocol says nothing about those of others.
fn loses_privileges(caller: Caller) -> bool {
    caller.uid != 0
}

fn nobody() -> Context {
    translate::context(Caller { uid: 0, gid: 0 })
}

/// A name with the byte that C wants behind it.
struct CName(SmallVec<[u8; 64]>);

impl CName {
    fn new(name: &[u8]) -> Self {
        let mut bytes = SmallVec::with_capacity(name.len() + 1);
        bytes.extend_from_slice(name);
        bytes.push(0);
        Self(bytes)
    }

    fn get(&self) -> Result<&CStr> {
        CStr::from_bytes_with_nul(&self.0).map_err(|_| Errno::EINVAL)
    }
}

/// Reads straight into the answer.
struct Into<'a>(&'a mut [u8]);

impl ZeroCopyWriter for Into<'_> {
    fn read_from_file_at(
        &mut self,
        file: &File,
        count: usize,
        offset: u64,
        _flags: Option<ReadvFlags>,
    ) -> io::Result<usize> {
        let count = count.min(self.0.len());
        let mut filled = 0;
        while filled < count {
            match file.read_at(&mut self.0[filled..count], offset + filled as u64) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if filled > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

impl<F> Shared<F>
where
    F: FileSystem<Inode = u64, Handle = u64> + Served + Send + Sync + 'static,
{
    fn found(&self, entry: &virtiofsd::filesystem::Entry) -> Found<Node<F>> {
        let qid = translate::qid(&entry.attr);
        let node = Node { fs: Arc::clone(&self.0), inode: entry.inode, kind: qid.kind };
        Found { node, qid }
    }

    fn opened(&self, inode: u64, handle: u64, is_dir: bool, flags: u32) -> Open<F> {
        Open { fs: Arc::clone(&self.0), inode, handle, is_dir, flags }
    }
}

impl<F> Share for Shared<F>
where
    F: FileSystem<Inode = u64, Handle = u64> + Served + Send + Sync + 'static,
{
    type Node = Node<F>;
    type Open = Open<F>;
    /// A machine may be paused with answers on their way: they wait in the stream, and none is lost.
    type Taken = ();

    fn may_wait(&self) -> bool {
        self.0.may_wait()
    }

    fn taken(&self) {}

    fn until_told<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.until_told(work)
    }

    fn root(&self, caller: Caller) -> Result<Found<Node<F>>> {
        let (attr, _) = self.0.getattr(translate::context(caller), ROOT, None)?;
        let qid = translate::qid(&attr);
        Ok(Found { node: Node { fs: Arc::clone(&self.0), inode: ROOT, kind: qid.kind }, qid })
    }

    fn lookup(&self, caller: Caller, dir: &Node<F>, name: &[u8]) -> Result<Found<Node<F>>> {
        let name = CName::new(name);
        let entry = self.0.lookup(translate::context(caller), dir.inode, name.get()?)?;
        Ok(self.found(&entry))
    }

    fn attributes(
        &self,
        caller: Caller,
        node: &Node<F>,
        open: Option<&Open<F>>,
        _wanted: u64,
    ) -> Result<Attributes> {
        let handle = open.filter(|open| !open.is_dir).map(|open| open.handle);
        let (attr, _) = self.0.getattr(translate::context(caller), node.inode, handle)?;
        Ok(translate::attributes(&attr))
    }

    fn change(
        &self,
        caller: Caller,
        node: &Node<F>,
        open: Option<&Open<F>>,
        change: &Change,
    ) -> Result<()> {
        let (request, mut valid) = translate::change(change);
        if valid.is_empty() {
            return Ok(());
        }
        valid.set(SetattrValid::KILL_SUIDGID, change.size.is_some() && loses_privileges(caller));
        let handle = open.filter(|open| !open.is_dir).map(|open| open.handle);
        self.0.setattr(translate::context(caller), node.inode, request, handle, valid)?;
        Ok(())
    }

    fn open(&self, caller: Caller, node: &Node<F>, flags: OpenFlags) -> Result<Open<F>> {
        let ctx = translate::context(caller);
        if node.kind == QidKind::SYMLINK {
            return Err(Errno::ELOOP);
        }
        let is_dir = node.kind == QidKind::DIRECTORY;
        let host_flags = translate::open_flags(flags);
        let (handle, _) = match is_dir {
            true => self.0.opendir(ctx, node.inode, host_flags)?,
            false => {
                let exclusive = libc::O_EXCL as u32;
                self.0.open(ctx, node.inode, loses_privileges(caller), host_flags & !exclusive)?
            }
        };
        let handle = handle.ok_or(Errno::EIO)?;
        Ok(self.opened(node.inode, handle, is_dir, host_flags))
    }

    fn create(
        &self,
        caller: Caller,
        dir: &Node<F>,
        name: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<Created<Node<F>, Open<F>>> {
        let name = CName::new(name);
        let (ctx, flags) = (translate::context(caller), translate::open_flags(flags));
        let (entry, handle, _) = self.0.create(
            ctx,
            dir.inode,
            name.get()?,
            mode | libc::S_IFREG,
            loses_privileges(caller),
            flags | libc::O_CREAT as u32,
            NO_UMASK,
            Extensions::default(),
        )?;
        let found = self.found(&entry);
        let open = self.opened(entry.inode, handle.ok_or(Errno::EIO)?, false, flags);
        if found.qid.is_dir() {
            return Err(Errno::EISDIR);
        }
        Ok(Created { found, open })
    }

    fn read(
        &self,
        caller: Caller,
        _node: &Node<F>,
        open: &Open<F>,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        let size = u32::try_from(into.len()).map_err(|_| Errno::EINVAL)?;
        let (ctx, into) = (translate::context(caller), Into(into));
        Ok(self.0.read(ctx, open.inode, open.handle, into, size, offset, None, open.flags)?)
    }

    fn write(
        &self,
        caller: Caller,
        _node: &Node<F>,
        open: &Open<F>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize> {
        let size = u32::try_from(bytes.len()).map_err(|_| Errno::EINVAL)?;
        let (ctx, from) = (translate::context(caller), Outgoing(bytes));
        let (inode, handle, flags) = (open.inode, open.handle, open.flags);
        let kill = loses_privileges(caller);
        Ok(self.0.write(ctx, inode, handle, from, size, offset, None, false, kill, flags)?)
    }

    fn list(
        &self,
        caller: Caller,
        node: &Node<F>,
        open: &Open<F>,
        mut offset: u64,
        give: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let ctx = translate::context(caller);
        // What is above the root is nobody's business: it has its own number there.
        let above = match node.inode {
            ROOT => Some(self.root(caller)?.qid.path),
            _ => None,
        };
        loop {
            let mut entries = self.0.readdir(ctx, open.inode, open.handle, LISTING, offset)?;
            let mut any = false;
            while let Some(entry) = entries.next() {
                any = true;
                let (kind, name) = (entry.type_ as u8, entry.name.to_bytes());
                let path = above.filter(|_| name == b"..").unwrap_or(entry.ino);
                let qid = Qid { kind: QidKind::of_entry(kind), version: 0, path };
                if !give(Entry { qid, offset: entry.offset, kind, name }) {
                    return Ok(());
                }
                offset = entry.offset;
            }
            if !any {
                return Ok(());
            }
        }
    }

    fn read_link(&self, caller: Caller, node: &Node<F>) -> Result<Vec<u8>> {
        if node.kind != QidKind::SYMLINK {
            return Err(Errno::EINVAL);
        }
        Ok(self.0.readlink(translate::context(caller), node.inode)?)
    }

    fn make(&self, caller: Caller, dir: &Node<F>, name: &[u8], new: NewNode<'_>) -> Result<Qid> {
        let (ctx, name, none) =
            (translate::context(caller), CName::new(name), Extensions::default());
        let (parent, name) = (dir.inode, name.get()?);
        let entry = match new {
            NewNode::Directory { mode } => self.0.mkdir(ctx, parent, name, mode, NO_UMASK, none)?,
            NewNode::Symlink { target } => {
                let target = CName::new(target);
                self.0.symlink(ctx, target.get()?, parent, name, none)?
            }
            NewNode::Node { mode, major, minor } => {
                let device = translate::device(major, minor);
                self.0.mknod(ctx, parent, name, mode, device, NO_UMASK, none)?
            }
        };
        Ok(self.found(&entry).qid)
    }

    fn link(&self, caller: Caller, node: &Node<F>, dir: &Node<F>, name: &[u8]) -> Result<()> {
        let name = CName::new(name);
        let ctx = translate::context(caller);
        let entry = self.0.link(ctx, node.inode, dir.inode, name.get()?)?;
        drop(self.found(&entry));
        Ok(())
    }

    fn unlink(&self, caller: Caller, dir: &Node<F>, name: &[u8]) -> Result<()> {
        let name = CName::new(name);
        Ok(self.0.unlink(translate::context(caller), dir.inode, name.get()?)?)
    }

    fn remove_dir(&self, caller: Caller, dir: &Node<F>, name: &[u8]) -> Result<()> {
        let name = CName::new(name);
        Ok(self.0.rmdir(translate::context(caller), dir.inode, name.get()?)?)
    }

    fn rename(&self, caller: Caller, from: (&Node<F>, &[u8]), to: (&Node<F>, &[u8])) -> Result<()> {
        let (old, new) = (CName::new(from.1), CName::new(to.1));
        let (ctx, from, to) = (translate::context(caller), from.0.inode, to.0.inode);
        Ok(self.0.rename(ctx, from, old.get()?, to, new.get()?, 0)?)
    }

    fn xattr(&self, caller: Caller, node: &Node<F>, name: &[u8]) -> Result<Vec<u8>> {
        let (ctx, name) = (translate::context(caller), CName::new(name));
        let get = |size| match self.0.getxattr(ctx, node.inode, name.get()?, size)? {
            GetxattrReply::Value(value) => Ok(value),
            GetxattrReply::Count(_) => Err(Errno::EIO),
        };
        match get(SHORT_ATTRIBUTE) {
            Err(Errno::ERANGE) => get(LONGEST_ATTRIBUTE),
            value => value,
        }
    }

    fn xattr_names(&self, caller: Caller, node: &Node<F>) -> Result<Vec<u8>> {
        let ctx = translate::context(caller);
        let list = |size| match self.0.listxattr(ctx, node.inode, size)? {
            ListxattrReply::Names(names) => Ok(names),
            ListxattrReply::Count(_) => Err(Errno::EIO),
        };
        match list(SHORT_ATTRIBUTE) {
            Err(Errno::ERANGE) => list(LONGEST_ATTRIBUTE),
            names => names,
        }
    }

    fn set_xattr(
        &self,
        caller: Caller,
        node: &Node<F>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let (ctx, name) = (translate::context(caller), CName::new(name));
        let extra = SetxattrFlags::empty();
        Ok(self.0.setxattr(ctx, node.inode, name.get()?, value, flags.0, extra)?)
    }

    fn remove_xattr(&self, caller: Caller, node: &Node<F>, name: &[u8]) -> Result<()> {
        let name = CName::new(name);
        Ok(self.0.removexattr(translate::context(caller), node.inode, name.get()?)?)
    }

    fn sync(&self, caller: Caller, _node: &Node<F>, open: &Open<F>, data_only: bool) -> Result<()> {
        let (ctx, inode, handle) = (translate::context(caller), open.inode, open.handle);
        match open.is_dir {
            true => self.0.fsyncdir(ctx, inode, data_only, handle)?,
            false => self.0.fsync(ctx, inode, data_only, handle)?,
        }
        Ok(())
    }

    fn figures(&self, caller: Caller, node: &Node<F>) -> Result<FileSystemFigures> {
        let host = self.0.statfs(translate::context(caller), node.inode)?;
        Ok(FileSystemFigures {
            kind: V9FS_MAGIC,
            // What the numbers of blocks count.
            block_size: host.f_frsize as u32,
            blocks: host.f_blocks,
            free: host.f_bfree,
            available: host.f_bavail,
            files: host.f_files,
            free_files: host.f_ffree,
            id: host.f_fsid,
            longest_name: host.f_namemax as u32,
        })
    }
}
