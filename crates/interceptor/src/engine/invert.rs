//! Replaying a journal backwards.
//!
//! Undo inverts a step, redo inverts an undo; both record what they do as they do it, and so can
//! themselves be inverted. Recovery and denial invert without recording: there is no way back
//! from them, only a cursor from which they can go on.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::sync::Arc;

use codeagent_common::{RelPath, RelPathBuf, SymlinkPolicy};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::cursor::Cursor;
use super::provenance::{Provenance, Verdict};
use crate::capture::{Recorder, Removal, Span, Wanted, Workspace};
use crate::error::{Result, UndoError};
use crate::fold::Marks;
use crate::host::{
    Dir, Entry, FileId, Meta, Stamp, clone_file, copy_entry, copy_range, punch, remove_all, walk,
    write_all_at,
};
use crate::probe::Point;
use crate::store::{
    At, Body, Content, JournalReader, ObjectRef, Owner, PackReader, Record, Region, Remade, StepDir,
};

/// What an inversion did.
#[derive(Debug, Default)]
pub(super) struct Inverted {
    /// Paths brought back or changed back.
    pub(super) restored: u64,
    /// Paths removed because the journal's mutations had made them.
    pub(super) removed: u64,
    /// Paths left as they are, because somebody else's work is there.
    pub(super) left: Vec<RelPathBuf>,
    /// Somebody else's work that had to make room, kept among the journal's objects.
    pub(super) set_aside: Vec<RelPathBuf>,
    /// What was to be skipped, under the names it has now.
    pub(super) skip: Vec<RelPathBuf>,
}

/// How an inversion treats what it does not expect.
#[derive(Debug, Clone, Default)]
pub(super) struct Treatment {
    pub(super) symlinks: SymlinkPolicy,
    /// Leave these paths, and everything below them, alone.
    pub(super) skip: Vec<RelPathBuf>,
    /// The files among them, which may have other names, too.
    pub(super) skip_files: HashSet<FileId>,
    /// Move aside what is in the way (it can be redone), instead of leaving it.
    pub(super) force: bool,
    /// Files that somebody else has changed, and that are changed back all the same.
    pub(super) overridden: HashSet<FileId>,
}

pub(super) struct Inversion<'a> {
    workspace: &'a Workspace,
    journal: JournalReader,
    pack: PackReader,
    objects: Arc<Dir>,
    sequence: u64,
    recorder: Option<&'a Recorder>,
    cursor: Option<Cursor>,
    /// For an inversion for good.
    provenance: Option<&'a Provenance>,
    /// The record at which an interrupted recovery goes on; its inverse may be half done.
    resumed_at: Option<u64>,
    treatment: Treatment,
    report: Inverted,
}

impl<'a> Inversion<'a> {
    /// Inverts and records, so that it can be inverted again.
    pub(super) fn recorded(
        workspace: &'a Workspace,
        source: &StepDir,
        sequence: u64,
        recorder: &'a Recorder,
        treatment: Treatment,
    ) -> Result<Self> {
        Self::open(workspace, source, sequence, Some(recorder), None, treatment)
    }

    /// Inverts for good; can be interrupted and taken up again.
    pub(super) fn final_(
        workspace: &'a Workspace,
        source: &StepDir,
        sequence: u64,
        symlinks: SymlinkPolicy,
        provenance: &'a Provenance,
    ) -> Result<Self> {
        let cursor = Cursor::open(&source.cursor_path(), workspace.store.probe.clone())
            .map_err(UndoError::io("opening the recovery cursor"))?;
        let treatment = Treatment { symlinks, ..Treatment::default() };
        let mut inversion = Self::open(workspace, source, sequence, None, Some(cursor), treatment)?;
        inversion.provenance = Some(provenance);
        Ok(inversion)
    }

    fn open(
        workspace: &'a Workspace,
        source: &StepDir,
        sequence: u64,
        recorder: Option<&'a Recorder>,
        cursor: Option<Cursor>,
        treatment: Treatment,
    ) -> Result<Self> {
        let failed = || UndoError::io("reading the step");
        Ok(Self {
            workspace,
            journal: source.journal().map_err(failed())?,
            pack: source.pack().map_err(failed())?,
            objects: source.objects().map_err(failed())?,
            sequence,
            recorder,
            resumed_at: cursor.as_ref().and_then(Cursor::position),
            cursor,
            provenance: None,
            treatment,
            report: Inverted::default(),
        })
    }

    pub(super) fn run(mut self) -> Result<Inverted> {
        let damaged = |error: io::Error| UndoError::Corrupt(error.to_string());
        let marks = Marks::read(&self.journal).map_err(damaged)?;
        self.workspace.tree.forget_dirs();
        // Taken out so that records can borrow from it while `self` changes.
        let journal = std::mem::replace(&mut self.journal, JournalReader::empty());
        let first =
            self.resumed_at.map_or(journal.end(), |at| at.saturating_add(1).min(journal.end()));
        for index in (1..first).rev() {
            let record = journal.record(index).map_err(damaged)?;
            if marks.cancelled.contains(&index) || is_mark(&record) {
                continue;
            }
            if let Some(cursor) = &mut self.cursor {
                self.workspace
                    .store
                    .probe
                    .reach(Point::Recovery)
                    .and_then(|()| cursor.advance(index))
                    .map_err(UndoError::io("writing the recovery cursor"))?;
            }
            self.invert(index, &record, &marks)?;
        }
        self.workspace.tree.forget_dirs();
        self.report.skip = self.treatment.skip;
        Ok(self.report)
    }

    fn invert(&mut self, index: u64, record: &Record<'_>, marks: &Marks) -> Result<()> {
        match record {
            Record::Create { path, kind, .. } => {
                if self.leaves(*kind == codeagent_common::EntryKind::Symlink) {
                    return Ok(());
                }
                self.remove_made(index, *path, |provenance, found| {
                    provenance.of_created(index, found)
                })
            }
            Record::Link { path, existing } => self.remove_made(index, *path, |_, found| {
                let other = existing.is_some_and(|(_, stamp)| stamp.inode != found.stamp.inode);
                Ok(if other { Verdict::Former } else { Verdict::Own })
            }),
            Record::Put { path, from, stamp } => self.take_back(index, *path, *from, stamp),
            Record::Mkdir { path } => self.remove_dir(*path),
            Record::Rmdir { path, meta } => self.remake_dir(*path, meta),
            Record::Take { path, object, stamp, .. } => {
                if self.leaves(stamp.is_symlink()) {
                    return Ok(());
                }
                self.put_back(*path, *object, stamp)
            }
            Record::Removed { path, meta, body } => {
                if self.leaves(meta.stamp.is_symlink()) {
                    return Ok(());
                }
                self.remake(index, *path, meta, body)
            }
            Record::Rename { from, to, stamp } => {
                if self.leaves(stamp.is_symlink()) {
                    return Ok(());
                }
                self.rename_back(*from, *to)
            }
            Record::Exchange { a, b, stamp_a, stamp_b } => {
                let known = marks.done.contains(&index) && self.resumed_at != Some(index);
                self.exchange_back((*a, stamp_a), (*b, stamp_b), known)
            }
            Record::Preimage { at, meta, content } => {
                self.change_back(*at, meta.as_ref(), content.as_ref())
            }
            Record::Cancelled { .. } | Record::Done { .. } | Record::Unprotected { .. } => Ok(()),
        }
    }

    fn leaves(&self, is_symlink: bool) -> bool {
        is_symlink && self.treatment.symlinks != SymlinkPolicy::ReadWrite
    }

    /// Whether the path is one that must be left alone.
    fn skips(&mut self, path: RelPath<'_>) -> bool {
        let skipped = self.treatment.skip.iter().any(|conflict| path.is_within(conflict.as_path()));
        if skipped {
            self.leave(path);
        }
        skipped
    }

    fn leave(&mut self, path: RelPath<'_>) {
        if !self.report.left.iter().any(|left| left.as_path() == path) {
            self.report.left.push(path.to_buf());
        }
    }

    fn holds_skipped(&self, path: RelPath<'_>) -> bool {
        self.treatment.skip.iter().any(|conflict| conflict.as_path().is_within(path))
    }

    fn find<'p>(&self, path: RelPath<'p>) -> Result<Option<Found<'p>>> {
        let Some(entry) = self.workspace.tree.find_owned(path).map_err(UndoError::host)? else {
            return Ok(None);
        };
        let found = entry.stat_id().map_err(UndoError::host)?;
        Ok(found.map(|(id, stamp)| Found { entry, id, stamp }))
    }

    /// Before the engine changes the host.
    fn mutation(&self) -> Result<()> {
        self.workspace.store.probe.reach(Point::HostMutation).map_err(UndoError::host)
    }

    fn note(&self, dirs: &[(&Arc<Dir>, RelPath<'_>)], record: Record<'_>) -> Result<Option<u64>> {
        match self.recorder {
            Some(recorder) => recorder.append_touching(self.workspace, dirs, record).map(Some),
            None => Ok(None),
        }
    }

    /// Removes what the journal's mutation made.
    fn remove_made(
        &mut self,
        index: u64,
        path: RelPath<'_>,
        judge: impl FnOnce(&Provenance, &Found<'_>) -> Result<Verdict>,
    ) -> Result<()> {
        if self.skips(path) {
            return Ok(());
        }
        let Some(found) = self.find(path)? else {
            return Ok(());
        };
        if found.stamp.is_dir() && !self.treatment.force {
            self.leave(path); // somebody put a directory where the file was
            return Ok(());
        }
        if let Some(provenance) = self.provenance {
            match judge(provenance, &found)? {
                Verdict::Own => {}
                Verdict::Former => return Ok(()),
                Verdict::Foreign => return self.set_aside(index, path, &found),
            }
        }
        self.remove(path, &found)?;
        self.report.removed += 1;
        Ok(())
    }

    /// Makes room without destroying what may be somebody else's.
    fn set_aside(&mut self, index: u64, path: RelPath<'_>, found: &Found<'_>) -> Result<()> {
        let place = self.objects.entry(format!("aside-{index}").into_bytes());
        self.mutation()?;
        match found.entry.rename_to(&place) {
            Ok(()) => self.report.set_aside.push(path.to_buf()),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::XDEV) => {
                if place.stat().map_err(UndoError::host)?.is_some() {
                    remove_all(&place).map_err(UndoError::host)?; // half copied
                }
                copy_entry(&found.entry, &place).map_err(UndoError::host)?;
                remove_all(&found.entry).map_err(UndoError::host)?;
                self.report.set_aside.push(path.to_buf());
            }
            Err(error) => return Err(UndoError::host(error)),
        }
        Ok(())
    }

    fn remove(&mut self, path: RelPath<'_>, found: &Found<'_>) -> Result<()> {
        let Found { entry, id, stamp } = found;
        if let Some(recorder) = self.recorder {
            if stamp.is_dir() {
                return remove_dir_recorded(self.workspace, recorder, path, found);
            }
            if recorder.remove(self.workspace, path, entry, *id, *stamp)? == Removal::Done {
                return Ok(());
            }
            recorder.inodes.forget(*id);
        }
        self.mutation()?;
        remove_all(entry).map_err(UndoError::host)
    }

    /// Inverts a `Put`: out of the working directory again.
    fn take_back(
        &mut self,
        index: u64,
        path: RelPath<'_>,
        from: ObjectRef,
        stamp: &Stamp,
    ) -> Result<()> {
        if self.skips(path) {
            return Ok(());
        }
        let Some(found) = self.find(path)? else {
            return Ok(());
        };
        self.workspace.tree.forget_dirs();
        if self.recorder.is_some() {
            if found.stamp.is_dir() && self.holds_skipped(path) {
                self.leave(path);
                return Ok(());
            }
            self.remove(path, &found)?;
            self.report.removed += 1;
            return Ok(());
        }
        if let Some(provenance) = self.provenance
            && provenance.of_put(stamp, &found) == Verdict::Foreign
        {
            return self.set_aside(index, path, &found);
        }
        // Recovery: back to where it came from, or, if that was a staging area, out of the way.
        let home = self.object(from)?;
        let place = match home {
            Some(home) if home.stat().map_err(UndoError::host)?.is_some() => return Ok(()),
            Some(home) => home,
            None => self.objects.entry(format!("staged-{}", from.number).into_bytes()),
        };
        self.mutation()?;
        match found.entry.rename_to(&place) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::XDEV) => {
                remove_all(&found.entry)
            }
            result => result,
        }
        .map_err(UndoError::host)?;
        self.report.removed += 1;
        Ok(())
    }

    fn remove_dir(&mut self, path: RelPath<'_>) -> Result<()> {
        if self.skips(path) {
            return Ok(());
        }
        let Some(found) = self.find(path)? else {
            return Ok(());
        };
        if !found.stamp.is_dir() {
            self.leave(path);
            return Ok(());
        }
        self.workspace.tree.forget_dir(path);
        let empty = found.entry.open_dir().and_then(|dir| dir.names()).map_err(UndoError::host)?;
        if !empty.is_empty() {
            if self.recorder.is_some() && self.treatment.force && !self.holds_skipped(path) {
                self.workspace.tree.forget_dirs();
                self.remove(path, &found)?;
                self.report.removed += 1;
            } else {
                self.leave(path);
            }
            return Ok(());
        }
        if let Some(recorder) = self.recorder {
            recorder.record_rmdir(self.workspace, path, &found.entry, found.stamp)?;
            recorder.inodes.forget(found.id);
        }
        self.mutation()?;
        found.entry.rmdir().map_err(UndoError::host)?;
        self.report.removed += 1;
        Ok(())
    }

    /// The name for something that comes back; `None` if it cannot have it.
    fn free_place<'p>(&mut self, path: RelPath<'p>) -> Result<Option<Entry<'p>>> {
        if self.skips(path) {
            return Ok(None);
        }
        if let Some(parent) = path.parent()
            && !self.make_parents(parent)?
        {
            self.leave(path);
            return Ok(None);
        }
        let entry = self.workspace.tree.owned_entry(path).map_err(UndoError::host)?;
        let Some((id, stamp)) = entry.stat_id().map_err(UndoError::host)? else {
            return Ok(Some(entry));
        };
        if self.treatment.force && self.recorder.is_some() {
            self.workspace.tree.forget_dirs();
            self.remove(path, &Found { entry: entry.clone(), id, stamp })?;
            return Ok(Some(entry));
        }
        self.leave(path);
        Ok(None)
    }

    /// Directories that somebody else removed are made again for what belongs into them.
    fn make_parents(&mut self, path: RelPath<'_>) -> Result<bool> {
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
        self.note(&[(entry.dir_handle(), parent)], Record::Mkdir { path })?;
        self.mutation()?;
        entry.mkdir().map_err(UndoError::host)?;
        self.mark_made(&entry)?;
        Ok(true)
    }

    fn mark_made(&self, entry: &Entry<'_>) -> Result<Option<FileId>> {
        let id = entry.stat_id().map_err(UndoError::host)?.map(|(id, _)| id);
        if let (Some(recorder), Some(id)) = (self.recorder, id) {
            recorder.inodes.mark_created(id);
        }
        Ok(id)
    }

    fn remake_dir(&mut self, path: RelPath<'_>, meta: &Meta) -> Result<()> {
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
        self.note(&[(entry.dir_handle(), parent)], Record::Mkdir { path })?;
        self.mutation()?;
        entry.mkdir().map_err(UndoError::host)?;
        self.mark_made(&entry)?;
        self.remember_remade(meta.stamp.inode, &entry, path)?;
        meta.apply(&entry).map_err(UndoError::host)?;
        self.report.restored += 1;
        Ok(())
    }

    fn remember_remade(&self, former: u64, entry: &Entry<'_>, path: RelPath<'_>) -> Result<()> {
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

    fn put_back(&mut self, path: RelPath<'_>, number: u32, stamp: &Stamp) -> Result<()> {
        let object = self.objects.entry(number.to_string().into_bytes());
        let Some((id, _)) = object.stat_id().map_err(UndoError::host)? else {
            return Ok(());
        };
        if let Some(found) = self.find(path)?
            && found.id == id
        {
            // It was about to be replaced, and never was: drop the second name.
            self.mutation()?;
            return object.unlink().map_err(UndoError::host);
        }
        let Some(entry) = self.free_place(path)? else {
            return Ok(());
        };
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        let from = ObjectRef { owner: Owner::Sequence(self.sequence), number };
        self.note(&[(entry.dir_handle(), parent)], Record::Put { path, from, stamp: *stamp })?;
        self.mutation()?;
        object.rename_to(&entry).map_err(UndoError::host)?;
        self.workspace.moved.lock().remove(&id);
        self.report.restored += 1;
        Ok(())
    }

    fn remake(&mut self, index: u64, path: RelPath<'_>, meta: &Meta, body: &Body) -> Result<()> {
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
            self.note(&dirs, Record::Link { path, existing })?;
            self.mutation()?;
            other.link_to(&entry).map_err(UndoError::host)?;
            self.report.restored += 1;
            return Ok(());
        }
        let settled = self.recorder.map_or(0, |recorder| recorder.journal().extent().0);
        self.note(&dirs, Record::Create { path, kind: meta.stamp.kind(), settled })?;
        self.mutation()?;
        match body {
            Body::File(region) => {
                let file = entry.create_file().map_err(UndoError::host)?;
                self.mark_made(&entry)?;
                file.set_len(meta.stamp.size).map_err(UndoError::host)?;
                put_region(&self.pack, &file, region)?;
            }
            Body::Symlink(target) => entry.symlink(target).map_err(UndoError::host)?,
            Body::Special => entry
                .mknod(FileType::from_raw_mode(meta.stamp.mode), meta.stamp.rdev)
                .map_err(UndoError::host)?,
        }
        self.mark_made(&entry)?;
        meta.apply(&entry).map_err(UndoError::host)?;
        self.remember_remade(meta.stamp.inode, &entry, path)?;
        self.report.restored += 1;
        Ok(())
    }

    /// Another name of a file that could not be moved, and still has one, or has one again.
    fn other_name(&self, stamp: &Stamp) -> Result<Option<(RelPathBuf, Entry<'static>, Stamp)>> {
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

    fn rename_back(&mut self, from: RelPath<'_>, to: RelPath<'_>) -> Result<()> {
        if self.skips(to) {
            // What should go back stays; its old name stays as it is, too.
            self.treatment.skip.push(from.to_buf());
            return Ok(());
        }
        let Some(found) = self.find(to)? else {
            return Ok(());
        };
        if self.recorder.is_none() && self.find(from)?.is_some() {
            return Ok(()); // never happened
        }
        let Some(entry) = self.free_place(from)? else {
            return Ok(());
        };
        let (to_parent, from_parent) =
            (to.parent().unwrap_or(RelPath::ROOT), from.parent().unwrap_or(RelPath::ROOT));
        let dirs = [(found.entry.dir_handle(), to_parent), (entry.dir_handle(), from_parent)];
        self.note(&dirs, Record::Rename { from: to, to: from, stamp: found.stamp })?;
        self.mutation()?;
        found.entry.rename_to(&entry).map_err(UndoError::host)?;
        if found.stamp.is_dir() {
            self.workspace.tree.forget_dirs();
            for skipped in &mut self.treatment.skip {
                *skipped = moved(skipped, to, from).unwrap_or_else(|| skipped.clone());
            }
        }
        self.report.restored += 1;
        Ok(())
    }

    fn exchange_back(
        &mut self,
        (a, stamp_a): (RelPath<'_>, &Stamp),
        (b, stamp_b): (RelPath<'_>, &Stamp),
        known: bool,
    ) -> Result<()> {
        if self.skips(a) || self.skips(b) {
            self.treatment.skip.extend([a.to_buf(), b.to_buf()]);
            return Ok(());
        }
        let (was_at_a, _) = self.workspace.remade.current(stamp_a.inode, self.sequence);
        let (was_at_b, _) = self.workspace.remade.current(stamp_b.inode, self.sequence);
        let (at_a, at_b) = match (self.find(a)?, self.find(b)?) {
            (Some(at_a), Some(at_b)) => (at_a, at_b),
            // The other one was made by the step, and dropped again. (Taken up after an
            // interruption, this may have been done already: then the inode tells.)
            (Some(found), None) if known || found.stamp.inode == was_at_b => {
                return self.rename_back(b, a);
            }
            (None, Some(found)) if known || found.stamp.inode == was_at_a => {
                return self.rename_back(a, b);
            }
            _ => return Ok(()),
        };
        if !known && at_b.stamp.inode != was_at_a {
            return Ok(());
        }
        let dirs = [
            (at_a.entry.dir_handle(), a.parent().unwrap_or(RelPath::ROOT)),
            (at_b.entry.dir_handle(), b.parent().unwrap_or(RelPath::ROOT)),
        ];
        let (stamp_a, stamp_b) = (at_a.stamp, at_b.stamp);
        let record = self.note(&dirs, Record::Exchange { a, b, stamp_a, stamp_b })?;
        self.mutation()?;
        at_a.entry.exchange_with(&at_b.entry).map_err(UndoError::host)?;
        if let (Some(recorder), Some(record)) = (self.recorder, record) {
            recorder.confirm(record);
        }
        self.workspace.tree.forget_dirs();
        for skipped in &mut self.treatment.skip {
            let other = moved(skipped, a, b).or_else(|| moved(skipped, b, a));
            *skipped = other.unwrap_or_else(|| skipped.clone());
        }
        self.report.restored += 2;
        Ok(())
    }

    fn object(&self, object: ObjectRef) -> Result<Option<Entry<'static>>> {
        let Owner::Sequence(sequence) = object.owner else {
            return Ok(None);
        };
        let name = object.number.to_string().into_bytes();
        if sequence == self.sequence {
            return Ok(Some(self.objects.entry(name)));
        }
        let Some(dir) = self.workspace.store.find(sequence) else {
            return Ok(None);
        };
        let objects = dir.objects().map_err(UndoError::io("opening the objects of a step"))?;
        Ok(Some(objects.entry(name)))
    }

    fn change_back(
        &mut self,
        at: At<'_>,
        meta: Option<&Meta>,
        content: Option<&Content>,
    ) -> Result<()> {
        let entry = match at {
            At::Path(path) => {
                let times_only = content.is_none()
                    && meta.is_some_and(|meta| meta.scope == crate::host::MetaScope::Times);
                if !times_only && self.skips(path) {
                    return Ok(());
                }
                self.workspace.tree.find_owned(path).map_err(UndoError::host)?
            }
            At::Object(object) => self.object(object)?,
        };
        let Some(entry) = entry else { return Ok(()) };
        let Some((id, stamp)) = entry.stat_id().map_err(UndoError::host)? else {
            return Ok(());
        };
        if meta.is_some_and(|meta| meta.stamp.file_type() != stamp.file_type())
            || (content.is_some() && !stamp.is_file())
            || self.leaves(stamp.is_symlink())
        {
            return Ok(());
        }
        if let At::Path(path) = at {
            if self.treatment.skip_files.contains(&id) {
                self.leave(path); // by another of its names
                return Ok(());
            }
            if self.treatment.overridden.contains(&id) && content.is_some_and(Content::is_partial) {
                self.leave(path); // what somebody else wrote in other places stays
            }
        }
        if let Some(recorder) = self.recorder {
            let found = Found { entry: entry.clone(), id, stamp };
            capture_current(self.workspace, recorder, at, &found, content, meta)?;
        }
        self.mutation()?;
        if let Some(content) = content {
            let file = entry.open_write().map_err(UndoError::host)?;
            put_content(&self.pack, &self.objects, &file, content)?;
            drop(file);
            // Writing moved the time; if this preimage does not set it, an earlier one will.
        }
        if let Some(meta) = meta {
            meta.apply(&entry).map_err(UndoError::host)?;
        }
        self.report.restored += 1;
        Ok(())
    }
}

/// Before something is changed back, what it is now is recorded.
pub(super) fn capture_current(
    workspace: &Workspace,
    recorder: &Recorder,
    at: At<'_>,
    found: &Found<'_>,
    content: Option<&Content>,
    meta: Option<&Meta>,
) -> Result<()> {
    let Found { entry, id, stamp } = found;
    let state = recorder.inodes.state(*id);
    if meta.is_some_and(|meta| meta.scope == crate::host::MetaScope::Times) {
        if let (false, At::Path(path)) = (state.has_times(), at) {
            let dir = entry.open_dir().map_err(UndoError::host)?;
            recorder.touch_dir(workspace, &dir, path)?;
        }
        return Ok(());
    }
    let mut wanted = vec![Wanted::Attributes];
    match content {
        Some(Content::Ranges { length, regions }) => {
            let spans = regions.iter().map(|region| Span { start: region.start, end: region.end });
            wanted.extend(spans.map(Wanted::Content));
            // What is behind the former end goes away; and the present length must be known.
            wanted.push(Wanted::Content(Span::from(*length)));
        }
        Some(Content::Clone { .. }) => wanted.push(Wanted::Content(Span::ALL)),
        None => {}
    }
    for wanted in wanted {
        let attributes_only = !stamp.is_file() && wanted != Wanted::Attributes;
        if attributes_only {
            continue;
        }
        recorder.capture(workspace, at, entry, *id, wanted)?;
    }
    Ok(())
}

/// Writes former content back. Bytes that fail their check are never written.
pub(super) fn put_content(
    pack: &PackReader,
    objects: &Arc<Dir>,
    file: &File,
    content: &Content,
) -> Result<()> {
    match content {
        Content::Ranges { length, regions } => {
            file.set_len(*length).map_err(UndoError::host)?;
            regions.iter().try_for_each(|region| put_region(pack, file, region))
        }
        Content::Clone { length, object, stamp } => {
            let damaged = || UndoError::Corrupt(format!("object {object} is missing or changed"));
            let source = objects.entry(object.to_string().into_bytes());
            let found = source.stat().map_err(UndoError::host)?.ok_or_else(damaged)?;
            if !stamp.describes_object(&found) {
                return Err(damaged());
            }
            let source = source.open_read().map_err(UndoError::host)?;
            if !clone_file(file, &source).map_err(UndoError::host)? {
                copy_range(&source, file, 0, *length).map_err(UndoError::host)?;
            }
            file.set_len(*length).map_err(UndoError::host)
        }
    }
}

pub(super) fn put_region(pack: &PackReader, file: &File, region: &Region) -> Result<()> {
    let mut hole_from = region.start;
    for extent in &region.extents {
        let plain = pack.read(extent).map_err(|error| UndoError::Corrupt(error.to_string()))?;
        punch(file, hole_from, extent.file_offset).map_err(UndoError::host)?;
        write_all_at(file, &plain, extent.file_offset).map_err(UndoError::host)?;
        hole_from = extent.file_offset + plain.len() as u64;
    }
    punch(file, hole_from, region.end).map_err(UndoError::host)
}

pub(super) struct Found<'a> {
    pub(super) entry: Entry<'a>,
    pub(super) id: FileId,
    pub(super) stamp: Stamp,
}

/// The name of something after its directory, or itself, has moved.
fn moved(path: &RelPathBuf, from: RelPath<'_>, to: RelPath<'_>) -> Option<RelPathBuf> {
    path.as_path().strip(from).map(|below| to.concat(below))
}

fn is_mark(record: &Record<'_>) -> bool {
    matches!(record, Record::Cancelled { .. } | Record::Done { .. } | Record::Unprotected { .. })
}

/// Removes a directory with everything below it, recorded: by moving it, or entry by entry where
/// it lies on another filesystem than the store.
pub(super) fn remove_dir_recorded(
    workspace: &Workspace,
    recorder: &Recorder,
    path: RelPath<'_>,
    found: &Found<'_>,
) -> Result<()> {
    let Found { entry, id, stamp } = found;
    workspace.tree.forget_dirs();
    if recorder.move_out(workspace, path, entry, *id, *stamp)? {
        return Ok(());
    }
    let dir = entry.open_dir().map_err(UndoError::host)?;
    for name in dir.names().map_err(UndoError::host)? {
        let below = path.join(&name)?;
        let child = dir.entry(name).owned();
        let Some((id, stamp)) = child.stat_id().map_err(UndoError::host)? else {
            continue;
        };
        if stamp.is_dir() {
            let found = Found { entry: child, id, stamp };
            remove_dir_recorded(workspace, recorder, below.as_path(), &found)?;
            continue;
        }
        if recorder.remove(workspace, below.as_path(), &child, id, stamp)? == Removal::Recorded {
            workspace.store.probe.reach(Point::HostMutation).map_err(UndoError::host)?;
            child.unlink().map_err(UndoError::host)?;
            recorder.inodes.forget(id);
        }
    }
    let emptied = entry.stat().map_err(UndoError::host)?.unwrap_or(*stamp);
    recorder.record_rmdir(workspace, path, entry, emptied)?;
    workspace.store.probe.reach(Point::HostMutation).map_err(UndoError::host)?;
    entry.rmdir().map_err(UndoError::host)?;
    recorder.inodes.forget(*id);
    Ok(())
}
