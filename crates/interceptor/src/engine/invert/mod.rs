//! Replaying a journal backwards.
//!
//! Undo inverts a step, redo inverts an undo; both record what they do as they do it, and so can
//! themselves be inverted. Recovery and denial invert without recording: there is no way back
//! from them, only a cursor from which they can go on.

mod bring_back;
mod change_back;
mod remove;
mod rename_back;
mod swap_back;

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use codeagent_common::{RelPath, RelPathBuf, SymlinkPolicy};
use rustix::io::Errno;

use super::continuity::Seen;
use super::cursor::Cursor;
use super::provenance::{Provenance, Verdict};
use super::state::ClosedEntry;
use crate::capture::{InodeState, Recorder, Workspace};
use crate::error::{Result, UndoError};
use crate::fold::Marks;
use crate::host::{Dir, Entry, FileId, Found, Stamp};
use crate::probe::Point;
use crate::store::{JournalReader, ObjectRef, Owner, PackReader, Record, StepDir};

pub(super) use change_back::{capture_current, put_content, put_region};
pub(super) use remove::remove_dir_recorded;

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
    /// Something was left that nobody had seen when it was looked for conflicts.
    pub(super) was_outrun: bool,
}

/// What is done where somebody else has been quicker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Outrun {
    /// Everything is taken back, and begins with another look.
    BeginsAnew,
    #[default]
    Leaves,
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
    pub(super) outrun: Outrun,
    /// What was there at the last look, as long as nothing of it has been changed.
    pub(super) seen: Option<Arc<Seen>>,
}

impl Treatment {
    /// One of several journals has been inverted.
    pub(super) fn has_begun(&mut self, inverted: &Inverted) {
        self.skip.clone_from(&inverted.skip);
        self.seen = None;
    }
}

pub(super) struct Inversion<'a> {
    workspace: &'a Workspace,
    journal: Arc<JournalReader>,
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
    /// The name that the last inverse has made free.
    emptied: Option<RelPathBuf>,
}

impl<'a> Inversion<'a> {
    /// Inverts and records, so that it can be inverted again.
    pub(super) fn recorded(
        workspace: &'a Workspace,
        source: &ClosedEntry,
        journal: Arc<JournalReader>,
        recorder: &'a Recorder,
        treatment: Treatment,
    ) -> Result<Self> {
        let source = (&source.dir, source.sequence);
        Self::open(workspace, source, journal, Some(recorder), None, treatment)
    }

    /// Inverts for good; can be interrupted and taken up again.
    pub(super) fn final_(
        workspace: &'a Workspace,
        source: &StepDir,
        sequence: u64,
        symlinks: SymlinkPolicy,
        provenance: &'a Provenance,
    ) -> Result<Self> {
        let cursor = Cursor::open(&source.cursor(), workspace.store.probe.clone())
            .map_err(UndoError::io("opening the recovery cursor"))?;
        let treatment = Treatment { symlinks, ..Treatment::default() };
        let journal = Arc::new(source.journal().map_err(UndoError::io("reading the step"))?);
        let source = (source, sequence);
        let mut inversion = Self::open(workspace, source, journal, None, Some(cursor), treatment)?;
        inversion.provenance = Some(provenance);
        Ok(inversion)
    }

    fn open(
        workspace: &'a Workspace,
        (source, sequence): (&StepDir, u64),
        journal: Arc<JournalReader>,
        recorder: Option<&'a Recorder>,
        cursor: Option<Cursor>,
        treatment: Treatment,
    ) -> Result<Self> {
        let failed = || UndoError::io("reading the step");
        Ok(Self {
            workspace,
            journal,
            pack: source.pack().map_err(failed())?,
            objects: source.objects().map_err(failed())?,
            sequence,
            recorder,
            resumed_at: cursor.as_ref().and_then(Cursor::position),
            cursor,
            provenance: None,
            treatment,
            report: Inverted::default(),
            emptied: None,
        })
    }

    pub(super) fn run(mut self) -> Result<Inverted> {
        let damaged = |error: io::Error| UndoError::Corrupt(error.to_string());
        let marks = Marks::read(&self.journal).map_err(damaged)?;
        if self.recorder.is_none() {
            // Who undoes or redoes has looked at the directories just now.
            self.workspace.tree.forget_dirs();
        }
        let generation = self.workspace.tree.generation();
        // Records borrow from it while `self` changes.
        let journal = Arc::clone(&self.journal);
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
        if self.workspace.tree.generation() != generation {
            self.workspace.tree.forget_dirs();
        }
        self.report.skip = self.treatment.skip;
        Ok(self.report)
    }

    fn invert(&mut self, index: u64, record: &Record<'_>, marks: &Marks) -> Result<()> {
        let emptied = self.emptied.take();
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
            Record::Swap { path, object, taken, from, placed } => {
                self.swap_back(index, *path, (*object, taken), (*from, placed))
            }
            Record::Mkdir { path } => self.remove_dir(*path),
            Record::Rmdir { path, meta } => self.remake_dir(*path, meta),
            Record::Take { path, object, stamp, .. } => {
                if self.leaves(stamp.is_symlink()) {
                    return Ok(());
                }
                let is_free = emptied.is_some_and(|emptied| emptied.as_path() == *path);
                self.put_back(*path, is_free, *object, stamp)
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
                self.rename_back(index, *from, *to, stamp)
            }
            Record::Exchange { a, b, stamp_a, stamp_b } => {
                let known = marks.done.contains(&index) && self.resumed_at != Some(index);
                self.exchange_back((*a, stamp_a), (*b, stamp_b), (index, known))
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

    /// Somebody else's work is at a path, and was not when somebody looked for conflicts. Where there
    /// is a way back, another look will find it.
    fn outrun(&mut self, path: RelPath<'_>) -> Result<()> {
        if self.recorder.is_some() && self.treatment.outrun == Outrun::BeginsAnew {
            return Err(UndoError::host(Errno::EXIST.into()));
        }
        self.report.was_outrun = true;
        self.leave(path);
        Ok(())
    }

    /// Whether somebody has made it, or changed it, since the last look.
    fn is_news(&self, found: &Found<'_>) -> bool {
        let (Some(recorder), Some(seen)) = (self.recorder, &self.treatment.seen) else {
            return false;
        };
        if self.treatment.force || found.stamp.is_dir() {
            return false;
        }
        let is = |ask: fn(&InodeState) -> bool| recorder.inodes.check(found.id, ask);
        !is(InodeState::is_created)
            && seen.is_outdated_by(&found.stamp, !is(InodeState::has_attributes))
    }

    /// What was taken is not what was there a moment before.
    fn is_other(&self, taken: &Stamp, found: &Found<'_>) -> bool {
        self.treatment.outrun == Outrun::BeginsAnew
            && !self.treatment.force
            && !found.stamp.describes_object(taken)
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
}

fn is_mark(record: &Record<'_>) -> bool {
    matches!(record, Record::Cancelled { .. } | Record::Done { .. } | Record::Unprotected { .. })
}
