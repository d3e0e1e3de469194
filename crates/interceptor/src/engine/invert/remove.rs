//! What the journal's mutations made goes again.

use codeagent_common::RelPath;
use rustix::io::Errno;

use super::Inversion;
use crate::capture::{Recorder, Removal, Workspace};
use crate::engine::provenance::{Provenance, Verdict};
use crate::error::{Result, UndoError};
use crate::host::{Found, Stamp, copy_entry, remove_all};
use crate::probe::Point;
use crate::store::ObjectRef;

impl Inversion<'_> {
    /// Removes what the journal's mutation made.
    pub(super) fn remove_made(
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
        if self.is_news(&found) {
            return self.outrun(path);
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
    pub(super) fn set_aside(
        &mut self,
        index: u64,
        path: RelPath<'_>,
        found: &Found<'_>,
    ) -> Result<()> {
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

    pub(super) fn remove(&mut self, path: RelPath<'_>, found: &Found<'_>) -> Result<()> {
        let Found { entry, id, stamp } = found;
        if let Some(recorder) = self.recorder {
            if stamp.is_dir() {
                return remove_dir_recorded(self.workspace, recorder, path, found);
            }
            match recorder.remove(self.workspace, path, entry, *id, *stamp)? {
                Removal::Done(taken) if self.is_other(&taken.stamp, found) => {
                    return self.outrun(path);
                }
                Removal::Done(_) => return Ok(()),
                Removal::Recorded => {}
            }
            recorder.inodes.forget(*id);
        }
        self.mutation()?;
        remove_all(entry).map_err(UndoError::host)
    }

    /// Inverts a `Put`: out of the working directory again.
    pub(super) fn take_back(
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
        if found.stamp.is_dir() {
            self.workspace.tree.forget_dirs();
        }
        if self.recorder.is_some() {
            if found.stamp.is_dir() && self.holds_skipped(path) {
                self.leave(path);
                return Ok(());
            }
            if self.is_news(&found) {
                return self.outrun(path);
            }
            self.remove(path, &found)?;
            self.emptied = Some(path.to_buf());
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

    pub(super) fn remove_dir(&mut self, path: RelPath<'_>) -> Result<()> {
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
}

/// Removes a directory with everything below it, recorded: by moving it, or entry by entry where
/// it lies on another filesystem than the store.
pub(in crate::engine) fn remove_dir_recorded(
    workspace: &Workspace,
    recorder: &Recorder,
    path: RelPath<'_>,
    found: &Found<'_>,
) -> Result<()> {
    let Found { entry, id, stamp } = found;
    workspace.tree.forget_dirs();
    if recorder.move_out(workspace, path, entry, *id, *stamp)?.is_some() {
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
        let removal = recorder.remove(workspace, below.as_path(), &child, id, stamp)?;
        if let Removal::Recorded = removal {
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
