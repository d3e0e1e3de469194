//! How each kind of mutation goes: ask, do it, tell how it went, remember the names.

use std::ffi::CStr;
use std::io;
use std::time::{Duration, Instant};

use codeagent_common::{EntryKind, RelPath, RelPathBuf};
use codeagent_interceptor::{
    FileId, FileRef, Mutation, OpenFile, Permit, Whereabouts, WriteInterceptor,
};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use virtiofsd::filesystem::{Context, Entry, Extensions, FileSystem, OpenOptions, SetattrValid};
use virtiofsd::fuse::SetattrIn;

use crate::handles::{Handle, Writable};
use crate::host_file::{self, Opened};
use crate::intercepted::{InterceptedFs, finish, has, read_only};
use crate::names::check_name;
use crate::paths::{Found, Told};

/// How long a file that was closed may still seem open.
const CLOSING: Duration = Duration::from_secs(1);

/// What a rename is about; others stay as they are while this lives.
pub(crate) struct Renamed<'a> {
    pub(crate) from: RelPathBuf,
    pub(crate) to: RelPathBuf,
    _held: Held<'a>,
}

#[expect(dead_code, reason = "they are only held")]
enum Held<'a> {
    Owned(RwLockWriteGuard<'a, ()>),
    Shared(RwLockReadGuard<'a, ()>),
}

impl<I: WriteInterceptor> InterceptedFs<I> {
    pub(crate) fn make_entry(
        &self,
        ctx: Context,
        (parent, name): (u64, &CStr),
        mutation: impl FnOnce(RelPath<'_>) -> Mutation<'_>,
        host: impl FnOnce() -> io::Result<Entry>,
    ) -> io::Result<Entry> {
        check_name(name)?;
        let _mutating = self.begin()?;
        let _names = self.shared.names.read();
        let path = self.shared.paths.child(parent, name.to_bytes())?;
        let permit = self.ask_within(parent, &mutation(path.as_path()))?;
        self.made(ctx, (parent, name), permit, host())
    }

    pub(crate) fn remove(
        &self,
        (parent, name): (u64, &CStr),
        mutation: impl FnOnce(RelPath<'_>) -> Mutation<'_>,
        host: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        check_name(name)?;
        let _mutating = self.begin()?;
        let _names = self.shared.names.read();
        let path = self.shared.paths.child(parent, name.to_bytes())?;
        let permit = self.ask_within(parent, &mutation(path.as_path()))?;
        let outcome = if permit.performed() { Ok(()) } else { host() };
        if outcome.is_ok() {
            self.shared.paths.removed(parent, name.to_bytes());
        }
        finish(permit, outcome)
    }

    /// A new file that is open at once; what exists already is opened instead.
    #[expect(clippy::too_many_arguments, reason = "the request has as many")]
    pub(crate) fn create_new(
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
        let _mutating = self.begin()?;
        let _names = self.shared.names.read();
        let path = self.shared.paths.child(parent, name.to_bytes())?;
        let create = Mutation::Create { path: path.as_path(), kind: EntryKind::File };
        let permit = self.ask_within(parent, &create)?;
        // Exclusive whatever the client wants: an existing file is not the interceptor's creation.
        let exclusive = flags | libc::O_EXCL as u32;
        let create = || {
            self.shared.fs.create(ctx, parent, name, mode, kill_priv, exclusive, umask, extensions)
        };
        let (entry, handle, options) = match self.handles.admit(create) {
            Ok(created) => created,
            Err(error) => return Err(self.not_made(ctx, (parent, name), permit, error)),
        };
        self.remember_made(ctx, (parent, name), &entry)?;
        if let Some(handle) = handle {
            self.handles.opened(handle, entry.inode);
            let file = host_file::id_behind_handle(&self.shared.fs, ctx, entry.inode, handle)?;
            let inspected = self.interceptor.inspects(path.as_path());
            let mappable = is_mappable(flags);
            self.remember(handle, Writable { inode: entry.inode, file, inspected, mappable });
            permit.created(file);
        }
        Ok((entry, handle, options))
    }

    /// The names of a rename, as they stay until it is done. Content that takes a name where it is
    /// inspected is not open for writing then, nor is anything in a directory that comes there: what
    /// is written through an open file afterwards, nobody would look at.
    pub(crate) fn hold_names(
        &self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        exchange: bool,
    ) -> io::Result<Renamed<'_>> {
        let paths = &self.shared.paths;
        let mut exclusive =
            paths.may_be_dir(from.0, from.1) || (exchange && paths.may_be_dir(to.0, to.1));
        let deadline = Instant::now() + CLOSING;
        loop {
            let held = match exclusive {
                true => Held::Owned(self.shared.names.write()),
                false => Held::Shared(self.shared.names.read()),
            };
            let (old, new) = (paths.child(from.0, from.1)?, paths.child(to.0, to.1)?);
            let inspects = |path: &RelPathBuf| self.interceptor.inspects(path.as_path());
            if !exclusive && (inspects(&new) || (exchange && inspects(&old))) {
                exclusive = true;
                continue;
            }
            let is_clear = !exclusive
                || !(self.carries_writers(&old, &new)
                    || (exchange && self.carries_writers(&new, &old)));
            if is_clear {
                return Ok(Renamed { from: old, to: new, _held: held });
            }
            if Instant::now() >= deadline {
                return Err(io::Error::from_raw_os_error(libc::EPERM));
            }
            // The kernel tells of a close a moment after it.
            drop(held);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether a file that is open for writing gets a name where content is inspected.
    fn carries_writers(&self, from: &RelPathBuf, to: &RelPathBuf) -> bool {
        self.shared.writers.any(|inode| {
            let path = self.shared.paths.path(inode).unwrap_or_default();
            let below = path.as_path().strip(from.as_path());
            below.is_some_and(|below| {
                self.interceptor.inspects(to.as_path().concat(below).as_path())
            })
        })
    }

    pub(crate) fn write_permit(
        &self,
        ctx: Context,
        (inode, handle): (u64, u64),
        file: FileId,
        mutation: impl Fn(FileRef<'_>) -> Mutation<'_>,
    ) -> io::Result<Permit<'_>> {
        let _names = self.shared.names.read();
        let file = Opened::new(&self.shared.fs, ctx, (inode, handle), file);
        self.ask_about(inode, Some(&file), mutation)
    }

    /// Tells how the making of a name went, and remembers what it stands for.
    pub(crate) fn made(
        &self,
        ctx: Context,
        (parent, name): (u64, &CStr),
        permit: Permit<'_>,
        outcome: io::Result<Entry>,
    ) -> io::Result<Entry> {
        let entry = match outcome {
            Ok(entry) => entry,
            Err(error) => return Err(self.not_made(ctx, (parent, name), permit, error)),
        };
        self.remember_made(ctx, (parent, name), &entry)?;
        permit.done();
        Ok(entry)
    }

    fn remember_made(
        &self,
        ctx: Context,
        (parent, name): (u64, &CStr),
        entry: &Entry,
    ) -> io::Result<()> {
        let name = (parent, name.to_bytes());
        match self.shared.paths.made(self.client, name, Found::of(entry)) {
            Ok(told) => {
                self.hold_once(ctx, entry.inode, told);
                Ok(())
            }
            Err(error) => {
                self.shared.fs.forget(ctx, entry.inode, 1);
                Err(error)
            }
        }
    }

    /// The filesystem below counts each time that it tells of a file. Here it is counted how often
    /// each client was told; below, one count for each of them is enough.
    pub(crate) fn hold_once(&self, ctx: Context, inode: u64, told: Told) {
        if told == Told::Again {
            self.shared.fs.forget(ctx, inode, 1);
        }
    }

    /// Making a name failed, which can also happen after it was made. Then nothing is said about
    /// it, and undo looks for itself.
    fn not_made(
        &self,
        ctx: Context,
        (parent, name): (u64, &CStr),
        permit: Permit<'_>,
        error: io::Error,
    ) -> io::Error {
        match self.shared.fs.lookup(ctx, parent, name) {
            Ok(entry) => {
                self.shared.fs.forget(ctx, entry.inode, 1);
                drop(permit);
            }
            Err(_) => permit.failed(),
        }
        error
    }

    /// Changes a file that is perhaps not open.
    pub(crate) fn change<T>(
        &self,
        ctx: Context,
        (inode, handle): (u64, Option<u64>),
        mutation: impl Fn(FileRef<'_>) -> Mutation<'_>,
        host: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let _names = self.shared.names.read();
        let file = match handle {
            Some(handle) => Some(host_file::behind_handle(&self.shared.fs, ctx, inode, handle)?),
            None => host_file::behind_inode(&self.shared.fs, ctx, inode)?,
        };
        let open = file.as_ref().map(|file| file as &dyn OpenFile);
        let permit = self.ask_about(inode, open, mutation)?;
        finish(permit, host())
    }

    fn ask_about(
        &self,
        inode: u64,
        open: Option<&dyn OpenFile>,
        mutation: impl Fn(FileRef<'_>) -> Mutation<'_>,
    ) -> io::Result<Permit<'_>> {
        let path = self.shared.paths.path(inode)?;
        // An open file says itself which one it is.
        let file = if open.is_none() { self.shared.paths.number(inode) } else { None };
        let whereabouts = Whereabouts { file, ..Whereabouts::default() };
        self.ask(&mutation(FileRef { path: path.as_path(), open }), whereabouts)
    }

    /// Opens a file that exists. Truncation is a mutation of its own, with the open file at hand.
    pub(crate) fn open_existing(
        &self,
        ctx: Context,
        inode: u64,
        kill_priv: bool,
        flags: u32,
    ) -> io::Result<(Option<u64>, OpenOptions)> {
        let writable = flags as i32 & libc::O_ACCMODE != libc::O_RDONLY;
        let truncate = has(flags, libc::O_TRUNC);
        if self.read_only && (writable || truncate) {
            return Err(read_only());
        }
        let (handle, options) = {
            // What is opened for writing is known before a rename looks for it.
            let _names = writable.then(|| self.shared.names.read());
            let open = || self.shared.fs.open(ctx, inode, kill_priv, only_opening(flags));
            let (handle, options) = self.handles.admit(open)?;
            let Some(handle) = handle else { return Ok((None, options)) };
            self.handles.opened(handle, inode);
            if writable && let Err(error) = self.opened_for_writing(ctx, inode, handle, flags) {
                self.close_again(ctx, inode, handle);
                return Err(error);
            }
            (handle, options)
        };
        if truncate
            && let Err(error) = self.truncate_opened(ctx, inode, handle, writable, kill_priv)
        {
            self.close_again(ctx, inode, handle);
            return Err(error);
        }
        Ok((Some(handle), options))
    }

    fn opened_for_writing(
        &self,
        ctx: Context,
        inode: u64,
        handle: u64,
        flags: u32,
    ) -> io::Result<()> {
        let file = host_file::id_behind_handle(&self.shared.fs, ctx, inode, handle)?;
        let inspected = self.interceptor.inspects(self.shared.paths.path(inode)?.as_path());
        let mappable = is_mappable(flags);
        self.remember(handle, Writable { inode, file, inspected, mappable });
        Ok(())
    }

    /// No client has heard of the handle.
    fn close_again(&self, ctx: Context, inode: u64, handle: u64) {
        if self.closed(handle, Handle { inode, is_dir: false }).is_ok() {
            let _ = self.shared.fs.release(ctx, inode, 0, handle, false, false, None);
        }
    }

    fn truncate_opened(
        &self,
        ctx: Context,
        inode: u64,
        handle: u64,
        writable: bool,
        kill_priv: bool,
    ) -> io::Result<()> {
        let _mutating = self.begin()?;
        let attr = SetattrIn::default();
        let through = writable.then_some(handle);
        let mut valid = SetattrValid::SIZE;
        valid.set(SetattrValid::KILL_SUIDGID, kill_priv);
        let host = || self.shared.fs.setattr(ctx, inode, attr, through, valid);
        let place = (inode, Some(handle));
        self.change(ctx, place, |file| Mutation::Truncate { file, length: 0 }, host).map(|_| ())
    }
}

/// Whether what is opened so can be mapped for writing.
fn is_mappable(flags: u32) -> bool {
    flags as i32 & libc::O_ACCMODE == libc::O_RDWR
}

/// The flags that open a file and do nothing else: clients may send any.
fn only_opening(flags: u32) -> u32 {
    const TMPFILE: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;
    flags & !((libc::O_TRUNC | libc::O_CREAT | libc::O_EXCL | libc::O_PATH | TMPFILE) as u32)
}
