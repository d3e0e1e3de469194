//! Changes by path, for tools that are not clients of a transport. They go the way of every other
//! mutation, and follow no symlink.

use std::ffi::{CStr, CString};
use std::io;

use codeagent_common::RelPath;
use codeagent_interceptor::WriteInterceptor;
use virtiofsd::filesystem::{Context, Entry, Extensions, FileSystem, SetattrValid};
use virtiofsd::fuse::SetattrIn;

use crate::intercepted::{InterceptedFs, is_dir};
use crate::names::invalid;
use crate::paths::ROOT;
use crate::transfer::Outgoing;

/// As much as one request of a transport would carry.
const CHUNK_BYTES: usize = 1 << 20;

const NEW_FILE: u32 = libc::S_IFREG | 0o666;
const NEW_DIR: u32 = 0o777;

/// An inode that is known for as long as this lives.
struct Known<'a, I: WriteInterceptor> {
    fs: &'a InterceptedFs<I>,
    inode: u64,
    is_dir: bool,
}

impl<I: WriteInterceptor> Drop for Known<'_, I> {
    fn drop(&mut self) {
        if self.inode != ROOT {
            self.fs.forget(context(), self.inode, 1);
        }
    }
}

impl<I: WriteInterceptor> InterceptedFs<I> {
    /// Makes the file, or replaces what is in it.
    pub fn write_file(&self, path: RelPath<'_>, content: &[u8]) -> io::Result<()> {
        self.put(path, content, libc::O_TRUNC)
    }

    pub fn append_to_file(&self, path: RelPath<'_>, content: &[u8]) -> io::Result<()> {
        self.put(path, content, libc::O_APPEND)
    }

    /// Makes the directory and those above it; those that exist already will do.
    pub fn make_dirs(&self, path: RelPath<'_>) -> io::Result<()> {
        let mut at = self.known_root();
        for name in path.components() {
            let name = c_name(name)?;
            let made = self.mkdir(context(), at.inode, &name, NEW_DIR, umask(), no_extensions());
            at = match made {
                Ok(entry) => self.known(&entry),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    self.step_into(&at, &name)?
                }
                Err(error) => return Err(error),
            };
            if !at.is_dir {
                return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
            }
        }
        Ok(())
    }

    /// A file, a symlink, or an empty directory; with `recursive`, whatever is in it.
    pub fn remove_path(&self, path: RelPath<'_>, recursive: bool) -> io::Result<()> {
        let (parent, name) = self.parent_of(path)?;
        if !self.step_into(&parent, &name)?.is_dir {
            return self.unlink(context(), parent.inode, &name);
        }
        if recursive {
            return self.remove_tree(path);
        }
        self.rmdir(context(), parent.inode, &name)
    }

    /// Replaces a file that has the name already.
    pub fn rename_path(&self, from: RelPath<'_>, to: RelPath<'_>) -> io::Result<()> {
        let (from_parent, from_name) = self.parent_of(from)?;
        let (to_parent, to_name) = self.parent_of(to)?;
        self.rename(context(), from_parent.inode, &from_name, to_parent.inode, &to_name, 0)
    }

    pub fn set_mode(&self, path: RelPath<'_>, mode: u32) -> io::Result<()> {
        let known = self.find(path)?;
        let attributes = SetattrIn { mode: mode & 0o7777, ..SetattrIn::default() };
        self.setattr(context(), known.inode, attributes, None, SetattrValid::MODE).map(|_| ())
    }

    fn put(&self, path: RelPath<'_>, content: &[u8], how: i32) -> io::Result<()> {
        let (parent, name) = self.parent_of(path)?;
        let flags = (libc::O_WRONLY | how) as u32;
        let (entry, handle, _) = self.create(
            context(),
            parent.inode,
            &name,
            NEW_FILE,
            false,
            flags,
            umask(),
            no_extensions(),
        )?;
        let file = self.known(&entry);
        let handle = handle.ok_or_else(invalid)?;
        let outcome = self.write_all(file.inode, handle, content, flags);
        let closed = self.release(context(), file.inode, flags, handle, false, false, None);
        outcome.and(closed)
    }

    fn write_all(&self, inode: u64, handle: u64, content: &[u8], flags: u32) -> io::Result<()> {
        let mut written = 0;
        while written < content.len() {
            let rest = &content[written..];
            let size = rest.len().min(CHUNK_BYTES);
            let (bytes, offset) = (Outgoing(&rest[..size]), written as u64);
            let more = self.write(
                context(),
                inode,
                handle,
                bytes,
                size as u32,
                offset,
                None,
                false,
                false,
                flags,
            )?;
            if more == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            written += more;
        }
        Ok(())
    }

    /// Trees can be deeper than a stack: files first, then the directories that were found, the
    /// last one first.
    fn remove_tree(&self, path: RelPath<'_>) -> io::Result<()> {
        let mut found = vec![path.to_buf()];
        let mut looked_at = 0;
        while let Some(dir) = found.get(looked_at).cloned() {
            looked_at += 1;
            for name in self.names_in(dir.as_path())? {
                let below = dir.as_path().join(&name).map_err(|_| invalid())?;
                let (parent, name) = self.parent_of(below.as_path())?;
                if self.step_into(&parent, &name)?.is_dir {
                    found.push(below);
                } else {
                    self.unlink(context(), parent.inode, &name)?;
                }
            }
        }
        for dir in found.iter().rev() {
            let (parent, name) = self.parent_of(dir.as_path())?;
            self.rmdir(context(), parent.inode, &name)?;
        }
        Ok(())
    }

    fn names_in(&self, path: RelPath<'_>) -> io::Result<Vec<Vec<u8>>> {
        use virtiofsd::filesystem::DirectoryIterator;
        let dir = self.find(path)?;
        let (handle, _) = self.opendir(context(), dir.inode, 0)?;
        let handle = handle.ok_or_else(invalid)?;
        let listed = || {
            let mut names = Vec::new();
            let mut offset = 0;
            loop {
                let mut entries =
                    self.readdir(context(), dir.inode, handle, CHUNK_BYTES as u32, offset)?;
                let before = offset;
                while let Some(entry) = entries.next() {
                    offset = entry.offset;
                    let name = entry.name.to_bytes();
                    if name != b"." && name != b".." {
                        names.push(name.to_vec());
                    }
                }
                if offset == before {
                    return Ok(names);
                }
            }
        };
        let names = listed();
        let closed = self.releasedir(context(), dir.inode, 0, handle);
        names.and_then(|names| closed.map(|()| names))
    }

    fn known_root(&self) -> Known<'_, I> {
        Known { fs: self, inode: ROOT, is_dir: true }
    }

    fn known(&self, entry: &Entry) -> Known<'_, I> {
        Known { fs: self, inode: entry.inode, is_dir: is_dir(entry) }
    }

    fn step_into<'a>(&'a self, dir: &Known<'a, I>, name: &CStr) -> io::Result<Known<'a, I>> {
        Ok(self.known(&self.lookup(context(), dir.inode, name)?))
    }

    fn find(&self, path: RelPath<'_>) -> io::Result<Known<'_, I>> {
        let mut at = self.known_root();
        for name in path.components() {
            at = self.step_into(&at, &c_name(name)?)?;
        }
        Ok(at)
    }

    fn parent_of(&self, path: RelPath<'_>) -> io::Result<(Known<'_, I>, CString)> {
        let (parent, name) = path.split().ok_or_else(invalid)?;
        Ok((self.find(parent)?, c_name(name)?))
    }
}

fn c_name(name: &[u8]) -> io::Result<CString> {
    CString::new(name).map_err(|_| invalid())
}

/// This process itself asks.
fn context() -> Context {
    Context {
        uid: rustix::process::geteuid().as_raw().into(),
        gid: rustix::process::getegid().as_raw().into(),
        pid: std::process::id() as i32,
    }
}

/// Threads that serve have none of their own; this is what people usually have.
fn umask() -> u32 {
    0o022
}

fn no_extensions() -> Extensions {
    Extensions::default()
}
