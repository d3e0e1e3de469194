//! What took the place of something else gives it back.

use codeagent_common::RelPath;

use super::Inversion;
use crate::engine::provenance::Verdict;
use crate::error::{Result, UndoError};
use crate::host::{FileId, Found, Stamp};
use crate::store::{ObjectRef, Owner};

impl Inversion<'_> {
    pub(super) fn swap_back(
        &mut self,
        index: u64,
        path: RelPath<'_>,
        (number, taken): (u32, &Stamp),
        (from, placed): (ObjectRef, &Stamp),
    ) -> Result<()> {
        if self.recorder.is_none() {
            return self.unswap(index, path, number, (from, placed));
        }
        if self.try_to_swap_back(path, number, taken)? {
            return Ok(());
        }
        // There is something else now, or nothing, or something that is to be left alone.
        self.take_back(index, path, from, placed)?;
        if self.leaves(taken.is_symlink()) {
            return Ok(());
        }
        let is_free = self.emptied.take().is_some_and(|emptied| emptied.as_path() == path);
        self.put_back(path, is_free, number, taken)
    }

    /// So that it can be inverted again. `false`: nothing has happened.
    fn try_to_swap_back(&mut self, path: RelPath<'_>, number: u32, taken: &Stamp) -> Result<bool> {
        let Some(recorder) = self.recorder else { return Ok(false) };
        if self.treatment.skip.iter().any(|skipped| path.is_within(skipped.as_path()))
            || self.leaves(taken.is_symlink())
        {
            return Ok(false);
        }
        let Some(present) = self.find(path)? else { return Ok(false) };
        if present.stamp.is_dir() && self.holds_skipped(path) || self.is_news(&present) {
            return Ok(false);
        }
        let from = ObjectRef { owner: Owner::Sequence(self.sequence), number };
        let entry = self.objects.entry(number.to_string().into_bytes());
        // Whoever undoes or redoes has looked at all objects just now.
        let id = FileId { inode: taken.inode, ..self.objects.id };
        let former = Found { entry, id, stamp: *taken };
        let Some(swapped) = recorder.swap(self.workspace, path, (&former, from), &present)? else {
            return Ok(false);
        };
        if self.is_other(&swapped.stamp, &present) {
            return self.outrun(path).map(|()| true);
        }
        self.workspace.moved.remove(id, from);
        self.report.removed += 1;
        self.report.restored += 1;
        Ok(true)
    }

    /// For good. What was to be placed is in the store first, and what was taken is there only when
    /// they have changed places: so one look at the store tells how far it has come.
    fn unswap(
        &mut self,
        index: u64,
        path: RelPath<'_>,
        number: u32,
        (from, placed): (ObjectRef, &Stamp),
    ) -> Result<()> {
        let object = self.objects.entry(number.to_string().into_bytes());
        let Some(kept) = object.stat().map_err(UndoError::host)? else { return Ok(()) };
        if kept.inode != placed.inode {
            let id = FileId { inode: kept.inode, ..self.objects.id };
            let kept = ObjectRef { owner: Owner::Sequence(self.sequence), number };
            self.workspace.moved.remove(id, kept);
            let is_own = |found: &Found<'_>| {
                let verdict = self.provenance.map(|provenance| provenance.of_put(placed, found));
                found.stamp.inode == placed.inode && verdict != Some(Verdict::Foreign)
            };
            let found = self.find(path)?;
            let is_placed = found.as_ref().is_some_and(is_own);
            self.report.restored += 1;
            match found {
                Some(found) if is_placed => {
                    self.mutation()?;
                    object.exchange_with(&found.entry).map_err(UndoError::host)?;
                    self.report.removed += 1;
                }
                found => {
                    if let Some(found) = found {
                        self.set_aside(index, path, &found)?;
                    }
                    let Some(entry) = self.free_place(path)? else { return Ok(()) };
                    self.mutation()?;
                    return object.rename_to(&entry).map_err(UndoError::host);
                }
            }
        }
        let home = self.object(from)?;
        let place =
            home.unwrap_or_else(|| self.objects.entry(format!("staged-{number}").into_bytes()));
        self.mutation()?;
        object.rename_to(&place).map_err(UndoError::host)
    }
}
