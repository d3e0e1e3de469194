//! Committing what a command did in an overlay over the working directory.
//!
//! The upper layer holds what is new or changed, whole; notes of what is gone; and every directory
//! on the way there. It is hostile: nothing in it is followed, and it is looked at only when
//! nobody can change it any more.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::PathBuf;

use codeagent_common::{RelPath, RelPathBuf};
use rustix::fs::FileType;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::UndoEngine;
use super::adopt::{AdoptReport, Attributes, Known, StagedChange};
use crate::error::{Result, UndoError};
use crate::host::{
    Dir, Entry, Meta, MetaScope, OverlayMarks, Stamp, Tree, read_exact_at, walk_some,
};
use crate::store::Time;

/// A place for the upper layer of an overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staging {
    pub number: u64,
    /// Holds `up` and `work`, for an overlay with the working directory below them.
    #[serde(with = "codeagent_common::path_bytes")]
    pub path: PathBuf,
}

/// What became of the changes in an overlay.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OverlayReport {
    pub adopted: AdoptReport,
    /// Changed by somebody else since the overlay was made, and by the command. The command's
    /// version is there now; theirs is what undo brings back.
    pub changed_meanwhile: Vec<RelPathBuf>,
    /// Directories that the command removed and that hold too much for all of it to be looked at:
    /// whether somebody else has changed something in them since is not known.
    pub not_examined: Vec<RelPathBuf>,
    /// Neither files, directories, symlinks, FIFOs nor sockets.
    pub refused: Vec<RelPathBuf>,
}

/// The stagings there are.
#[derive(Debug, Default)]
pub(super) struct Staged {
    last: u64,
    /// The time of the filesystem when each was made.
    since: HashMap<u64, Time>,
}

/// How much of what goes with removed directories is looked at: what takes milliseconds.
const EXAMINED: usize = 5_000;

/// What an upper layer says.
struct Difference {
    /// The time of the filesystem when the overlay was made.
    since: Time,
    changes: Vec<StagedChange>,
    /// Of what changes its attributes, those that programs in the overlay saw. Neither the
    /// overlay's own marks nor what is moved out of a directory meanwhile shows in them.
    attributes: Attributes,
    report: OverlayReport,
    to_examine: usize,
    /// Directories that come as a whole.
    whole: Vec<(RelPathBuf, Entry<'static>)>,
    /// Files of the lower layer that were changed and are not where they were: the command has moved
    /// them, or somebody else has taken them away.
    missing: Vec<(RelPathBuf, Origin)>,
    /// Which of the changes are edits, and of what, as far as one sees it from one entry.
    edits: Vec<(usize, Origin)>,
    /// What the command removed or moved away.
    removed: Removed,
    /// Something of the lower layer is not where it was: it may be anywhere, marks and all.
    moved: bool,
}

/// What a file of the upper layer was copied from.
struct Origin {
    /// Its number, where the overlay has noted that. In a user namespace it may not.
    inode: Option<u64>,
    /// A copy has size and time of what it was copied from, until it is changed.
    looks: (u64, Time),
}

/// Files that are gone from where they were.
#[derive(Default)]
struct Removed {
    inodes: HashSet<u64>,
    looks: HashSet<(u64, Time)>,
}

impl Removed {
    fn insert(&mut self, stamp: &Stamp) {
        self.inodes.insert(stamp.inode);
        self.looks.insert((stamp.size, stamp.mtime));
    }

    /// Whether one of them is what a file was copied from, as far as one can tell.
    fn holds(&self, origin: &Origin) -> bool {
        match origin.inode {
            Some(inode) => self.inodes.contains(&inode),
            None => self.looks.contains(&origin.looks),
        }
    }
}

impl UndoEngine {
    /// Makes an empty upper layer. It is gone when the engine is opened again.
    pub fn stage(&self) -> Result<Staging> {
        let mut state = self.state.write();
        // A command may be there to make room.
        self.with_reserve(&mut state, |_| self.try_stage()).map_err(|error| self.say_if_full(error))
    }

    fn try_stage(&self) -> Result<Staging> {
        let failed = || UndoError::io("making room for staged changes");
        let mut staged = self.staged.lock();
        staged.last += 1;
        let number = staged.last;
        let path = self.workspace.store.staged(number);
        let make = || {
            std::fs::create_dir(&path)?;
            std::fs::create_dir(path.join("work"))?;
            std::fs::create_dir(path.join("up"))
        };
        make().map_err(|error| {
            let _ = std::fs::remove_dir_all(&path);
            failed()(error)
        })?;
        let up = Dir::open(&path.join("up")).map_err(failed())?.entry(&b"."[..]).owned();
        self.look_like_the_root(&up).map_err(failed())?;
        // What was done until now must not look as if somebody had done it since.
        let since = self.workspace.store.next_moment().map_err(failed())?;
        staged.since.insert(number, since);
        Ok(Staging { number, path: self.workspace.store.named(path) })
    }

    /// The top of an overlay is the top of its upper layer.
    fn look_like_the_root(&self, up: &Entry<'_>) -> io::Result<()> {
        let root = self.workspace.tree.owned_entry(RelPath::ROOT)?;
        let stamp = root.stat()?.ok_or(Errno::NOENT)?;
        Meta::read(&root, stamp, MetaScope::Full)?.apply(up)
    }

    /// Applies what is in the upper layer to the open step, and drops it. Nobody may reach
    /// the overlay any more. On failure the changes made so far belong to the step, which can
    /// be aborted.
    pub fn adopt_overlay(&self, number: u64) -> Result<OverlayReport> {
        let since = self.staged.lock().since.get(&number).copied();
        let since = since.ok_or_else(|| {
            UndoError::io("looking for staged changes")(io::ErrorKind::NotFound.into())
        })?;
        let path = self.workspace.store.staged(number);
        let up = path.join("up");
        let tree = Tree::open(&up).map_err(UndoError::io("opening staged changes"))?;
        self.open_reserved()?;
        self.workspace.tree.forget_dirs();
        let Difference { changes, attributes, mut report, .. } = self.difference(&tree, since)?;
        self.check_protected(&report.adopted.protected)?;
        let known = Known { since: Some(since), attributes, judged: true };
        if !changes.is_empty() {
            let protected = std::mem::take(&mut report.adopted.protected);
            report.adopted = self
                .adopt_known(&tree, &changes, &known)
                .map_err(|error| self.say_if_full(error))?;
            report.adopted.protected.extend(protected);
            // Those that were looked at are told already.
            let told: HashSet<RelPathBuf> = report.changed_meanwhile.iter().cloned().collect();
            let mut further = std::mem::take(&mut report.adopted.changed_meanwhile);
            further.retain(|path| !told.contains(path));
            report.changed_meanwhile.extend(further);
        }
        drop(tree);
        self.drop_staged(number)?;
        Ok(report)
    }

    /// A command can fill the disk as nobody can who is served by us. What it has written goes
    /// with what is refused.
    fn say_if_full(&self, error: UndoError) -> UndoError {
        match self.workspace.store.free_bytes() {
            Ok(free_bytes) if error.is_out_of_space() => UndoError::LowDiskSpace { free_bytes },
            _ => error,
        }
    }

    /// What was staged is not wanted.
    pub fn drop_staged(&self, number: u64) -> Result<()> {
        self.staged.lock().since.remove(&number);
        self.workspace.store.drop_staged(number).map_err(UndoError::io("dropping staged changes"))
    }

    /// Reads the upper layer, and takes the overlay's own marks away from what will be moved.
    fn difference(&self, up: &Tree, since: Time) -> Result<Difference> {
        let state = self.state.read();
        let mut difference = Difference::since(since);
        let mut merged = Vec::new();
        let root = up.owned_entry(RelPath::ROOT).map_err(UndoError::host)?;
        let present = self.workspace.tree.stat(RelPath::ROOT).map_err(UndoError::host)?;
        let mut pending = vec![(RelPath::ROOT.to_buf(), seen_by_programs(&root)?, present)];
        while let Some((at, meta, present)) = pending.pop() {
            let dir = up.dir_to_list(at.as_path(), meta.stamp.inode).map_err(UndoError::host)?;
            let mut names = dir.names().map_err(UndoError::host)?;
            names.sort_unstable();
            for name in names {
                let path = at.as_path().join(&name).map_err(|_| errno(Errno::INVAL))?;
                let entry = dir.entry(name).owned();
                if let Some((meta, present)) =
                    self.compare(path.as_path(), &entry, &mut difference)?
                {
                    pending.push((path, meta, Some(present)));
                }
            }
            merged.push((at, meta, present));
        }
        let gone = |change: &StagedChange| match change {
            StagedChange::Remove { path } => Some(path.clone()),
            _ => None,
        };
        let gone: Vec<RelPathBuf> = difference.changes.iter().filter_map(gone).collect();
        for (path, entry) in std::mem::take(&mut difference.whole) {
            let moved = difference.moved.then_some(gone.as_slice());
            let taken_out = self.clean(&state, path.as_path(), &entry, moved)?;
            difference.report.adopted.protected.extend(taken_out.denied);
            difference.report.refused.extend(taken_out.devices);
            OverlayMarks::of(&entry)
                .and_then(|marks| marks.strip(&entry))
                .map_err(UndoError::host)?;
        }
        let worked_in: HashSet<RelPathBuf> = difference
            .changes
            .iter()
            .filter(|change| !matches!(change, StagedChange::Attributes { .. }))
            .filter_map(|change| change.path().parent().map(RelPath::to_buf))
            .collect();
        // Those further in first: what is done in a directory changes its times.
        for (path, meta, present) in merged.into_iter().rev() {
            if worked_in.contains(&path) || self.differs(path.as_path(), &meta)? {
                self.note_other_attributes(path.as_path(), (&meta, present), &mut difference)?;
                difference.change_attributes(path, meta);
            }
        }
        difference.settle();
        Ok(difference)
    }

    /// Finds out what one entry of the upper layer means. Of a directory of both layers, which is
    /// to be looked into, it returns the attributes, and what it is below.
    fn compare(
        &self,
        path: RelPath<'_>,
        entry: &Entry<'_>,
        into: &mut Difference,
    ) -> Result<Option<(Meta, Stamp)>> {
        let Some(stamp) = entry.stat().map_err(UndoError::host)? else { return Ok(None) };
        let present = self.workspace.tree.stat(path).map_err(UndoError::host)?;
        if stamp.is_whiteout() {
            into.moved = true;
            if let Some(present) = present {
                into.removed.insert(&present);
                into.changes.push(StagedChange::Remove { path: path.to_buf() });
                self.note_meanwhile(path, &present, into)?;
            }
            return Ok(None);
        }
        if matches!(stamp.file_type(), FileType::CharacterDevice | FileType::BlockDevice) {
            into.report.refused.push(path.to_buf());
            return Ok(None);
        }
        let marks = OverlayMarks::of(entry).map_err(UndoError::host)?;
        let is_itself = self.is_itself(present.as_ref(), entry, &marks)?;
        if stamp.is_dir() {
            if let Some(below) = present.filter(|present| present.is_dir() && !marks.opaque) {
                let xattrs = marks.seen(entry).map_err(UndoError::host)?;
                return Ok(Some((Meta { stamp, scope: MetaScope::Full, xattrs }, below)));
            }
            let parent = path.parent().unwrap_or(RelPath::ROOT);
            let parent = self.workspace.tree.stat(parent).map_err(UndoError::host)?;
            // It may have been there below, and somebody has removed it meanwhile.
            let was_there = parent.is_none_or(|parent| parent.ctime >= into.since);
            into.moved |= present.is_some() || marks.copied_up || was_there;
            into.whole.push((path.to_buf(), entry.clone().into_owned()));
        } else {
            if present.is_none() {
                self.note_missing(path, (entry, &stamp), &marks, into)?;
            }
            marks.strip(entry).map_err(UndoError::host)?;
            into.moved |= present.is_some() && !(marks.copied_up && stamp.links == 1);
        }
        // With a further name by now, it has to come along with that.
        if marks.copied_up
            && stamp.is_file()
            && stamp.links == 1
            && let Some(present) = present.filter(Stamp::is_file)
            && self.has_same_content(path, &present, entry, &stamp)?
        {
            // Opened for writing, or given other attributes: it stays the file it is.
            let meta = Meta::read(entry, stamp, MetaScope::Full).map_err(UndoError::host)?;
            if self.differs(path, &meta)? {
                self.note_meanwhile(path, &present, into)?;
                into.change_attributes(path.to_buf(), meta);
            }
            return Ok(None);
        }
        if let Some(present) = present {
            self.note_meanwhile(path, &present, into)?;
        }
        let (path, staged) = (path.to_buf(), path.to_buf());
        into.changes.push(match is_itself && stamp.is_file() {
            true => {
                let looks = (stamp.size, stamp.mtime);
                into.edits.push((into.changes.len(), Origin { inode: None, looks }));
                StagedChange::Edit { path, staged }
            }
            false => StagedChange::Place { path, staged },
        });
        Ok(None)
    }

    /// Notes a file that was changed and is no longer below, if it may have been removed since.
    fn note_missing(
        &self,
        path: RelPath<'_>,
        (entry, stamp): (&Entry<'_>, &Stamp),
        marks: &OverlayMarks,
        into: &mut Difference,
    ) -> Result<()> {
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        let parent = self.workspace.tree.stat(parent).map_err(UndoError::host)?;
        if marks.copied_up && parent.is_none_or(|parent| parent.ctime >= into.since) {
            let inode = marks.origin(entry).map_err(UndoError::host)?;
            let looks = (stamp.size, stamp.mtime);
            into.missing.push((path.to_buf(), Origin { inode, looks }));
        }
        Ok(())
    }

    /// Notes a directory that has been given other attributes since, which are replaced now.
    fn note_other_attributes(
        &self,
        path: RelPath<'_>,
        (staged, present): (&Meta, Option<Stamp>),
        into: &mut Difference,
    ) -> Result<()> {
        if present.is_some_and(|present| present.ctime >= into.since)
            && let Some(present) = self.attributes(path)?
            && !present.differs_in_times_only(staged)
        {
            into.report.changed_meanwhile.push(path.to_buf());
        }
        Ok(())
    }

    /// Whether a file of both layers is the same one, with other content, and not another one that
    /// was renamed over it. That has to be looked up, and matters only to those who want to be
    /// asked about it.
    fn is_itself(
        &self,
        present: Option<&Stamp>,
        entry: &Entry<'_>,
        marks: &OverlayMarks,
    ) -> Result<bool> {
        let Some(present) = present.filter(|present| marks.copied_up && present.is_file()) else {
            return Ok(false);
        };
        if !self.safeguards.read().rename_over_existing {
            return Ok(true);
        }
        let origin = marks.origin(entry).map_err(UndoError::host)?;
        Ok(origin.is_none_or(|origin| origin == present.inode))
    }

    /// Notes what somebody else has changed of an entry that goes, or in it.
    fn note_meanwhile(
        &self,
        path: RelPath<'_>,
        present: &Stamp,
        into: &mut Difference,
    ) -> Result<()> {
        if !present.is_dir() {
            into.report
                .changed_meanwhile
                .extend((present.ctime >= into.since).then(|| path.to_buf()));
            return Ok(());
        }
        let dir = self.workspace.tree.owned_dir(path).map_err(UndoError::host)?;
        let mut examined = 0;
        let complete = walk_some(&dir, path, into.to_examine, &mut |below, stamp| {
            examined += 1;
            if !stamp.is_dir() && stamp.ctime >= into.since {
                into.report.changed_meanwhile.push(below.to_buf());
            }
        });
        into.to_examine -= examined;
        if !complete.map_err(UndoError::host)? {
            into.report.not_examined.push(path.to_buf());
        }
        Ok(())
    }

    /// Whether an entry of both layers has other attributes in the upper one.
    fn differs(&self, path: RelPath<'_>, staged: &Meta) -> Result<bool> {
        Ok(self.attributes(path)?.is_some_and(|present| differs(&present, staged)))
    }

    fn attributes(&self, path: RelPath<'_>) -> Result<Option<Meta>> {
        let read = || -> io::Result<Option<Meta>> {
            let entry = self.workspace.tree.owned_entry(path)?;
            let Some(stamp) = entry.stat()? else { return Ok(None) };
            Meta::read(&entry, stamp, MetaScope::Full).map(Some)
        };
        read().map_err(UndoError::host)
    }

    fn has_same_content(
        &self,
        path: RelPath<'_>,
        present: &Stamp,
        staged: &Entry<'_>,
        stamp: &Stamp,
    ) -> Result<bool> {
        if present.size != stamp.size {
            return Ok(false);
        }
        let compare = || -> io::Result<bool> {
            let ours = self.workspace.tree.owned_entry(path)?.open_read()?;
            same_content(&ours, &staged.open_read()?)
        };
        compare().map_err(UndoError::host)
    }
}

fn differs(present: &Meta, staged: &Meta) -> bool {
    let same_times = present.stamp.mtime == staged.stamp.mtime;
    !same_times || !present.differs_in_times_only(staged)
}

pub(super) fn same_content(one: &File, other: &File) -> io::Result<bool> {
    let (mut a, mut b) = (vec![0; 128 << 10], vec![0; 128 << 10]);
    let mut at = 0;
    loop {
        let read = read_exact_at(one, &mut a, at)?;
        if read_exact_at(other, &mut b, at)? != read || a[..read] != b[..read] {
            return Ok(false);
        }
        if read == 0 {
            return Ok(true);
        }
        at += read as u64;
    }
}

impl Difference {
    fn since(since: Time) -> Self {
        Self {
            since,
            changes: Vec::new(),
            attributes: Attributes::new(),
            report: OverlayReport::default(),
            to_examine: EXAMINED,
            whole: Vec::new(),
            moved: false,
            missing: Vec::new(),
            edits: Vec::new(),
            removed: Removed::default(),
        }
    }

    /// What can be said only when everything has been looked at.
    fn settle(&mut self) {
        let Self { missing, edits, removed, changes, report, .. } = self;
        let gone = missing.drain(..).filter(|(_, origin)| !removed.holds(origin));
        report.changed_meanwhile.extend(gone.map(|(path, _)| path));
        // Not the file that was there, with other content, but another one that was renamed over it.
        for (nth, _) in edits.drain(..).filter(|(_, origin)| removed.holds(origin)) {
            if let Some(change) = changes.get_mut(nth)
                && let StagedChange::Edit { path, staged } = change
            {
                *change = StagedChange::Place { path: path.clone(), staged: staged.clone() };
            }
        }
    }

    fn change_attributes(&mut self, path: RelPathBuf, meta: Meta) {
        let staged = path.clone();
        self.attributes.insert(staged.clone(), meta);
        self.changes.push(StagedChange::Attributes { path, staged });
    }
}

/// What an entry of the upper layer looks like in the overlay.
fn seen_by_programs(entry: &Entry<'_>) -> Result<Meta> {
    let read = || -> io::Result<Meta> {
        let stamp = entry.stat()?.ok_or(Errno::NOENT)?;
        let xattrs = OverlayMarks::of(entry)?.seen(entry)?;
        Ok(Meta { stamp, scope: MetaScope::Full, xattrs })
    };
    read().map_err(UndoError::host)
}

fn errno(errno: Errno) -> UndoError {
    UndoError::host(errno.into())
}
