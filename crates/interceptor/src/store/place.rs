//! Where things are in the undo directory.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat};

use crate::host::Dir;

/// A path that is looked up from an open directory, if there is one: a step opens some thirty files,
/// and by a long path, or one through `/proc`, each would take twice as long.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    from: Option<Arc<OwnedFd>>,
    path: PathBuf,
}

impl Place {
    /// What is in this directory.
    pub(crate) fn within(dir: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let from = rustix::fs::open(dir, flags, Mode::empty())?;
        Ok(Self { from: Some(Arc::new(from)), path: PathBuf::new() })
    }

    pub(crate) fn join(&self, name: impl AsRef<Path>) -> Self {
        Self { from: self.from.clone(), path: self.path.join(name) }
    }

    /// From the open directory, if there is one.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file that is to take its place.
    fn successor(&self) -> Self {
        Self { from: self.from.clone(), path: self.path.with_extension("new") }
    }

    fn parent(&self) -> Option<Self> {
        Some(Self { from: self.from.clone(), path: self.path.parent()?.into() })
    }

    fn from(&self) -> BorrowedFd<'_> {
        self.from.as_ref().map_or(CWD, |from| from.as_fd())
    }

    fn name(&self) -> &Path {
        if self.path.as_os_str().is_empty() { Path::new(".") } else { &self.path }
    }

    fn open_with(&self, flags: OFlags, mode: Mode) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(self.from(), self.name(), flags, mode);
        Ok(rustix::io::retry_on_intr(open)?.into())
    }

    /// To be read.
    pub(crate) fn open(&self) -> io::Result<File> {
        self.open_with(OFlags::RDONLY, Mode::empty())
    }

    /// To be written to and read.
    pub(crate) fn open_to_change(&self) -> io::Result<File> {
        self.open_with(OFlags::RDWR, Mode::empty())
    }

    /// Makes a file that is not there, for nobody else.
    pub(crate) fn create_new(&self) -> io::Result<File> {
        self.open_with(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR)
    }

    pub(crate) fn open_dir(&self) -> io::Result<Arc<Dir>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        Dir::from_fd(self.open_with(flags, Mode::empty())?.into())
    }

    pub(crate) fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open()?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn read_to_string(&self) -> io::Result<String> {
        let mut text = String::new();
        self.open()?.read_to_string(&mut text)?;
        Ok(text)
    }

    pub(crate) fn write(&self, content: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        self.open_with(flags, Mode::from_raw_mode(0o666))?.write_all(content)
    }

    /// Puts what `fill` makes of a new file in the place of this one, as a whole.
    pub(crate) fn replace(&self, fill: impl FnOnce(&Self) -> io::Result<()>) -> io::Result<()> {
        let new = self.successor();
        fill(&new)?;
        new.rename_to(self)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.open()?.sync_all()
    }

    /// Against power loss: what has come to this name, or gone from it, stays so.
    pub(crate) fn sync_name(&self) -> io::Result<()> {
        self.parent().map_or(Ok(()), |parent| parent.sync())
    }

    pub(crate) fn create_dir(&self) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(self.from(), self.name(), Mode::from_raw_mode(0o777))?)
    }

    pub(crate) fn remove_file(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(self.from(), self.name(), AtFlags::empty())?)
    }

    pub(crate) fn remove_dir(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(self.from(), self.name(), AtFlags::REMOVEDIR)?)
    }

    pub(crate) fn rename_to(&self, other: &Self) -> io::Result<()> {
        Ok(rustix::fs::renameat(self.from(), self.name(), other.from(), other.name())?)
    }

    pub(crate) fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::statat(self.from(), self.name(), AtFlags::empty())?)
    }

    pub(crate) fn exists(&self) -> bool {
        rustix::fs::statat(self.from(), self.name(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }
}

/// By a path of its own.
impl<T: Into<PathBuf>> From<T> for Place {
    fn from(path: T) -> Self {
        Self { from: None, path: path.into() }
    }
}

/// Within one undo directory.
impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for Place {}
