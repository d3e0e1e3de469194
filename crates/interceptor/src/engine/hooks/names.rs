//! Entries that appear, disappear or get other names.

use codeagent_common::{EntryKind, RelPath};
use parking_lot::RwLockReadGuard;
use rustix::io::Errno;

use super::locks::same;
use super::{Attempt, Stop, errno};
use crate::capture::{InodeState, Recorder, Removal};
use crate::engine::UndoEngine;
use crate::engine::permit::{After, Names};
use crate::engine::state::State;
use crate::error::{Result, UndoError};
use crate::host::{Entry, FileId, Stamp};
use crate::interceptor::RenameMode;
use crate::permit::Permit;
use crate::store::Record;

impl UndoEngine {
    pub(super) fn create<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        (path, dir): (RelPath<'_>, Option<u64>),
        kind: EntryKind,
    ) -> Attempt<'e> {
        let Some((parent_path, _)) = path.split() else {
            return errno(Errno::EXIST);
        };
        let names = self.share_names();
        let (entry, dir) = self.resolve_locked(path, dir)?;
        let recorder = self.recorder(&gate)?;
        if !recorder.knows_free(&entry) && entry.stat().map_err(UndoError::host)?.is_some() {
            return errno(Errno::EXIST);
        }
        let created = Some(path.to_buf());
        let mut after = After { created, ..After::default() };
        let index = if kind == EntryKind::Directory {
            let dirs = [(entry.dir_handle(), parent_path)];
            recorder.append_touching(&self.workspace, &dirs, Record::Mkdir { path })?
        } else {
            let index = recorder.record_creation(&self.workspace, path, kind, &entry)?;
            after.creating = Some(index);
            index
        };
        after.records[0] = Some(index);
        Ok(Permit::new(self, gate, names, [Some(dir), None], after))
    }

    /// A further name for a file, which keeps the one it has until it is made; or the first name
    /// of one that has none.
    pub(super) fn link<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        existing: Option<(RelPath<'_>, Option<u64>)>,
        (path, dir): (RelPath<'_>, Option<u64>),
    ) -> Attempt<'e> {
        let Some((parent_path, _)) = path.split() else {
            return errno(Errno::EXIST);
        };
        let names = self.share_names();
        let source = existing.map_or(path, |(existing, _)| existing);
        let (source, entry, dirs) = self.resolve_both_locked((source, None), (path, dir))?;
        if entry.stat().map_err(UndoError::host)?.is_some() {
            return errno(Errno::EXIST);
        }
        let existing = match (existing, source.stat_id().map_err(UndoError::host)?) {
            (None, _) => None,
            (Some((existing, number)), Some((id, stamp))) => {
                same(number, id)?;
                Some((existing, stamp))
            }
            (Some(_), None) => return errno(Errno::NOENT),
        };
        let touched = [(entry.dir_handle(), parent_path)];
        let record = Record::Link { path, existing };
        let index = self.recorder(&gate)?.append_touching(&self.workspace, &touched, record)?;
        let after = After {
            records: [Some(index), None],
            created: existing.is_none().then(|| path.to_buf()),
            ..After::default()
        };
        Ok(Permit::new(self, gate, names, dirs, after))
    }

    pub(super) fn unlink<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        (path, dir): (RelPath<'_>, Option<u64>),
    ) -> Attempt<'e> {
        if path.is_root() {
            return errno(Errno::ISDIR);
        }
        let names = self.share_names();
        let (entry, dir) = self.resolve_current(path, dir)?;
        let Some((id, stamp)) = entry.stat_id().map_err(UndoError::host)? else {
            return errno(Errno::NOENT);
        };
        if stamp.is_dir() {
            return errno(Errno::ISDIR);
        }
        let recorder = self.recorder(&gate)?;
        let forgotten = (stamp.links <= 1).then_some(id);
        if recorder.inodes.check(id, InodeState::is_created) || self.skips_symlink(&stamp) {
            let after = After { forgotten, ..After::default() };
            self.touch_parent(recorder, path, &entry)?;
            return Ok(Permit::new(self, gate, names, [Some(dir), None], after));
        }
        self.count_delete(&gate, path)?;
        match recorder.remove(&self.workspace, path, &entry, id, stamp)? {
            Removal::Done(_) => {
                drop((dir, names));
                Ok(Permit::performed_by_engine(gate))
            }
            Removal::Recorded => {
                let after = After { forgotten, ..After::default() };
                Ok(Permit::new(self, gate, names, [Some(dir), None], after))
            }
        }
    }

    pub(super) fn rmdir<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        (path, dir): (RelPath<'_>, Option<u64>),
    ) -> Attempt<'e> {
        if path.is_root() {
            return errno(Errno::BUSY);
        }
        let names = self.share_names();
        let (entry, itself, dirs) = loop {
            let generation = self.workspace.tree.generation();
            let entry = self.workspace.tree.entry(path).map_err(UndoError::host)?;
            let itself = entry.open_dir().map_err(UndoError::host)?;
            let dirs = self.lock_dirs(entry.dir_handle(), &itself);
            if self.workspace.tree.generation() != generation {
                continue;
            }
            if self.is_current(path, &entry) {
                same(dir, entry.dir_handle().id)?;
                break (entry, itself, dirs);
            }
            self.workspace.tree.forget_dirs();
        };
        let Some((id, stamp)) = entry.stat_id().map_err(UndoError::host)? else {
            return errno(Errno::NOENT);
        };
        if !itself.names().map_err(UndoError::host)?.is_empty() {
            return errno(Errno::NOTEMPTY);
        }
        let recorder = self.recorder(&gate)?;
        let removed_dir = Some(path.to_buf());
        let mut after = After { forgotten: Some(id), removed_dir, ..After::default() };
        if recorder.inodes.check(id, InodeState::is_created) {
            self.touch_parent(recorder, path, &entry)?;
        } else {
            self.count_delete(&gate, path)?;
            let index = recorder.record_rmdir(&self.workspace, path, &entry, stamp)?;
            after.records[0] = Some(index);
        }
        Ok(Permit::new(self, gate, names, dirs, after))
    }

    pub(super) fn rename<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        (from, dir): (RelPath<'_>, Option<u64>),
        (to, new_dir): (RelPath<'_>, Option<u64>),
        mode: RenameMode,
    ) -> Attempt<'e> {
        let (Some((from_parent, _)), Some((to_parent, _))) = (from.split(), to.split()) else {
            return errno(Errno::BUSY);
        };
        if from == to {
            return Ok(Permit::gated(gate)); // does nothing, or fails
        }
        if to.is_within(from) {
            return errno(Errno::INVAL);
        }
        let tree = &self.workspace.tree;
        let mut names = self.share_names();
        let source = tree.entry(from).map_err(UndoError::host)?;
        let Some(stamp) = source.stat().map_err(UndoError::host)? else {
            return errno(Errno::NOENT);
        };
        if stamp.is_dir() {
            drop(names);
            names = self.own_names();
            self.judge_below(from, to, gate.open.as_ref())?;
        }
        let (source, target, dirs) = self.resolve_both_locked((from, dir), (to, new_dir))?;
        let Some((id, stamp_now)) = source.stat_id().map_err(UndoError::host)? else {
            return errno(Errno::NOENT);
        };
        if stamp_now.is_dir() && !matches!(names, Names::Exclusive { .. }) {
            return errno(Errno::AGAIN); // became a directory in between: let the caller retry
        }
        let replaced = target.stat_id().map_err(UndoError::host)?;
        let mut after = After { forget_dirs: stamp_now.is_dir(), ..After::default() };
        let recorder = self.recorder(&gate)?;
        if let Some((replaced_id, replaced_stamp)) = replaced {
            if mode == RenameMode::NoReplace {
                return errno(Errno::EXIST);
            }
            if replaced_id == id {
                // Two names of one file: rename does nothing, as long as they stay that.
                return Ok(Permit::new(self, gate, names, dirs, After::default()));
            }
            check_replaceable(&stamp_now, &replaced_stamp, &target)?;
            self.count_rename_over(&gate, to)?;
            if recorder.inodes.check(replaced_id, InodeState::is_created) {
                after.forgotten = (replaced_stamp.links <= 1).then_some(replaced_id);
            } else {
                self.save_replaced(recorder, to, &target, replaced_id, replaced_stamp, &mut after)?;
            }
        }
        let touched = [(source.dir_handle(), from_parent), (target.dir_handle(), to_parent)];
        let rename = Record::Rename { from, to, stamp: stamp_now };
        after.records[1] = Some(recorder.append_touching(&self.workspace, &touched, rename)?);
        Ok(Permit::new(self, gate, names, dirs, after))
    }

    /// Keeps what a rename is about to replace. A second name, not a move: until the rename
    /// happens, readers must find the old file.
    pub(super) fn save_replaced(
        &self,
        recorder: &Recorder,
        path: RelPath<'_>,
        entry: &Entry<'_>,
        id: FileId,
        stamp: Stamp,
        after: &mut After,
    ) -> Result<()> {
        if self.skips_symlink(&stamp) {
            return Ok(());
        }
        if stamp.is_dir() {
            after.records[0] = Some(recorder.record_rmdir(&self.workspace, path, entry, stamp)?);
            after.forgotten = Some(id);
            return Ok(());
        }
        if let Some(taken) = recorder.link_out(&self.workspace, path, entry, (id, stamp))? {
            after.records[0] = Some(taken.record);
            after.replaced = Some(taken);
            return Ok(());
        }
        // On another filesystem, not ours to link, too many links, or a mount in between: copy it.
        after.records[0] = recorder.record_removed(&self.workspace, path, entry, stamp)?;
        after.forgotten = (stamp.links <= 1).then_some(id);
        Ok(())
    }

    pub(super) fn exchange<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        (a, dir_a): (RelPath<'_>, Option<u64>),
        (b, dir_b): (RelPath<'_>, Option<u64>),
    ) -> Attempt<'e> {
        let (Some((a_parent, _)), Some((b_parent, _))) = (a.split(), b.split()) else {
            return errno(Errno::BUSY);
        };
        if a == b {
            return Ok(Permit::gated(gate)); // does nothing, or fails
        }
        if a.is_within(b) || b.is_within(a) {
            return errno(Errno::INVAL);
        }
        let names = self.own_names();
        self.judge_below(a, b, gate.open.as_ref())?;
        self.judge_below(b, a, gate.open.as_ref())?;
        let (first, second, dirs) = self.resolve_both_locked((a, dir_a), (b, dir_b))?;
        let stamps =
            (first.stat().map_err(UndoError::host)?, second.stat().map_err(UndoError::host)?);
        let (Some(stamp_a), Some(stamp_b)) = stamps else {
            return errno(Errno::NOENT);
        };
        let touched = [(first.dir_handle(), a_parent), (second.dir_handle(), b_parent)];
        let record = Record::Exchange { a, b, stamp_a, stamp_b };
        let recorder = self.recorder(&gate)?;
        let index = recorder.append_touching(&self.workspace, &touched, record)?;
        let after = After {
            records: [Some(index), None],
            confirm: true,
            forget_dirs: true,
            ..After::default()
        };
        Ok(Permit::new(self, gate, names, dirs, after))
    }

    /// Removing something the step made changes its directory's time all the same.
    pub(super) fn touch_parent(
        &self,
        recorder: &Recorder,
        path: RelPath<'_>,
        entry: &Entry<'_>,
    ) -> Result<()> {
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        recorder.touch_dir(&self.workspace, entry.dir_handle(), parent)
    }
}

/// Refuses what the host would refuse, before anything is recorded for it.
fn check_replaceable(
    source: &Stamp,
    target: &Stamp,
    entry: &Entry<'_>,
) -> std::result::Result<(), Stop> {
    let refused = match (source.is_dir(), target.is_dir()) {
        (true, false) => Some(Errno::NOTDIR),
        (false, true) => Some(Errno::ISDIR),
        (true, true) => {
            let dir = entry.open_dir().map_err(UndoError::host)?;
            let empty = dir.names().map_err(UndoError::host)?.is_empty();
            (!empty).then_some(Errno::NOTEMPTY)
        }
        (false, false) => None,
    };
    match refused {
        Some(errno) => Err(UndoError::host(errno.into()).into()),
        None => Ok(()),
    }
}
