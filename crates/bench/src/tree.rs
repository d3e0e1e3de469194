//! The directory trees that are worked on.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use codeagent_common::{RelPath, RelPathBuf};

const FILES_PER_DIR: usize = 100;

/// Files of one size, a hundred to a directory.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) dirs: Vec<RelPathBuf>,
    pub(crate) files: Vec<RelPathBuf>,
    size_bytes: usize,
}

impl Tree {
    pub(crate) fn new(files: usize, size_bytes: usize) -> Result<Self> {
        let mut tree = Self { dirs: Vec::new(), files: Vec::with_capacity(files), size_bytes };
        for number in 0..files {
            if number % FILES_PER_DIR == 0 {
                let name = format!("dir_{:04}", number / FILES_PER_DIR);
                tree.dirs.push(RelPathBuf::new(name.as_bytes())?);
            }
            let name = format!("dir_{:04}/file_{number:06}.txt", number / FILES_PER_DIR);
            tree.files.push(RelPathBuf::new(name.as_bytes())?);
        }
        Ok(tree)
    }

    /// What file `number` holds: text, no two files alike.
    pub(crate) fn content(&self, number: usize) -> Vec<u8> {
        let mut text = Vec::with_capacity(self.size_bytes + 64);
        let mut line = 0;
        while text.len() < self.size_bytes {
            // Writing to a vector does not fail.
            let _ =
                writeln!(text, "file {number}, line {line}: let value_{line} = {};", line * number);
            line += 1;
        }
        text.truncate(self.size_bytes);
        text
    }

    pub(crate) fn make_dirs(&self, root: &Path) -> Result<()> {
        fs::create_dir_all(root)?;
        for dir in &self.dirs {
            fs::create_dir(host_path(root, dir.as_path()))?;
        }
        Ok(())
    }

    pub(crate) fn fill(&self, root: &Path) -> Result<()> {
        self.make_dirs(root)?;
        for (number, file) in self.files.iter().enumerate() {
            fs::write(host_path(root, file.as_path()), self.content(number))?;
        }
        Ok(())
    }

    /// Every so many files, `count` of them.
    pub(crate) fn spread(&self, count: usize) -> impl Iterator<Item = RelPath<'_>> {
        let stride = (self.files.len() / count).max(1);
        self.files.iter().step_by(stride).take(count).map(RelPathBuf::as_path)
    }
}

pub(crate) fn host_path(root: &Path, path: RelPath<'_>) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStrExt;
    root.join(std::ffi::OsStr::from_bytes(path.as_bytes()))
}

/// What an entry is: type and mode, time of change in seconds and nanoseconds, content of a file.
type Seen = (u32, i64, i64, Vec<u8>);

/// Everything in a directory.
pub(crate) fn exactly(dir: &Path) -> Result<BTreeMap<PathBuf, Seen>> {
    let mut entries = BTreeMap::new();
    let mut pending = vec![dir.to_path_buf()];
    while let Some(path) = pending.pop() {
        let meta = fs::symlink_metadata(&path)?;
        if meta.is_dir() {
            for entry in fs::read_dir(&path)? {
                pending.push(entry?.path());
            }
        }
        let content = if meta.is_file() { fs::read(&path)? } else { Vec::new() };
        entries.insert(path, (meta.mode(), meta.mtime(), meta.mtime_nsec(), content));
    }
    Ok(entries)
}
