//! The undo directory: making it, locking it, finding one's way in it.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::background::{Background, Counted};
use super::claim::{self, FORMAT_VERSION, Workdir};
use super::counters::Counters;
use super::lock::Lock;
use super::reserve::Reserve;
use super::{BarrierLog, Place, RemadeLog, StepDir, sealed};
use crate::error::{Result, UndoError};
use crate::probe::{Point, Probe};

/// What was taken back without anybody there to hear of it.
const RECOVERED: &str = "recovered";

/// Seconds and nanoseconds, as a filesystem has them.
pub(crate) type Time = (i64, u32);

/// An open undo directory, locked by this process.
pub(crate) struct Store {
    /// Leads there.
    root: PathBuf,
    /// The same, open.
    at: Place,
    /// What people call it; may lead elsewhere.
    name: PathBuf,
    /// Holds the lock until dropped.
    _lock: Lock,
    pub(crate) probe: Probe,
    /// Where the directory of each sequence number is now.
    places: Mutex<HashMap<u64, StepDir>>,
    background: Background,
    /// What is to be dropped, in this order: a journal that was inverted is known to be spent by
    /// the one that inverted it, which must not go before it.
    spent: Mutex<VecDeque<(StepDir, u64)>>,
    pub(crate) reserve: Reserve,
    /// Against power loss: whatever must be there after it is synced.
    pub(crate) durable: bool,
}

/// An undo directory of this format, or of another one.
pub(crate) enum Versioned {
    Current(Store),
    Other { store: Store, found: String },
}

impl Store {
    /// Opens or makes the undo directory of a working directory, which is given by its canonical
    /// path and a path that leads to it. So is an undo directory that somebody has opened already.
    pub(crate) fn open(
        (undo, way_in): (&Path, Option<&Path>),
        working: (&Path, &Path),
        probe: Probe,
        durable: bool,
    ) -> Result<Versioned> {
        let unusable = |source| UndoError::UndoDirUnusable { path: undo.into(), source };
        let name = match way_in {
            Some(_) => undo.to_path_buf(),
            None => claim::planned_location(undo).map_err(unusable)?,
        };
        claim::check_apart(&name, working.0)?;
        let root = way_in.unwrap_or(&name).to_path_buf();
        match fs::DirBuilder::new().mode(0o700).create(&root) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(unusable(error));
            }
            _ => {}
        }
        let version = claim::claimed_version(&root, undo)?;
        let store = Self {
            _lock: Lock::take(&root, undo)?,
            reserve: Reserve::at(&root),
            at: Place::within(&root).map_err(unusable)?,
            root,
            name,
            probe,
            places: Mutex::new(HashMap::new()),
            background: Background::start().map_err(unusable)?,
            spent: Mutex::default(),
            durable,
        };
        if let Some(found) = version.as_ref().filter(|found| **found != FORMAT_VERSION.to_string())
        {
            return Ok(Versioned::Other { store, found: found.clone() });
        }
        store.make_dirs().map_err(unusable)?;
        store.check_workdir(working)?;
        if version.is_none() {
            store.initialise().map_err(unusable)?;
        }
        store.empty_trash().and_then(|()| store.drop_all_staged()).map_err(unusable)?;
        store.background.be_patient();
        Ok(Versioned::Current(store))
    }

    /// Makes the files that every log has, and says that it is one.
    fn initialise(&self) -> io::Result<()> {
        if !self.at.join("counters").exists() {
            self.save_counters(&Counters::default())?;
        }
        BarrierLog::make(&self.barriers_place(), &self.probe)?;
        RemadeLog::make(&self.remade_place(), &self.probe)?;
        // Last: a directory with a version file is complete.
        let new = self.root.join("version.new");
        fs::write(&new, claim::version_text())?;
        if self.durable {
            File::open(&new)?.sync_all()?;
        }
        fs::rename(new, self.root.join("version"))?;
        if self.durable {
            self.sync("")?;
            // Whoever opened it, and may have made it, has seen to that.
            if self.root == self.name {
                File::open(self.root.parent().unwrap_or(&self.root))?.sync_all()?;
            }
        }
        Ok(())
    }

    fn make_dirs(&self) -> io::Result<()> {
        ["wal", "steps", "redo", "staging", "trash"]
            .into_iter()
            .try_for_each(|name| self.make_dir(name))
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        match self.at.join(name).create_dir() {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Throws a log away, whatever its format, and starts a new one in its place. What the engine
    /// did not make stays. A crash in between leaves a log that can be opened: directories go as a
    /// whole, and `version` and `workdir` are replaced, never missing.
    pub(crate) fn reinitialise(&self, working: (&Path, &Path)) -> Result<()> {
        let unusable = |source| UndoError::UndoDirUnusable { path: self.name.clone(), source };
        self.make_dir("trash").map_err(unusable)?;
        for name in claim::DIRS.into_iter().filter(|name| *name != "trash") {
            let gone = self.free_name("trash", name);
            match self.at.join(name).rename_to(&gone) {
                Ok(()) => self.delete_later(&gone),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(unusable(error)),
            }
        }
        for name in ["barriers", "remade", "counters"] {
            match self.at.join(name).remove_file() {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(unusable(error));
                }
                _ => {}
            }
        }
        self.places.lock().clear();
        self.spent.lock().clear();
        self.make_dirs()
            .and_then(|()| self.write_workdir(&Workdir::of(working)?))
            .and_then(|()| self.initialise())
            .map_err(unusable)
    }

    fn check_workdir(&self, working: (&Path, &Path)) -> Result<()> {
        let damaged = |error: io::Error| UndoError::Corrupt(error.to_string());
        let now = Workdir::of(working).map_err(UndoError::io("reading the working directory"))?;
        let recorded: Option<Workdir> = sealed::read(&self.at.join("workdir")).map_err(damaged)?;
        match recorded {
            Some(recorded) if recorded == now => Ok(()),
            Some(recorded) if !recorded.may_become(&now) => Err(UndoError::WrongWorkingDir {
                recorded: recorded.path(),
                given: working.0.into(),
            }),
            _ => self.write_workdir(&now).map_err(UndoError::io("writing workdir")),
        }
    }

    fn write_workdir(&self, workdir: &Workdir) -> io::Result<()> {
        sealed::write(&self.at.join("workdir"), workdir, &self.probe, self.durable)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The same path, as others call it.
    pub(crate) fn named(&self, path: PathBuf) -> PathBuf {
        match path.strip_prefix(&self.root) {
            Ok(below) => self.name.join(below),
            Err(_) => path,
        }
    }

    pub(crate) fn barriers_place(&self) -> Place {
        self.at.join("barriers")
    }

    pub(crate) fn remade_place(&self) -> Place {
        self.at.join("remade")
    }

    pub(crate) fn wal_place(&self) -> Place {
        self.at.join("wal/in_progress")
    }

    /// What an interrupted process left behind.
    pub(crate) fn wal(&self) -> Option<StepDir> {
        let place = self.wal_place();
        place.exists().then(|| StepDir::at(place))
    }

    /// Closed steps or redo entries, in no order.
    pub(crate) fn list(&self, which: &str) -> io::Result<Vec<StepDir>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.root.join(which))? {
            found.push(StepDir::at(self.at.join(which).join(entry?.file_name())));
        }
        Ok(found)
    }

    pub(crate) fn remember(&self, sequence: u64, dir: &StepDir) {
        self.places.lock().insert(sequence, dir.clone());
    }

    /// The directory that holds the objects of `sequence`.
    pub(crate) fn find(&self, sequence: u64) -> Option<StepDir> {
        self.places.lock().get(&sequence).cloned()
    }

    pub(crate) fn load_counters(&self) -> io::Result<Option<Counters>> {
        sealed::read(&self.at.join("counters"))
    }

    pub(crate) fn save_counters(&self, counters: &Counters) -> io::Result<()> {
        sealed::write(&self.at.join("counters"), &counters.to_keep(), &self.probe, self.durable)
    }

    /// For whoever opens the log next: nobody was there to hear of it.
    pub(crate) fn note_recovery(&self, report: &impl Serialize) -> io::Result<()> {
        sealed::write(&self.at.join(RECOVERED), report, &self.probe, self.durable)
    }

    /// What was noted, once. It is but news: without it nothing is lost.
    pub(crate) fn take_noted_recovery<T: DeserializeOwned>(&self) -> Option<T> {
        let place = self.at.join(RECOVERED);
        let noted = sealed::read(&place).ok().flatten();
        match place.remove_file() {
            Ok(()) => noted,
            Err(_) => None,
        }
    }

    /// Makes the finished `wal/in_progress` a step.
    pub(crate) fn promote_to_step(&self, id: i64, sequence: u64) -> io::Result<StepDir> {
        self.promote(self.at.join(format!("steps/{id}")), sequence)
    }

    /// Makes the finished `wal/in_progress` a redo entry.
    pub(crate) fn promote_to_redo(&self, sequence: u64) -> io::Result<StepDir> {
        self.promote(self.at.join(format!("redo/{sequence}")), sequence)
    }

    fn promote(&self, place: Place, sequence: u64) -> io::Result<StepDir> {
        self.probe.reach(Point::Promotion)?;
        match self.wal_place().rename_to(&place) {
            // Spent by an undo or redo, and could not be dropped at the time.
            Err(error) if is_taken(&error) => {
                self.discard(&StepDir::at(place.clone()), sequence)?;
                self.wal_place().rename_to(&place)?;
            }
            outcome => outcome?,
        }
        let dir = StepDir::at(place);
        self.remember(sequence, &dir);
        Ok(dir)
    }

    /// Puts a directory out of sight at once, and deletes it in the background.
    pub(crate) fn discard(&self, dir: &StepDir, sequence: u64) -> io::Result<()> {
        self.probe.reach(Point::Promotion)?;
        let gone = self.move_to_trash(dir.place(), sequence)?;
        self.places.lock().retain(|_, place| place != dir);
        self.delete_later(&gone);
        Ok(())
    }

    /// Drops an entry that is spent, after those that were spent before it. What cannot be dropped
    /// now is tried again with the next one.
    pub(crate) fn discard_spent(
        &self,
        more: impl IntoIterator<Item = (StepDir, u64)>,
    ) -> io::Result<()> {
        let mut spent = self.spent.lock();
        spent.extend(more);
        while let Some((dir, sequence)) = spent.front() {
            // A promotion to the same name may have dropped it already.
            if self.find(*sequence).is_some_and(|place| place == *dir) {
                self.discard(dir, *sequence)?;
            }
            spent.pop_front();
        }
        Ok(())
    }

    /// Counts what lies below directories that a step has moved.
    pub(crate) fn count_later(&self, dir: &StepDir, directories: Vec<u32>) -> io::Result<Counted> {
        Ok(self.background.count_later(dir.objects()?, directories))
    }

    /// Sets a journal aside that must not be replayed, and says where.
    pub(crate) fn quarantine(&self, dir: &StepDir, sequence: u64) -> io::Result<PathBuf> {
        self.probe.reach(Point::Promotion)?;
        self.make_dir("quarantine")?;
        let place = self.free_name("quarantine", sequence);
        dir.place().rename_to(&place)?;
        Ok(self.name.join(place.path()))
    }

    /// An empty place beside the journals that are set aside, for what a person may want of `step`.
    pub(crate) fn aside(&self, step: i64) -> io::Result<PathBuf> {
        self.make_dir("quarantine")?;
        let place = self.free_name("quarantine", format_args!("step-{step}"));
        place.create_dir()?;
        Ok(self.root.join(place.path()))
    }

    fn free_name(&self, which: &str, stem: impl std::fmt::Display) -> Place {
        (0_u32..)
            .map(|n| self.at.join(format!("{which}/{stem}.{n}")))
            .find(|place| !place.exists())
            .unwrap_or_else(|| self.at.join(which))
    }

    fn delete_later(&self, place: &Place) {
        self.background.delete_later(self.root.join(place.path()));
    }

    /// Moves a directory that is not empty, and says where it is.
    fn move_to_trash(&self, dir: &Place, stem: impl std::fmt::Display) -> io::Result<Place> {
        let mut places = (0_u32..).map(|n| self.at.join(format!("trash/{stem}.{n}")));
        let attempt = |place: Place| match dir.rename_to(&place) {
            Err(error) if is_taken(&error) => None,
            outcome => Some(outcome.map(|()| place)),
        };
        places.find_map(attempt).unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))
    }

    fn empty_trash(&self) -> io::Result<()> {
        for dir in self.list("trash")? {
            self.delete_later(dir.place());
        }
        Ok(())
    }

    /// Cleans up what nobody waits for, as far as time allows: nothing more will be done here.
    pub(crate) fn finish_cleaning(&self, time: Duration) {
        self.background.finish(time);
    }

    /// Where changes are staged under this number.
    pub(crate) fn staged(&self, number: u64) -> PathBuf {
        self.root.join(staging(number))
    }

    /// A time of the filesystem that is later than that of every change made until now. Where its
    /// clock ticks slowly, that takes a tick.
    pub(crate) fn next_moment(&self) -> io::Result<Time> {
        let staging = self.root.join("staging");
        let touch = || -> io::Result<Time> {
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let times = Timestamps { last_access: now, last_modification: now };
            rustix::fs::utimensat(CWD, &staging, &times, AtFlags::empty())?;
            let stat = rustix::fs::stat(&staging)?;
            Ok((stat.st_ctime as i64, stat.st_ctime_nsec as u32))
        };
        let now = touch()?;
        loop {
            // Looked at before, it gets a finer time where the filesystem has any.
            let later = touch()?;
            if later > now {
                return Ok(later);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Puts what was staged out of sight, and deletes it in the background.
    pub(crate) fn drop_staged(&self, number: u64) -> io::Result<()> {
        match self.move_to_trash(&self.at.join(staging(number)), format_args!("staged-{number}")) {
            Ok(gone) => self.delete_later(&gone),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Nothing that was staged outlives the process that asked for it.
    fn drop_all_staged(&self) -> io::Result<()> {
        for staged in self.list("staging")? {
            let gone = self.move_to_trash(staged.place(), "staged")?;
            self.delete_later(&gone);
        }
        Ok(())
    }

    pub(crate) fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Sets space aside again, if it was needed and there is some now.
    pub(crate) fn fill_reserve(&self) {
        self.reserve.fill(|| self.free_bytes());
    }

    /// Against power loss: the new step is there before its first mutation happens.
    pub(crate) fn sync_new_step(&self, dir: &StepDir) -> io::Result<()> {
        if self.durable {
            self.probe.reach(Point::StoreOpen)?;
            dir.sync()?;
            self.sync("wal")?;
        }
        Ok(())
    }

    /// Against power loss: what is in a step is there before it is promoted.
    pub(crate) fn sync_finished(&self, dir: &StepDir) -> io::Result<()> {
        if self.durable {
            self.probe.reach(Point::StoreOpen)?;
            dir.sync()?;
        }
        Ok(())
    }

    /// Against power loss: what was renamed stays renamed.
    pub(crate) fn sync_promoted(&self) -> io::Result<()> {
        if self.durable {
            self.probe.reach(Point::StoreOpen)?;
            ["wal", "steps", "redo"].into_iter().try_for_each(|name| self.sync(name))?;
        }
        Ok(())
    }

    fn sync(&self, dir: &str) -> io::Result<()> {
        self.at.join(dir).sync()
    }
}

fn staging(number: u64) -> String {
    format!("staging/{number}")
}

/// For `verify`: damaged, or missing.
pub(crate) fn check_counters(root: &Path) -> io::Result<()> {
    let found = sealed::read::<Counters>(&root.join("counters").into())?;
    found.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// A directory is not renamed onto another one that holds something.
fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty)
}
