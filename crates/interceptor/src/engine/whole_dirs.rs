//! New directories of an overlay, which come as a whole, by one rename. What does not belong into
//! them is taken away first: the overlay's marks, and what the path policy denies.

use std::io;
use std::sync::Arc;

use codeagent_common::{PathUse, RelPath, RelPathBuf};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::UndoEngine;
use super::overlay::same_content;
use super::state::{OpenStep, State};
use crate::error::{Result, UndoError};
use crate::host::{Dir, Entry, OverlayMarks, descend, remove_all, scan};

/// What was in a new directory and does not come with it.
#[derive(Default)]
pub(super) struct TakenOut {
    /// With the rule of the path policy that denies it.
    pub(super) denied: Vec<(RelPathBuf, String)>,
    pub(super) devices: Vec<RelPathBuf>,
}

impl UndoEngine {
    /// Cleans the directory `top`, which is to come to `path`. If something `moved` in the overlay,
    /// from these paths among others, it may be in there. What was taken out comes back.
    pub(super) fn clean(
        &self,
        state: &State,
        path: RelPath<'_>,
        top: &Entry<'_>,
        moved: Option<&[RelPathBuf]>,
    ) -> Result<TakenOut> {
        let policy = &self.config.paths;
        let guarded = policy.guards_below(path, PathUse::Appear);
        let root = top.open_dir().map_err(UndoError::host)?;
        let step = state.open.as_ref();
        let out = TakenOut::default();
        let mut cleaning = Cleaning { engine: self, step, path, root, guarded, moved, out };
        let minded = guarded && path.components().any(|name| policy.minds(name));
        if !minded && moved.is_none() && cleaning.clean_what_matters()? {
            return Ok(cleaning.out);
        }
        let impure = moved.is_some() && OverlayMarks::of(top).map_err(UndoError::host)?.impure;
        cleaning.clean_below(vec![Below { at: RelPath::ROOT.to_buf(), impure, minded }])?;
        Ok(cleaning.out)
    }
}

struct Cleaning<'a> {
    engine: &'a UndoEngine,
    step: Option<&'a OpenStep>,
    path: RelPath<'a>,
    root: Arc<Dir>,
    guarded: bool,
    /// What is gone from the working directory, if anything has moved.
    moved: Option<&'a [RelPathBuf]>,
    out: TakenOut,
}

/// A directory in it.
struct Below {
    at: RelPathBuf,
    /// Its entries may have marks.
    impure: bool,
    /// The path policy minds a name on the way there.
    minded: bool,
}

impl Cleaning<'_> {
    /// There can be very much in it, of which next to nothing matters to anybody. `false` if it
    /// cannot be looked through so quickly.
    fn clean_what_matters(&mut self) -> Result<bool> {
        let (policy, guarded) = (&self.engine.config.paths, self.guarded);
        let matters = |name: &[u8], kind: FileType| {
            use FileType::{Directory, RegularFile, Symlink};
            !matches!(kind, Directory | RegularFile | Symlink) || (guarded && policy.minds(name))
        };
        let Ok(found) = scan(&self.root, &matters) else { return Ok(false) };
        for (below, kind) in found {
            let (parent, name) = below.as_path().split().ok_or(errno(Errno::INVAL))?;
            let root = Arc::clone(&self.root);
            let entry = || Ok(descend(&root, parent)?.entry(name.to_vec()).owned());
            let kind = self.examine(below.as_path(), kind, guarded, &entry)?;
            if kind == Some(FileType::Directory) {
                self.clean_below(vec![Below { at: below, impure: false, minded: true }])?;
            }
        }
        Ok(true)
    }

    fn clean_below(&mut self, mut pending: Vec<Below>) -> Result<()> {
        while let Some(Below { at, impure, minded }) = pending.pop() {
            let dir = descend(&self.root, at.as_path()).map_err(UndoError::host)?;
            for (name, kind) in dir.listing().map_err(UndoError::host)? {
                let policy = &self.engine.config.paths;
                let minded = minded || (self.guarded && policy.minds(&name));
                let below = at.as_path().join(&name).map_err(|_| errno(Errno::INVAL))?;
                let entry = || Ok(dir.entry(name.clone()).owned());
                let Some(kind) = self.examine(below.as_path(), kind, minded, &entry)? else {
                    continue;
                };
                let is_dir = kind == FileType::Directory;
                // A directory says whether its entries have marks.
                let may_have_marks = is_dir || (impure && kind != FileType::Symlink);
                let impure = match self.moved.is_some() && may_have_marks {
                    true => strip(&entry).map_err(UndoError::host)?,
                    false => false,
                };
                if is_dir {
                    pending.push(Below { at: below, impure, minded });
                }
            }
        }
        Ok(())
    }

    /// What is at `below`, if it stays.
    fn examine(
        &mut self,
        below: RelPath<'_>,
        kind: FileType,
        minded: bool,
        entry: &dyn Fn() -> io::Result<Entry<'static>>,
    ) -> Result<Option<FileType>> {
        let host = UndoError::host;
        let kind = match kind {
            FileType::Unknown => match entry().and_then(|entry| entry.stat()).map_err(host)? {
                Some(stamp) => stamp.file_type(),
                None => return Ok(None),
            },
            kind => kind,
        };
        if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) {
            let entry = entry().map_err(host)?;
            // What a whiteout hid is not there any more.
            if !entry.stat().map_err(host)?.is_none_or(|stamp| stamp.is_whiteout()) {
                self.out.devices.push(self.path.concat(below));
            }
            entry.unlink().map_err(host)?;
            return Ok(None);
        }
        if !minded {
            return Ok(Some(kind));
        }
        let (path, engine) = (self.path.concat(below), self.engine);
        let policy = &engine.config.paths;
        let is_link = kind == FileType::Symlink && policy.leads_to_guarded(path.as_path());
        let is_looked_at = is_link || policy.inspects(path.as_path());
        let judged = engine.judge_path(path.as_path(), PathUse::Appear, self.step);
        let judged = judged.and_then(|()| match is_looked_at {
            true => engine.inspect(path.as_path(), &entry().map_err(host)?, self.step),
            false => Ok(()),
        });
        match judged {
            Err(UndoError::PathProtected { .. })
                if self.came_along(below, &entry().map_err(host)?).map_err(host)? =>
            {
                Ok(Some(kind))
            }
            Err(UndoError::PathProtected { path, rule }) => {
                entry().and_then(|entry| remove_all(&entry)).map_err(host)?;
                self.out.denied.push((path, rule));
                Ok(None)
            }
            verdict => verdict.map(|()| Some(kind)),
        }
    }
}

impl Cleaning<'_> {
    /// A directory has got another name, and what is protected in it is as it was, in the same place
    /// below it: programs outside obey it no more than before.
    fn came_along(&self, below: RelPath<'_>, entry: &Entry<'_>) -> io::Result<bool> {
        let policy = &self.engine.config.paths;
        let is_plain = |path: RelPath<'_>| !path.components().any(|name| policy.minds(name));
        if !is_plain(self.path) {
            return Ok(false);
        }
        for gone in self.moved.unwrap_or_default() {
            let former = gone.as_path().concat(below);
            let former = self.engine.workspace.tree.find_owned(former.as_path())?;
            if let Some(former) = former.filter(|_| is_plain(gone.as_path()))
                && is_copy(entry, &former)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether two entries are alike, with everything below them.
fn is_copy(one: &Entry<'_>, other: &Entry<'_>) -> io::Result<bool> {
    let (Some(a), Some(b)) = (one.stat()?, other.stat()?) else { return Ok(false) };
    if a.mode != b.mode {
        return Ok(false);
    }
    match a.file_type() {
        FileType::RegularFile => {
            Ok(a.size == b.size && same_content(&one.open_read()?, &other.open_read()?)?)
        }
        FileType::Symlink => Ok(one.read_link()? == other.read_link()?),
        FileType::Directory => {
            let (one, other) = (one.open_dir()?, other.open_dir()?);
            let mut names = one.names()?;
            let mut others = other.names()?;
            names.sort_unstable();
            others.sort_unstable();
            if names != others {
                return Ok(false);
            }
            for name in names {
                if !is_copy(&one.entry(name.clone()), &other.entry(name))? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Takes the overlay's marks away. Whether it was a directory whose entries may have some, too,
/// comes back.
fn strip(entry: &dyn Fn() -> io::Result<Entry<'static>>) -> io::Result<bool> {
    let entry = entry()?;
    let marks = OverlayMarks::of(&entry)?;
    marks.strip(&entry)?;
    Ok(marks.impure)
}

fn errno(errno: Errno) -> UndoError {
    UndoError::host(errno.into())
}
