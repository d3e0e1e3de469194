//! Whole trees, of any depth: one directory is open at a time, and nothing recurses.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use codeagent_common::{RelPath, RelPathBuf};
use rustix::fs::Mode;
use rustix::io::Errno;

use super::lend::{fd_path, is_refusal};
use super::tree::{open_beneath, reach_dir};
use super::{Dir, Entry, FileId, Stamp, is_absent};

/// Visits everything below `dir` (not itself), directories before their contents.
pub(crate) fn walk(
    dir: &Arc<Dir>,
    path: RelPath<'_>,
    visit: &mut dyn FnMut(RelPath<'_>, FileId, &Stamp, &Entry<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let mut pending = vec![RelPath::ROOT.to_buf()];
    while let Some(at) = pending.pop() {
        let here = match descend(dir, at.as_path()) {
            Err(error) if is_absent(&error) => continue, // somebody took it meanwhile
            here => here?,
        };
        for name in here.names()? {
            let below = join(at.as_path(), &name)?;
            let entry = here.entry(name).owned();
            let Some((id, stamp)) = entry.stat_id()? else {
                continue;
            };
            visit(path.concat(below.as_path()).as_path(), id, &stamp, &entry)?;
            if stamp.is_dir() {
                pending.push(below);
            }
        }
    }
    Ok(())
}

/// The directory at `path` below `dir`, for what the engine does of its own accord.
pub(crate) fn descend(dir: &Arc<Dir>, path: RelPath<'_>) -> io::Result<Arc<Dir>> {
    match open_beneath(dir, path) {
        Err(error) if is_refusal(&error) => reach_dir(dir, path),
        result => result,
    }
}

/// As [`walk`], no more than `limit` entries; `false` if there are more.
pub(crate) fn walk_some(
    dir: &Arc<Dir>,
    path: RelPath<'_>,
    limit: usize,
    visit: &mut dyn FnMut(RelPath<'_>, &Stamp),
) -> io::Result<bool> {
    let mut left = limit;
    let walked = walk(dir, path, &mut |path, _, stamp, _| {
        left = left.checked_sub(1).ok_or(io::ErrorKind::QuotaExceeded)?;
        visit(path, stamp);
        Ok(())
    });
    match walked {
        Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => Ok(false),
        result => result.map(|()| true),
    }
}

/// Removes an entry with everything below it, directories without permissions included.
pub(crate) fn remove_all(top: &Entry<'_>) -> io::Result<()> {
    if !top.stat()?.ok_or(Errno::NOENT)?.is_dir() {
        return top.unlink();
    }
    let root = top.open_dir()?;
    let mut pending = vec![RelPath::ROOT.to_buf()];
    while let Some(at) = pending.last() {
        let here = open_beneath(&root, at.as_path())?;
        let deeper = empty_of_files(&here, at.as_path())?;
        if !deeper.is_empty() {
            pending.extend(deeper);
            continue;
        }
        match at.as_path().split() {
            None => top.rmdir()?,
            Some((parent, name)) => open_beneath(&root, parent)?.entry(name).owned().rmdir()?,
        }
        pending.pop();
    }
    Ok(())
}

/// Removes what is not a directory; returns the directories.
fn empty_of_files(dir: &Arc<Dir>, path: RelPath<'_>) -> io::Result<Vec<RelPathBuf>> {
    const OWNER_MAY: u32 = 0o700;
    if Stamp::of(dir)?.1.permissions() & OWNER_MAY != OWNER_MAY {
        // If this is refused, so is what follows, with a better error.
        let _ = rustix::fs::chmod(fd_path(&dir.as_fd()), Mode::from_raw_mode(OWNER_MAY));
    }
    let mut deeper = Vec::new();
    for name in dir.names()? {
        let below = join(path, &name)?;
        let child = dir.entry(name).owned();
        match child.stat()? {
            Some(stamp) if stamp.is_dir() => deeper.push(below),
            Some(_) => child.unlink()?,
            None => {}
        }
    }
    Ok(deeper)
}

fn join(path: RelPath<'_>, name: &[u8]) -> io::Result<RelPathBuf> {
    Ok(path.join(name).map_err(|_| Errno::INVAL)?)
}
