//! What an inversion leaves behind: files it brought back, which older steps must recognise.
//!
//! Putting a file back moves its ctime, and gives it a new inode where it had to be made anew.
//! A step further down that had left the file just as the inverted journal found it would take
//! that for somebody else's edit. So it learns the new stamp, file by file, by identity.

use std::collections::{HashMap, HashSet};

use super::UndoEngine;
use super::external::compare;
use super::invert::Inverted;
use super::state::{ClosedEntry, State};
use crate::error::{Result, UndoError};
use crate::fold::{found_files, mentioned_inodes};
use crate::host::Stamp;
use crate::store::{ChangeTable, Content, JournalReader, Record, Refreshed, StepDir};

/// A file as a journal found it, and as its inversion left it again.
struct Restored {
    found: Stamp,
    now: Stamp,
}

impl UndoEngine {
    /// Teaches the steps below what became of their files. `journal`, with this sequence number,
    /// has been inverted by the journal `by`.
    pub(super) fn refresh_older(
        &self,
        state: &State,
        journal: &JournalReader,
        sequence: u64,
        by: u64,
    ) -> Result<()> {
        let redo = state.redo.lock();
        let other = |entry: &&ClosedEntry| entry.sequence != sequence;
        // Nearest first: the newest step, the next one to be redone.
        let chains: [Vec<&ClosedEntry>; 2] = [
            state.history.iter().rev().filter(other).collect(),
            redo.iter().rev().filter(other).collect(),
        ];
        if chains.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let restored = self.restored_files(journal, sequence)?;
        for chain in chains {
            self.refresh_chain(&chain, &restored, by)?;
        }
        Ok(())
    }

    fn refresh_chain(
        &self,
        chain: &[&ClosedEntry],
        restored: &HashMap<u64, Restored>,
        by: u64,
    ) -> Result<()> {
        // What a step further down left is compared with what the next one found, not with now.
        let mut settled = HashSet::new();
        for step in chain {
            if settled.len() >= restored.len() {
                return Ok(());
            }
            // A damaged step cannot be undone anyway, and must not keep others from it.
            let Ok(mut table) = step.table() else { continue };
            let fresh: Vec<Refreshed> = table
                .expected()
                .iter()
                .filter_map(|(path, expected)| {
                    let expected = (*expected)?;
                    let Restored { found, now } = restored
                        .get(&expected.inode)
                        .filter(|_| !settled.contains(&expected.inode))?;
                    let as_left = compare(Some(expected), Some(*found), false).is_none();
                    as_left.then(|| Refreshed {
                        path: path.clone(),
                        stamp: Some(*now),
                        sequence: by,
                    })
                })
                .collect();
            let known = table.expected().values().flatten().map(|stamp| stamp.inode);
            let known = known.chain(table.relinked.iter().copied());
            let known: HashSet<u64> = known.filter(|inode| restored.contains_key(inode)).collect();
            settled.extend(self.touched_by(step, known, restored)?);
            if fresh.is_empty() {
                continue;
            }
            let probe = self.workspace.store.probe.clone();
            ChangeTable::add_refreshed(&step.dir.refreshed(), &fresh, probe)
                .map_err(UndoError::io("refreshing an older step"))?;
            for refreshed in fresh {
                table.refresh(refreshed.path, refreshed.stamp);
            }
        }
        Ok(())
    }

    /// Those of the files that the step itself has had to do with. It may know others only because
    /// a directory above them was renamed; those are still as the step before had left them.
    fn touched_by(
        &self,
        step: &ClosedEntry,
        known: HashSet<u64>,
        restored: &HashMap<u64, Restored>,
    ) -> Result<Vec<u64>> {
        if known.is_empty() {
            return Ok(Vec::new());
        }
        let damaged = |error: std::io::Error| UndoError::Corrupt(error.to_string());
        let journal = step.dir.journal().map_err(damaged)?;
        let mut mentioned = HashSet::new();
        for (_, record) in journal.records() {
            for inode in mentioned_inodes(&record.map_err(damaged)?) {
                mentioned.insert(inode);
                mentioned.insert(self.workspace.remade.current(inode, step.sequence).0);
            }
        }
        let is_mentioned = |inode: &u64| {
            let now = restored.get(inode).map(|restored| restored.now.inode);
            mentioned.contains(inode) || now.is_some_and(|now| mentioned.contains(&now))
        };
        Ok(known.into_iter().filter(is_mentioned).collect())
    }

    /// Files that are again as the journal found them, by the inode it knew them by.
    fn restored_files(
        &self,
        journal: &JournalReader,
        sequence: u64,
    ) -> Result<HashMap<u64, Restored>> {
        let damaged = |error: std::io::Error| UndoError::Corrupt(error.to_string());
        let mut restored = HashMap::new();
        for (path, found) in found_files(journal).map_err(damaged)? {
            let Some(now) = self.workspace.tree.stat(path.as_path()).map_err(UndoError::host)?
            else {
                continue;
            };
            let (inode, _) = self.workspace.remade.current(found.inode, sequence);
            if (Stamp { inode, ..found }).describes_but_for_links(&now) {
                restored.insert(found.inode, Restored { found, now });
            }
        }
        Ok(restored)
    }

    /// Takes back what a journal that did not come to its end taught older steps.
    pub(super) fn forget_refreshed(&self, state: &State, by: u64) -> Result<()> {
        let failed = || UndoError::io("refreshing an older step");
        for step in state.history.iter().chain(state.redo.lock().iter()) {
            let probe = self.workspace.store.probe.clone();
            let dropped =
                ChangeTable::drop_refreshed(&step.dir.refreshed(), by, probe).map_err(failed())?;
            if dropped {
                step.reload_table()?;
            }
        }
        Ok(())
    }

    /// After an inversion for good: older steps learn the new stamps, and the journal goes, or is
    /// kept aside if something in it could not be put back.
    pub(super) fn settle_final_inversion(
        &self,
        state: &State,
        dir: &StepDir,
        sequence: u64,
        inverted: &Inverted,
    ) -> Result<()> {
        let damaged = |error: std::io::Error| UndoError::Corrupt(error.to_string());
        let journal = dir.journal().map_err(damaged)?;
        self.refresh_older(state, &journal, sequence, sequence)?;
        self.sync_restored()?;
        let store = &self.workspace.store;
        // A file that no record names any more must not go with the journal.
        let orphaned = has_orphans(dir, &journal).map_err(damaged)?;
        let nothing_kept = inverted.left.is_empty() && inverted.set_aside.is_empty();
        if nothing_kept && !orphaned {
            store.discard(dir, sequence).map_err(UndoError::io("dropping the journal"))
        } else {
            store
                .quarantine(dir, sequence)
                .map(|_| ())
                .map_err(UndoError::io("setting the journal aside"))
        }
    }
}

/// Whether the store holds files that the journal does not speak of: its end was lost.
fn has_orphans(dir: &StepDir, journal: &JournalReader) -> std::io::Result<bool> {
    let mut named = HashSet::new();
    for (_, record) in journal.records() {
        match record? {
            Record::Take { object, .. }
            | Record::Swap { object, .. }
            | Record::Preimage { content: Some(Content::Clone { object, .. }), .. } => {
                named.insert(object.to_string().into_bytes());
            }
            _ => {}
        }
    }
    let is_number = |name: &Vec<u8>| name.iter().all(u8::is_ascii_digit);
    let names = dir.objects()?.names()?;
    // A clone is made before its record; it is a copy, and a file in the tree has the content.
    let objects = dir.objects()?;
    for name in names.into_iter().filter(|name| is_number(name) && !named.contains(name)) {
        let stamp = objects.entry(name).stat()?;
        if stamp.is_some_and(|stamp| !stamp.is_file() || stamp.permissions() != 0o600) {
            return Ok(true);
        }
    }
    Ok(false)
}
