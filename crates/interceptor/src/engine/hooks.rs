//! The hot path: what happens before each mutation.

use std::sync::Arc;

use codeagent_common::{
    EntryKind, PathUse, PathVerdict, RelPath, RelPathBuf, SafeguardDecision, StepId,
};
use parking_lot::{MutexGuard, RwLockReadGuard};
use rustix::io::Errno;

use super::UndoEngine;
use super::permit::{After, Names, Permit};
use super::safeguard::{Question, SafeguardDesk};
use super::state::{OpenStep, State};
use crate::capture::{Capture, InodeState, Recorder, Removal, Span, Wanted};
use crate::clock::timestamp;
use crate::error::{Result, UndoError};
use crate::events::EngineEvent;
use crate::host::{Dir, Entry, FileId, Stamp, Tree, is_absent};
use crate::interceptor::{Allocation, FileRef, Mutation, RenameMode, WriteInterceptor};
use crate::store::{At, ObjectRef, Record};

/// Journal space kept free for the record of a mutation.
const RECORD_ROOM: u64 = 512;

/// Why a mutation does not go on at once.
pub(super) enum Stop {
    Error(UndoError),
    /// Somebody has to be asked first; nothing has been recorded.
    Ask(Question),
}

impl From<UndoError> for Stop {
    fn from(error: UndoError) -> Self {
        Self::Error(error)
    }
}

type DirLocks<'e> = [Option<MutexGuard<'e, ()>>; 2];
type Attempt<'e> = std::result::Result<Permit<'e>, Stop>;

fn errno<'e>(errno: Errno) -> Attempt<'e> {
    Err(UndoError::host(errno.into()).into())
}

impl WriteInterceptor for UndoEngine {
    fn before<'e>(&'e self, mutation: &Mutation<'_>) -> Result<Permit<'e>> {
        if self.config.read_only {
            return Err(UndoError::ReadOnly);
        }
        loop {
            let safeguards = *self.safeguards.read();
            self.desk.wait_until_clear(&safeguards)?;
            let gate = self.state.read();
            if gate.disabled.is_some() {
                self.judge(mutation, None)?;
                return Ok(Permit::gated(gate));
            }
            if gate.interrupted.is_some() {
                drop(gate);
                self.finish_interrupted(&mut self.state.write())?;
                continue;
            }
            let Some(step) = self.usable_step(&gate) else {
                drop(gate);
                self.renew_ambient_step()?;
                continue;
            };
            let id = step.id;
            if let Some(&safeguard) = step.denied.get() {
                return Err(UndoError::SafeguardDenied { step: id, safeguard });
            }
            match self.attempt(gate, mutation) {
                Ok(permit) => return Ok(permit),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Ask(question)) => self.ask(id, question)?,
            }
        }
    }

    fn repeat_write<'e>(&'e self, file: FileId, offset: u64, length: u64) -> Option<Permit<'e>> {
        if !self.desk.is_clear() {
            return None;
        }
        let gate = self.state.read();
        let step = self.usable_step(&gate)?;
        let wanted = Wanted::Content(Span::of(offset, length));
        let covered = step.denied.get().is_none()
            && step.recorder()?.inodes.check(file, |state| state.covers(wanted));
        (covered && self.workspace.space.spend(length)).then(|| Permit::gated(gate))
    }

    fn current_step(&self) -> Option<StepId> {
        self.state.read().open.as_ref().map(|step| step.id)
    }
}

impl UndoEngine {
    /// The open step, unless it is an ambient one that has been quiet for too long.
    fn usable_step<'s>(&self, state: &'s State) -> Option<&'s OpenStep> {
        let step = state.open.as_ref()?;
        // Attempts that a denied step refuses do not keep it alive.
        if step.id.is_ambient() && step.denied.get().is_none() {
            let now = timestamp(&self.config.clock);
            if self.ambient_expired(step, now) {
                return None;
            }
            step.note_activity(now);
        }
        Some(step)
    }

    /// Puts the question to whoever listens and waits. A denial undoes the step.
    pub(super) fn ask(&self, step: StepId, question: Question) -> Result<()> {
        let kind = question.kind;
        let Some(request) = self.desk.open(step, question) else {
            return Ok(()); // somebody else asked first: wait for their answer, then look again
        };
        let safeguard = request.id;
        let _closing = CloseOnDrop(&self.desk);
        self.config.events.event(EngineEvent::SafeguardTriggered(request));
        let timeout = self.safeguards.read().timeout;
        let decision = self.desk.decision(timeout);
        match decision {
            SafeguardDecision::Allow => {
                if let Some(open) = self.state.read().open.as_ref().filter(|open| open.id == step) {
                    open.safeguards.lock().allowed.insert(kind);
                }
                Ok(())
            }
            SafeguardDecision::Deny => self
                .deny_open_step(step, safeguard)
                .and(Err(UndoError::SafeguardDenied { step, safeguard })),
        }
    }

    fn attempt<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        mutation: &Mutation<'_>,
    ) -> Attempt<'e> {
        self.judge(mutation, gate.open.as_ref())?;
        self.check_growth(mutation)?;
        if self.ignores(mutation, gate.open.as_ref()) {
            return Ok(Permit::gated(gate));
        }
        let recorder = self.recorder(&gate)?;
        recorder.make_room(RECORD_ROOM)?;
        let permit = if recorder.unprotected().is_some() {
            Ok(Permit::gated(gate))
        } else {
            self.record(gate, mutation)
        }?;
        self.tell_if_unprotected(&permit);
        Ok(permit)
    }

    fn record<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        mutation: &Mutation<'_>,
    ) -> Attempt<'e> {
        match *mutation {
            Mutation::Create { path, kind } => self.create(gate, path, kind),
            Mutation::Link { existing, path } => self.link(gate, existing, path),
            Mutation::Mkdir { path } => self.create(gate, path, EntryKind::Directory),
            Mutation::Unlink { path } => self.unlink(gate, path),
            Mutation::Rmdir { path } => self.rmdir(gate, path),
            Mutation::Rename { from, to, mode: RenameMode::Exchange } => {
                self.exchange(gate, from, to)
            }
            Mutation::Rename { from, to, mode } => self.rename(gate, from, to, mode),
            Mutation::Write { file, offset, length } => {
                self.change(gate, file, Wanted::Content(Span::of(offset, length)))
            }
            Mutation::Append { file } => {
                // Where the end is, is known for certain only while the inode is being captured.
                self.change(gate, file, Wanted::Content(Span { start: u64::MAX, end: u64::MAX }))
            }
            Mutation::Truncate { file, length } => {
                self.change(gate, file, Wanted::Content(Span::from(length)))
            }
            Mutation::Allocate { file, how, offset, length } => {
                let span = match how {
                    // Only bytes behind the end can change, and they read as zeros.
                    Allocation::Extend | Allocation::KeepSize => {
                        Span { start: u64::MAX, end: u64::MAX }
                    }
                    Allocation::PunchHole | Allocation::ZeroRange => Span::of(offset, length),
                    Allocation::CollapseRange | Allocation::InsertRange => Span::from(offset),
                };
                self.change(gate, file, Wanted::Content(span))
            }
            Mutation::OpenUnseen { file } => self.change(gate, file, Wanted::Content(Span::ALL)),
            Mutation::SetAttributes { file } => self.change(gate, file, Wanted::Attributes),
        }
    }

    fn create<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        path: RelPath<'_>,
        kind: EntryKind,
    ) -> Attempt<'e> {
        let Some((parent_path, _)) = path.split() else {
            return errno(Errno::EXIST);
        };
        let names = self.share_names();
        let (entry, dir) = self.resolve_locked(path)?;
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
    fn link<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        existing: Option<RelPath<'_>>,
        path: RelPath<'_>,
    ) -> Attempt<'e> {
        let Some((parent_path, _)) = path.split() else {
            return errno(Errno::EXIST);
        };
        let names = self.share_names();
        let (source, entry, dirs) = self.resolve_both_locked(existing.unwrap_or(path), path)?;
        if entry.stat().map_err(UndoError::host)?.is_some() {
            return errno(Errno::EXIST);
        }
        let existing = match (existing, source.stat().map_err(UndoError::host)?) {
            (None, _) => None,
            (Some(existing), Some(stamp)) => Some((existing, stamp)),
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

    fn unlink<'e>(&'e self, gate: RwLockReadGuard<'e, State>, path: RelPath<'_>) -> Attempt<'e> {
        if path.is_root() {
            return errno(Errno::ISDIR);
        }
        let names = self.share_names();
        let (entry, dir) = self.resolve_current(path)?;
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
            Removal::Done => {
                drop((dir, names));
                Ok(Permit::performed_by_engine(gate))
            }
            Removal::Recorded => {
                let after = After { forgotten, ..After::default() };
                Ok(Permit::new(self, gate, names, [Some(dir), None], after))
            }
        }
    }

    fn rmdir<'e>(&'e self, gate: RwLockReadGuard<'e, State>, path: RelPath<'_>) -> Attempt<'e> {
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

    fn rename<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        from: RelPath<'_>,
        to: RelPath<'_>,
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
        let (source, target, dirs) = self.resolve_both_locked(from, to)?;
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
    fn save_replaced(
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
        if id.device == recorder.objects.id.device {
            let number = recorder.next_object();
            let take = Record::Take { path, object: number, stamp, linked: true };
            let dirs = [(entry.dir_handle(), path.parent().unwrap_or(RelPath::ROOT))];
            let index = recorder.append_touching(&self.workspace, &dirs, take)?;
            if entry.link_to(&recorder.object(number)).is_ok() {
                after.records[0] = Some(index);
                after.replaced = Some((id, number, stamp));
                return Ok(());
            }
            // Not ours to link, too many links, or a mount in between: copy it.
            recorder.cancel([index]);
        }
        after.records[0] = recorder.record_removed(&self.workspace, path, entry, stamp)?;
        after.forgotten = (stamp.links <= 1).then_some(id);
        Ok(())
    }

    fn exchange<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        a: RelPath<'_>,
        b: RelPath<'_>,
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
        let (first, second, dirs) = self.resolve_both_locked(a, b)?;
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

    /// Content or attributes of one inode change.
    fn change<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        file: FileRef<'_>,
        wanted: Wanted,
    ) -> Attempt<'e> {
        let recorder = self.recorder(&gate)?;
        // The name may change under us a few times; a file that never holds still is refused.
        for _ in 0..64 {
            let Some(located) = self.locate(file)? else {
                // It has no name in the working directory and is in no step: nothing to undo.
                return Ok(Permit::gated(gate));
            };
            // Writing to a FIFO or device changes nothing but its times.
            let wanted = if located.stamp.is_file() { wanted } else { Wanted::Attributes };
            let state = recorder.inodes.state(located.id);
            if state.covers(wanted) || self.skips_symlink(&located.stamp) {
                return Ok(Permit::gated(gate));
            }
            self.check_overwrite(&gate, &located, &state, wanted)?;
            let _capturing = state.capturing.lock();
            if state.covers(wanted) {
                return Ok(Permit::gated(gate));
            }
            let content = match wanted {
                Wanted::Attributes => None,
                Wanted::Content(span) => {
                    let (entry, id) = (&located.entry, located.id);
                    match recorder.capture_content(&self.workspace, entry, id, &state, span)? {
                        Capture::Stored(content) => Some(content),
                        Capture::Elsewhere => continue,
                        Capture::Unprotected => return Ok(Permit::gated(gate)),
                    }
                }
            };
            // The name must stand for the file when the record is written, and until its
            // attributes have been read.
            let names = self.share_names();
            let Some((entry, dir)) = self.hold_still(&located)? else { continue };
            let (workspace, at) = (&self.workspace, located.at());
            let appended = recorder.append_preimage(
                workspace,
                (at, &located.stamp),
                &entry,
                &state,
                content,
            )?;
            drop((dir, names));
            if appended {
                return Ok(Permit::gated(gate));
            }
        }
        errno(Errno::AGAIN)
    }

    fn locate<'a>(&self, file: FileRef<'a>) -> Result<Option<Located<'a>>> {
        let open = match file.fd {
            Some(fd) => Some(FileId::of(fd).map_err(UndoError::host)?),
            None => None,
        };
        if let Some(located) = self.locate_path(file.path, open)? {
            return Ok(Some(located));
        }
        let Some(id) = open else {
            return Err(UndoError::host(Errno::NOENT.into()));
        };
        // While names change, a file that has one all the time can seem to have none.
        let _names = self.own_names();
        if let Some(located) = self.locate_path(file.path, open)? {
            return Ok(Some(located));
        }
        let moved = self.workspace.moved.lock().get(&id).copied();
        let object = match moved {
            Some(object) => self.locate_object(object, id)?,
            None => None,
        };
        match object {
            // The store has its only name.
            Some(located) if located.stamp.links <= 1 => Ok(Some(located)),
            object => Ok(self.locate_by_handle(file, id)?.or(object)),
        }
    }

    fn locate_path<'a>(
        &self,
        path: RelPath<'a>,
        open: Option<FileId>,
    ) -> Result<Option<Located<'a>>> {
        // Whoever has the file open need not be able to reach it by its name.
        let Some(entry) = self.workspace.tree.find_owned(path).map_err(UndoError::host)? else {
            return Ok(None);
        };
        let found = entry.stat_id().map_err(UndoError::host)?;
        Ok(found.filter(|(id, _)| open.is_none_or(|open| open == *id)).map(|(id, stamp)| Located {
            place: Place::Path(path),
            entry,
            id,
            stamp,
        }))
    }

    fn locate_object<'a>(&self, object: ObjectRef, id: FileId) -> Result<Option<Located<'a>>> {
        let Some(entry) = self.object_entry(object)? else {
            return Ok(None);
        };
        let found = entry.stat_id().map_err(UndoError::host)?.filter(|(found, _)| *found == id);
        Ok(found.map(|(_, stamp)| Located { place: Place::Object(object), entry, id, stamp }))
    }

    /// The name the kernel knows an open file by, if it is in the working directory: somebody
    /// outside renamed it.
    fn locate_by_handle<'a>(&self, file: FileRef<'a>, id: FileId) -> Result<Option<Located<'a>>> {
        use std::os::fd::AsRawFd;
        use std::os::unix::ffi::OsStrExt;
        let Some(fd) = file.fd else { return Ok(None) };
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let named = std::fs::read_link(link).ok().and_then(|name| {
            let below = name.strip_prefix(&self.config.working_dir).ok()?;
            RelPathBuf::new(below.as_os_str().as_bytes()).ok()
        });
        if let Some(path) = named
            && let Some(located) = self.locate_elsewhere(path, id)?
        {
            return Ok(Some(located));
        }
        let stat = rustix::fs::fstat(fd).map_err(|errno| UndoError::host(errno.into()))?;
        if stat.st_nlink == 0 {
            return Ok(None);
        }
        // It lost the name it was opened by and has another one: a hard link, anywhere.
        let mut elsewhere = None;
        crate::host::walk(self.workspace.tree.root(), RelPath::ROOT, &mut |path, found, _, _| {
            if found == id {
                elsewhere = Some(path.to_buf());
            }
            Ok(())
        })
        .map_err(UndoError::host)?;
        match elsewhere {
            Some(path) => self.locate_elsewhere(path, id),
            None => Ok(None),
        }
    }

    fn locate_elsewhere<'a>(&self, path: RelPathBuf, id: FileId) -> Result<Option<Located<'a>>> {
        let Some((parent, name)) = path.as_path().split() else {
            return Ok(None);
        };
        let Ok(dir) = self.workspace.tree.owned_dir(parent) else {
            return Ok(None);
        };
        let entry = dir.entry(name.to_vec()).owned();
        match entry.stat_id().map_err(UndoError::host)? {
            Some((found, stamp)) if found == id => {
                Ok(Some(Located { place: Place::Elsewhere(path), entry, id, stamp }))
            }
            _ => Ok(None),
        }
    }

    /// The file's name, locked; `None` if another file has it by now.
    fn hold_still<'l>(
        &self,
        located: &'l Located<'_>,
    ) -> Result<Option<(Entry<'l>, Option<MutexGuard<'_, ()>>)>> {
        let (entry, dir) = match located.at() {
            At::Path(path) if path.is_root() => {
                (self.workspace.tree.owned_entry(path).map_err(UndoError::host)?, None)
            }
            At::Path(path) => match self.current(path, |tree| tree.owned_entry(path)) {
                Err(UndoError::Io { source, .. }) if is_absent(&source) => return Ok(None),
                resolved => resolved.map(|(entry, dir)| (entry, Some(dir)))?,
            },
            At::Object(_) => (located.entry.clone(), None),
        };
        let now = entry.stat_id().map_err(UndoError::host)?;
        Ok(now.is_some_and(|(id, _)| id == located.id).then_some((entry, dir)))
    }

    /// Removing something the step made changes its directory's time all the same.
    fn touch_parent(
        &self,
        recorder: &Recorder,
        path: RelPath<'_>,
        entry: &Entry<'_>,
    ) -> Result<()> {
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        recorder.touch_dir(&self.workspace, entry.dir_handle(), parent)
    }

    fn count_delete(
        &self,
        gate: &RwLockReadGuard<'_, State>,
        path: RelPath<'_>,
    ) -> std::result::Result<(), Stop> {
        let Some(step) = gate.open.as_ref() else {
            return Ok(());
        };
        let config = self.safeguards.read();
        match step.safeguards.lock().on_delete(&config, step.id, path, 1) {
            Some(question) => Err(Stop::Ask(question)),
            None => Ok(()),
        }
    }

    fn count_rename_over(
        &self,
        gate: &RwLockReadGuard<'_, State>,
        to: RelPath<'_>,
    ) -> std::result::Result<(), Stop> {
        let Some(step) = gate.open.as_ref() else {
            return Ok(());
        };
        let config = self.safeguards.read();
        match step.safeguards.lock().on_rename_over(&config, step.id, to) {
            Some(question) => Err(Stop::Ask(question)),
            None => Ok(()),
        }
    }

    fn check_overwrite(
        &self,
        gate: &RwLockReadGuard<'_, State>,
        located: &Located<'_>,
        state: &InodeState,
        wanted: Wanted,
    ) -> std::result::Result<(), Stop> {
        let (Some(step), Wanted::Content(span)) = (gate.open.as_ref(), wanted) else {
            return Ok(());
        };
        let size = state.former_length().unwrap_or(located.stamp.size);
        if span.start >= size {
            return Ok(()); // only adds to the file
        }
        let At::Path(path) = located.at() else {
            return Ok(());
        };
        let config = self.safeguards.read();
        match step.safeguards.lock().on_overwrite(&config, step.id, path, size) {
            Some(question) => Err(Stop::Ask(question)),
            None => Ok(()),
        }
    }

    /// Asks the path policy about every name the mutation uses.
    fn judge(&self, mutation: &Mutation<'_>, step: Option<&OpenStep>) -> Result<()> {
        match *mutation {
            Mutation::Link { existing, path } => {
                // By its new name the file could be written to unjudged.
                if let Some(existing) = existing {
                    self.judge_path(existing, PathUse::Write, step)?;
                }
                self.judge_path(path, PathUse::Appear, step)
            }
            Mutation::Create { path, .. } | Mutation::Mkdir { path } => {
                self.judge_path(path, PathUse::Appear, step)
            }
            Mutation::Unlink { path } | Mutation::Rmdir { path } => {
                self.judge_path(path, PathUse::Disappear, step)
            }
            Mutation::Rename { from, to, mode } => {
                self.judge_path(from, PathUse::Disappear, step)?;
                self.judge_path(to, PathUse::Appear, step)?;
                if mode == RenameMode::Exchange {
                    self.judge_path(from, PathUse::Appear, step)?;
                }
                Ok(())
            }
            Mutation::Write { file, .. }
            | Mutation::Append { file }
            | Mutation::Truncate { file, .. }
            | Mutation::Allocate { file, .. }
            | Mutation::OpenUnseen { file } => self.judge_path(file.path, PathUse::Write, step),
            Mutation::SetAttributes { file } => {
                self.judge_path(file.path, PathUse::Attributes, step)
            }
        }
    }

    pub(super) fn judge_path(
        &self,
        path: RelPath<'_>,
        usage: PathUse,
        step: Option<&OpenStep>,
    ) -> Result<()> {
        match self.config.paths.judge(path, usage) {
            PathVerdict::Allow => Ok(()),
            PathVerdict::Flag => {
                if let Some(step) = step {
                    step.flag(path);
                }
                Ok(())
            }
            PathVerdict::Deny(rule) => Err(UndoError::PathProtected { path: path.to_buf(), rule }),
        }
    }

    /// A directory gets a new name: everything below it disappears, and appears there.
    pub(super) fn judge_below(
        &self,
        from: RelPath<'_>,
        to: RelPath<'_>,
        step: Option<&OpenStep>,
    ) -> Result<()> {
        if !self.config.paths.guards_below(from) && !self.config.paths.guards_below(to) {
            return Ok(());
        }
        let Ok(dir) = self.workspace.tree.owned_dir(from) else {
            return Ok(());
        };
        let mut verdict = Ok(());
        crate::host::walk(&dir, from, &mut |path, _, _, _| {
            if verdict.is_ok() {
                let new = path.strip(from).map(|below| to.concat(below));
                verdict = self.judge_path(path, PathUse::Disappear, step);
                if let (Ok(()), Some(new)) = (&verdict, new) {
                    verdict = self.judge_path(new.as_path(), PathUse::Appear, step);
                }
            }
            Ok(())
        })
        .map_err(UndoError::host)?;
        verdict
    }

    /// Whether all names of the mutation are ones undo leaves alone. What got such a name in this
    /// step, and had another one, is not left alone.
    fn ignores(&self, mutation: &Mutation<'_>, step: Option<&OpenStep>) -> bool {
        let covers = |path: RelPath<'_>, is_dir| {
            self.ignored.covers(&self.config.working_dir, path, is_dir)
                && !step.is_some_and(|step| step.keeps(path))
        };
        let keep = |path: RelPath<'_>| {
            if let (true, Some(step)) = (covers(path, false) || covers(path, true), step) {
                step.keep(path);
            }
            false
        };
        match *mutation {
            Mutation::Create { path, kind } => {
                covers(path, false) || self.leaves_symlinks_alone(kind)
            }
            Mutation::Link { existing: Some(existing), path } if !covers(existing, false) => {
                keep(path)
            }
            Mutation::Rename { from, to, mode } => match (covers(from, false), covers(to, false)) {
                (true, true) => true,
                (true, false) if mode == RenameMode::Exchange => keep(from),
                (true, false) => false,
                (false, _) => keep(to),
            },
            Mutation::Link { path, .. } | Mutation::Unlink { path } => covers(path, false),
            Mutation::Mkdir { path } | Mutation::Rmdir { path } => covers(path, true),
            Mutation::Write { file, .. }
            | Mutation::Append { file }
            | Mutation::Truncate { file, .. }
            | Mutation::Allocate { file, .. }
            | Mutation::OpenUnseen { file }
            | Mutation::SetAttributes { file } => covers(file.path, false),
        }
    }

    fn leaves_symlinks_alone(&self, kind: EntryKind) -> bool {
        kind == EntryKind::Symlink
            && self.config.symlinks == codeagent_common::SymlinkPolicy::Ignore
    }

    fn skips_symlink(&self, stamp: &Stamp) -> bool {
        self.leaves_symlinks_alone(stamp.kind())
    }

    fn tell_if_unprotected(&self, permit: &Permit<'_>) {
        if let Some((step, reason)) = permit.newly_unprotected() {
            self.config.events.event(EngineEvent::StepUnprotected { step, reason });
        }
    }

    pub(super) fn share_names(&self) -> Names<'_> {
        Names::Shared { _guard: self.names.read() }
    }

    fn own_names(&self) -> Names<'_> {
        Names::Exclusive { _guard: self.names.write() }
    }

    /// A name, and the lock on its directory. While a rename or rmdir waits for the lock, the
    /// directory may go: then it is looked up again.
    fn resolve_locked<'p>(&self, path: RelPath<'p>) -> Result<(Entry<'p>, MutexGuard<'_, ()>)> {
        self.locked(|tree| tree.entry(path))
    }

    fn locked<'p>(
        &self,
        resolve: impl Fn(&Tree) -> std::io::Result<Entry<'p>>,
    ) -> Result<(Entry<'p>, MutexGuard<'_, ()>)> {
        let tree = &self.workspace.tree;
        loop {
            let generation = tree.generation();
            let entry = resolve(tree).map_err(UndoError::host)?;
            let guard = self.lock_dir(entry.dir_handle());
            if tree.generation() == generation {
                return Ok((entry, guard));
            }
        }
    }

    /// As [`UndoEngine::resolve_locked`], for what is about to be taken away: the directory must
    /// be the one that has the name now, also if somebody outside has been renaming.
    fn resolve_current<'p>(&self, path: RelPath<'p>) -> Result<(Entry<'p>, MutexGuard<'_, ()>)> {
        self.current(path, |tree| tree.entry(path))
    }

    fn current<'p>(
        &self,
        path: RelPath<'_>,
        resolve: impl Fn(&Tree) -> std::io::Result<Entry<'p>>,
    ) -> Result<(Entry<'p>, MutexGuard<'_, ()>)> {
        loop {
            let (entry, guard) = self.locked(&resolve)?;
            if self.is_current(path, &entry) {
                return Ok((entry, guard));
            }
            self.workspace.tree.forget_dirs();
        }
    }

    fn is_current(&self, path: RelPath<'_>, entry: &Entry<'_>) -> bool {
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        self.workspace.tree.is_current(parent, entry.dir_handle())
    }

    fn resolve_both_locked<'p>(
        &self,
        a: RelPath<'p>,
        b: RelPath<'p>,
    ) -> Result<(Entry<'p>, Entry<'p>, DirLocks<'_>)> {
        let tree = &self.workspace.tree;
        loop {
            let generation = tree.generation();
            let first = tree.entry(a).map_err(UndoError::host)?;
            let second = tree.entry(b).map_err(UndoError::host)?;
            let guards = self.lock_dirs(first.dir_handle(), second.dir_handle());
            if tree.generation() != generation {
                continue;
            }
            if self.is_current(a, &first) && self.is_current(b, &second) {
                return Ok((first, second, guards));
            }
            tree.forget_dirs();
        }
    }

    fn stripe(&self, dir: &Dir) -> usize {
        (dir.id.inode as usize) % self.dir_locks.len()
    }

    fn lock_dir(&self, dir: &Arc<Dir>) -> MutexGuard<'_, ()> {
        self.dir_locks[self.stripe(dir)].lock()
    }

    /// Locks two directories, always in the same order.
    fn lock_dirs(&self, a: &Arc<Dir>, b: &Arc<Dir>) -> DirLocks<'_> {
        let (a, b) = (self.stripe(a), self.stripe(b));
        let first = self.dir_locks[a.min(b)].lock();
        let second = (a != b).then(|| self.dir_locks[a.max(b)].lock());
        [Some(first), second]
    }
}

/// Closes the question that is open, whatever becomes of those who ask and answer.
struct CloseOnDrop<'d>(&'d SafeguardDesk);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A file that was found, by name or in the store.
struct Located<'a> {
    place: Place<'a>,
    entry: Entry<'a>,
    id: FileId,
    stamp: Stamp,
}

enum Place<'a> {
    Path(RelPath<'a>),
    /// In the working directory, under a name the front end does not know.
    Elsewhere(RelPathBuf),
    Object(ObjectRef),
}

impl Located<'_> {
    fn at(&self) -> At<'_> {
        match &self.place {
            Place::Path(path) => At::Path(*path),
            Place::Elsewhere(path) => At::Path(path.as_path()),
            Place::Object(object) => At::Object(*object),
        }
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
