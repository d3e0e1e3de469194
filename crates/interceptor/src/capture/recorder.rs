//! The recorder of one journal: a step, an undo, or a redo.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use codeagent_common::{EntryKind, OverLimitPolicy, RelPath, ResourceLimits};
use parking_lot::Mutex;
use rustix::io::Errno;
use serde_bytes::ByteBuf;

use super::content::{Capture, CapturedContent, Span};
use super::inodes::{InodeState, InodeTable, Wanted};
use super::moved::Moved;
use super::reader::{Reader, Readers};
use super::space::FreeSpace;
use crate::error::{Result, UndoError};
use crate::host::{Dir, Entry, FileId, Found, Lender, Meta, MetaScope, Stamp, Tree};
use crate::probe::Point;
use crate::store::{
    At, Body, Header, Journal, ObjectRef, Owner, Pack, Record, Recorded, RemadeLog, StepDir, Store,
};

/// The two directories, and what is known about them while the process runs.
pub(crate) struct Workspace {
    pub(crate) tree: Tree,
    pub(crate) store: Store,
    pub(crate) moved: Moved,
    /// Cleared at the first refusal, so that it is not tried for every file.
    pub(crate) can_clone: AtomicBool,
    /// The same, for two entries that change places.
    pub(crate) can_swap: AtomicBool,
    pub(crate) space: FreeSpace,
    pub(crate) remade: RemadeLog,
    /// Notes the permissions lent here, as long as it lives.
    pub(crate) lender: Arc<Lender>,
}

/// Whether more may be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Granted,
    Unprotected,
}

/// How an entry was removed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Removal {
    /// It is gone from the working directory.
    Done(Taken),
    /// Everything is recorded; the caller removes it.
    Recorded,
}

/// An entry that is in the store now, or has a name there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    /// Index of its record.
    pub(crate) record: u64,
    /// Of the object.
    pub(crate) number: u32,
    pub(crate) id: FileId,
    pub(crate) stamp: Stamp,
}

pub(crate) struct Recorder {
    pub(crate) dir: StepDir,
    pub(crate) header: Header,
    journal: Journal,
    pub(crate) objects: Arc<Dir>,
    pack: OnceLock<Pack>,
    opening_pack: Mutex<()>,
    pub(crate) inodes: InodeTable,
    pub(crate) readers: Readers,
    objects_given: AtomicU32,
    stored: AtomicU64,
    held: AtomicU64,
    /// Objects that are directories.
    directories: Mutex<Vec<u32>>,
    /// `None` for undo and redo: they are the way back within bounds.
    limits: Option<ResourceLimits>,
    /// Why recording stopped.
    unprotected: OnceLock<String>,
    /// Creations that are recorded and have not returned. If the process dies, nobody knows what
    /// became of them.
    creating: Mutex<Vec<u64>>,
}

impl Recorder {
    pub(crate) fn create(
        workspace: &Workspace,
        header: Header,
        limits: Option<ResourceLimits>,
    ) -> Result<Self> {
        let store = &workspace.store;
        let failed = || UndoError::io("starting a step in the undo directory");
        let (dir, journal) =
            StepDir::create(store.wal_place(), &header, &store.probe).map_err(failed())?;
        let objects = dir.objects().map_err(failed())?;
        store.remember(header.sequence, &dir);
        if let Err(error) = store.sync_new_step(&dir) {
            let _ = store.discard(&dir, header.sequence);
            return Err(failed()(error));
        }
        Ok(Self {
            dir,
            header,
            journal,
            objects,
            pack: OnceLock::new(),
            opening_pack: Mutex::new(()),
            inodes: InodeTable::new(),
            readers: Readers::default(),
            objects_given: AtomicU32::new(0),
            stored: AtomicU64::new(0),
            held: AtomicU64::new(0),
            directories: Mutex::default(),
            limits,
            unprotected: OnceLock::new(),
            creating: Mutex::default(),
        })
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.header.sequence
    }

    /// What is known of the inodes the journal touched; nothing more will be recorded.
    pub(crate) fn into_inodes(self) -> InodeTable {
        self.inodes
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Nothing was recorded: whatever was attempted was refused.
    pub(crate) fn is_empty(&self) -> bool {
        self.journal.extent().0 <= 1
    }

    pub(crate) fn unprotected(&self) -> Option<&str> {
        self.unprotected.get().map(String::as_str)
    }

    pub(crate) fn stored_bytes(&self) -> u64 {
        self.stored.load(Ordering::Relaxed) + self.journal.extent().1
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// What there is to know of the files, when nothing more will be recorded.
    pub(crate) fn recorded(&self) -> Recorded {
        Recorded {
            journal: self.journal.extent(),
            pack_bytes: self.pack.get().map_or(0, Pack::length),
            directories: self.directories.lock().clone(),
        }
    }

    pub(crate) fn next_object(&self) -> u32 {
        self.objects_given.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn hold(&self, bytes: u64) {
        self.held.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn charge(&self, bytes: u64) {
        self.stored.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn object(&self, number: u32) -> Entry<'static> {
        self.objects.entry(number.to_string().into_bytes())
    }

    pub(crate) fn pack(&self, workspace: &Workspace) -> Result<&Pack> {
        if let Some(pack) = self.pack.get() {
            return Ok(pack);
        }
        let _opening = self.opening_pack.lock();
        if let Some(pack) = self.pack.get() {
            return Ok(pack);
        }
        let pack = self
            .dir
            .create_pack(&workspace.store.probe)
            .map_err(UndoError::io("making the pack of a step"))?;
        Ok(self.pack.get_or_init(|| pack))
    }

    /// Asks for room for `bytes` more; a step that outgrows its limit is refused or unprotected.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<Room> {
        if self.unprotected().is_some() {
            return Ok(Room::Unprotected);
        }
        let Some(limits) = &self.limits else {
            return Ok(Room::Granted);
        };
        let limit = limits.max_step_bytes;
        if self.stored_bytes() + bytes > limit {
            return match limits.over_step_limit {
                OverLimitPolicy::Refuse => Err(UndoError::LimitExceeded { limit_bytes: limit }),
                OverLimitPolicy::Unprotect => {
                    self.unprotect(format!("it changes more than {limit} bytes of old content"))?;
                    Ok(Room::Unprotected)
                }
            };
        }
        Ok(Room::Granted)
    }

    /// As [`Recorder::make_room`], on the disk as well.
    pub(crate) fn make_room_in_pack(&self, workspace: &Workspace, bytes: u64) -> Result<Room> {
        let room = self.make_room(bytes)?;
        if room == Room::Granted && self.limits.is_some() {
            workspace.space.take(&workspace.store, bytes)?;
        }
        Ok(room)
    }

    /// From here on the step cannot be undone; the journal says so, for recovery to know.
    fn unprotect(&self, reason: String) -> Result<()> {
        self.journal
            .append(&[Record::Unprotected { reason: reason.clone() }])
            .map_err(UndoError::io("writing the journal"))?;
        let _ = self.unprotected.set(reason);
        Ok(())
    }

    /// Appends records; when this returns, their mutations may happen. Index of the first.
    pub(crate) fn append(&self, workspace: &Workspace, records: &[Record<'_>]) -> Result<u64> {
        let first = self.journal.append(records).map_err(UndoError::io("writing the journal"))?;
        if workspace.store.durable {
            let sync = || -> io::Result<()> {
                workspace.store.probe.reach(Point::StoreOpen)?;
                if let Some(pack) = self.pack.get() {
                    pack.sync()?;
                }
                self.journal.sync()
            };
            sync().map_err(UndoError::io("syncing the journal"))?;
        }
        Ok(first)
    }

    /// The mutations of these records did not happen.
    pub(crate) fn cancel(&self, records: impl IntoIterator<Item = u64>) {
        let cancelled: Vec<Record<'_>> =
            records.into_iter().map(|record| Record::Cancelled { record }).collect();
        // If this fails, the inverse finds out by looking.
        let _ = self.journal.append(&cancelled);
    }

    pub(crate) fn confirm(&self, record: u64) {
        // If this fails, the inverse finds out by looking.
        let _ = self.journal.append(&[Record::Done { record }]);
    }

    /// Whether nothing has this name for certain; if not, somebody has to look.
    pub(crate) fn knows_free(&self, entry: &Entry<'_>) -> bool {
        let dir = entry.dir_handle();
        self.inodes.state(dir.id).listing().knows_free(dir, entry.name())
    }

    /// Records that entries of a directory are about to change.
    pub(crate) fn touch_dir(
        &self,
        workspace: &Workspace,
        dir: &Arc<Dir>,
        path: RelPath<'_>,
    ) -> Result<()> {
        let state = self.inodes.state(dir.id);
        if !state.has_times() {
            self.append(workspace, &[self.touched_dir(dir, path)?])?;
            state.set_times();
        }
        Ok(())
    }

    /// The preimage of a directory whose entries are about to change.
    fn touched_dir<'a>(&self, dir: &Arc<Dir>, path: RelPath<'a>) -> Result<Record<'a>> {
        let (_, stamp) = Stamp::of(dir).map_err(UndoError::host)?;
        let meta = Meta { stamp, scope: MetaScope::Times, xattrs: Vec::new() };
        Ok(Record::Preimage { at: At::Path(path), meta: Some(meta), content: None })
    }

    /// Records that entries of `dirs` are about to change, and then `last`; returns its index.
    /// If it makes a name appear, that is in the last of `dirs`.
    pub(crate) fn append_touching(
        &self,
        workspace: &Workspace,
        dirs: &[(&Arc<Dir>, RelPath<'_>)],
        last: Record<'_>,
    ) -> Result<u64> {
        let (mut untouched, mut records) = (Vec::new(), Vec::new());
        for (nth, (dir, path)) in dirs.iter().enumerate() {
            let state = self.inodes.state(dir.id);
            if nth + 1 == dirs.len()
                && let Some((_, name)) = last.appearing().and_then(RelPath::split)
            {
                state.note_name(name);
            }
            if !state.has_times() && dirs[..nth].iter().all(|(earlier, _)| earlier.id != dir.id) {
                records.push(self.touched_dir(dir, *path)?);
                untouched.push(state);
            }
        }
        if untouched.is_empty() {
            return self.append(workspace, &[last]);
        }
        records.push(last);
        let first = self.append(workspace, &records)?;
        untouched.iter().for_each(|state| state.set_times());
        Ok(first + records.len() as u64 - 1)
    }

    /// Records a creation, which is under way until [`Recorder::created`].
    pub(crate) fn record_creation(
        &self,
        workspace: &Workspace,
        path: RelPath<'_>,
        kind: EntryKind,
        entry: &Entry<'_>,
    ) -> Result<u64> {
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        let mut creating = self.creating.lock();
        let settled = creating.iter().copied().min().unwrap_or_else(|| self.journal.extent().0);
        let record = Record::Create { path, kind, settled };
        let index = self.append_touching(workspace, &[(entry.dir_handle(), parent)], record)?;
        creating.push(index);
        Ok(index)
    }

    /// The creation has happened, or has been refused.
    pub(crate) fn created(&self, index: u64) {
        self.creating.lock().retain(|creating| *creating != index);
    }

    /// Removes an entry that is not a directory, so that it can be put back. Files of another
    /// filesystem are copied; the caller then removes the entry.
    pub(crate) fn remove(
        &self,
        workspace: &Workspace,
        path: RelPath<'_>,
        entry: &Entry<'_>,
        id: FileId,
        stamp: Stamp,
    ) -> Result<Removal> {
        if let Some(taken) = self.move_out(workspace, path, entry, id, stamp)? {
            return Ok(Removal::Done(taken));
        }
        self.record_removed(workspace, path, entry, stamp)?;
        Ok(Removal::Recorded)
    }

    /// Moves an entry (a directory with everything below it) into the store.
    /// `None`: it lies on another filesystem, and nothing has happened.
    pub(crate) fn move_out(
        &self,
        workspace: &Workspace,
        path: RelPath<'_>,
        entry: &Entry<'_>,
        id: FileId,
        stamp: Stamp,
    ) -> Result<Option<Taken>> {
        if id.device != self.objects.id.device {
            return Ok(None);
        }
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        let number = self.next_object();
        let take = |stamp| Record::Take { path, object: number, stamp, linked: false };
        let dirs = [(entry.dir_handle(), parent)];
        let record = self.append_touching(workspace, &dirs, take(stamp))?;
        let moved = workspace
            .store
            .probe
            .reach(Point::HostMutation)
            .and_then(|()| entry.rename_to(&self.object(number)));
        match moved {
            Ok(()) => {
                let taken = Taken { record, number, id, stamp };
                let is_it = |found: &Stamp| stamp.describes_object(found);
                let taken = self.really_taken(taken, is_it, take)?;
                self.taken(workspace, taken.id, number, &taken.stamp);
                Ok(Some(taken))
            }
            Err(error) => {
                self.cancel([record]);
                match Errno::from_io_error(&error) {
                    Some(Errno::XDEV) => Ok(None),
                    _ => Err(UndoError::host(error)),
                }
            }
        }
    }

    /// Gives an entry that is about to be replaced a second name in the store. `None`: it cannot have
    /// one, and nothing has happened.
    pub(crate) fn link_out(
        &self,
        workspace: &Workspace,
        path: RelPath<'_>,
        entry: &Entry<'_>,
        (id, stamp): (FileId, Stamp),
    ) -> Result<Option<Taken>> {
        if id.device != self.objects.id.device {
            return Ok(None);
        }
        let number = self.next_object();
        let take = |stamp| Record::Take { path, object: number, stamp, linked: true };
        let dirs = [(entry.dir_handle(), path.parent().unwrap_or(RelPath::ROOT))];
        let record = self.append_touching(workspace, &dirs, take(stamp))?;
        if entry.link_to(&self.object(number)).is_err() {
            self.cancel([record]);
            return Ok(None);
        }
        let taken = Taken { record, number, id, stamp };
        self.really_taken(taken, |found| stamp.describes_object(found), take).map(Some)
    }

    /// Puts one entry in the place of another in one moment. What was there is in the store then, and
    /// `placed` came from there or from a staging area. `None`: this cannot be done here, or nothing
    /// is there any more; nothing has happened.
    pub(crate) fn swap(
        &self,
        workspace: &Workspace,
        path: RelPath<'_>,
        (placed, from): (&Found<'_>, ObjectRef),
        present: &Found<'_>,
    ) -> Result<Option<Taken>> {
        let device = self.objects.id.device;
        if !workspace.can_swap.load(Ordering::Relaxed)
            || placed.id.device != device
            || present.id.device != device
        {
            return Ok(None);
        }
        let number = self.next_object();
        let (object, placed_stamp) = (self.object(number), placed.stamp);
        let swap = |taken| Record::Swap { path, object: number, taken, from, placed: placed_stamp };
        let dirs = [(present.entry.dir_handle(), path.parent().unwrap_or(RelPath::ROOT))];
        let record = self.append_touching(workspace, &dirs, swap(present.stamp))?;
        let mutation = || workspace.store.probe.reach(Point::HostMutation);
        // First into the store: so what comes out of the folder is in the store at once, whoever
        // made it, and is not lost if this process ends.
        let swapped = mutation().and_then(|()| placed.entry.rename_to(&object)).and_then(|()| {
            mutation().and_then(|()| object.exchange_with(&present.entry)).inspect_err(|_| {
                // If this fails, the inverse finds out by looking.
                let _ = object.rename_to(&placed.entry);
            })
        });
        match swapped {
            Ok(()) => {
                let Found { id, stamp, .. } = *present;
                let looked_at = Taken { record, number, id, stamp };
                let is_it = |found: &Stamp| stamp.describes_object(found);
                let taken = self.really_taken(looked_at, is_it, swap)?;
                if taken.stamp.is_dir() || placed.stamp.is_dir() {
                    workspace.tree.forget_dirs();
                }
                self.taken(workspace, taken.id, number, &taken.stamp);
                Ok(Some(taken))
            }
            Err(error) => {
                let is_back = object.stat().map_err(UndoError::host)?.is_none();
                if is_back {
                    self.cancel([record]);
                }
                match Errno::from_io_error(&error) {
                    Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) if is_back => {
                        workspace.can_swap.store(false, Ordering::Relaxed);
                        Ok(None)
                    }
                    Some(Errno::XDEV | Errno::NOENT) if is_back => Ok(None),
                    _ => Err(UndoError::host(error)),
                }
            }
        }
    }

    /// What was moved or linked is what has the name in that moment: somebody may have saved it
    /// between the look and the move, and then that is what the step has taken.
    fn really_taken<'r>(
        &self,
        looked_at: Taken,
        is_it: impl Fn(&Stamp) -> bool,
        record_of: impl Fn(Stamp) -> Record<'r>,
    ) -> Result<Taken> {
        let Taken { record, number, .. } = looked_at;
        let found = self.object(number).stat_id().map_err(UndoError::host)?;
        let Some((id, stamp)) = found.filter(|(_, found)| !is_it(found)) else {
            return Ok(looked_at);
        };
        // In this order: of two that speak of one object, the later one brings it back.
        let record = self
            .journal
            .append(&[record_of(stamp), Record::Cancelled { record }])
            .map_err(UndoError::io("writing the journal"))?;
        Ok(Taken { record, id, stamp, ..looked_at })
    }

    /// An entry is in the store now.
    pub(crate) fn taken(&self, workspace: &Workspace, id: FileId, number: u32, stamp: &Stamp) {
        self.hold(stamp.held_bytes());
        if stamp.is_dir() {
            self.directories.lock().push(number);
        }
        if stamp.is_file() {
            let owner = Owner::Sequence(self.sequence());
            workspace.moved.insert(id, ObjectRef { owner, number });
        }
    }

    /// Stores an entry that is not a directory completely; the caller removes it.
    pub(crate) fn record_removed(
        &self,
        workspace: &Workspace,
        path: RelPath<'_>,
        entry: &Entry<'_>,
        stamp: Stamp,
    ) -> Result<Option<u64>> {
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        let meta = Meta::read(entry, stamp, MetaScope::Full).map_err(UndoError::host)?;
        let body = if stamp.is_symlink() {
            Body::Symlink(ByteBuf::from(entry.read_link().map_err(UndoError::host)?))
        } else if stamp.is_file() {
            let file = entry.open_read().map_err(UndoError::host)?;
            let reader = Reader::new(file, stamp).map_err(UndoError::host)?;
            match self.store_region(workspace, &reader, Span { start: 0, end: stamp.size })? {
                Some(region) => Body::File(region),
                None => return Ok(None),
            }
        } else {
            Body::Special
        };
        let removed = Record::Removed { path, meta, body };
        self.append_touching(workspace, &[(entry.dir_handle(), parent)], removed).map(Some)
    }

    /// Records an empty directory that is about to be removed.
    pub(crate) fn record_rmdir(
        &self,
        workspace: &Workspace,
        path: RelPath<'_>,
        entry: &Entry<'_>,
        stamp: Stamp,
    ) -> Result<u64> {
        let parent = path.parent().unwrap_or(RelPath::ROOT);
        let meta = Meta::read(entry, stamp, MetaScope::Full).map_err(UndoError::host)?;
        let dirs = [(entry.dir_handle(), parent)];
        self.append_touching(workspace, &dirs, Record::Rmdir { path, meta })
    }

    /// Captures attributes or content of an entry that nobody else touches meanwhile.
    pub(crate) fn capture(
        &self,
        workspace: &Workspace,
        at: At<'_>,
        entry: &Entry<'_>,
        id: FileId,
        wanted: Wanted,
    ) -> Result<()> {
        let state = self.inodes.state(id);
        if state.covers(wanted) {
            return Ok(());
        }
        let gone = || UndoError::host(Errno::NOENT.into());
        let found = entry.stat().map_err(UndoError::host)?.ok_or_else(gone)?;
        let content = match wanted {
            Wanted::Attributes => None,
            Wanted::Content(span) => {
                match self.capture_content(workspace, entry, id, &state, span)? {
                    Capture::Stored(content) => Some(content),
                    Capture::Elsewhere | Capture::Unprotected => return Ok(()),
                }
            }
        };
        match self.append_preimage(workspace, (at, &found), entry, &state, content)? {
            true => Ok(()),
            false => Err(gone()),
        }
    }

    /// Appends the preimage of an entry that holds still: its content, which has been stored, and
    /// its attributes. `found` is what it was before its content was looked at. `false`: it is
    /// gone, whoever took it.
    pub(crate) fn append_preimage(
        &self,
        workspace: &Workspace,
        (at, found): (At<'_>, &Stamp),
        entry: &Entry<'_>,
        state: &InodeState,
        content: Option<CapturedContent>,
    ) -> Result<bool> {
        let meta = if state.has_attributes() {
            None
        } else {
            let Some(mut stamp) = entry.stat().map_err(UndoError::host)? else {
                return Ok(false);
            };
            if found.describes_but_for_links(&stamp) {
                // Permission may have been lent to read it. Only the ctime tells, and it must
                // not: the step before left the file with the one it had.
                stamp.ctime = found.ctime;
            }
            Some(Meta::read(entry, stamp, MetaScope::Full).map_err(UndoError::host)?)
        };
        let (content, covered) =
            content.map(|captured| (captured.content, captured.covered)).unzip();
        self.append(workspace, &[Record::Preimage { at, meta, content }])?;
        state.set_attributes();
        if let Some(covered) = covered {
            covered.mark(state);
        }
        Ok(true)
    }
}
