//! Content and attributes of one inode, found by name or by handle.

use codeagent_common::{PathUse, RelPath, RelPathBuf};
use parking_lot::{MutexGuard, RwLockReadGuard};
use rustix::io::Errno;

use super::locks::same;
use super::{Attempt, errno};
use crate::capture::{Capture, Recorder, Wanted};
use crate::engine::UndoEngine;
use crate::engine::state::{OpenStep, State};
use crate::error::{Result, UndoError};
use crate::host::{Entry, FileId, Stamp, is_absent};
use crate::interceptor::FileRef;
use crate::permit::Permit;
use crate::store::{At, ObjectRef};

impl UndoEngine {
    /// Content or attributes of one inode change.
    pub(super) fn change<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        (file, number): (FileRef<'_>, Option<u64>),
        wanted: Wanted,
    ) -> Attempt<'e> {
        let recorder = self.recorder(&gate)?;
        // The name may change under us a few times; a file that never holds still is refused.
        for attempt in 0..64 {
            let known = if attempt == 0 { self.locate_known(recorder, file)? } else { None };
            let located = match known {
                Some(known) => Some(known),
                None => self.locate(file)?,
            };
            let Some(located) = located else {
                // It has no name in the working directory and is in no step: nothing to undo.
                return Ok(Permit::gated(gate));
            };
            same(number, located.id)?;
            self.judge_elsewhere(&located, wanted, gate.open.as_ref())?;
            // Writing to a FIFO or device changes nothing but its times.
            let wanted = if located.stamp.is_file() { wanted } else { Wanted::Attributes };
            let state = recorder.inodes.state(located.id);
            if state.covers(wanted) || self.skips_symlink(&located.stamp) {
                return Ok(Permit::gated(gate));
            }
            self.check_overwrite(&gate, &located, &state, wanted)?;
            let _capturing = state.capturing.lock();
            if state.covers(wanted) {
                return Ok(Permit::gated(gate));
            }
            let content = match wanted {
                Wanted::Attributes => None,
                Wanted::Content(span) => {
                    let (entry, id) = (&located.entry, located.id);
                    match recorder.capture_content(&self.workspace, entry, id, &state, span)? {
                        Capture::Stored(content) => Some(content),
                        Capture::Elsewhere => continue,
                        Capture::Unprotected => return Ok(Permit::gated(gate)),
                    }
                }
            };
            // The name must stand for the file when the record is written, and until its
            // attributes have been read.
            let names = self.share_names();
            let Some((entry, dir)) = self.hold_still(&located)? else { continue };
            let (workspace, at) = (&self.workspace, located.at());
            let appended = recorder.append_preimage(
                workspace,
                (at, &located.stamp),
                &entry,
                &state,
                content,
            )?;
            drop((dir, names));
            if appended {
                return Ok(Permit::gated(gate));
            }
        }
        errno(Errno::AGAIN)
    }

    /// The policy was asked about the name that the front end knows. If the file has another one by
    /// now, that is the one that counts.
    pub(super) fn judge_elsewhere(
        &self,
        located: &Located<'_>,
        wanted: Wanted,
        step: Option<&OpenStep>,
    ) -> Result<()> {
        let Place::Elsewhere(path) = &located.place else { return Ok(()) };
        let usage = match wanted {
            Wanted::Attributes => PathUse::Attributes,
            Wanted::Content(_) => PathUse::Write,
        };
        self.judge_path(path.as_path(), usage, step)
    }

    /// A file that is being overwritten piece by piece, which is not looked at each time: its name
    /// is, when the record is written.
    fn locate_known<'a>(
        &self,
        recorder: &Recorder,
        file: FileRef<'a>,
    ) -> Result<Option<Located<'a>>> {
        let Some(open) = file.open else { return Ok(None) };
        let id = open.id().map_err(UndoError::host)?;
        let Some(reader) = recorder.readers.get(id) else { return Ok(None) };
        let entry = self.workspace.tree.find_owned(file.path).map_err(UndoError::host)?;
        let place = Place::Path(file.path);
        Ok(entry.map(|entry| Located { place, entry, id, stamp: reader.stamp }))
    }

    pub(super) fn locate<'a>(&self, file: FileRef<'a>) -> Result<Option<Located<'a>>> {
        let open = match file.open {
            Some(open) => Some(open.id().map_err(UndoError::host)?),
            None => None,
        };
        if let Some(located) = self.locate_path(file.path, open)? {
            return Ok(Some(located));
        }
        let Some(id) = open else {
            return Err(UndoError::host(Errno::NOENT.into()));
        };
        // While names change, a file that has one all the time can seem to have none.
        let _names = self.own_names();
        if let Some(located) = self.locate_path(file.path, open)? {
            return Ok(Some(located));
        }
        let object = match self.workspace.moved.latest(id) {
            Some(object) => self.locate_object(object, id)?,
            None => None,
        };
        match object {
            // The store has its only name.
            Some(located) if located.stamp.links <= 1 => Ok(Some(located)),
            object => Ok(self.locate_by_handle(file, id)?.or(object)),
        }
    }

    pub(super) fn locate_path<'a>(
        &self,
        path: RelPath<'a>,
        open: Option<FileId>,
    ) -> Result<Option<Located<'a>>> {
        // Whoever has the file open need not be able to reach it by its name.
        let Some(entry) = self.workspace.tree.find_owned(path).map_err(UndoError::host)? else {
            return Ok(None);
        };
        let found = entry.stat_id().map_err(UndoError::host)?;
        Ok(found.filter(|(id, _)| open.is_none_or(|open| open == *id)).map(|(id, stamp)| Located {
            place: Place::Path(path),
            entry,
            id,
            stamp,
        }))
    }

    /// How many names the store has for a file.
    pub(super) fn count_kept(&self, id: FileId) -> u32 {
        let kept = self.workspace.moved.all(id).into_iter();
        let is_there = |object| matches!(self.locate_object(object, id), Ok(Some(_)));
        kept.filter(|object| is_there(*object)).count() as u32
    }

    pub(super) fn locate_object<'a>(
        &self,
        object: ObjectRef,
        id: FileId,
    ) -> Result<Option<Located<'a>>> {
        let Some(entry) = self.object_entry(object)? else {
            return Ok(None);
        };
        let found = entry.stat_id().map_err(UndoError::host)?.filter(|(found, _)| *found == id);
        Ok(found.map(|(_, stamp)| Located { place: Place::Object(object), entry, id, stamp }))
    }

    /// The name the kernel knows an open file by, if it is in the working directory: somebody
    /// outside renamed it.
    pub(super) fn locate_by_handle<'a>(
        &self,
        file: FileRef<'a>,
        id: FileId,
    ) -> Result<Option<Located<'a>>> {
        use std::os::fd::AsRawFd;
        use std::os::unix::ffi::OsStrExt;
        let Some(open) = file.open else { return Ok(None) };
        let fd = open.file().map_err(UndoError::host)?;
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let named = std::fs::read_link(link).ok().and_then(|name| {
            let below = name.strip_prefix(&self.config.working_dir).ok()?;
            RelPathBuf::new(below.as_os_str().as_bytes()).ok()
        });
        if let Some(path) = named
            && let Some(located) = self.locate_elsewhere(path, id)?
        {
            return Ok(Some(located));
        }
        let stat = rustix::fs::fstat(fd).map_err(|errno| UndoError::host(errno.into()))?;
        if stat.st_nlink == 0 {
            return Ok(None);
        }
        // It lost the name it was opened by and has another one: a hard link, anywhere.
        let mut elsewhere = None;
        crate::host::walk(self.workspace.tree.root(), RelPath::ROOT, &mut |path, found, _, _| {
            if found == id {
                elsewhere = Some(path.to_buf());
            }
            Ok(())
        })
        .map_err(UndoError::host)?;
        match elsewhere {
            Some(path) => self.locate_elsewhere(path, id),
            None => Ok(None),
        }
    }

    pub(super) fn locate_elsewhere<'a>(
        &self,
        path: RelPathBuf,
        id: FileId,
    ) -> Result<Option<Located<'a>>> {
        let Some((parent, name)) = path.as_path().split() else {
            return Ok(None);
        };
        let Ok(dir) = self.workspace.tree.owned_dir(parent) else {
            return Ok(None);
        };
        let entry = dir.entry(name.to_vec()).owned();
        match entry.stat_id().map_err(UndoError::host)? {
            Some((found, stamp)) if found == id => {
                Ok(Some(Located { place: Place::Elsewhere(path), entry, id, stamp }))
            }
            _ => Ok(None),
        }
    }

    /// The file's name, locked; `None` if another file has it by now.
    pub(super) fn hold_still<'l>(
        &self,
        located: &'l Located<'_>,
    ) -> Result<Option<(Entry<'l>, Option<MutexGuard<'_, ()>>)>> {
        let (entry, dir) = match located.at() {
            At::Path(path) if path.is_root() => {
                (self.workspace.tree.owned_entry(path).map_err(UndoError::host)?, None)
            }
            At::Path(path) => match self.current(path, |tree| tree.owned_entry(path)) {
                Err(UndoError::Io { source, .. }) if is_absent(&source) => return Ok(None),
                resolved => resolved.map(|(entry, dir)| (entry, Some(dir)))?,
            },
            At::Object(_) => (located.entry.clone(), None),
        };
        let now = entry.stat_id().map_err(UndoError::host)?;
        Ok(now.is_some_and(|(id, _)| id == located.id).then_some((entry, dir)))
    }
}

/// A file that was found, by name or in the store.
pub(super) struct Located<'a> {
    place: Place<'a>,
    entry: Entry<'a>,
    pub(super) id: FileId,
    pub(super) stamp: Stamp,
}

enum Place<'a> {
    Path(RelPath<'a>),
    /// In the working directory, under a name the front end does not know.
    Elsewhere(RelPathBuf),
    Object(ObjectRef),
}

impl Located<'_> {
    pub(super) fn at(&self) -> At<'_> {
        match &self.place {
            Place::Path(path) => At::Path(*path),
            Place::Elsewhere(path) => At::Path(path.as_path()),
            Place::Object(object) => At::Object(*object),
        }
    }
}
