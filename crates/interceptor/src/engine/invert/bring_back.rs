//! What the journal's mutations took away comes back.

use std::io;

use codeagent_common::{RelPath, RelPathBuf};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::{Inversion, put_region};
use crate::capture::Recorder;
use crate::error::{Result, UndoError};
use crate::host::{Entry, FileId, Found, Meta, Stamp, walk};
use crate::store::{Body, ObjectRef, Owner, Record, Remade};

impl Inversion<'_> {
    /// The name for something that comes back; `None` if it cannot have it.
    pub(super) fn free_place<'p>(&mut self, path: RelPath<'p>) -> Result<Option<Entry<'p>>> {
        let found = self.find(path)?;
        self.free_place_of(path, found)
    }

    /// The same, of a name that was looked at.
    fn free_place_of<'p>(
        &mut self,
        path: RelPath<'p>,
        found: Option<Found<'p>>,
    ) -> Result<Option<Entry<'p>>> {
        if self.skips(path) {
            return Ok(None);
        }
        if let Some(parent) = path.parent()
            && !self.make_parents(parent)?
        {
            self.leave(path);
            return Ok(None);
        }
        let Some(found) = found else {
            return Ok(Some(self.workspace.tree.owned_entry(path).map_err(UndoError::host)?));
        };
        if !self.treatment.force || self.recorder.is_none() {
            return self.outrun(path).map(|()| None);
        }
        self.workspace.tree.forget_dirs();
        self.remove(path, &found)?;
        Ok(Some(found.entry))
    }

    /// What `record` speaks of. If the host refuses it, it has not happened.
    pub(super) fn happen<T>(
        &self,
        record: Option<u64>,
        mutate: impl FnOnce() -> io::Result<T>,
    ) -> Result<T> {
        self.mutation()?;
        mutate().map_err(|error| {
            self.recorder.inspect(|recorder| recorder.cancel(record));
            UndoError::host(error)
        })
    }

    /// Directories that somebody else removed are made again for what belongs into them.
    pub(super) fn make_parents(&mut self, path: RelPath<'_>) -> Result<bool> {
        match self.workspace.tree.owned_dir(path) {
            Ok(_) => return Ok(true),
            Err(error) if !matches!(Errno::from_io_error(&error), Some(Errno::NOENT)) => {
                return Ok(false);
            }
            Err(_) => {}
        }
        let Some(parent) = path.parent() else {
            return Ok(false);
        };
        if !self.make_parents(parent)? {
            return Ok(false);
        }
        let entry = self.workspace.tree.owned_entry(path).map_err(UndoError::host)?;
        let record = self.note(&[(entry.dir_handle(), parent)], Record::Mkdir { path })?;
        self.happen(record, || entry.mkdir())?;
        self.mark_made(&entry)?;
        Ok(true)
    }

    pub(super) fn mark_made(&self, entry: &Entry<'_>) -> Result<Option<FileId>> {
        let id = entry.stat_id().map_err(UndoError::host)?.map(|(id, _)| id);
        if let (Some(recorder), Some(id)) = (self.recorder, id) {
            recorder.inodes.mark_created(id);
        }
        Ok(id)
    }

    pub(super) fn remake_dir(&mut self, path: RelPath<'_>, meta: &Meta) -> Result<()> {
        if let Some(found) = self.find(path)?
            && found.stamp.is_dir()
            && self.recorder.is_none()
        {
            // Never removed, or made already before recovery was interrupted.
            self.remember_remade(meta.stamp.inode, &found.entry, path)?;
            return meta.apply(&found.entry).map_err(UndoError::host);
        }
        let Some(entry) = self.free_place(path)? else {
            return Ok(());
        };
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        let record = self.note(&[(entry.dir_handle(), parent)], Record::Mkdir { path })?;
        self.happen(record, || entry.mkdir())?;
        self.mark_made(&entry)?;
        self.remember_remade(meta.stamp.inode, &entry, path)?;
        meta.apply(&entry).map_err(UndoError::host)?;
        self.report.restored += 1;
        Ok(())
    }

    pub(super) fn remember_remade(
        &self,
        former: u64,
        entry: &Entry<'_>,
        path: RelPath<'_>,
    ) -> Result<()> {
        let Some(stamp) = entry.stat().map_err(UndoError::host)? else {
            return Ok(());
        };
        if stamp.inode == former {
            return Ok(());
        }
        let sequence = self.recorder.map_or(self.sequence, Recorder::sequence);
        self.workspace
            .remade
            .add(Remade { former, inode: stamp.inode, path: path.to_buf(), sequence })
            .map_err(UndoError::io("noting a remade file"))
    }

    /// `is_free`: the inverse before this one has emptied the place. Whoever takes it in this moment
    /// makes the rename fail, as in the moment after a look.
    pub(super) fn put_back(
        &mut self,
        path: RelPath<'_>,
        is_free: bool,
        number: u32,
        stamp: &Stamp,
    ) -> Result<()> {
        let object = self.objects.entry(number.to_string().into_bytes());
        let id = match self.recorder {
            // Whoever undoes or redoes has looked at all objects just now.
            Some(_) => FileId { inode: stamp.inode, ..self.objects.id },
            None => match object.stat_id().map_err(UndoError::host)? {
                Some((id, _)) => id,
                None => return Ok(()),
            },
        };
        let found = if is_free { None } else { self.find(path)? };
        if found.as_ref().is_some_and(|found| found.id == id) {
            // It was about to be replaced, and never was: drop the second name.
            self.mutation()?;
            return object.unlink().map_err(UndoError::host);
        }
        let Some(entry) = self.free_place_of(path, found)? else {
            return Ok(());
        };
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        let from = ObjectRef { owner: Owner::Sequence(self.sequence), number };
        let put = Record::Put { path, from, stamp: *stamp };
        let record = self.note(&[(entry.dir_handle(), parent)], put)?;
        self.happen(record, || object.rename_to(&entry))?;
        self.workspace.moved.remove(id, from);
        self.report.restored += 1;
        Ok(())
    }

    pub(super) fn remake(
        &mut self,
        index: u64,
        path: RelPath<'_>,
        meta: &Meta,
        body: &Body,
    ) -> Result<()> {
        if let Some(found) = self.find(path)? {
            if found.stamp.inode == meta.stamp.inode {
                return Ok(()); // never removed
            }
            if self.resumed_at == Some(index) {
                // Half made when recovery was interrupted.
                self.mutation()?;
                found.entry.unlink().map_err(UndoError::host)?;
            }
        }
        let Some(entry) = self.free_place(path)? else {
            return Ok(());
        };
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        let dirs = [(entry.dir_handle(), parent)];
        let other = if meta.stamp.links > 1 { self.other_name(&meta.stamp)? } else { None };
        if let Some((existing, other, stamp)) = other {
            let existing = Some((existing.as_path(), stamp));
            let record = self.note(&dirs, Record::Link { path, existing })?;
            self.happen(record, || other.link_to(&entry))?;
            self.report.restored += 1;
            return Ok(());
        }
        let settled = self.recorder.map_or(0, |recorder| recorder.journal().extent().0);
        let record = self.note(&dirs, Record::Create { path, kind: meta.stamp.kind(), settled })?;
        match body {
            Body::File(region) => {
                let file = self.happen(record, || entry.create_file())?;
                self.mark_made(&entry)?;
                file.set_len(meta.stamp.size).map_err(UndoError::host)?;
                put_region(&self.pack, &file, region)?;
            }
            Body::Symlink(target) => self.happen(record, || entry.symlink(target))?,
            Body::Special => self.happen(record, || {
                entry.mknod(FileType::from_raw_mode(meta.stamp.mode), meta.stamp.rdev)
            })?,
        }
        self.mark_made(&entry)?;
        meta.apply(&entry).map_err(UndoError::host)?;
        self.remember_remade(meta.stamp.inode, &entry, path)?;
        self.report.restored += 1;
        Ok(())
    }

    /// Another name of a file that could not be moved, and still has one, or has one again.
    pub(super) fn other_name(
        &self,
        stamp: &Stamp,
    ) -> Result<Option<(RelPathBuf, Entry<'static>, Stamp)>> {
        let (inode, hint) = self.workspace.remade.current(stamp.inode, self.sequence);
        let is_it = |found: &Stamp| found.inode == inode && found.file_type() == stamp.file_type();
        if let Some(hint) = hint
            && let Some(found) = self.find(hint.as_path())?.filter(|found| is_it(&found.stamp))
        {
            let (entry, stamp) = (found.entry.into_owned(), found.stamp);
            return Ok(Some((hint, entry, stamp)));
        }
        // Only for hard-linked files that could not be moved: the other name can be anywhere.
        let mut other = None;
        walk(self.workspace.tree.root(), RelPath::ROOT, &mut |path, _, found, entry| {
            if other.is_none() && is_it(found) {
                other = Some((path.to_buf(), entry.clone().into_owned(), *found));
            }
            Ok(())
        })
        .map_err(UndoError::host)?;
        Ok(other)
    }
}
