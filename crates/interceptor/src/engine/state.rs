//! What the engine knows: the open step, the history, what can be redone.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use codeagent_common::{
    Refusal, RelPath, RelPathBuf, SafeguardId, SafeguardKind, StepId, StepInfo, StepKind, Timestamp,
};
use parking_lot::{Mutex, MutexGuard, RwLock};

use super::own::Alone;
use super::provenance::Provenance;
use crate::capture::Recorder;
use crate::error::{Result, UndoError};
use crate::host::Stamp;
use crate::store::{BarrierLog, ChangeTable, Counted, Counters, JournalReader, StepDir, Trailer};

/// Guarded by the engine's gate: shared while mutations happen, exclusive while steps change.
pub(super) struct State {
    pub(super) open: Option<OpenStep>,
    /// One that waits for its own changes; others have ambient ones meanwhile.
    pub(super) reserved: Option<OpenStep>,
    /// Oldest first.
    pub(super) history: Vec<ClosedEntry>,
    /// Most recently undone last. A mutex of its own: the first record of a new step clears it
    /// while the gate is only shared.
    pub(super) redo: Mutex<Vec<ClosedEntry>>,
    pub(super) barriers: BarrierLog,
    pub(super) counters: Mutex<Counters>,
    /// The format found, if it is not ours: nothing is recorded.
    pub(super) disabled: Option<String>,
    /// A journal that is being taken back, and could not be to its end. Nothing is recorded or
    /// undone before that is finished.
    pub(super) interrupted: Option<Interrupted>,
    pub(super) left: Mutex<Left>,
    /// Nothing will be recorded any more.
    pub(super) retired: bool,
    /// Commands that write at any time, beside whoever has a step.
    pub(super) background: u32,
}

impl State {
    /// The step that somebody has begun and not ended.
    pub(super) fn begun(&self) -> Option<&OpenStep> {
        self.reserved.as_ref().or(self.open.as_ref())
    }

    pub(super) fn step(&self, id: StepId) -> Result<&ClosedEntry> {
        let found = self.history.iter().find(|step| step.info.id == id);
        found.ok_or_else(|| self.why_missing(id))
    }

    /// Of a step that is not in the history.
    pub(super) fn why_missing(&self, id: StepId) -> UndoError {
        match self.redo.lock().iter().any(|step| step.info.id == id) {
            true => UndoError::StepUndone(id),
            false => UndoError::StepNotFound(id),
        }
    }
}

/// What the sandbox itself left at paths of which no step tells any more, because it was taken back
/// or undone for good: whoever sees it change there late must not take it for somebody else's edit.
#[derive(Default)]
pub(super) struct Left(HashMap<RelPathBuf, Option<Stamp>>);

impl Left {
    /// More are not remembered.
    const MOST: usize = 1 << 16;

    pub(super) fn note(&mut self, left: impl IntoIterator<Item = (RelPathBuf, Option<Stamp>)>) {
        if self.0.len() > Self::MOST {
            self.0.clear();
        }
        self.0.extend(left.into_iter().take(Self::MOST));
    }

    pub(super) fn at(&self, path: RelPath<'_>) -> Option<Option<Stamp>> {
        self.0.get(&path.to_buf()).copied()
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &RelPathBuf> {
        self.0.keys()
    }
}

/// A journal on its way back.
pub(super) struct Interrupted {
    pub(super) dir: StepDir,
    pub(super) sequence: u64,
    pub(super) provenance: Provenance,
}

impl Interrupted {
    pub(super) fn new(recorder: Recorder) -> Self {
        let (dir, sequence) = (recorder.dir.clone(), recorder.sequence());
        Self { dir, sequence, provenance: Provenance::Known(recorder.into_inodes()) }
    }
}

/// A closed step, or an undone one.
#[derive(Clone)]
pub(super) struct ClosedEntry {
    pub(super) info: StepInfo,
    /// Of the journal; for a redo entry not the one in `info`, which is the step's.
    pub(super) sequence: u64,
    pub(super) dir: StepDir,
    /// What lies below the directories it holds, until that is part of `info`.
    pub(super) counting: Option<Counted>,
    table: Arc<OnceLock<(Mutex<ChangeTable>, Trailer)>>,
    journal: Arc<Mutex<Weak<JournalReader>>>,
}

impl ClosedEntry {
    pub(super) fn new(info: StepInfo, sequence: u64, dir: StepDir) -> Self {
        let (table, journal) = (Arc::default(), Arc::default());
        Self { info, sequence, dir, counting: None, table, journal }
    }

    /// What it takes on disk, as far as that is known.
    pub(super) fn held_bytes(&self) -> u64 {
        let below = self.counting.as_ref().and_then(|counting| counting.get()).copied();
        self.info.held_bytes.saturating_add(below.unwrap_or(0))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.info.stored_bytes.saturating_add(self.held_bytes())
    }

    /// To read what it changed takes next to no time.
    pub(super) fn is_small(&self) -> bool {
        const MOST: u64 = 1000;
        let StepInfo { added, modified, deleted, renamed, .. } = self.info;
        added + modified + deleted + renamed <= MOST
    }

    /// Net changes with stamps, read when first asked for.
    pub(super) fn table(&self) -> Result<MutexGuard<'_, ChangeTable>> {
        Ok(self.sealed()?.0.lock())
    }

    /// What its files should be, read when first asked for.
    pub(super) fn trailer(&self) -> Result<&Trailer> {
        Ok(&self.sealed()?.1)
    }

    fn sealed(&self) -> Result<&(Mutex<ChangeTable>, Trailer)> {
        if let Some(sealed) = self.table.get() {
            return Ok(sealed);
        }
        let (table, trailer) = self.dir.changes().map_err(|error| self.damaged(&error))?;
        Ok(self.table.get_or_init(|| (Mutex::new(table), trailer)))
    }

    /// Its journal, read once for all who want it at the same time.
    pub(super) fn journal(&self) -> Result<Arc<JournalReader>> {
        let mut known = self.journal.lock();
        if let Some(journal) = known.upgrade() {
            return Ok(journal);
        }
        let journal = Arc::new(self.dir.journal().map_err(|error| self.damaged(&error))?);
        *known = Arc::downgrade(&journal);
        Ok(journal)
    }

    fn damaged(&self, error: &std::io::Error) -> UndoError {
        UndoError::Corrupt(format!("step {}: {error}", self.info.id))
    }

    /// Reads the changes anew, if they have been read at all.
    pub(super) fn reload_table(&self) -> Result<()> {
        if let Some((table, _)) = self.table.get() {
            *table.lock() = self.dir.changes().map_err(|error| self.damaged(&error))?.0;
        }
        Ok(())
    }
}

/// A question that was answered with no.
#[derive(Debug, Clone)]
pub(super) struct Denial {
    pub(super) safeguard: SafeguardId,
    pub(super) asked: String,
}

impl Denial {
    pub(super) fn error(&self, step: StepId) -> UndoError {
        let Self { safeguard, asked } = self.clone();
        UndoError::SafeguardDenied { step, safeguard, asked }
    }
}

/// The step that mutations are attributed to.
pub(super) struct OpenStep {
    pub(super) id: StepId,
    pub(super) kind: StepKind,
    pub(super) started_at: Timestamp,
    /// Command lines, in order; a transaction has several.
    pub(super) commands: Vec<String>,
    pub(super) exit_code: Option<i32>,
    /// Commands opened within a transaction and not yet closed.
    pub(super) nested: u32,
    /// Made by the first record, so that a step without mutations leaves no trace.
    recorder: OnceLock<Recorder>,
    starting: Mutex<()>,
    /// When the last mutation came, for ambient steps.
    pub(super) last_activity_ms: AtomicU64,
    pub(super) safeguards: Mutex<StepSafeguards>,
    /// Set once a safeguard was denied: the step is undone and takes no more mutations.
    pub(super) denied: OnceLock<Denial>,
    pub(super) flagged: Mutex<BTreeSet<RelPathBuf>>,
    /// Names that undo would leave alone, given in this step to something that it would not.
    kept: RwLock<Vec<RelPathBuf>>,
    unprotected_told: OnceLock<()>,
    /// It takes nothing but its own changes: others wait for its end.
    pub(super) alone: Option<Alone>,
    /// A command in the background was there at some time: what is in it may be that one's.
    pub(super) shared: bool,
    /// Some kinds of operations are refused in it, though not all.
    pub(super) refuses: AtomicBool,
    /// Whoever began it has given it up, and it could not be closed yet.
    pub(super) abandoned: bool,
}

/// What the safeguards have counted in this step.
#[derive(Debug, Default)]
pub(super) struct StepSafeguards {
    pub(super) deletes: u64,
    pub(super) deleted_paths: Vec<RelPathBuf>,
    pub(super) allowed: HashSet<SafeguardKind>,
    /// Of a shared step: kinds that are refused from now on.
    pub(super) denied: HashMap<SafeguardKind, Denial>,
    /// What was refused, and nobody has been told yet.
    pub(super) refusals: Vec<Refusal>,
}

impl OpenStep {
    pub(super) fn new(id: StepId, kind: StepKind, command: String, now: Timestamp) -> Self {
        Self {
            id,
            kind,
            started_at: now,
            commands: if command.is_empty() { Vec::new() } else { vec![command] },
            exit_code: None,
            nested: 0,
            recorder: OnceLock::new(),
            starting: Mutex::new(()),
            last_activity_ms: AtomicU64::new(now.0),
            safeguards: Mutex::default(),
            denied: OnceLock::new(),
            flagged: Mutex::default(),
            kept: RwLock::default(),
            unprotected_told: OnceLock::new(),
            alone: None,
            shared: false,
            refuses: AtomicBool::new(false),
            abandoned: false,
        }
    }

    /// Nobody will come and end it.
    pub(super) fn is_nobodys(&self) -> bool {
        self.id.is_ambient() || self.abandoned
    }

    /// Not to be taken back: something in it may be somebody else's. What was taken back before it
    /// came to that stays so.
    pub(super) fn is_kept(&self) -> bool {
        self.shared && self.denied.get().is_none()
    }

    pub(super) fn take_refusals(&self) -> Vec<Refusal> {
        std::mem::take(&mut self.safeguards.lock().refusals)
    }

    /// For whoever needs that no step is open.
    pub(super) fn in_the_way(&self) -> UndoError {
        match self.kind {
            StepKind::Transaction => UndoError::TransactionOpen(self.id),
            _ => UndoError::StepOpen(self.id),
        }
    }

    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.get()
    }

    pub(super) fn take_recorder(&mut self) -> Option<Recorder> {
        self.recorder.take()
    }

    pub(super) fn recorder_or_start(
        &self,
        start: impl FnOnce() -> Result<Recorder>,
    ) -> Result<&Recorder> {
        if let Some(recorder) = self.recorder.get() {
            return Ok(recorder);
        }
        let _starting = self.starting.lock();
        if let Some(recorder) = self.recorder.get() {
            return Ok(recorder);
        }
        let recorder = start()?;
        Ok(self.recorder.get_or_init(|| recorder))
    }

    pub(super) fn flag(&self, path: RelPath<'_>) {
        self.flagged.lock().insert(path.to_buf());
    }

    pub(super) fn keep(&self, path: RelPath<'_>) {
        self.kept.write().push(path.to_buf());
    }

    /// Whether this name, or a directory above it, was given to something that undo protects.
    pub(super) fn keeps(&self, path: RelPath<'_>) -> bool {
        self.kept.read().iter().any(|kept| path.is_within(kept.as_path()))
    }

    pub(super) fn note_activity(&self, now: Timestamp) {
        self.last_activity_ms.store(now.0, Ordering::Relaxed);
    }

    /// The reason, the first time somebody asks after protection was lost.
    pub(super) fn newly_unprotected(&self) -> Option<&str> {
        let reason = self.recorder()?.unprotected()?;
        self.unprotected_told.set(()).ok().map(|()| reason)
    }
}
