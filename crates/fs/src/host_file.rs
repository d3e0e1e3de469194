//! The host file behind a handle or an inode.
//!
//! The filesystem below keeps its files to itself, but hands the one behind a handle to whoever
//! copies data out of it.

use std::cell::OnceCell;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use codeagent_interceptor::{FileId, OpenFile};
use virtiofsd::filesystem::{Context, FileSystem, ZeroCopyWriter};
use virtiofsd::oslib::ReadvFlags;
use virtiofsd::passthrough::PassthroughFs;

struct Peek<F>(F);

impl<F: FnMut(&File) -> io::Result<()>> ZeroCopyWriter for Peek<F> {
    fn read_from_file_at(
        &mut self,
        file: &File,
        _count: usize,
        _offset: u64,
        _flags: Option<ReadvFlags>,
    ) -> io::Result<usize> {
        (self.0)(file).map(|()| 0)
    }
}

/// A file that a client has open and is known by its handle. A descriptor of it is made when
/// somebody needs it, which is seldom.
pub(crate) struct Opened<'a> {
    fs: &'a PassthroughFs,
    ctx: Context,
    inode: u64,
    handle: u64,
    id: FileId,
    file: OnceCell<File>,
}

impl<'a> Opened<'a> {
    pub(crate) fn new(
        fs: &'a PassthroughFs,
        ctx: Context,
        (inode, handle): (u64, u64),
        id: FileId,
    ) -> Self {
        Self { fs, ctx, inode, handle, id, file: OnceCell::new() }
    }
}

impl OpenFile for Opened<'_> {
    fn id(&self) -> io::Result<FileId> {
        Ok(self.id)
    }

    fn file(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(file) = self.file.get() {
            return Ok(file.as_fd());
        }
        let file = behind_handle(self.fs, self.ctx, self.inode, self.handle)?;
        Ok(self.file.get_or_init(|| file).as_fd())
    }
}

impl fmt::Debug for Opened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("handle", &self.handle).field("id", &self.id).finish()
    }
}

/// A descriptor of its own: nothing may wait for the engine while the handle is locked, or a flush
/// of it, a write to it and an undo could wait for each other.
pub fn behind_handle<F: FileSystem<Inode = u64, Handle = u64>>(
    fs: &F,
    ctx: Context,
    inode: u64,
    handle: u64,
) -> io::Result<File> {
    let mut found = None;
    peek(fs, ctx, inode, handle, |file| {
        found = Some(file.try_clone()?);
        Ok(())
    })?;
    found.ok_or_else(crate::names::bad_descriptor)
}

pub(crate) fn id_behind_handle(
    fs: &PassthroughFs,
    ctx: Context,
    inode: u64,
    handle: u64,
) -> io::Result<FileId> {
    let mut found = None;
    peek(fs, ctx, inode, handle, |file| {
        found = Some(FileId::of(file)?);
        Ok(())
    })?;
    found.ok_or_else(crate::names::bad_descriptor)
}

/// The file an inode stands for, whatever its names are now; `None` for what is neither a file nor
/// a directory.
pub(crate) fn behind_inode(
    fs: &PassthroughFs,
    ctx: Context,
    inode: u64,
) -> io::Result<Option<File>> {
    let handle = match fs.open(ctx, inode, false, libc::O_PATH as u32) {
        Ok((handle, _)) => handle.ok_or_else(crate::names::bad_descriptor)?,
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => return Ok(None),
        Err(error) => return Err(error),
    };
    let file = behind_handle(fs, ctx, inode, handle);
    let _ = fs.release(ctx, inode, 0, handle, false, false, None);
    file.map(Some)
}

fn peek<F: FileSystem<Inode = u64, Handle = u64>>(
    fs: &F,
    ctx: Context,
    inode: u64,
    handle: u64,
    look: impl FnMut(&File) -> io::Result<()>,
) -> io::Result<()> {
    fs.read(ctx, inode, handle, Peek(look), 0, 0, None, 0).map(|_| ())
}
