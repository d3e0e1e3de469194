//! What got another name gets the old one.

use codeagent_common::{RelPath, RelPathBuf};

use super::Inversion;
use crate::error::Result;
use crate::host::Stamp;
use crate::store::Record;

impl Inversion<'_> {
    pub(super) fn rename_back(
        &mut self,
        index: u64,
        from: RelPath<'_>,
        to: RelPath<'_>,
        stamp: &Stamp,
    ) -> Result<()> {
        if self.skips(to) {
            // What should go back stays; its old name stays as it is, too.
            self.treatment.skip.push(from.to_buf());
            return Ok(());
        }
        let Some(found) = self.find(to)? else {
            return Ok(());
        };
        if self.recorder.is_none()
            && let Some(other) = self.find(from)?
        {
            let (inode, _) = self.workspace.remade.current(stamp.inode, self.sequence);
            if found.stamp.inode == inode && other.stamp.inode != inode {
                // It happened, and somebody has made another one since.
                return self.set_aside(index, to, &found);
            }
            return Ok(()); // never happened
        }
        if self.is_news(&found) {
            return self.outrun(to);
        }
        let Some(entry) = self.free_place(from)? else {
            return Ok(());
        };
        let (to_parent, from_parent) =
            (to.parent().unwrap_or(RelPath::ROOT), from.parent().unwrap_or(RelPath::ROOT));
        let dirs = [(found.entry.dir_handle(), to_parent), (entry.dir_handle(), from_parent)];
        let rename = Record::Rename { from: to, to: from, stamp: found.stamp };
        let record = self.note(&dirs, rename)?;
        self.happen(record, || found.entry.rename_to(&entry))?;
        if found.stamp.is_dir() {
            self.workspace.tree.forget_dirs();
            for skipped in &mut self.treatment.skip {
                *skipped = moved(skipped, to, from).unwrap_or_else(|| skipped.clone());
            }
        }
        self.report.restored += 1;
        Ok(())
    }

    pub(super) fn exchange_back(
        &mut self,
        (a, stamp_a): (RelPath<'_>, &Stamp),
        (b, stamp_b): (RelPath<'_>, &Stamp),
        (index, known): (u64, bool),
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
                return self.rename_back(index, b, a, stamp_b);
            }
            (None, Some(found)) if known || found.stamp.inode == was_at_a => {
                return self.rename_back(index, a, b, stamp_a);
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
        self.happen(record, || at_a.entry.exchange_with(&at_b.entry))?;
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
}

/// The name of something after its directory, or itself, has moved.
fn moved(path: &RelPathBuf, from: RelPath<'_>, to: RelPath<'_>) -> Option<RelPathBuf> {
    path.as_path().strip(from).map(|below| to.concat(below))
}
