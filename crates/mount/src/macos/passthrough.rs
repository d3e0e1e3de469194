//! The requests of the kernel. What changes anything asks the interceptor first.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, SystemTime};

use codeagent_common::{EntryKind, RelPath, RelPathBuf};
use codeagent_interceptor::{FileId, FileRef, Mutation, Permit, RenameMode, WriteInterceptor};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use rustix::fs::{OFlags, Stat};

use super::attributes::{kind, timestamps, to_fuse};
use super::host::{self, Listed, Place, Root};
use crate::macos_nodes::Nodes;

/// The kernel remembers neither names nor attributes: undo changes them without its knowledge.
const FORGOTTEN_AT_ONCE: Duration = Duration::ZERO;

/// A folder, served as it is.
#[derive(Debug)]
pub(super) struct Passthrough<I> {
    root: Root,
    interceptor: I,
    read_only: bool,
    nodes: Mutex<Nodes>,
    handles: Mutex<Handles>,
    /// Shared while an entry changes, exclusive while one changes its name: the path that the
    /// interceptor hears is the one the host operation uses.
    names: RwLock<()>,
}

#[derive(Debug, Default)]
struct Handles {
    next: u64,
    open: HashMap<u64, Arc<Opened>>,
}

/// A file or directory that a client has open.
#[derive(Debug)]
struct Opened {
    file: File,
    id: FileId,
    /// What a directory held when a client began to read it.
    listing: Mutex<Vec<Listed>>,
}

/// What a client wants to change, the size aside.
#[derive(Debug, Clone, Copy)]
struct Wish {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    atime: Option<TimeOrNow>,
    mtime: Option<TimeOrNow>,
}

impl Wish {
    fn is_empty(&self) -> bool {
        let Self { mode, uid, gid, atime, mtime } = self;
        mode.or(*uid).or(*gid).is_none() && atime.is_none() && mtime.is_none()
    }

    /// The owner first: changing it can take bits of the mode away.
    fn carry_out(&self, place: &Place) -> io::Result<()> {
        if self.uid.or(self.gid).is_some() {
            place.chown(self.uid, self.gid)?;
        }
        if let Some(mode) = self.mode {
            place.chmod(mode)?;
        }
        if self.atime.is_some() || self.mtime.is_some() {
            place.set_times(&timestamps(self.atime, self.mtime))?;
        }
        Ok(())
    }
}

impl<I: WriteInterceptor> Passthrough<I> {
    pub(super) fn new(root: Root, interceptor: I, read_only: bool) -> Self {
        Self {
            root,
            interceptor,
            read_only,
            nodes: Mutex::new(Nodes::new()),
            handles: Mutex::default(),
            names: RwLock::new(()),
        }
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handles(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> RwLockReadGuard<'_, ()> {
        self.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn writable(&self) -> io::Result<()> {
        if self.read_only { Err(raw(libc::EROFS)) } else { Ok(()) }
    }

    fn ask(&self, mutation: &Mutation<'_>) -> io::Result<Permit<'_>> {
        self.writable()?;
        Ok(self.interceptor.before(mutation)?)
    }

    /// Where a node is; an error if it has no name any more.
    fn path(&self, node: INodeNo) -> io::Result<RelPathBuf> {
        let found = self.nodes().find(node.0).ok_or_else(|| raw(libc::ESTALE))?;
        if found.in_place { Ok(found.path) } else { Err(raw(libc::ESTALE)) }
    }

    fn place(&self, node: INodeNo) -> io::Result<Place> {
        self.root.place(self.path(node)?.as_path())
    }

    /// Where a name is to be. Names that could lead elsewhere are none.
    fn new_child(&self, parent: INodeNo, name: &OsStr) -> io::Result<RelPathBuf> {
        self.nodes().child(parent.0, name.as_bytes()).ok_or_else(|| raw(libc::ENOENT))
    }

    /// Where a name that exists is, as the disk spells it.
    fn child(&self, parent: INodeNo, name: &OsStr) -> io::Result<(RelPathBuf, Place)> {
        let place = self.root.place(self.new_child(parent, name)?.as_path())?;
        let path = self.new_child(parent, OsStr::from_bytes(&place.spelled()))?;
        Ok((path, place))
    }

    fn opened(&self, handle: FileHandle) -> io::Result<Arc<Opened>> {
        self.handles().open.get(&handle.0).cloned().ok_or_else(|| raw(libc::EBADF))
    }

    fn keep_open(&self, file: File, id: FileId) -> FileHandle {
        let mut handles = self.handles();
        handles.next += 1;
        let number = handles.next;
        let listing = Mutex::default();
        handles.open.insert(number, Arc::new(Opened { file, id, listing }));
        FileHandle(number)
    }

    fn attr(&self, node: u64, stat: &Stat) -> FileAttr {
        to_fuse(node, stat, self.interceptor.kept_names(FileId::from(stat)))
    }

    /// Tells the kernel of a name: one lookup.
    fn tell(&self, parent: INodeNo, path: RelPath<'_>, stat: &Stat) -> FileAttr {
        let name = path.name().unwrap_or_default();
        let node = self.nodes().looked_up(parent.0, name, FileId::from(stat));
        self.attr(node, stat)
    }

    /// Makes an entry: asks, makes it, tells how it went.
    fn make(
        &self,
        (parent, name): (INodeNo, &OsStr),
        mutation: impl FnOnce(RelPath<'_>) -> Mutation<'_>,
        host: impl FnOnce(&Place) -> io::Result<()>,
    ) -> io::Result<FileAttr> {
        let _names = self.names();
        let path = self.new_child(parent, name)?;
        let place = self.root.place(path.as_path())?;
        let permit = self.ask(&mutation(path.as_path()))?;
        finish(permit, host(&place))?;
        Ok(self.tell(parent, path.as_path(), &place.stat()?))
    }

    fn remove(
        &self,
        (parent, name): (INodeNo, &OsStr),
        mutation: impl FnOnce(RelPath<'_>) -> Mutation<'_>,
        host: impl FnOnce(&Place) -> io::Result<()>,
    ) -> io::Result<()> {
        let _names = self.names();
        let (path, place) = self.child(parent, name)?;
        let permit = self.ask(&mutation(path.as_path()))?;
        let outcome = if permit.performed() { Ok(()) } else { host(&place) };
        if outcome.is_ok() {
            self.nodes().removed(parent.0, path.as_path().name().unwrap_or_default());
        }
        finish(permit, outcome)
    }

    /// Changes a file's content through an open file. It may have lost its name meanwhile.
    fn change_opened<T>(
        &self,
        node: INodeNo,
        (file, id): (&File, FileId),
        mutation: impl Fn(FileRef<'_>) -> Mutation<'_>,
        host: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let _names = self.names();
        let found = self.nodes().find(node.0).ok_or_else(|| raw(libc::ESTALE))?;
        if !found.in_place
            && rustix::fs::fstat(file)?.st_nlink as u32 <= self.interceptor.kept_names(id)
        {
            // Nobody can ever find it again: there is nothing to undo.
            self.writable()?;
            return host();
        }
        let file = FileRef { path: found.path.as_path(), open: Some(file) };
        let permit = self.ask(&mutation(file))?;
        conclude(permit, host())
    }

    /// Changes what is perhaps not open.
    fn change_named(
        &self,
        node: INodeNo,
        host: impl FnOnce(&Place) -> io::Result<()>,
    ) -> io::Result<()> {
        let _names = self.names();
        let path = self.path(node)?;
        let place = self.root.place(path.as_path())?;
        let file = FileRef::at(path.as_path());
        let permit = self.ask(&Mutation::SetAttributes { file })?;
        conclude(permit, host(&place))
    }

    fn truncate(&self, node: INodeNo, handle: Option<FileHandle>, length: u64) -> io::Result<()> {
        self.writable()?;
        let opened = handle.map(|handle| self.opened(handle)).transpose()?;
        let reopened;
        let (file, id) = match &opened {
            Some(opened) => (&opened.file, opened.id),
            None => {
                reopened = self.place(node)?.open(OFlags::WRONLY)?;
                (&reopened, FileId::of(&reopened)?)
            }
        };
        let host = || file.set_len(length);
        self.change_opened(node, (file, id), |file| Mutation::Truncate { file, length }, host)
    }

    fn open_file(&self, node: INodeNo, flags: OpenFlags) -> io::Result<FileHandle> {
        let truncates = flags.0 & libc::O_TRUNC != 0;
        if truncates || flags.0 & libc::O_ACCMODE != libc::O_RDONLY {
            self.writable()?;
        }
        let file = self.place(node)?.open(access(flags.0))?;
        let id = FileId::of(&file)?;
        let handle = self.keep_open(file, id);
        if truncates && let Err(error) = self.truncate(node, Some(handle), 0) {
            self.handles().open.remove(&handle.0);
            return Err(error);
        }
        Ok(handle)
    }

    fn create_file(
        &self,
        (parent, name): (INodeNo, &OsStr),
        mode: u32,
        flags: i32,
    ) -> io::Result<(FileAttr, FileHandle)> {
        let _names = self.names();
        let path = self.new_child(parent, name)?;
        let place = self.root.place(path.as_path())?;
        let permit = self.ask(&new_file(path.as_path()))?;
        // Exclusive whatever the client wants: an existing file is not the interceptor's creation.
        let file = match place.make_file(access(flags), mode) {
            Ok(file) => file,
            Err(error) => {
                permit.failed();
                return Err(error);
            }
        };
        let stat = rustix::fs::fstat(&file)?;
        let id = FileId::from(&stat);
        permit.created(id);
        Ok((self.tell(parent, path.as_path(), &stat), self.keep_open(file, id)))
    }

    fn write_file(
        &self,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
    ) -> io::Result<u32> {
        self.writable()?;
        let opened = self.opened(handle)?;
        let length = data.len() as u64;
        let host = || opened.file.write_all_at(data, offset);
        match self.interceptor.repeat_write(opened.id, offset, length) {
            Some(permit) => conclude(permit, host())?,
            None => {
                self.change_opened(
                    node,
                    (&opened.file, opened.id),
                    |file| Mutation::Write { file, offset, length },
                    host,
                )?;
            }
        }
        Ok(data.len() as u32)
    }

    fn rename_entry(&self, from: (INodeNo, &OsStr), to: (INodeNo, &OsStr)) -> io::Result<()> {
        let _names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        let (old, old_place) = self.child(from.0, from.1)?;
        // What has the name is replaced under its own spelling, unless it is the entry itself.
        let (existing, existing_place) = self.child(to.0, to.1)?;
        let replaced = existing_place.stat().is_ok() && existing != old;
        let new = if replaced { existing } else { self.new_child(to.0, to.1)? };
        let new_place = self.root.place(new.as_path())?;
        let permit = self.ask(&Mutation::Rename {
            from: old.as_path(),
            to: new.as_path(),
            mode: RenameMode::Replace,
        })?;
        let outcome = if permit.performed() { Ok(()) } else { old_place.rename_to(&new_place) };
        if outcome.is_ok() {
            let (old, new) = (old.as_path().name(), new.as_path().name());
            let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
            self.nodes().renamed((from.0.0, old), (to.0.0, new));
        }
        finish(permit, outcome)
    }

    fn link_entry(&self, node: INodeNo, to: (INodeNo, &OsStr)) -> io::Result<FileAttr> {
        let _names = self.names();
        let existing = self.path(node)?;
        let source = self.root.place(existing.as_path())?;
        let path = self.new_child(to.0, to.1)?;
        let place = self.root.place(path.as_path())?;
        let existing = Some(existing.as_path());
        let permit = self.ask(&Mutation::Link { existing, path: path.as_path() })?;
        finish(permit, source.link_to(&place))?;
        Ok(self.tell(to.0, path.as_path(), &place.stat()?))
    }

    fn list(&self, handle: FileHandle, offset: u64, reply: &mut ReplyDirectory) -> io::Result<()> {
        let opened = self.opened(handle)?;
        let mut listing = opened.listing.lock().unwrap_or_else(PoisonError::into_inner);
        if offset == 0 {
            *listing = host::list(&opened.file)?;
        }
        let behind = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, entry) in listing.iter().enumerate().skip(behind) {
            let name = OsStr::from_bytes(&entry.name);
            if reply.add(INodeNo(entry.inode), at as u64 + 1, kind(entry.kind), name) {
                break;
            }
        }
        Ok(())
    }
}

impl<I: WriteInterceptor + 'static> Filesystem for Passthrough<I> {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self
            .child(parent, name)
            .and_then(|(path, place)| Ok(self.tell(parent, path.as_path(), &place.stat()?)));
        reply_entry(reply, found);
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.nodes().forget(node.0, lookups);
    }

    fn getattr(&self, _: &Request, node: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let stat = match handle {
            Some(handle) => {
                self.opened(handle).and_then(|opened| Ok(rustix::fs::fstat(&opened.file)?))
            }
            None => self.place(node).and_then(|place| place.stat()),
        };
        reply_attr(reply, stat.map(|stat| self.attr(node.0, &stat)));
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>, // the host's own affair
        handle: Option<FileHandle>,
        created: Option<SystemTime>,
        changed: Option<SystemTime>,
        backed_up: Option<SystemTime>,
        flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = || {
            if created.or(changed).or(backed_up).is_some() || flags.is_some() {
                return Err(raw(libc::ENOTSUP));
            }
            if let Some(length) = size {
                self.truncate(node, handle, length)?;
            }
            let wish = Wish { mode, uid, gid, atime, mtime };
            if !wish.is_empty() {
                self.change_named(node, |place| wish.carry_out(place))?;
            }
            let stat = match handle {
                Some(handle) => rustix::fs::fstat(&self.opened(handle)?.file)?,
                None => self.place(node)?.stat()?,
            };
            Ok(self.attr(node.0, &stat))
        };
        reply_attr(reply, change());
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        match self.place(node).and_then(|place| place.read_link()) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error.into()),
        }
    }

    fn mknod(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        if mode & u32::from(libc::S_IFMT) != u32::from(libc::S_IFREG) {
            return reply.error(Errno::ENOTSUP);
        }
        let host = |place: &Place| place.make_file(OFlags::RDWR, mode).map(drop);
        reply_entry(reply, self.make((parent, name), new_file, host));
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let host = |place: &Place| place.make_dir(mode);
        reply_entry(reply, self.make((parent, name), |path| Mutation::Mkdir { path }, host));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.remove((parent, name), |path| Mutation::Unlink { path }, Place::unlink);
        reply_empty(reply, removed);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.remove((parent, name), |path| Mutation::Rmdir { path }, Place::rmdir);
        reply_empty(reply, removed);
    }

    fn symlink(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let made = self.make((parent, name), new_symlink, |place| place.make_symlink(target));
        reply_entry(reply, made);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::ENOTSUP);
        }
        reply_empty(reply, self.rename_entry((parent, name), (new_parent, new_name)));
    }

    fn link(
        &self,
        _: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        reply_entry(reply, self.link_entry(node, (new_parent, new_name)));
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(node, flags) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.create_file((parent, name), mode, flags) {
            Ok((attr, handle)) => {
                let (generation, flags) = (Generation(0), FopenFlags::empty());
                reply.created(&FORGOTTEN_AT_ONCE, &attr, generation, handle, flags);
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn read(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = || {
            let opened = self.opened(handle)?;
            let mut buffer = vec![0; size as usize];
            let mut filled = 0;
            while filled < buffer.len() {
                match opened.file.read_at(&mut buffer[filled..], offset + filled as u64) {
                    Ok(0) => break,
                    Ok(bytes) => filled += bytes,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            buffer.truncate(filled);
            Ok(buffer)
        };
        match read() {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_file(node, handle, offset, data) {
            Ok(bytes) => reply.written(bytes),
            Err(error) => reply.error(error.into()),
        }
    }

    fn flush(
        &self,
        _: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok(); // every write has reached the host already
    }

    fn release(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.handles().open.remove(&handle.0);
        reply.ok();
    }

    fn fsync(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.opened(handle).and_then(|opened| opened.file.sync_all()));
    }

    fn opendir(&self, _: &Request, node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let open = || {
            let dir = self.place(node)?.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
            let id = FileId::of(&dir)?;
            Ok::<_, io::Error>(self.keep_open(dir, id))
        };
        match open() {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        match self.list(handle, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn releasedir(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.handles().open.remove(&handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.opened(handle).and_then(|opened| opened.file.sync_all()));
    }

    fn statfs(&self, _: &Request, _node: INodeNo, reply: ReplyStatfs) {
        match self.root.space() {
            Ok(space) => reply.statfs(
                space.f_blocks,
                space.f_bfree,
                space.f_bavail,
                space.f_files,
                space.f_ffree,
                space.f_bsize as u32,
                space.f_namemax as u32,
                space.f_frsize as u32,
            ),
            Err(error) => reply.error(error.into()),
        }
    }

    fn setxattr(
        &self,
        _: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        position: u32,
        reply: ReplyEmpty,
    ) {
        if position != 0 {
            return reply.error(Errno::ENOTSUP);
        }
        let host = |place: &Place| host::set_xattr(place.open_itself()?, name, value, flags);
        reply_empty(reply, self.change_named(node, host));
    }

    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = || host::get_xattr(&self.place(node)?.open_itself()?, name);
        reply_xattr(reply, size, value());
    }

    fn listxattr(&self, _: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let names = || host::list_xattrs(&self.place(node)?.open_itself()?);
        reply_xattr(reply, size, names());
    }

    fn removexattr(&self, _: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let host = |place: &Place| host::remove_xattr(place.open_itself()?, name);
        reply_empty(reply, self.change_named(node, host));
    }
}

/// Tells the permit how it went.
fn finish<T>(permit: Permit<'_>, outcome: io::Result<T>) -> io::Result<T> {
    match outcome {
        Ok(_) => permit.done(),
        Err(_) => permit.failed(),
    }
    outcome
}

/// Tells the permit that a file changed. An error may come after half of the change: then nothing
/// is said, and undo looks for itself.
fn conclude<T>(permit: Permit<'_>, outcome: io::Result<T>) -> io::Result<T> {
    if outcome.is_ok() {
        permit.done();
    }
    outcome
}

fn new_file(path: RelPath<'_>) -> Mutation<'_> {
    Mutation::Create { path, kind: EntryKind::File }
}

fn new_symlink(path: RelPath<'_>) -> Mutation<'_> {
    Mutation::Create { path, kind: EntryKind::Symlink }
}

/// Of a client's flags, what says how it wants to use the file.
fn access(flags: i32) -> OFlags {
    match flags & libc::O_ACCMODE {
        libc::O_WRONLY => OFlags::WRONLY,
        libc::O_RDWR => OFlags::RDWR,
        _ => OFlags::RDONLY,
    }
}

fn raw(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

fn reply_entry(reply: ReplyEntry, outcome: io::Result<FileAttr>) {
    match outcome {
        Ok(attr) => reply.entry(&FORGOTTEN_AT_ONCE, &attr, Generation(0)),
        Err(error) => reply.error(error.into()),
    }
}

fn reply_attr(reply: ReplyAttr, outcome: io::Result<FileAttr>) {
    match outcome {
        Ok(attr) => reply.attr(&FORGOTTEN_AT_ONCE, &attr),
        Err(error) => reply.error(error.into()),
    }
}

fn reply_empty(reply: ReplyEmpty, outcome: io::Result<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

/// Bytes, or how many there are if the client has no room and wants to know.
fn reply_xattr(reply: ReplyXattr, room: u32, outcome: io::Result<Vec<u8>>) {
    match outcome {
        Ok(bytes) if room == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > room as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(error.into()),
    }
}
