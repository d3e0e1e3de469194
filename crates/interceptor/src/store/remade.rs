//! Inodes that undo had to make anew, because they could not be moved to another filesystem.
//!
//! Records name inodes to recognise hard links. When an inode comes back under another number,
//! the records of older journals must be read with the new one.

use std::collections::HashMap;
use std::io;

use codeagent_common::RelPathBuf;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Place;
use super::frame::{Damage, FrameReader, FrameWriter, repair_torn, replace_frames};
use crate::probe::Probe;

const MAGIC: &[u8; 8] = b"CAUREMA1";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Remade {
    pub(crate) former: u64,
    pub(crate) inode: u64,
    /// Where it was made.
    pub(crate) path: RelPathBuf,
    /// The journal that made it; older ones mean it when they say `former`.
    pub(crate) sequence: u64,
}

pub(crate) struct RemadeLog {
    place: Place,
    probe: Probe,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    list: Vec<Remade>,
    /// Where in `list`, in order: journals are long.
    by_former: HashMap<u64, Vec<usize>, foldhash::fast::FixedState>,
}

impl Entries {
    fn push(&mut self, remade: Remade) {
        self.by_former.entry(remade.former).or_default().push(self.list.len());
        self.list.push(remade);
    }
}

impl FromIterator<Remade> for Entries {
    fn from_iter<I: IntoIterator<Item = Remade>>(remade: I) -> Self {
        let mut entries = Self::default();
        remade.into_iter().for_each(|remade| entries.push(remade));
        entries
    }
}

impl RemadeLog {
    /// Makes the file, with nothing in it, unless it is there.
    pub(crate) fn make(place: &Place, probe: &Probe) -> io::Result<()> {
        if place.exists() {
            return Ok(());
        }
        replace_frames(place, MAGIC, probe.clone(), |_| Ok(()))
    }

    pub(crate) fn open(place: &Place, probe: Probe) -> io::Result<Self> {
        repair_torn(place, MAGIC)?;
        let entries = match FrameReader::open(place, MAGIC) {
            Ok(frames) => (0..frames.len()).filter_map(|n| frames.get(n)).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Entries::default(),
            Err(error) => return Err(error),
        };
        Ok(Self { place: place.clone(), probe, entries: Mutex::new(entries) })
    }

    pub(crate) fn add(&self, remade: Remade) -> io::Result<()> {
        let mut entries = self.entries.lock();
        FrameWriter::open(&self.place, MAGIC, self.probe.clone())?.append(&remade)?;
        entries.push(remade);
        Ok(())
    }

    /// The number that a journal's inode has now, and where it was last seen under it.
    pub(crate) fn current(&self, inode: u64, sequence: u64) -> (u64, Option<RelPathBuf>) {
        let entries = self.entries.lock();
        let (mut inode, mut since, mut path) = (inode, sequence, None);
        // Interrupted and taken up again, a journal may have made an inode twice: the last counts.
        let remade_since = |inode, since| {
            let known = entries.by_former.get(&inode)?;
            known.iter().rev().map(|at| &entries.list[*at]).find(|made| made.sequence >= since)
        };
        while let Some(remade) = remade_since(inode, since) {
            (inode, since, path) =
                (remade.inode, remade.sequence.saturating_add(1), Some(remade.path.clone()));
        }
        (inode, path)
    }

    /// Drops what no journal from `oldest` on can mean.
    pub(crate) fn prune(&self, oldest: u64) -> io::Result<()> {
        let mut entries = self.entries.lock();
        if entries.list.iter().all(|remade| remade.sequence >= oldest) {
            return Ok(());
        }
        let kept = std::mem::take(&mut entries.list).into_iter();
        *entries = kept.filter(|remade| remade.sequence >= oldest).collect();
        replace_frames(&self.place, MAGIC, self.probe.clone(), |frames| {
            frames.append_all(&entries.list).map(|_| ())
        })
    }

    /// For `verify`.
    pub(crate) fn is_sound(place: &Place) -> io::Result<bool> {
        match FrameReader::open(place, MAGIC) {
            Ok(frames) => Ok(frames.damage() == Damage::None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The history that these were for has been discarded, with the file.
    pub(crate) fn forget(&self) {
        *self.entries.lock() = Entries::default();
    }
}
