//! The directory of one step, undo or redo.

use std::io;
use std::path::Path;
use std::sync::Arc;

use codeagent_common::{Change, StepInfo};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::Place;
use super::changes::{ChangeTable, StoredChange, Trailer};
use super::journal::{Journal, JournalReader};
use super::pack::{Pack, PackReader};
use super::record::Header;
use super::sealed;
use crate::fold::NetChanges;
use crate::host::Dir;
use crate::probe::{Point, Probe};

/// Changes that `summary.json` spells out; all of them are in `changes`.
const SAMPLED_CHANGES: usize = 50;

/// `summary.json`: what a person wants to know of a step without any tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) step: StepInfo,
    pub(crate) sample: Vec<Change>,
    /// Objects that are directories: what is below them is counted after the step was closed.
    pub(crate) directories: Vec<u32>,
    /// xxh3-64 of `step` and `directories` as compact JSON, in hexadecimal: what the engine relies
    /// on is checked whenever it is read.
    check: String,
}

fn check_of(step: &StepInfo, directories: &[u32]) -> io::Result<String> {
    Ok(format!("{:016x}", xxh3_64(&serde_json::to_vec(&(step, directories))?)))
}

/// What a recorder has written.
pub(crate) struct Recorded {
    /// Frames and bytes.
    pub(crate) journal: (u64, u64),
    pub(crate) pack_bytes: u64,
    pub(crate) directories: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepDir {
    place: Place,
}

impl StepDir {
    pub(crate) fn at(place: impl Into<Place>) -> Self {
        Self { place: place.into() }
    }

    /// Makes the directory and its journal. Fails if the directory exists: what is in it has not
    /// been recovered.
    pub(crate) fn create(
        place: Place,
        header: &Header,
        probe: &Probe,
    ) -> io::Result<(Self, Journal)> {
        probe.reach(Point::StoreOpen)?;
        place.create_dir()?;
        let dir = Self { place };
        match dir.fill(header, probe) {
            Ok(journal) => Ok((dir, journal)),
            Err(error) => {
                // Nothing is recorded yet: a half-made directory must not look like a crash.
                dir.unmake();
                Err(error)
            }
        }
    }

    fn fill(&self, header: &Header, probe: &Probe) -> io::Result<Journal> {
        probe.reach(Point::StoreOpen)?;
        self.place.join("objects").create_dir()?;
        Journal::create(&self.place.join("journal"), header, probe.clone())
    }

    fn unmake(&self) {
        let _ = self.place.join("journal").remove_file();
        let _ = self.place.join("objects").remove_dir();
        let _ = self.place.remove_dir();
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn path(&self) -> &Path {
        self.place.path()
    }

    /// Whether it was promoted: only then are its summary and changes complete.
    pub(crate) fn is_closed(&self) -> bool {
        !self.path().ends_with("wal/in_progress")
    }

    pub(crate) fn cursor(&self) -> Place {
        self.place.join("cursor")
    }

    pub(crate) fn objects(&self) -> io::Result<Arc<Dir>> {
        self.place.join("objects").open_dir()
    }

    pub(crate) fn journal(&self) -> io::Result<JournalReader> {
        JournalReader::open(&self.place.join("journal"))
    }

    pub(crate) fn create_pack(&self, probe: &Probe) -> io::Result<Pack> {
        Pack::create(&self.place.join("pack"), probe.clone())
    }

    pub(crate) fn pack(&self) -> io::Result<PackReader> {
        PackReader::open(&self.place.join("pack"))
    }

    /// Writes summary and changes; returns how many bytes those are.
    pub(crate) fn seal(
        &self,
        step: &StepInfo,
        net: &NetChanges,
        recorded: Recorded,
        probe: &Probe,
    ) -> io::Result<u64> {
        let changes = &net.changes;
        let Recorded { journal, pack_bytes, directories } = recorded;
        let sample = changes.iter().take(SAMPLED_CHANGES).map(StoredChange::to_change).collect();
        let check = check_of(step, &directories)?;
        let summary = Summary { step: step.clone(), sample, directories, check };
        let mut text = serde_json::to_vec_pretty(&summary)?;
        text.push(b'\n');
        probe.reach(Point::StoreWrite)?;
        self.place.join("summary.json").write(&text)?;
        let trailer = Trailer {
            changes: net.changes.len() as u64,
            journal_frames: journal.0,
            journal_bytes: journal.1,
            pack_bytes,
            summary_check: xxh3_64(&text),
            relinked: net.relinked.clone(),
            whole: net.whole.clone(),
        };
        let place = self.place.join("changes");
        let changes = match ChangeTable::write(&place, net, &trailer, probe.clone()) {
            // A failed attempt to close the step has left one.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                place.remove_file()?;
                ChangeTable::write(&place, net, &trailer, probe.clone())
            }
            outcome => outcome,
        };
        Ok(text.len() as u64 + changes?)
    }

    /// Against power loss.
    pub(crate) fn sync(&self) -> io::Result<()> {
        for name in ["journal", "pack", "summary.json", "changes", "objects", ""] {
            match self.place.join(name).sync() {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Bytes below directories in the store; `None` while they have not been counted.
    pub(crate) fn held_below(&self) -> io::Result<Option<u64>> {
        sealed::read(&self.place.join("held"))
    }

    pub(crate) fn set_held_below(&self, bytes: u64, probe: &Probe) -> io::Result<()> {
        sealed::write(&self.place.join("held"), &bytes, probe, false)
    }

    /// What summary and changes take on disk.
    pub(crate) fn sealed_bytes(&self) -> u64 {
        let size = |name: &str| self.place.join(name).stat().map_or(0, |file| file.st_size as u64);
        size("summary.json") + size("changes")
    }

    /// The summary; the stored flag for pinning is a file of its own, so that it can change.
    pub(crate) fn summary(&self) -> io::Result<(Summary, u64)> {
        let text = self.place.join("summary.json").read()?;
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "summary.json is damaged");
        let mut summary: Summary = serde_json::from_slice(&text).map_err(|_| damaged())?;
        if check_of(&summary.step, &summary.directories)? != summary.check {
            return Err(damaged());
        }
        summary.step.pinned = self.pinned();
        Ok((summary, xxh3_64(&text)))
    }

    /// Net changes with the newest stamps.
    pub(crate) fn changes(&self) -> io::Result<(ChangeTable, Trailer)> {
        let (mut table, trailer) = ChangeTable::read(&self.place.join("changes"))?;
        table.apply_refreshed(&self.refreshed())?;
        Ok((table, trailer))
    }

    /// When something was last written to the journal or its companions.
    pub(crate) fn last_written(&self) -> io::Result<(i64, u32)> {
        let mut last = (0, 0);
        for name in ["journal", "pack", "objects"] {
            match self.place.join(name).stat() {
                Ok(stat) => last = last.max((stat.st_mtime, stat.st_mtime_nsec as u32)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(last)
    }

    pub(crate) fn refreshed(&self) -> Place {
        self.place.join("refreshed")
    }

    pub(crate) fn pinned(&self) -> bool {
        self.place.join("pinned").exists()
    }

    pub(crate) fn set_pinned(&self, pinned: bool, probe: &Probe) -> io::Result<()> {
        probe.reach(Point::StoreOpen)?;
        let flag = self.place.join("pinned");
        if pinned {
            return flag.write(b"");
        }
        match flag.remove_file() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
