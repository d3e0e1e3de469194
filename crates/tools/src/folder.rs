//! A working directory, held open.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions};
use codeagent_common::{RelPath, RelPathBuf};

use crate::error::{Result, ToolError};

#[derive(Debug)]
pub struct Folder {
    pub(crate) dir: Dir,
    /// Its name, for absolute paths that clients give; never opened again.
    path: PathBuf,
    /// The name it was opened by, which may lead through symlinks.
    given: PathBuf,
}

impl Folder {
    /// Opens the directory, which is what later calls work in, whatever becomes of its name.
    pub fn open(path: &Path) -> io::Result<Self> {
        let given = std::path::absolute(path)?;
        let path = path.canonicalize()?;
        Ok(Self { dir: Dir::open_ambient_dir(&path, ambient_authority())?, path, given })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What a client means by a path: relative to the directory, or absolute and below it.
    pub fn resolve(&self, path: &str) -> Result<RelPathBuf> {
        let below =
            |root: &Path| RelPathBuf::resolve(root.as_os_str().as_encoded_bytes(), path.as_bytes());
        below(&self.path)
            .or_else(|error| below(&self.given).map_err(|_| error))
            .map_err(|source| ToolError::Path { path: path.to_owned(), source })
    }

    /// An ordinary file, for reading. Symlinks are followed as far as they stay inside.
    pub(crate) fn open_file(&self, path: RelPath<'_>) -> Result<File> {
        let file =
            self.dir.open_with(native(path), &for_reading()).map_err(ToolError::io(shown(path)))?;
        let file = file.into_std();
        let kind = file.metadata().map_err(ToolError::io(shown(path)))?.file_type();
        if kind.is_dir() {
            return Err(ToolError::IsDirectory(shown(path)));
        }
        if !kind.is_file() {
            return Err(ToolError::NotAFile(shown(path)));
        }
        Ok(file)
    }

    pub(crate) fn open_dir(&self, path: RelPath<'_>) -> Result<Dir> {
        let opened =
            if path.is_root() { self.dir.try_clone() } else { self.dir.open_dir(native(path)) };
        opened.map_err(ToolError::io(shown(path)))
    }
}

/// Without waiting: a FIFO that nobody writes to would keep us.
pub(crate) fn for_reading() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use cap_std::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    }
    options
}

/// The path as the system wants it.
pub(crate) fn native(path: RelPath<'_>) -> PathBuf {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        if path.is_root() {
            return PathBuf::from(".");
        }
        PathBuf::from(std::ffi::OsStr::from_bytes(path.as_bytes()))
    }
    #[cfg(not(unix))]
    PathBuf::from(path.display().into_owned())
}

pub(crate) fn shown(path: RelPath<'_>) -> String {
    path.display().into_owned()
}
