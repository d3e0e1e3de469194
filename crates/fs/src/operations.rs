//! The operations: mutations with their questions, and the others as they are.

use std::ffi::CStr;
use std::io;
use std::time::Duration;

use codeagent_common::EntryKind;
use codeagent_interceptor::{Allocation, Mutation, RenameMode, Whereabouts, WriteInterceptor};
use virtiofsd::filesystem::{
    Context, Entry, Extensions, FileSystem, FsOptions, GetxattrReply, ListxattrReply, OpenOptions,
    SerializableFileSystem, SetattrValid, SetxattrFlags, ZeroCopyReader, ZeroCopyWriter,
};
use virtiofsd::fuse;
use virtiofsd::passthrough::PassthroughFs;

use crate::handles::{Handle, Writable};
use crate::intercepted::{InterceptedFs, finish, has, read_only};
use crate::names::{check_attribute_name, check_name, invalid, is_acl};
use crate::paths::Found;
use crate::privileges::Ordinary;
use crate::thread;

/// What `setattr` can change.
const CHANGEABLE: SetattrValid = SetattrValid::from_bits_truncate(
    SetattrValid::MODE.bits()
        | SetattrValid::UID.bits()
        | SetattrValid::GID.bits()
        | SetattrValid::SIZE.bits()
        | SetattrValid::ATIME.bits()
        | SetattrValid::MTIME.bits(),
);

/// As many bytes as a value or a list of names can have in the kernel. Memory is set aside for what
/// a client asks for.
const MAX_ATTRIBUTE: u32 = 64 << 10;
/// Of a file at once; no kernel asks for more.
const MAX_READ: u32 = 16 << 20;
/// Of a directory at once; the rest is asked for again.
const MAX_LISTING: u32 = 1 << 20;

/// Operations that change nothing and name nothing.
macro_rules! pass_on {
    ($(fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $result:ty;)*) => {
        $(fn $name(&self $(, $arg: $type)*) -> $result {
            self.shared.fs.$name($($arg),*)
        })*
    };
}

impl<I: WriteInterceptor> FileSystem for InterceptedFs<I> {
    type Inode = u64;
    type Handle = u64;
    type DirIter = <PassthroughFs as FileSystem>::DirIter;

    pass_on! {
        fn readlink(&self, ctx: Context, inode: u64) -> io::Result<Vec<u8>>;
        fn flush(&self, ctx: Context, inode: u64, handle: u64, lock_owner: u64) -> io::Result<()>;
        fn fsync(&self, ctx: Context, inode: u64, datasync: bool, handle: u64) -> io::Result<()>;
        fn fsyncdir(&self, ctx: Context, inode: u64, datasync: bool, handle: u64) -> io::Result<()>;
        fn statfs(&self, ctx: Context, inode: u64) -> io::Result<libc::statvfs64>;
        fn lseek(&self, ctx: Context, inode: u64, handle: u64, offset: u64, whence: u32)
            -> io::Result<u64>;
        fn syncfs(&self, ctx: Context, inode: u64) -> io::Result<()>;
    }

    fn init(&self, capable: FsOptions) -> io::Result<FsOptions> {
        self.leave();
        Ok(self.shared.offered & capable)
    }

    fn destroy(&self) {
        self.leave();
    }

    fn lookup(&self, ctx: Context, parent: u64, name: &CStr) -> io::Result<Entry> {
        check_name(name)?;
        if let Some(entry) = self.look_again(ctx, parent, name) {
            return Ok(entry);
        }
        self.give_way();
        loop {
            let since = self.shared.paths.since();
            let mut entry = self.shared.fs.lookup(ctx, parent, name)?;
            if entry.attr.nlink > 1 {
                self.count_names(ctx, entry.inode, &mut entry.attr);
            }
            let name = (parent, name.to_bytes());
            match self.shared.paths.found(self.client, since, name, Found::of(&entry)) {
                Ok(Some(told)) => {
                    self.hold_once(ctx, entry.inode, told);
                    return Ok(entry);
                }
                Ok(None) => self.shared.fs.forget(ctx, entry.inode, 1),
                Err(error) => {
                    self.shared.fs.forget(ctx, entry.inode, 1);
                    return Err(error);
                }
            }
        }
    }

    fn forget(&self, ctx: Context, inode: u64, count: u64) {
        if self.shared.paths.forget(self.client, inode, count) {
            self.shared.fs.forget(ctx, inode, 1);
        }
    }

    fn batch_forget(&self, ctx: Context, requests: Vec<(u64, u64)>) {
        for (inode, count) in requests {
            self.forget(ctx, inode, count);
        }
    }

    fn getattr(
        &self,
        ctx: Context,
        inode: u64,
        handle: Option<u64>,
    ) -> io::Result<(fuse::Attr, Duration)> {
        let (mut attr, timeout) = self.shared.fs.getattr(ctx, inode, handle)?;
        self.count_names(ctx, inode, &mut attr);
        Ok((attr, timeout))
    }

    fn access(&self, ctx: Context, inode: u64, mask: u32) -> io::Result<()> {
        if self.read_only && has(mask, libc::W_OK) {
            return Err(read_only());
        }
        self.shared.fs.access(ctx, inode, mask)
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
        self.shared.fs.read(ctx, inode, handle, w, size.min(MAX_READ), offset, lock_owner, flags)
    }

    fn readdir(
        &self,
        ctx: Context,
        inode: u64,
        handle: u64,
        size: u32,
        offset: u64,
    ) -> io::Result<Self::DirIter> {
        self.shared.fs.readdir(ctx, inode, handle, size.min(MAX_LISTING), offset)
    }

    fn getxattr(
        &self,
        ctx: Context,
        inode: u64,
        name: &CStr,
        size: u32,
    ) -> io::Result<GetxattrReply> {
        check_attribute_name(name)?;
        thread::prepare()?;
        self.shared.fs.getxattr(ctx, inode, name, size.min(MAX_ATTRIBUTE)).map_err(|error| {
            // Clients look for an ACL before each access, and take any other error for a refusal.
            if is_acl(name) && error.raw_os_error() == Some(libc::EOPNOTSUPP) {
                return io::Error::from_raw_os_error(libc::ENODATA);
            }
            error
        })
    }

    fn listxattr(&self, ctx: Context, inode: u64, size: u32) -> io::Result<ListxattrReply> {
        thread::prepare()?;
        self.shared.fs.listxattr(ctx, inode, size.min(MAX_ATTRIBUTE))
    }

    fn opendir(
        &self,
        ctx: Context,
        inode: u64,
        _flags: u32,
    ) -> io::Result<(Option<u64>, OpenOptions)> {
        let open = || self.shared.fs.opendir(ctx, inode, libc::O_RDONLY as u32);
        let (handle, options) = self.handles.admit(open)?;
        if let Some(handle) = handle {
            self.handles.opened_dir(handle, inode);
        }
        Ok((handle, options))
    }

    fn releasedir(&self, ctx: Context, inode: u64, flags: u32, handle: u64) -> io::Result<()> {
        self.closed(handle, Handle { inode, is_dir: true })?;
        self.shared.fs.releasedir(ctx, inode, flags, handle)
    }

    fn open(
        &self,
        ctx: Context,
        inode: u64,
        kill_priv: bool,
        flags: u32,
    ) -> io::Result<(Option<u64>, OpenOptions)> {
        self.open_existing(ctx, inode, kill_priv, flags)
    }

    fn release(
        &self,
        ctx: Context,
        inode: u64,
        flags: u32,
        handle: u64,
        flush: bool,
        flock_release: bool,
        lock_owner: Option<u64>,
    ) -> io::Result<()> {
        self.closed(handle, Handle { inode, is_dir: false })?;
        self.shared.fs.release(ctx, inode, flags, handle, flush, flock_release, lock_owner)
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
        check_name(name)?;
        let new = self.create_new(ctx, parent, name, mode, kill_priv, flags, umask, extensions);
        match new {
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::EEXIST | libc::EROFS))
                    && !has(flags, libc::O_EXCL) =>
            {
                let entry = self
                    .lookup(ctx, parent, name)
                    .map_err(|missing| if self.read_only { error } else { missing })?;
                match self.open_existing(ctx, entry.inode, kill_priv, flags) {
                    Ok((handle, options)) => Ok((entry, handle, options)),
                    Err(error) => {
                        self.forget(ctx, entry.inode, 1);
                        Err(error)
                    }
                }
            }
            new => new,
        }
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
        let host = || self.shared.fs.mkdir(ctx, parent, name, mode, umask, extensions);
        self.make_entry(ctx, (parent, name), |path| Mutation::Mkdir { path }, host)
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
        let kind = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => EntryKind::File,
            libc::S_IFIFO => EntryKind::Fifo,
            libc::S_IFSOCK => EntryKind::Socket,
            libc::S_IFCHR | libc::S_IFBLK => EntryKind::Device,
            _ => return Err(invalid()),
        };
        let host = || self.shared.fs.mknod(ctx, parent, name, mode, rdev, umask, extensions);
        self.make_entry(ctx, (parent, name), |path| Mutation::Create { path, kind }, host)
    }

    fn symlink(
        &self,
        ctx: Context,
        target: &CStr,
        parent: u64,
        name: &CStr,
        extensions: Extensions,
    ) -> io::Result<Entry> {
        let kind = EntryKind::Symlink;
        let host = || self.shared.fs.symlink(ctx, target, parent, name, extensions);
        self.make_entry(ctx, (parent, name), |path| Mutation::Create { path, kind }, host)
    }

    fn link(&self, ctx: Context, inode: u64, parent: u64, name: &CStr) -> io::Result<Entry> {
        check_name(name)?;
        let _mutating = self.begin()?;
        let _names = self.shared.names.read();
        let existing = self.shared.paths.path(inode)?;
        let path = self.shared.paths.child(parent, name.to_bytes())?;
        let (existing, path) = (Some(existing.as_path()), path.as_path());
        let number = |inode| self.shared.paths.number(inode);
        let whereabouts =
            Whereabouts { dir: number(parent), file: number(inode), ..Whereabouts::default() };
        let permit = self.ask(&Mutation::Link { existing, path }, whereabouts)?;
        self.made(ctx, (parent, name), permit, self.shared.fs.link(ctx, inode, parent, name))
    }

    fn unlink(&self, ctx: Context, parent: u64, name: &CStr) -> io::Result<()> {
        let host = || self.shared.fs.unlink(ctx, parent, name);
        self.remove((parent, name), |path| Mutation::Unlink { path }, host)
    }

    fn rmdir(&self, ctx: Context, parent: u64, name: &CStr) -> io::Result<()> {
        let host = || self.shared.fs.rmdir(ctx, parent, name);
        self.remove((parent, name), |path| Mutation::Rmdir { path }, host)
    }

    fn rename(
        &self,
        ctx: Context,
        from_parent: u64,
        from_name: &CStr,
        to_parent: u64,
        to_name: &CStr,
        flags: u32,
    ) -> io::Result<()> {
        check_name(from_name)?;
        check_name(to_name)?;
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(invalid()),
        };
        let _mutating = self.begin()?;
        let (from, to) = ((from_parent, from_name.to_bytes()), (to_parent, to_name.to_bytes()));
        let exchange = mode == RenameMode::Exchange;
        let names = self.hold_names(from, to, exchange)?;
        let (old, new) = (names.from.as_path(), names.to.as_path());
        let number = |inode| self.shared.paths.number(inode);
        let whereabouts = Whereabouts {
            dir: number(from_parent),
            new_dir: number(to_parent),
            ..Whereabouts::default()
        };
        let permit = self.ask(&Mutation::Rename { from: old, to: new, mode }, whereabouts)?;
        let renaming = self.shared.paths.renaming();
        let outcome = self.shared.fs.rename(ctx, from_parent, from_name, to_parent, to_name, flags);
        if outcome.is_ok() {
            renaming.done(from, to, exchange);
        }
        finish(permit, outcome)
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
        delayed_write: bool,
        kill_priv: bool,
        flags: u32,
    ) -> io::Result<usize> {
        let _mutating = self.begin()?;
        let Writable { file, inspected, .. } = self.handles.writable(inode, handle)?;
        let append = has(flags, libc::O_APPEND) && !delayed_write;
        let length = u64::from(size);
        // Bytes behind the end, wherever that is, are what an append adds.
        let start = if append { u64::MAX } else { offset };
        let short_way = match inspected {
            true => None,
            false => self.interceptor.repeat_write(file, start, length),
        };
        let permit = match short_way {
            Some(permit) => permit,
            None => self.write_permit(ctx, (inode, handle), file, |file| {
                if append {
                    Mutation::Append { file }
                } else {
                    Mutation::Write { file, offset, length }
                }
            })?,
        };
        let outcome = self.shared.fs.write(
            ctx,
            inode,
            handle,
            r,
            size,
            offset,
            lock_owner,
            delayed_write,
            kill_priv,
            flags,
        );
        finish(permit, outcome)
    }

    fn copyfilerange(
        &self,
        ctx: Context,
        inode_in: u64,
        handle_in: u64,
        offset_in: u64,
        inode_out: u64,
        handle_out: u64,
        offset_out: u64,
        length: u64,
        flags: u64,
    ) -> io::Result<usize> {
        let _mutating = self.begin()?;
        let file = self.handles.writable(inode_out, handle_out)?.file;
        let permit = self.write_permit(ctx, (inode_out, handle_out), file, |file| {
            Mutation::Write { file, offset: offset_out, length }
        })?;
        let outcome = self.shared.fs.copyfilerange(
            ctx, inode_in, handle_in, offset_in, inode_out, handle_out, offset_out, length, flags,
        );
        finish(permit, outcome)
    }

    fn fallocate(
        &self,
        ctx: Context,
        inode: u64,
        handle: u64,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> io::Result<()> {
        let how = allocation(mode)?;
        let _mutating = self.begin()?;
        let file = self.handles.writable(inode, handle)?.file;
        let permit = self.write_permit(ctx, (inode, handle), file, |file| Mutation::Allocate {
            file,
            how,
            offset,
            length,
        })?;
        let outcome = Ordinary::for_request(&ctx).and_then(|_ordinary| {
            self.shared.fs.fallocate(ctx, inode, handle, mode, offset, length)
        });
        finish(permit, outcome)
    }

    fn setattr(
        &self,
        ctx: Context,
        inode: u64,
        attr: fuse::SetattrIn,
        handle: Option<u64>,
        valid: SetattrValid,
    ) -> io::Result<(fuse::Attr, Duration)> {
        if !valid.intersects(CHANGEABLE) {
            return self.shared.fs.getattr(ctx, inode, handle);
        }
        let _mutating = self.begin()?;
        let host = || self.shared.fs.setattr(ctx, inode, attr, handle, valid);
        if valid.contains(SetattrValid::SIZE) {
            // The preimage of content has the attributes with it.
            let length = attr.size;
            self.change(ctx, (inode, handle), |file| Mutation::Truncate { file, length }, host)
        } else {
            self.change(ctx, (inode, handle), |file| Mutation::SetAttributes { file }, host)
        }
    }

    fn setxattr(
        &self,
        ctx: Context,
        inode: u64,
        name: &CStr,
        value: &[u8],
        flags: u32,
        extra_flags: SetxattrFlags,
    ) -> io::Result<()> {
        check_attribute_name(name)?;
        let _mutating = self.begin()?;
        self.change(
            ctx,
            (inode, None),
            |file| Mutation::SetAttributes { file },
            || self.shared.fs.setxattr(ctx, inode, name, value, flags, extra_flags),
        )
    }

    fn removexattr(&self, ctx: Context, inode: u64, name: &CStr) -> io::Result<()> {
        check_attribute_name(name)?;
        let _mutating = self.begin()?;
        self.change(
            ctx,
            (inode, None),
            |file| Mutation::SetAttributes { file },
            || self.shared.fs.removexattr(ctx, inode, name),
        )
    }
}

/// The state cannot be handed to another process: the journal belongs to this one.
impl<I: WriteInterceptor> SerializableFileSystem for InterceptedFs<I> {}

fn allocation(mode: u32) -> io::Result<Allocation> {
    let keep_size = has(mode, libc::FALLOC_FL_KEEP_SIZE);
    match mode as i32 & !libc::FALLOC_FL_KEEP_SIZE {
        0 if keep_size => Ok(Allocation::KeepSize),
        0 => Ok(Allocation::Extend),
        libc::FALLOC_FL_PUNCH_HOLE => Ok(Allocation::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Ok(Allocation::ZeroRange),
        libc::FALLOC_FL_COLLAPSE_RANGE => Ok(Allocation::CollapseRange),
        libc::FALLOC_FL_INSERT_RANGE => Ok(Allocation::InsertRange),
        _ => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
    }
}
