//! What entries were before a step, as far as the history can tell.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::sync::Arc;

use codeagent_common::{Protection, RelPath, RelPathBuf, StepId};
use rustix::fs::FileType;

use super::UndoEngine;
use super::invert::{put_content, put_region};
use super::state::{ClosedEntry, State};
use crate::error::{Result, UndoError};
use crate::fold::{NodeId, RecordAt, lineages};
use crate::host::{Dir, Entry, FileId, Meta, MetaScope, Stamp, is_absent};
use crate::inspect::check_lengths;
use crate::lineage::{Former, Lineages, Whereabouts};
use crate::store::{Body, Content, JournalReader, PackReader, Record};

/// The journals from a step to the newest, and what they say.
pub(super) struct Past {
    pub(super) step: StepId,
    /// Oldest first.
    steps: Vec<ClosedEntry>,
    journals: Vec<JournalReader>,
    packs: Vec<PackReader>,
    pub(super) lineages: Lineages,
    /// Why the journals do not reach up to the present. Only what the step itself has kept
    /// counts then; where things went, and what is there now, nobody knows.
    pub(super) gap: Option<String>,
    /// What somebody else changed since.
    edited: OnceCell<HashSet<RelPathBuf>>,
}

/// How to make an entry what it was.
pub(super) struct Recipe {
    pub(super) base: Base,
    /// Records whose inverses lead from there to what it was, newest first.
    pub(super) back: Vec<RecordAt>,
}

/// What to begin with.
pub(super) enum Base {
    /// The entry itself, in the working directory.
    Here(RelPathBuf),
    /// The entry itself, in the store.
    Kept(Entry<'static>),
    /// A copy of it.
    Packed(RecordAt),
    /// A directory; what was in it is known entry by entry.
    Empty,
    /// A file; its preimages hold all of it.
    Blank,
}

impl Past {
    pub(super) fn since(state: &State, step: StepId) -> Result<Self> {
        let first = state.step(step)?;
        let unprotected = |step: &ClosedEntry| match &step.info.protection {
            Protection::Unprotected(reason) => Some(reason.clone()),
            Protection::Protected => None,
        };
        if let Some(reason) = unprotected(first) {
            return Err(UndoError::StepUnprotected { step, reason });
        }
        let newer = state.history.iter().filter(|other| other.sequence > first.sequence);
        let gap = if first.sequence < state.counters.lock().evicted_up_to {
            Some("a newer step has been dropped".into())
        } else {
            let lost = newer.clone().find(|step| unprotected(step).is_some());
            lost.map(|step| format!("step {} is not protected", step.info.id))
        };
        let mut steps = vec![first.clone()];
        if gap.is_none() {
            steps.extend(newer.cloned());
        }
        let (mut journals, mut packs) = (Vec::new(), Vec::new());
        for step in &steps {
            let (journal, pack) = read(step)
                .map_err(|error| UndoError::Corrupt(format!("step {}: {error}", step.info.id)))?;
            journals.push(journal);
            packs.push(pack);
        }
        let lineages = lineages(&journals).map_err(damaged)?;
        Ok(Self { step, steps, journals, packs, lineages, gap, edited: OnceCell::new() })
    }

    pub(super) fn not_kept(&self, path: &RelPathBuf, reason: &str) -> UndoError {
        UndoError::NotKept { step: self.step, path: path.clone(), reason: reason.into() }
    }

    /// What had a path. What has only shared the fate of a directory above it is found there.
    pub(super) fn former(&mut self, engine: &UndoEngine, path: RelPath<'_>) -> Result<Former> {
        let Former::Untouched(above) = self.lineages.find_then(path) else {
            return Ok(self.lineages.find_then(path));
        };
        let home = self.lineages.path_then(above).unwrap_or_default();
        let below = path.strip(home.as_path()).unwrap_or(RelPath::ROOT);
        let entry = match self.lineages.whereabouts(above) {
            Whereabouts::Here(now) if now == home || self.gap.is_some() => {
                return Ok(Former::Untouched(above));
            }
            Whereabouts::Here(now) => {
                let path = now.as_path().concat(below);
                engine.workspace.tree.stat(path.as_path()).map_err(UndoError::host)?
            }
            Whereabouts::Within(top, inner) => match self.kept(top)? {
                Some(top) => descend(top, inner.as_path().concat(below).as_path())
                    .and_then(|entry| entry.stat())
                    .or_else(|error| if is_absent(&error) { Ok(None) } else { Err(error) })
                    .map_err(UndoError::host)?,
                None => None,
            },
        };
        Ok(if entry.is_some() { self.lineages.discover(path) } else { Former::Nothing })
    }

    /// How to make the node what it was; an error if that cannot be told.
    pub(super) fn recipe(
        &self,
        engine: &UndoEngine,
        state: &State,
        node: NodeId,
    ) -> Result<Recipe> {
        let preimages = self.lineages.preimages(node);
        let newest_first = || preimages.iter().rev().copied();
        if let Some(journal) = self.first_complete(&preimages)? {
            let back = newest_first().filter(|at| at.journal <= journal).collect();
            return Ok(Recipe { base: Base::Blank, back });
        }
        let home = || self.lineages.path_then(node).unwrap_or_default();
        let (top, below) = match self.lineages.whereabouts(node) {
            Whereabouts::Within(top, below) => (top, below),
            Whereabouts::Here(now) => {
                if let Some(reason) = &self.gap {
                    return Err(self.not_kept(&home(), reason));
                }
                if self.is_edited(engine, state, &now)? {
                    return Err(self.not_kept(&home(), "it was changed outside the sandbox since"));
                }
                return Ok(Recipe { base: Base::Here(now), back: newest_first().collect() });
            }
        };
        if let Some(kept) = self.kept(top)? {
            let entry = descend(kept, below.as_path()).map_err(UndoError::host)?;
            return Ok(Recipe { base: Base::Kept(entry), back: newest_first().collect() });
        }
        let removal = self.lineages.get(top).removal.filter(|_| below.as_path().is_root());
        let Some(at) = removal else {
            return Err(self.not_kept(&home(), "its removal was not recorded"));
        };
        let base = match self.record(at)? {
            Record::Rmdir { .. } => Base::Empty,
            _ => Base::Packed(at),
        };
        let earlier = newest_first().filter(|preimage| *preimage < at);
        Ok(Recipe { base, back: std::iter::once(at).chain(earlier).collect() })
    }

    /// Whether somebody else changed the file, so that taking back what the steps did to it would
    /// give a file that never was.
    fn is_edited(&self, engine: &UndoEngine, state: &State, path: &RelPathBuf) -> Result<bool> {
        let stamp = engine.workspace.tree.stat(path.as_path()).map_err(UndoError::host)?;
        if stamp.is_none_or(|stamp| stamp.is_dir()) {
            return Ok(false);
        }
        if self.edited.get().is_none() {
            let newest_first: Vec<ClosedEntry> = self.steps.iter().rev().cloned().collect();
            let (conflicts, _) = engine.conflicts(state, &newest_first)?;
            let _ = self.edited.set(conflicts.into_iter().map(|conflict| conflict.path).collect());
        }
        Ok(self.edited.get().is_some_and(|edited| edited.contains(path)))
    }

    /// The oldest journal whose preimages hold all of a file, whatever became of it later.
    fn first_complete(&self, preimages: &[RecordAt]) -> Result<Option<usize>> {
        for of_one_journal in preimages.chunk_by(|a, b| a.journal == b.journal) {
            if self.hold_everything(of_one_journal)? {
                return Ok(of_one_journal.first().map(|at| at.journal));
            }
        }
        Ok(None)
    }

    fn hold_everything(&self, preimages: &[RecordAt]) -> Result<bool> {
        let (mut knows_meta, mut length) = (false, None);
        let mut spans = Vec::new();
        for at in preimages {
            let Record::Preimage { meta, content, .. } = self.record(*at)? else { continue };
            knows_meta |= meta.is_some_and(|meta| meta.scope == MetaScope::Full);
            match content {
                Some(Content::Clone { length: all, .. }) => {
                    length = Some(all);
                    spans.push((0, all));
                }
                Some(Content::Ranges { length: all, regions }) => {
                    length = Some(all);
                    spans.extend(regions.iter().map(|region| (region.start, region.end)));
                }
                None => {}
            }
        }
        spans.sort_unstable();
        let known = spans.iter().fold(
            0,
            |known, (start, end)| {
                if *start <= known { known.max(*end) } else { known }
            },
        );
        Ok(knows_meta && length.is_some_and(|length| known >= length))
    }

    pub(super) fn record(&self, at: RecordAt) -> Result<Record<'_>> {
        self.journals[at.journal].record(at.index).map_err(damaged)
    }

    fn objects(&self, at: RecordAt) -> Result<Arc<Dir>> {
        self.steps[at.journal].dir.objects().map_err(damaged)
    }

    /// The node in the store, if it moved there; an error if it is not what was put there.
    fn kept(&self, node: NodeId) -> Result<Option<Entry<'static>>> {
        let Some(at) = self.lineages.get(node).removal else { return Ok(None) };
        let (Record::Take { path, object, stamp, .. }
        | Record::Swap { path, object, taken: stamp, .. }) = self.record(at)?
        else {
            return Ok(None);
        };
        let entry = self.objects(at)?.entry(object.to_string().into_bytes());
        let found = entry.stat().map_err(UndoError::host)?;
        // Written to in the store, by an old handle or another name: changed back, if recorded.
        let written = || {
            let since = |preimage: &RecordAt| preimage.journal >= at.journal;
            self.gap.is_none() && self.lineages.preimages(node).iter().any(since)
        };
        let is_it = |found: Stamp| {
            stamp.describes_object(&found) || (found.inode == stamp.inode && written())
        };
        match found {
            Some(found) if is_it(found) => Ok(Some(entry)),
            Some(found) if found.inode == stamp.inode => {
                let reason = "somebody who had it open has written to it since";
                Err(self.not_kept(&path.to_buf(), reason))
            }
            _ => {
                let problem = format!("what was kept of {path} is missing or is something else");
                Err(UndoError::Corrupt(problem))
            }
        }
    }

    /// The identity of a file that is not where it was.
    pub(super) fn file_id(&self, engine: &UndoEngine, node: NodeId) -> Result<Option<FileId>> {
        if self.lineages.get(node).shared_inode.is_none() {
            return Ok(None);
        }
        let entry = match self.lineages.whereabouts(node) {
            Whereabouts::Here(now) => {
                let found = engine.find_entry(now.as_path())?.filter(|_| self.gap.is_none());
                return Ok(found.map(|found| found.id));
            }
            Whereabouts::Within(top, below) => match self.kept(top)? {
                Some(top) => descend(top, below.as_path()).map_err(UndoError::host)?,
                None => return Ok(None),
            },
        };
        Ok(entry.stat_id().map_err(UndoError::host)?.map(|(id, _)| id))
    }

    /// Whether a file in the store, with this stamp, is still in the working directory as well,
    /// unchanged, under a name that no journal speaks of.
    pub(super) fn is_name_of_another(&self, node: NodeId, stamp: &Stamp) -> bool {
        let lineage = self.lineages.get(node);
        let Some(inode) = lineage.shared_inode.filter(|_| lineage.removal.is_some()) else {
            return false;
        };
        stamp.links > self.lineages.names_of(inode) && self.lineages.preimages(node).is_empty()
    }

    /// What the journals say that a directory was; its time alone, if nothing else changed.
    pub(super) fn directory_meta(&self, node: NodeId) -> Result<Option<Meta>> {
        let mut former: Option<Meta> = None;
        let lineage = self.lineages.get(node);
        for at in lineage.preimages.iter().chain(&lineage.removal) {
            let (Record::Preimage { meta: Some(mut meta), .. } | Record::Rmdir { mut meta, .. }) =
                self.record(*at)?
            else {
                continue;
            };
            // The first record has the time; the first full one has the rest.
            if let Some(first) = &former {
                meta.stamp.mtime = first.stamp.mtime;
            }
            if meta.scope == MetaScope::Full {
                return Ok(Some(meta));
            }
            former.get_or_insert(meta);
        }
        Ok(former)
    }

    /// What a directory was, if it is gone.
    pub(super) fn former_meta(&self, node: NodeId) -> Result<Option<Meta>> {
        let Whereabouts::Within(top, below) = self.lineages.whereabouts(node) else {
            return Ok(None);
        };
        let Some(kept) = self.kept(top)? else { return self.directory_meta(node) };
        let entry = descend(kept, below.as_path()).map_err(UndoError::host)?;
        let stamp = entry.stat().map_err(UndoError::host)?;
        let meta = stamp.map(|stamp| Meta::read(&entry, stamp, MetaScope::Full));
        meta.transpose().map_err(UndoError::host)
    }

    /// Makes a removed entry anew from its copy.
    pub(super) fn unpack(&self, at: RecordAt, target: &Entry<'_>) -> Result<()> {
        let Record::Removed { meta, body, .. } = self.record(at)? else {
            return Err(UndoError::Corrupt("a removal is missing".into()));
        };
        match &body {
            Body::File(region) => {
                let file: File = target.create_file().map_err(UndoError::host)?;
                file.set_len(meta.stamp.size).map_err(UndoError::host)?;
                put_region(&self.packs[at.journal], &file, region)
            }
            Body::Symlink(link) => target.symlink(link).map_err(UndoError::host),
            Body::Special => target
                .mknod(FileType::from_raw_mode(meta.stamp.mode), meta.stamp.rdev)
                .map_err(UndoError::host),
        }
    }

    /// Takes back at `target` what a record speaks of.
    pub(super) fn change_back(&self, at: RecordAt, target: &Entry<'_>) -> Result<()> {
        let (meta, content) = match self.record(at)? {
            Record::Preimage { meta, content, .. } => (meta, content),
            Record::Rmdir { meta, .. } | Record::Removed { meta, .. } => (Some(meta), None),
            _ => return Ok(()),
        };
        if let Some(content) = &content {
            let file = target.open_write().map_err(UndoError::host)?;
            put_content(&self.packs[at.journal], &self.objects(at)?, &file, content)?;
        }
        match meta {
            Some(meta) => meta.apply(target).map_err(UndoError::host),
            None => Ok(()),
        }
    }
}

/// Journal and pack of a step, complete.
fn read(step: &ClosedEntry) -> io::Result<(JournalReader, PackReader)> {
    let (journal, pack) = (step.dir.journal()?, step.dir.pack()?);
    let (_, trailer) = step.dir.changes()?;
    match check_lengths(&journal, &pack, Some(&trailer))?.into_iter().next() {
        Some(problem) => Err(io::Error::new(io::ErrorKind::InvalidData, problem)),
        None => Ok((journal, pack)),
    }
}

fn descend<'a>(entry: Entry<'a>, below: RelPath<'_>) -> io::Result<Entry<'a>> {
    below.components().try_fold(entry, |dir, name| Ok(dir.open_dir()?.entry(name.to_vec())))
}

fn damaged(error: io::Error) -> UndoError {
    UndoError::Corrupt(error.to_string())
}
