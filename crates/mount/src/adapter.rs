//! From FUSE requests to a filesystem. Nothing is decided here.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use codeagent_common::Pool;
use codeagent_fs::{Cache, Incoming, Outgoing};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use virtiofsd::filesystem::{
    Context, DirectoryIterator, Entry, Extensions, FileSystem, FsOptions, GetxattrReply,
    ListxattrReply, SetattrValid,
};
use virtiofsd::fuse::Attr;

use crate::attributes::{Wish, kind, to_fuse};
use crate::passthrough::{Modes, Opening, reply_created};
use crate::replies::{
    Answer, as_errno, errno, reply_attr, reply_empty, reply_entry, reply_open, reply_written,
};
use crate::{acl, local};

/// Directory entries that are read from the host at once.
const DIRECTORY_BYTES: u32 = 32 * 1024;

/// The shortest time the kernel can keep attributes: until its clock ticks. A path is looked up name
/// by name; without this, each directory on the way would be asked for a second time, for the
/// permissions that came with its name.
const ONE_TICK: Duration = Duration::from_nanos(1);

/// What we use where the kernel has it.
const WANTED: [InitFlags; 5] = [
    InitFlags::FUSE_AUTO_INVAL_DATA,
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_ASYNC_DIO,
    // Otherwise the kernel asks for the file's capabilities before every write.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
];

/// Attributes come with names, where the kernel may keep them: otherwise they would be for nothing.
const WANTED_WITH_CACHE: [InitFlags; 2] =
    [InitFlags::FUSE_DO_READDIRPLUS, InitFlags::FUSE_READDIRPLUS_AUTO];

/// Mutations that wait for somebody at once. The engine refuses far fewer; this is for those that
/// it has not seen yet.
const MOST_WAITING: usize = 4096;

/// A filesystem, as the kernel is to see it.
pub(crate) struct Adapter<F> {
    fs: Arc<F>,
    /// The kernel may keep names and attributes for a while.
    caches_names: bool,
    /// How long attributes of a directory that come with its name are kept at least.
    keeps_directories: Duration,
    /// Closing a file can fail, and may have to be passed on.
    flushes: bool,
    /// The kernel may read files itself.
    passthrough: Option<Arc<Modes>>,
    waiting: Arc<Waiting>,
}

/// Who has to wait for somebody does so in a thread of its own: those that serve requests are few,
/// and whoever only reads is not to wait as well.
struct Waiting {
    /// Whether a mutation that comes now might have to.
    may_wait: Box<dyn Fn() -> bool + Send + Sync>,
    threads: Pool,
}

// By hand: a derived one would want the filesystem itself to be copied.
impl<F> Clone for Adapter<F> {
    fn clone(&self) -> Self {
        Self {
            fs: Arc::clone(&self.fs),
            passthrough: self.passthrough.clone(),
            waiting: Arc::clone(&self.waiting),
            ..*self
        }
    }
}

impl<F> Adapter<F> {
    pub(crate) fn new(
        fs: Arc<F>,
        cache: Cache,
        root: BorrowedFd<'_>,
        passthrough: Option<Modes>,
        may_wait: impl Fn() -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let keeps_directories = match cache {
            Cache::Never => Duration::ZERO,
            Cache::Coherent => ONE_TICK,
            Cache::Auto => Duration::ZERO, // the filesystem says how long
        };
        let flushes = local::may_fail_to_close(root)?;
        let (caches_names, passthrough) = (cache == Cache::Auto, passthrough.map(Arc::new));
        let waiting = Arc::new(Waiting { may_wait: Box::new(may_wait), threads: Pool::default() });
        Ok(Self { fs, caches_names, keeps_directories, flushes, passthrough, waiting })
    }

    fn may_wait(&self) -> bool {
        (self.waiting.may_wait)()
    }

    fn reply_entry(&self, reply: ReplyEntry, outcome: Answer<Entry>) {
        let kept = outcome.map(|entry| {
            let is_dir = entry.attr.mode & libc::S_IFMT == libc::S_IFDIR;
            let least = if is_dir { self.keeps_directories } else { Duration::ZERO };
            Entry { attr_timeout: entry.attr_timeout.max(least), ..entry }
        });
        reply_entry(reply, kept);
    }
}

impl<F: Send + Sync + 'static> Adapter<F> {
    /// Serves a mutation, here or where it can wait. One that is too many is dropped, and with it
    /// its reply, which then says that it has failed.
    fn mutate(&self, serve: impl FnOnce(&Self) + Send + 'static) {
        if !self.may_wait() {
            return serve(self);
        }
        let adapter = self.clone();
        let _ = self.waiting.threads.take(MOST_WAITING, move || serve(&adapter));
    }
}

fn c_string(name: &OsStr) -> Answer<CString> {
    CString::new(name.as_bytes()).map_err(|_| Errno::EINVAL)
}

/// Whether a file that this user changes is no longer set-user-id, which the host does by itself
/// unless we are root and he is not.
fn loses_privileges(request: &Request) -> bool {
    request.uid() != 0
}

fn context(request: &Request) -> Context {
    Context {
        uid: request.uid().into(),
        gid: request.gid().into(),
        pid: request.pid() as libc::pid_t,
    }
}

impl<F> Filesystem for Adapter<F>
where
    F: FileSystem<Inode = u64, Handle = u64> + Send + Sync + 'static,
{
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let with_cache = WANTED_WITH_CACHE.iter().filter(|_| self.caches_names);
        for &flag in WANTED.iter().chain(with_cache) {
            let _ = config.add_capabilities(flag); // an older kernel lacks some
        }
        // The folder may not lie on a filesystem that is itself upon another one: then ours could
        // not be below one either.
        if self.passthrough.is_some()
            && (config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_err()
                || config.set_max_stack_depth(1).is_err())
        {
            self.passthrough = None;
        }
        let mut options = acl::negotiate(config);
        if config.capabilities().contains(InitFlags::FUSE_HANDLE_KILLPRIV_V2) {
            options |= FsOptions::HANDLE_KILLPRIV_V2;
        }
        self.fs.init(options).map(|_| ())
    }

    fn destroy(&mut self) {
        self.fs.destroy();
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = c_string(name)
            .and_then(|name| self.fs.lookup(context(request), parent.0, &name).map_err(errno));
        self.reply_entry(reply, found);
    }

    fn forget(&self, request: &Request, inode: INodeNo, count: u64) {
        self.fs.forget(context(request), inode.0, count);
    }

    fn getattr(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let outcome = self.fs.getattr(context(request), inode.0, handle.map(|handle| handle.0));
        reply_attr(reply, inode, outcome);
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (wanted, mut valid) = Wish { mode, uid, gid, size, atime, mtime }.to_request();
        valid.set(SetattrValid::KILL_SUIDGID, size.is_some() && loses_privileges(request));
        let (ctx, handle) = (context(request), handle.map(|handle| handle.0));
        self.mutate(move |this| {
            let outcome = this.fs.setattr(ctx, inode.0, wanted, handle, valid);
            reply_attr(reply, inode, outcome);
        });
    }

    fn readlink(&self, request: &Request, inode: INodeNo, reply: ReplyData) {
        match self.fs.readlink(context(request), inode.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (ctx, name) = (context(request), c_string(name));
        self.mutate(move |this| {
            let made = name.and_then(|name| {
                let extensions = Extensions::default();
                this.fs.mknod(ctx, parent.0, &name, mode, rdev, umask, extensions).map_err(errno)
            });
            this.reply_entry(reply, made);
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (ctx, name) = (context(request), c_string(name));
        self.mutate(move |this| {
            let made = name.and_then(|name| {
                let extensions = Extensions::default();
                this.fs.mkdir(ctx, parent.0, &name, mode, umask, extensions).map_err(errno)
            });
            this.reply_entry(reply, made);
        });
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (ctx, name, target) = (context(request), c_string(name), c_string(target.as_os_str()));
        self.mutate(move |this| {
            let made = name.and_then(|name| {
                let (target, extensions) = (target?, Extensions::default());
                this.fs.symlink(ctx, &target, parent.0, &name, extensions).map_err(errno)
            });
            this.reply_entry(reply, made);
        });
    }

    fn link(
        &self,
        request: &Request,
        inode: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (ctx, name) = (context(request), c_string(name));
        self.mutate(move |this| {
            let made =
                name.and_then(|name| this.fs.link(ctx, inode.0, parent.0, &name).map_err(errno));
            this.reply_entry(reply, made);
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (ctx, name) = (context(request), c_string(name));
        self.mutate(move |this| {
            let removed = name.and_then(|name| this.fs.unlink(ctx, parent.0, &name).map_err(errno));
            reply_empty(reply, removed);
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (ctx, name) = (context(request), c_string(name));
        self.mutate(move |this| {
            let removed = name.and_then(|name| this.fs.rmdir(ctx, parent.0, &name).map_err(errno));
            reply_empty(reply, removed);
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (ctx, name, new_name) = (context(request), c_string(name), c_string(new_name));
        self.mutate(move |this| {
            let renamed = name.and_then(|name| {
                let (new_name, flags) = (new_name?, flags.bits());
                this.fs.rename(ctx, parent.0, &name, new_parent.0, &new_name, flags).map_err(errno)
            });
            reply_empty(reply, renamed);
        });
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (ctx, kill_priv) = (context(request), loses_privileges(request));
        let (inode, flags) = (inode.0, flags.0);
        let open = move |this: &Self| match &this.passthrough {
            None => reply_open(reply, this.fs.open(ctx, inode, kill_priv, flags as u32)),
            Some(modes) => {
                let (fs, modes) = (Arc::clone(&this.fs), Arc::clone(modes));
                Opening { fs, modes, ctx, inode, kill_priv, flags }.answer(reply);
            }
        };
        match flags & libc::O_TRUNC {
            0 => open(self),
            _ => self.mutate(open),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let kill_priv = loses_privileges(request);
        let (ctx, name) = (context(request), c_string(name));
        self.mutate(move |this| {
            let created = name.and_then(|name| {
                let (how, extensions) = (flags as u32, Extensions::default());
                this.fs
                    .create(ctx, parent.0, &name, mode, kill_priv, how, umask, extensions)
                    .map_err(errno)
            });
            match created {
                Ok((entry, handle, options)) => {
                    let modes = this.passthrough.as_deref();
                    if reply_created(modes, reply, flags, &entry, (handle, options)).is_err() {
                        let (inode, handle, how) = (entry.inode, handle.unwrap_or(0), flags as u32);
                        let _ = this.fs.release(ctx, inode, how, handle, false, false, None);
                        this.fs.forget(ctx, inode, 1);
                    }
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn read(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = Vec::new();
        let into = Incoming(&mut bytes);
        let (ctx, owner) = (context(request), owner.map(|owner| owner.0));
        let read = self.fs.read(ctx, inode.0, handle.0, into, size, offset, owner, flags.0 as u32);
        match read {
            Ok(_) => reply.data(&bytes),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn write(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (size, flags) = (data.len() as u32, flags.0 as u32);
        let (ctx, owner) = (context(request), owner.map(|owner| owner.0));
        // From the page cache, as of a mapping: it arrives later, and where it is to go.
        let delayed = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let kill_priv = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let write = move |this: &Self, data: &[u8]| {
            let (place, from) = ((inode.0, handle.0), Outgoing(data));
            let written = this
                .fs
                .write(ctx, place.0, place.1, from, size, offset, owner, delayed, kill_priv, flags);
            reply_written(reply, written);
        };
        if self.may_wait() {
            let data = data.to_vec();
            return self.mutate(move |this| write(this, &data));
        }
        write(self, data);
    }

    fn flush(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        if !self.flushes {
            return reply.error(Errno::ENOSYS); // the kernel does not ask again
        }
        let flushed = self.fs.flush(context(request), inode.0, handle.0, owner.0);
        reply_empty(reply, flushed.map_err(errno));
    }

    fn release(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        flush: bool,
        reply: ReplyEmpty,
    ) {
        let (ctx, owner) = (context(request), owner.map(|owner| owner.0));
        let flags = flags.0 as u32;
        let released = self.fs.release(ctx, inode.0, flags, handle.0, flush, false, owner);
        if let Some(modes) = &self.passthrough {
            modes.leave(inode.0);
        }
        reply_empty(reply, released.map_err(errno));
    }

    fn fsync(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        let synced = self.fs.fsync(context(request), inode.0, datasync, handle.0);
        reply_empty(reply, synced.map_err(errno));
    }

    fn opendir(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        reply_open(reply, self.fs.opendir(context(request), inode.0, flags.0 as u32));
    }

    fn readdir(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let ctx = context(request);
        match self.fs.readdir(ctx, inode.0, handle.0, DIRECTORY_BYTES, offset) {
            Ok(mut entries) => {
                while let Some(entry) = entries.next() {
                    let name = OsStr::from_bytes(entry.name.to_bytes());
                    let kind = kind(entry.type_ << 12);
                    if reply.add(INodeNo(entry.ino), entry.offset, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let ctx = context(request);
        let mut added = false;
        match self.fs.readdir(ctx, inode.0, handle.0, DIRECTORY_BYTES, offset) {
            Ok(mut entries) => {
                while let Some(entry) = entries.next() {
                    let name = OsStr::from_bytes(entry.name.to_bytes());
                    let found = match entry.name.to_bytes() {
                        // The kernel takes only the name and the number of these.
                        b"." | b".." => Ok(None),
                        _ => self.fs.lookup(ctx, inode.0, entry.name).map(Some),
                    };
                    let (node, attr, timeout) = match &found {
                        Ok(Some(found)) => (found.inode, found.attr, found.entry_timeout),
                        Ok(None) => {
                            let attr = Attr { mode: entry.type_ << 12, ..Attr::default() };
                            (entry.ino, attr, Duration::ZERO)
                        }
                        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
                        // Without a node the entry would have no number, and programs would not
                        // see it: better none than a directory that seems to have fewer.
                        Err(_) if added => break,
                        Err(error) => return reply.error(as_errno(error)),
                    };
                    let attr = to_fuse(node, &attr);
                    let place = (attr.ino, entry.offset);
                    if reply.add(place.0, place.1, name, &timeout, &attr, Generation(0)) {
                        if let Ok(Some(found)) = found {
                            self.fs.forget(ctx, found.inode, 1);
                        }
                        break;
                    }
                    added = true;
                }
                reply.ok();
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn releasedir(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let released = self.fs.releasedir(context(request), inode.0, flags.0 as u32, handle.0);
        reply_empty(reply, released.map_err(errno));
    }

    fn fsyncdir(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        let synced = self.fs.fsyncdir(context(request), inode.0, datasync, handle.0);
        reply_empty(reply, synced.map_err(errno));
    }

    fn statfs(&self, request: &Request, inode: INodeNo, reply: ReplyStatfs) {
        match self.fs.statfs(context(request), inode.0) {
            Ok(st) => reply.statfs(
                st.f_blocks,
                st.f_bfree,
                st.f_bavail,
                st.f_files,
                st.f_ffree,
                st.f_bsize as u32,
                st.f_namemax as u32,
                st.f_frsize as u32,
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let ctx = context(request);
        let wanted = c_string(name).and_then(|c_name| {
            let attr = || self.fs.getattr(ctx, inode.0, None).map(|(attr, _)| attr);
            let extra = acl::costs_set_group_id(request, name, attr).map_err(errno)?;
            Ok((c_name, extra))
        });
        let value = value.to_vec();
        self.mutate(move |this| {
            let set = wanted.and_then(|(name, extra)| {
                this.fs.setxattr(ctx, inode.0, &name, &value, flags as u32, extra).map_err(errno)
            });
            reply_empty(reply, set);
        });
    }

    fn getxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let found = c_string(name).and_then(|name| {
            self.fs.getxattr(context(request), inode.0, &name, size).map_err(errno)
        });
        match found {
            Ok(GetxattrReply::Count(bytes)) => reply.size(bytes),
            Ok(GetxattrReply::Value(value)) => reply.data(&value),
            Err(errno) => reply.error(errno),
        }
    }

    fn listxattr(&self, request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        match self.fs.listxattr(context(request), inode.0, size) {
            Ok(ListxattrReply::Count(bytes)) => reply.size(bytes),
            Ok(ListxattrReply::Names(names)) => reply.data(&names),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn removexattr(&self, request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (ctx, name) = (context(request), c_string(name));
        self.mutate(move |this| {
            let removed =
                name.and_then(|name| this.fs.removexattr(ctx, inode.0, &name).map_err(errno));
            reply_empty(reply, removed);
        });
    }

    fn access(&self, request: &Request, inode: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let allowed = self.fs.access(context(request), inode.0, mask.bits() as u32);
        reply_empty(reply, allowed.map_err(errno));
    }

    fn fallocate(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (ctx, mode) = (context(request), mode as u32);
        self.mutate(move |this| {
            let allocated = this.fs.fallocate(ctx, inode.0, handle.0, mode, offset, length);
            reply_empty(reply, allocated.map_err(errno));
        });
    }

    fn lseek(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let ctx = context(request);
        match self.fs.lseek(ctx, inode.0, handle.0, offset as u64, whence as u32) {
            Ok(at) => reply.offset(at as i64),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        inode_in: INodeNo,
        handle_in: FileHandle,
        offset_in: u64,
        inode_out: INodeNo,
        handle_out: FileHandle,
        offset_out: u64,
        length: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if loses_privileges(request) {
            // As a write, which says whether the file is to lose its privileges.
            return reply.error(Errno::EOPNOTSUPP);
        }
        let (from, to) = ((inode_in.0, handle_in.0), (inode_out.0, handle_out.0));
        let (ctx, flags) = (context(request), flags.bits());
        self.mutate(move |this| {
            let copied = this.fs.copyfilerange(
                ctx, from.0, from.1, offset_in, to.0, to.1, offset_out, length, flags,
            );
            reply_written(reply, copied);
        });
    }
}
