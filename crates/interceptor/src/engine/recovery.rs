//! What happens when an engine is opened: reading the history, and finishing what a crash left.

use codeagent_common::{Protection, RelPathBuf, StepId, StepInfo, StepKind, Timestamp};
use serde::{Deserialize, Serialize};

use super::UndoEngine;
use super::invert::{Inversion, Inverted};
use super::provenance::Provenance;
use super::state::ClosedEntry;
use crate::error::{Result, UndoError};
use crate::events::EngineEvent;
use crate::fold::Marks;
use crate::store::{Counters, Damage, Header, Purpose, StepDir};

/// What recovery did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryReport {
    /// The step that was interrupted, or whose undo or redo was.
    pub step: Option<StepId>,
    /// Whether the working directory is at a step boundary again.
    pub rolled_back: bool,
    pub restored: u64,
    pub removed: u64,
    /// Paths that could not be put back because something else is there; what belongs there is
    /// kept in the undo directory's `quarantine`.
    pub left: Vec<RelPathBuf>,
    /// Files at the place of what the step made that may be somebody else's: they are in the undo
    /// directory's `quarantine`.
    pub set_aside: Vec<RelPathBuf>,
    /// Why the interrupted step was not rolled back, if it was not.
    pub problem: Option<String>,
}

impl UndoEngine {
    /// Reads closed steps and redo entries. Damaged ones are left where they are and reported.
    pub(super) fn load(&mut self) -> Result<()> {
        let unreadable = || UndoError::io("reading the undo directory");
        let store = &self.workspace.store;
        let mut steps = Vec::new();
        for dir in store.list("steps").map_err(unreadable())? {
            steps.push(self.load_entry(&dir));
        }
        let mut redo = Vec::new();
        for dir in store.list("redo").map_err(unreadable())? {
            redo.push(self.load_entry(&dir));
        }
        // A crash between the two renames that end an undo (or a redo) leaves both sides.
        let undone: Vec<u64> = redo.iter().filter_map(inverts).collect();
        let redone: Vec<u64> = steps.iter().filter_map(inverts).collect();
        let drop_inverted = |entries: &mut Vec<Loaded>, gone: &[u64]| -> Result<()> {
            for entry in entries.iter().filter(|entry| gone.contains(&entry.closed.sequence)) {
                store
                    .discard(&entry.closed.dir, entry.closed.sequence)
                    .map_err(UndoError::io("finishing an interrupted undo"))?;
            }
            entries.retain(|entry| !gone.contains(&entry.closed.sequence));
            Ok(())
        };
        drop_inverted(&mut steps, &undone)?;
        drop_inverted(&mut redo, &redone)?;
        // A step that was made after an undo ends what that undo left to be redone.
        let made = steps.iter().filter(|step| step.purpose == Purpose::Step);
        let newest = made.map(|step| step.closed.sequence).filter(|s| *s != NEWEST).max();
        let stale: Vec<u64> = redo
            .iter()
            .map(|entry| entry.closed.sequence)
            .filter(|sequence| newest.is_some_and(|newest| *sequence < newest))
            .collect();
        drop_inverted(&mut redo, &stale)?;
        steps.sort_by_key(|entry| entry.closed.sequence);
        redo.sort_by_key(|entry| entry.closed.sequence);
        let counters = self.load_counters(steps.iter().chain(&redo))?;
        if let Some(oldest) = steps.iter().chain(&redo).map(|entry| entry.closed.sequence).min() {
            self.workspace.remade.prune(oldest).map_err(unreadable())?;
        }
        let state = self.state.get_mut();
        state.counters = parking_lot::Mutex::new(counters);
        state.history = steps.into_iter().map(|entry| entry.closed).collect();
        state.redo = parking_lot::Mutex::new(redo.into_iter().map(|entry| entry.closed).collect());
        // Those after a step that has been undone, if they could not be lifted at the time.
        let newest = state.history.last().map_or(0, |step| step.sequence);
        let lifted = state.barriers.lift(|barrier| barrier.after_sequence > newest);
        self.warn("writing the barriers", lifted);
        Ok(())
    }

    /// Reads one entry. A damaged one keeps its place: undo must not step over it unawares.
    fn load_entry(&self, dir: &StepDir) -> Loaded {
        let header = dir.journal().ok().and_then(|journal| journal.header());
        let (summary, directories) = match dir.summary() {
            Ok((summary, _)) => (Some(summary.step), summary.directories),
            Err(_) => (None, Vec::new()),
        };
        let (sequence, purpose) = match (&header, &summary) {
            (Some(header), _) => (header.sequence, header.purpose),
            (None, Some(info)) => (info.sequence, Purpose::Step),
            (None, None) => (NEWEST, Purpose::Step),
        };
        let sound = header.is_some() && summary.is_some();
        let mut info = summary.unwrap_or_else(|| damaged_info(dir, header.as_ref(), sequence));
        if !sound {
            info.protection =
                Protection::Unprotected("its entry in the undo log is damaged".into());
            self.config.events.event(EngineEvent::Warning(format!(
                "step {} is damaged in the undo log and cannot be undone",
                info.id
            )));
        }
        self.workspace.store.remember(sequence, dir);
        info.stored_bytes += dir.sealed_bytes();
        let mut closed = ClosedEntry::new(info, sequence, dir.clone());
        match dir.held_below() {
            Ok(Some(bytes)) => {
                closed.info.held_bytes = closed.info.held_bytes.saturating_add(bytes);
            }
            _ => closed.counting = self.count_below(dir, directories),
        }
        Loaded { purpose, closed }
    }

    fn load_counters<'l>(&self, entries: impl Iterator<Item = &'l Loaded>) -> Result<Counters> {
        let mut counters = match self.workspace.store.load_counters() {
            Ok(counters) => counters.unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                self.config.events.event(EngineEvent::Warning(error.to_string()));
                Counters::default()
            }
            Err(error) => return Err(UndoError::io("reading the counters")(error)),
        };
        for Loaded { closed, .. } in entries.filter(|entry| entry.closed.sequence != NEWEST) {
            counters.next_sequence = counters.next_sequence.max(closed.sequence.saturating_add(1));
            counters.next_step = counters.next_step.max(closed.info.id.0.saturating_add(1));
            counters.next_ambient = counters.next_ambient.min(closed.info.id.0.saturating_sub(1));
        }
        Ok(counters)
    }

    /// Finishes an interrupted step, undo or redo by inverting what it did.
    pub(super) fn recover(&mut self) -> Result<Option<RecoveryReport>> {
        let Some(dir) = self.workspace.store.wal() else {
            return Ok(None);
        };
        let journal = match dir.journal() {
            Ok(journal) => journal,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return self.discard_unstarted(&dir);
            }
            Err(error) => return Err(UndoError::io("reading the interrupted step")(error)),
        };
        let Some(header) = journal.header() else {
            if journal.damage() == Damage::Broken {
                return self.set_aside(&dir, None, "its journal is damaged".into());
            }
            return self.discard_unstarted(&dir);
        };
        self.workspace.store.remember(header.sequence, &dir);
        let counters = self.state.get_mut().counters.get_mut();
        counters.next_sequence = counters.next_sequence.max(header.sequence.saturating_add(1));
        if header.purpose == Purpose::Step {
            counters.next_step = counters.next_step.max(header.id.0.saturating_add(1));
            counters.next_ambient = counters.next_ambient.min(header.id.0.saturating_sub(1));
        }
        if journal.damage() == Damage::Broken {
            return self.set_aside(&dir, Some(&header), "its journal is damaged".into());
        }
        let marks = match Marks::read(&journal) {
            Ok(marks) => marks,
            Err(error) => return self.set_aside(&dir, Some(&header), error.to_string()),
        };
        if let Some(reason) = marks.unprotected {
            self.keep_aside(&dir, header.sequence, header.id)?;
            let problem = format!("it was not protected: {reason}");
            return Ok(Some(RecoveryReport::not_rolled_back(Some(header.id), problem)));
        }
        let provenance = Provenance::guess(&dir, &journal)?;
        drop(journal);
        self.invert_interrupted(&dir, &header, &provenance)
    }

    fn invert_interrupted(
        &mut self,
        dir: &StepDir,
        header: &Header,
        provenance: &Provenance,
    ) -> Result<Option<RecoveryReport>> {
        self.forget_refreshed(&self.state.read(), header.sequence)?;
        let symlinks = self.config.symlinks;
        let inverted =
            match Inversion::final_(&self.workspace, dir, header.sequence, symlinks, provenance)?
                .run()
            {
                Ok(inverted) => inverted,
                Err(UndoError::Corrupt(what)) => {
                    return self.set_aside(dir, Some(header), what);
                }
                Err(error) => return Err(error),
            };
        self.settle_final_inversion(&self.state.read(), dir, header.sequence, &inverted)?;
        Ok(Some(RecoveryReport::rolled_back(header.id, inverted)))
    }

    /// Died before anything was recorded, so before anything happened.
    fn discard_unstarted(&self, dir: &StepDir) -> Result<Option<RecoveryReport>> {
        let holds_objects = dir.objects().and_then(|objects| objects.names());
        if holds_objects.is_ok_and(|names| !names.is_empty()) {
            return self.set_aside(dir, None, "its journal is missing".into());
        }
        self.workspace.store.discard(dir, 0).map_err(UndoError::io("dropping an empty step"))?;
        Ok(None)
    }

    /// A journal that cannot be trusted is kept, and not replayed.
    fn set_aside(
        &self,
        dir: &StepDir,
        header: Option<&Header>,
        problem: String,
    ) -> Result<Option<RecoveryReport>> {
        self.workspace
            .store
            .quarantine(dir, header.map_or(0, |header| header.sequence))
            .map_err(UndoError::io("setting a damaged journal aside"))?;
        Ok(Some(RecoveryReport::not_rolled_back(header.map(|header| header.id), problem)))
    }
}

impl RecoveryReport {
    pub(super) fn rolled_back(step: StepId, inverted: Inverted) -> Self {
        Self {
            step: Some(step),
            rolled_back: true,
            restored: inverted.restored,
            removed: inverted.removed,
            left: inverted.left,
            set_aside: inverted.set_aside,
            problem: None,
        }
    }

    fn not_rolled_back(step: Option<StepId>, problem: String) -> Self {
        Self {
            step,
            rolled_back: false,
            restored: 0,
            removed: 0,
            left: Vec::new(),
            set_aside: Vec::new(),
            problem: Some(problem),
        }
    }
}

/// Stands for the sequence number of an entry so damaged that its place is unknown. As the newest
/// it keeps undo from going past it.
const NEWEST: u64 = u64::MAX;

struct Loaded {
    purpose: Purpose,
    closed: ClosedEntry,
}

fn inverts(entry: &Loaded) -> Option<u64> {
    match entry.purpose {
        Purpose::Step => None,
        Purpose::Undo(sequence) | Purpose::Redo(sequence) => Some(sequence),
    }
}

/// What can be said of an entry whose summary is damaged.
fn damaged_info(dir: &StepDir, header: Option<&Header>, sequence: u64) -> StepInfo {
    let name = dir.path().file_name().and_then(|name| name.to_str());
    let named = name.and_then(|name| name.parse().ok()).unwrap_or(0);
    StepInfo {
        id: header.map_or(StepId(named), |header| header.id),
        sequence,
        kind: header.map_or(StepKind::Command, |header| header.kind),
        command: header.map(|header| header.command.clone()).unwrap_or_default(),
        started_at: header.map(|header| header.started_at).unwrap_or_default(),
        finished_at: Timestamp::default(),
        exit_code: None,
        added: 0,
        modified: 0,
        deleted: 0,
        renamed: 0,
        stored_bytes: 0,
        held_bytes: 0,
        protection: Protection::Protected,
        pinned: dir.pinned(),
        flagged: Vec::new(),
    }
}
