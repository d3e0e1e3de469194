//! Plays the part of a filesystem front end: asks the engine, then does it.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeagent_common::{EntryKind, RelPath};
use codeagent_interceptor::{
    Allocation, FileId, FileRef, Mutation, Permit, RenameMode, UndoEngine, WriteInterceptor,
};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    UTIME_OMIT, XattrFlags,
};

/// What happens between the engine's permission and the host operation; crash tests step in here.
pub type HostHook = Arc<dyn Fn() + Send + Sync>;

/// Applies operations to a working directory through an engine.
///
/// Paths are relative to the working directory. Every method returns what the system call would.
#[derive(Clone)]
pub struct Applier<'e> {
    engine: &'e UndoEngine,
    root: PathBuf,
    host_hook: Option<HostHook>,
}

impl<'e> Applier<'e> {
    pub fn new(engine: &'e UndoEngine, root: &Path) -> Self {
        Self { engine, root: root.to_path_buf(), host_hook: None }
    }

    /// Calls `hook` before each host operation that the engine leaves to the front end.
    pub fn with_host_hook(mut self, hook: HostHook) -> Self {
        self.host_hook = Some(hook);
        self
    }

    pub fn engine(&self) -> &'e UndoEngine {
        self.engine
    }

    /// Where a path lies on the host.
    pub fn full_path(&self, path: impl AsRef<[u8]>) -> PathBuf {
        self.root.join(OsStr::from_bytes(path.as_ref()))
    }

    /// Asks for permission, runs the host operation, and reports its outcome.
    fn apply<T>(
        &self,
        mutation: &Mutation<'_>,
        host: impl FnOnce() -> io::Result<T>,
        performed: T,
    ) -> io::Result<T> {
        let permit = self.engine.before(mutation)?;
        if permit.performed() {
            return Ok(performed);
        }
        if let Some(hook) = &self.host_hook {
            hook();
        }
        finish(permit, host())
    }

    fn simple(
        &self,
        mutation: &Mutation<'_>,
        host: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.apply(mutation, host, ())
    }

    /// Creates a file that must not exist, and writes to it.
    pub fn create(&self, path: impl AsRef<[u8]>, content: &[u8]) -> io::Result<()> {
        let file = self.create_open(path.as_ref())?;
        if content.is_empty() { Ok(()) } else { self.write_open(&file, path, 0, content) }
    }

    /// Creates a file that must not exist and keeps it open.
    pub fn create_open(&self, path: impl AsRef<[u8]>) -> io::Result<File> {
        let full = self.full_path(&path);
        let mutation = Mutation::Create { path: rel(path.as_ref())?, kind: EntryKind::File };
        let permit = self.engine.before(&mutation)?;
        if let Some(hook) = &self.host_hook {
            hook();
        }
        let mut options = OpenOptions::new();
        match options.read(true).write(true).create_new(true).mode(0o644).open(full) {
            Ok(file) => {
                permit.created(FileId::of(&file)?);
                Ok(file)
            }
            Err(error) => {
                permit.failed();
                Err(error)
            }
        }
    }

    pub fn open(&self, path: impl AsRef<[u8]>) -> io::Result<File> {
        unblocking().read(true).write(true).open(self.full_path(path))
    }

    pub fn write(&self, path: impl AsRef<[u8]>, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.open(&path)?;
        self.write_open(&file, path, offset, bytes)
    }

    /// Writes through a handle, as a process does whose file may have lost its name.
    pub fn write_open(
        &self,
        file: &File,
        path: impl AsRef<[u8]>,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<()> {
        let host = || file.write_all_at(bytes, offset);
        let length = bytes.len() as u64;
        if let Some(permit) = self.engine.repeat_write(FileId::of(file)?, offset, length) {
            return finish(permit, host());
        }
        let file_ref = FileRef { path: rel(path.as_ref())?, open: Some(file) };
        self.simple(&Mutation::Write { file: file_ref, offset, length }, host)
    }

    pub fn append(&self, path: impl AsRef<[u8]>, bytes: &[u8]) -> io::Result<()> {
        let file = unblocking().append(true).open(self.full_path(&path))?;
        let file_ref = FileRef { path: rel(path.as_ref())?, open: Some(&file) };
        self.simple(&Mutation::Append { file: file_ref }, || (&file).write_all(bytes))
    }

    /// `truncate`, to any length.
    pub fn truncate(&self, path: impl AsRef<[u8]>, length: u64) -> io::Result<()> {
        let file = unblocking().write(true).open(self.full_path(&path))?;
        let file_ref = FileRef { path: rel(path.as_ref())?, open: Some(&file) };
        self.simple(&Mutation::Truncate { file: file_ref, length }, || file.set_len(length))
    }

    /// `open(O_TRUNC)` of an existing file, then a write.
    pub fn overwrite(&self, path: impl AsRef<[u8]>, content: &[u8]) -> io::Result<()> {
        let full = self.full_path(&path);
        full.symlink_metadata()?;
        let file_ref = FileRef::at(rel(path.as_ref())?);
        let mutation = Mutation::Truncate { file: file_ref, length: 0 };
        let open = || unblocking().write(true).truncate(true).open(&full).map(Some);
        match self.apply(&mutation, open, None)? {
            Some(file) => self.write_open(&file, path, 0, content),
            None => Ok(()),
        }
    }

    /// Editors' way of saving: a temporary file renamed over the old one.
    pub fn save_by_rename(&self, path: impl AsRef<[u8]>, content: &[u8]) -> io::Result<()> {
        let mut temporary = path.as_ref().to_vec();
        temporary.extend_from_slice(b".tmp~");
        self.create(&temporary, content)?;
        self.rename(&temporary, path)
    }

    pub fn unlink(&self, path: impl AsRef<[u8]>) -> io::Result<()> {
        let full = self.full_path(&path);
        self.simple(&Mutation::Unlink { path: rel(path.as_ref())? }, || fs::remove_file(full))
    }

    pub fn mkdir(&self, path: impl AsRef<[u8]>) -> io::Result<()> {
        let full = self.full_path(&path);
        self.simple(&Mutation::Mkdir { path: rel(path.as_ref())? }, || fs::create_dir(full))
    }

    pub fn rmdir(&self, path: impl AsRef<[u8]>) -> io::Result<()> {
        let full = self.full_path(&path);
        self.simple(&Mutation::Rmdir { path: rel(path.as_ref())? }, || fs::remove_dir(full))
    }

    /// `rm -rf`, entry by entry.
    pub fn remove_all(&self, path: impl AsRef<[u8]>) -> io::Result<()> {
        let path = path.as_ref();
        let full = self.full_path(path);
        if !full.symlink_metadata()?.is_dir() {
            return self.unlink(path);
        }
        let mut names: Vec<_> =
            fs::read_dir(&full)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
        names.sort();
        for name in names {
            self.remove_all([path, b"/", name.as_bytes()].concat())?;
        }
        self.rmdir(path)
    }

    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> io::Result<()> {
        let full = self.full_path(&path);
        let mutation = Mutation::Create { path: rel(path.as_ref())?, kind: EntryKind::Symlink };
        self.simple(&mutation, || {
            std::os::unix::fs::symlink(OsStr::from_bytes(target.as_ref()), full)
        })
    }

    pub fn mkfifo(&self, path: impl AsRef<[u8]>) -> io::Result<()> {
        let full = self.full_path(&path);
        let mutation = Mutation::Create { path: rel(path.as_ref())?, kind: EntryKind::Fifo };
        self.simple(&mutation, || {
            let mode = Mode::from_raw_mode(0o644);
            Ok(rustix::fs::mknodat(CWD, full, FileType::Fifo, mode, 0)?)
        })
    }

    pub fn link(&self, existing: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> io::Result<()> {
        let (from, to) = (self.full_path(&existing), self.full_path(&path));
        let existing = Some(rel(existing.as_ref())?);
        self.simple(&Mutation::Link { existing, path: rel(path.as_ref())? }, || {
            Ok(rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty())?)
        })
    }

    /// `open(O_TMPFILE)`, write, `linkat`.
    pub fn link_tmpfile(&self, path: impl AsRef<[u8]>, content: &[u8]) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let to = self.full_path(&path);
        let dir = to.parent().unwrap_or(&self.root);
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let file = File::from(rustix::fs::open(dir, flags, Mode::from_raw_mode(0o644))?);
        file.write_all_at(content, 0)?;
        let mutation = Mutation::Link { existing: None, path: rel(path.as_ref())? };
        let permit = self.engine.before(&mutation)?;
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        match rustix::fs::linkat(CWD, from, CWD, to, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => {
                permit.created(FileId::of(&file)?);
                Ok(())
            }
            Err(errno) => {
                permit.failed();
                Err(errno.into())
            }
        }
    }

    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> io::Result<()> {
        self.rename_with(from.as_ref(), to.as_ref(), RenameMode::Replace, RenameFlags::empty())
    }

    pub fn rename_noreplace(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> io::Result<()> {
        self.rename_with(from.as_ref(), to.as_ref(), RenameMode::NoReplace, RenameFlags::NOREPLACE)
    }

    pub fn exchange(&self, a: impl AsRef<[u8]>, b: impl AsRef<[u8]>) -> io::Result<()> {
        self.rename_with(a.as_ref(), b.as_ref(), RenameMode::Exchange, RenameFlags::EXCHANGE)
    }

    fn rename_with(
        &self,
        from: &[u8],
        to: &[u8],
        mode: RenameMode,
        flags: RenameFlags,
    ) -> io::Result<()> {
        let (full_from, full_to) = (self.full_path(from), self.full_path(to));
        let mutation = Mutation::Rename { from: rel(from)?, to: rel(to)?, mode };
        self.simple(&mutation, || {
            Ok(rustix::fs::renameat_with(CWD, full_from, CWD, full_to, flags)?)
        })
    }

    /// Changes attributes through a descriptor: by then, another file may have the name.
    fn attributes(
        &self,
        path: &[u8],
        host: impl FnOnce(PathBuf) -> io::Result<()>,
    ) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::open(self.full_path(path), flags, Mode::empty())?;
        let file = FileRef { path: rel(path)?, open: Some(&handle) };
        let through = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
        self.simple(&Mutation::SetAttributes { file }, || host(through))
    }

    pub fn chmod(&self, path: impl AsRef<[u8]>, mode: u32) -> io::Result<()> {
        self.attributes(path.as_ref(), |full| {
            if fs::metadata(&full)?.is_symlink() {
                return Err(rustix::io::Errno::OPNOTSUPP.into());
            }
            fs::set_permissions(full, fs::Permissions::from_mode(mode))
        })
    }

    pub fn chown(&self, path: impl AsRef<[u8]>, uid: u32, gid: u32) -> io::Result<()> {
        self.attributes(path.as_ref(), |full| std::os::unix::fs::chown(full, Some(uid), Some(gid)))
    }

    pub fn set_mtime(&self, path: impl AsRef<[u8]>, seconds: i64, ns: u32) -> io::Result<()> {
        self.attributes(path.as_ref(), |full| {
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: Timespec { tv_sec: seconds, tv_nsec: ns.into() },
            };
            Ok(rustix::fs::utimensat(CWD, full, &times, AtFlags::empty())?)
        })
    }

    pub fn set_xattr(&self, path: impl AsRef<[u8]>, name: &str, value: &[u8]) -> io::Result<()> {
        self.attributes(path.as_ref(), |full| {
            Ok(rustix::fs::setxattr(full, name, value, XattrFlags::empty())?)
        })
    }

    pub fn remove_xattr(&self, path: impl AsRef<[u8]>, name: &str) -> io::Result<()> {
        self.attributes(path.as_ref(), |full| Ok(rustix::fs::removexattr(full, name)?))
    }

    pub fn allocate(
        &self,
        path: impl AsRef<[u8]>,
        how: Allocation,
        offset: u64,
        length: u64,
    ) -> io::Result<()> {
        let file = self.open(&path)?;
        let flags = match how {
            Allocation::Extend => FallocateFlags::empty(),
            Allocation::KeepSize => FallocateFlags::KEEP_SIZE,
            Allocation::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Allocation::ZeroRange => FallocateFlags::ZERO_RANGE,
            Allocation::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
            Allocation::InsertRange => FallocateFlags::INSERT_RANGE,
        };
        let file_ref = FileRef { path: rel(path.as_ref())?, open: Some(&file) };
        let mutation = Mutation::Allocate { file: file_ref, how, offset, length };
        self.simple(&mutation, || Ok(rustix::fs::fallocate(&file, flags, offset, length)?))
    }

    /// `copy_file_range` from one file into another.
    pub fn copy_range(
        &self,
        from: impl AsRef<[u8]>,
        to: impl AsRef<[u8]>,
        to_offset: u64,
        length: usize,
    ) -> io::Result<()> {
        let source = unblocking().read(true).open(self.full_path(from))?;
        let target = self.open(&to)?;
        let file_ref = FileRef { path: rel(to.as_ref())?, open: Some(&target) };
        let mutation = Mutation::Write { file: file_ref, offset: to_offset, length: length as u64 };
        self.simple(&mutation, || {
            let mut at = (0, to_offset);
            let mut left = length;
            while left > 0 {
                let (from_at, to_at) = (Some(&mut at.0), Some(&mut at.1));
                let done = rustix::fs::copy_file_range(&source, from_at, &target, to_at, left)?;
                if done == 0 {
                    break;
                }
                left -= done;
            }
            Ok(())
        })
    }

    /// A writer the engine does not see, as through a shared mapping.
    pub fn write_unseen(&self, path: impl AsRef<[u8]>, bytes: &[u8]) -> io::Result<()> {
        let file = self.open(&path)?;
        let file_ref = FileRef { path: rel(path.as_ref())?, open: Some(&file) };
        self.simple(&Mutation::OpenUnseen { file: file_ref }, || Ok(()))?;
        file.write_all_at(bytes, 0)
    }
}

impl std::fmt::Debug for Applier<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Applier").field("root", &self.root).finish_non_exhaustive()
    }
}

/// As a front end opens what it has looked up: a FIFO does not wait, a symlink is not followed.
fn unblocking() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed());
    options
}

fn rel(path: &[u8]) -> io::Result<RelPath<'_>> {
    RelPath::new(path).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

fn finish<T>(permit: Permit<'_>, outcome: io::Result<T>) -> io::Result<T> {
    match outcome {
        Ok(value) => {
            permit.done();
            Ok(value)
        }
        Err(error) => {
            permit.failed();
            Err(error)
        }
    }
}
