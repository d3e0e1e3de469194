//! The filesystem as a guest sees it: whose files are, and what the guest's kernel may do by itself.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use codeagent_interceptor::WriteInterceptor;
use virtiofsd::filesystem::{
    Context, Entry, Extensions, FileSystem, FsOptions, GetxattrReply, ListxattrReply, OpenOptions,
    SetattrValid, SetxattrFlags, ZeroCopyReader, ZeroCopyWriter,
};
use virtiofsd::fuse::{Attr, SetattrIn};
use virtiofsd::soft_idmap::Id;

use super::owners::Owners;
use crate::{InterceptedFs, Served, Unanswered};

/// With ACLs, a kernel that keeps no attributes asks for one at each step of a path.
const NOT_FOR_GUESTS: FsOptions = FsOptions::POSIX_ACL;

/// One guest's view of a folder.
pub struct GuestView<I> {
    fs: Arc<InterceptedFs<I>>,
    owners: Option<Owners>,
}

impl<I: WriteInterceptor> GuestView<I> {
    /// Without `owners`, users and groups have the same numbers on both sides.
    pub fn new(fs: Arc<InterceptedFs<I>>, owners: Option<Owners>) -> Self {
        Self { fs, owners }
    }

    /// On whose behalf the host is asked.
    fn asker(&self, ctx: Context) -> Context {
        match self.owners {
            Some(Owners { host, .. }) => {
                Context { uid: host.uid.into(), gid: host.gid.into(), ..ctx }
            }
            None => ctx,
        }
    }

    /// Groups of the guest are not the host's.
    fn extensions(&self, mut extensions: Extensions) -> Extensions {
        if self.owners.is_some() {
            extensions.sup_gids.clear();
        }
        extensions
    }

    fn seen(&self, mut attr: Attr) -> Attr {
        if let Some(Owners { host, guest }) = self.owners {
            if attr.uid.into_inner() == host.uid {
                attr.uid = guest.uid.into();
            }
            if attr.gid.into_inner() == host.gid {
                attr.gid = guest.gid.into();
            }
        }
        attr
    }

    fn seen_entry(&self, entry: Entry) -> Entry {
        Entry { attr: self.seen(entry.attr), ..entry }
    }
}

impl<I: WriteInterceptor> Served for GuestView<I> {
    fn may_wait(&self) -> bool {
        self.fs.may_wait()
    }

    fn taken(&self) -> Unanswered {
        self.fs.taken()
    }

    fn until_told<T>(&self, work: impl FnOnce() -> T) -> T {
        self.fs.until_told(work)
    }
}

impl<I> fmt::Debug for GuestView<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestView").field("owners", &self.owners).finish_non_exhaustive()
    }
}

/// Operations in which nobody's name is told.
macro_rules! pass_on {
    ($(fn $name:ident(&self, ctx $(, $arg:ident: $type:ty)*) -> $result:ty;)*) => {
        $(fn $name(&self, ctx: Context $(, $arg: $type)*) -> $result {
            self.fs.$name(self.asker(ctx) $(, $arg)*)
        })*
    };
}

type Opened = (Option<u64>, OpenOptions);

impl<I: WriteInterceptor> FileSystem for GuestView<I> {
    type Inode = u64;
    type Handle = u64;
    type DirIter = <InterceptedFs<I> as FileSystem>::DirIter;

    pass_on! {
        fn forget(&self, ctx, inode: u64, count: u64) -> ();
        fn batch_forget(&self, ctx, requests: Vec<(u64, u64)>) -> ();
        fn readlink(&self, ctx, inode: u64) -> io::Result<Vec<u8>>;
        fn unlink(&self, ctx, parent: u64, name: &CStr) -> io::Result<()>;
        fn rmdir(&self, ctx, parent: u64, name: &CStr) -> io::Result<()>;
        fn rename(&self, ctx, from_parent: u64, from: &CStr, to_parent: u64, to: &CStr, flags: u32)
            -> io::Result<()>;
        fn open(&self, ctx, inode: u64, kill_priv: bool, flags: u32) -> io::Result<Opened>;
        fn flush(&self, ctx, inode: u64, handle: u64, lock_owner: u64) -> io::Result<()>;
        fn fsync(&self, ctx, inode: u64, datasync: bool, handle: u64) -> io::Result<()>;
        fn fallocate(&self, ctx, inode: u64, handle: u64, mode: u32, offset: u64, length: u64)
            -> io::Result<()>;
        fn release(&self, ctx, inode: u64, flags: u32, handle: u64, flush: bool, flock: bool,
            lock_owner: Option<u64>) -> io::Result<()>;
        fn statfs(&self, ctx, inode: u64) -> io::Result<libc::statvfs64>;
        fn setxattr(&self, ctx, inode: u64, name: &CStr, value: &[u8], flags: u32,
            extra_flags: SetxattrFlags) -> io::Result<()>;
        fn getxattr(&self, ctx, inode: u64, name: &CStr, size: u32) -> io::Result<GetxattrReply>;
        fn listxattr(&self, ctx, inode: u64, size: u32) -> io::Result<ListxattrReply>;
        fn removexattr(&self, ctx, inode: u64, name: &CStr) -> io::Result<()>;
        fn opendir(&self, ctx, inode: u64, flags: u32) -> io::Result<Opened>;
        fn readdir(&self, ctx, inode: u64, handle: u64, size: u32, offset: u64)
            -> io::Result<Self::DirIter>;
        fn fsyncdir(&self, ctx, inode: u64, datasync: bool, handle: u64) -> io::Result<()>;
        fn releasedir(&self, ctx, inode: u64, flags: u32, handle: u64) -> io::Result<()>;
        fn access(&self, ctx, inode: u64, mask: u32) -> io::Result<()>;
        fn lseek(&self, ctx, inode: u64, handle: u64, offset: u64, whence: u32) -> io::Result<u64>;
        fn copyfilerange(&self, ctx, inode_in: u64, handle_in: u64, offset_in: u64, inode_out: u64,
            handle_out: u64, offset_out: u64, length: u64, flags: u64) -> io::Result<usize>;
    }

    /// The guest has sent everything by now. When it comes to the disk is the host's affair: each
    /// command ends with this, and the host has other filesystems' worth of work to write out.
    /// Single files are another matter (`fsync`).
    fn syncfs(&self, _ctx: Context, _inode: u64) -> io::Result<()> {
        Ok(())
    }

    fn init(&self, capable: FsOptions) -> io::Result<FsOptions> {
        self.fs.init(capable.difference(NOT_FOR_GUESTS))
    }

    fn destroy(&self) {
        self.fs.destroy();
    }

    fn lookup(&self, ctx: Context, parent: u64, name: &CStr) -> io::Result<Entry> {
        self.fs.lookup(self.asker(ctx), parent, name).map(|entry| self.seen_entry(entry))
    }

    fn getattr(
        &self,
        ctx: Context,
        inode: u64,
        handle: Option<u64>,
    ) -> io::Result<(Attr, Duration)> {
        let (attr, timeout) = self.fs.getattr(self.asker(ctx), inode, handle)?;
        Ok((self.seen(attr), timeout))
    }

    fn setattr(
        &self,
        ctx: Context,
        inode: u64,
        mut attr: SetattrIn,
        handle: Option<u64>,
        valid: SetattrValid,
    ) -> io::Result<(Attr, Duration)> {
        if let Some(Owners { host, .. }) = self.owners {
            attr.uid = host.uid.into();
            attr.gid = host.gid.into();
        }
        let (attr, timeout) = self.fs.setattr(self.asker(ctx), inode, attr, handle, valid)?;
        Ok((self.seen(attr), timeout))
    }

    fn symlink(
        &self,
        ctx: Context,
        target: &CStr,
        parent: u64,
        name: &CStr,
        extensions: Extensions,
    ) -> io::Result<Entry> {
        let extensions = self.extensions(extensions);
        let made = self.fs.symlink(self.asker(ctx), target, parent, name, extensions);
        made.map(|entry| self.seen_entry(entry))
    }

    fn mknod(
        &self,
        ctx: Context,
        parent: u64,
        name: &CStr,
        mode: u32,
        rdev: u32,
        umask: u32,
        extensions: Extensions,
    ) -> io::Result<Entry> {
        let is_device = matches!(mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFBLK);
        if is_device && self.owners.is_some() {
            // It would be a device of the host, whoever opens it there.
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let extensions = self.extensions(extensions);
        let made = self.fs.mknod(self.asker(ctx), parent, name, mode, rdev, umask, extensions);
        made.map(|entry| self.seen_entry(entry))
    }

    fn mkdir(
        &self,
        ctx: Context,
        parent: u64,
        name: &CStr,
        mode: u32,
        umask: u32,
        extensions: Extensions,
    ) -> io::Result<Entry> {
        let extensions = self.extensions(extensions);
        let made = self.fs.mkdir(self.asker(ctx), parent, name, mode, umask, extensions);
        made.map(|entry| self.seen_entry(entry))
    }

    fn link(&self, ctx: Context, inode: u64, parent: u64, name: &CStr) -> io::Result<Entry> {
        self.fs.link(self.asker(ctx), inode, parent, name).map(|entry| self.seen_entry(entry))
    }

    fn create(
        &self,
        ctx: Context,
        parent: u64,
        name: &CStr,
        mode: u32,
        kill_priv: bool,
        flags: u32,
        umask: u32,
        extensions: Extensions,
    ) -> io::Result<(Entry, Option<u64>, OpenOptions)> {
        let (ctx, extensions) = (self.asker(ctx), self.extensions(extensions));
        let (entry, handle, options) =
            self.fs.create(ctx, parent, name, mode, kill_priv, flags, umask, extensions)?;
        Ok((self.seen_entry(entry), handle, options))
    }

    fn read<W: ZeroCopyWriter>(
        &self,
        ctx: Context,
        inode: u64,
        handle: u64,
        w: W,
        size: u32,
        offset: u64,
        lock_owner: Option<u64>,
        flags: u32,
    ) -> io::Result<usize> {
        self.fs.read(self.asker(ctx), inode, handle, w, size, offset, lock_owner, flags)
    }

    fn write<R: ZeroCopyReader>(
        &self,
        ctx: Context,
        inode: u64,
        handle: u64,
        r: R,
        size: u32,
        offset: u64,
        lock_owner: Option<u64>,
        delayed: bool,
        kill_priv: bool,
        flags: u32,
    ) -> io::Result<usize> {
        let ctx = self.asker(ctx);
        self.fs.write(ctx, inode, handle, r, size, offset, lock_owner, delayed, kill_priv, flags)
    }
}
