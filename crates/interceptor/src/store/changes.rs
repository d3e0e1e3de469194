//! Net changes of a closed step, with the stamps that tell later whether somebody else was there.

use std::collections::{HashMap, HashSet};
use std::io;

use codeagent_common::{Change, ChangeKind, EntryKind, RelPathBuf};
use serde::{Deserialize, Serialize};

use super::Place;
use super::frame::{Damage, FrameReader, FrameWriter, replace_frames};
use crate::fold::NetChanges;
use crate::host::Stamp;
use crate::probe::Probe;

const CHANGES_MAGIC: &[u8; 8] = b"CAUCHNG1";
const REFRESHED_MAGIC: &[u8; 8] = b"CAUREFR1";
/// Changes per frame: large enough to be cheap, small enough to stay far below a frame's limit.
const PER_FRAME: usize = 256;

/// Frames per write.
const FRAMES_AT_ONCE: usize = 16;

/// One net change, with the path's state before the step and when it was closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredChange {
    pub(crate) path: RelPathBuf,
    pub(crate) kind: ChangeKind,
    pub(crate) from: Option<RelPathBuf>,
    pub(crate) whole_directory: bool,
    pub(crate) before: Option<Stamp>,
    /// What has the name when the step is closed; for a deletion usually nothing.
    pub(crate) after: Option<Stamp>,
    /// What has the former name then; usually nothing.
    pub(crate) from_after: Option<Box<Stamp>>,
}

impl StoredChange {
    pub(crate) fn entry_kind(&self) -> Option<EntryKind> {
        let stamp = match self.kind {
            ChangeKind::Deleted => self.before,
            _ => self.after.or(self.before),
        };
        stamp.map(|stamp| stamp.kind())
    }

    pub(crate) fn to_change(&self) -> Change {
        Change {
            path: self.path.clone(),
            kind: self.kind,
            from: self.from.clone(),
            entry: self.entry_kind(),
            whole_directory: self.whole_directory,
        }
    }
}

/// Ends `changes`; what it says of the other files makes their damage visible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Trailer {
    pub(crate) changes: u64,
    pub(crate) journal_frames: u64,
    pub(crate) journal_bytes: u64,
    pub(crate) pack_bytes: u64,
    pub(crate) summary_check: u64,
    /// Inodes whose ctime moved because another of their names came or went.
    pub(crate) relinked: Vec<u64>,
    /// Directories that came as a whole and below which every file is stamped.
    pub(crate) whole: Vec<RelPathBuf>,
}

#[derive(Deserialize)]
enum Frame {
    Changes(Vec<StoredChange>),
    Trailer(Trailer),
    /// Stamps of files below directories that came as a whole.
    Below(Vec<(RelPathBuf, Stamp)>),
}

/// As [`Frame`], to be written.
#[derive(Serialize)]
enum FrameRef<'a> {
    Changes(&'a [StoredChange]),
    Trailer(&'a Trailer),
    Below(&'a [(RelPathBuf, Stamp)]),
}

/// A newer stamp for a path of an older step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refreshed {
    pub(crate) path: RelPathBuf,
    pub(crate) stamp: Option<Stamp>,
    /// The journal that brought the path back to what the step had left.
    pub(crate) sequence: u64,
}

/// The list, as far as it is sound.
fn read_refreshed(place: &Place) -> io::Result<(Vec<Refreshed>, bool)> {
    let frames = match FrameReader::open(place, REFRESHED_MAGIC) {
        Ok(frames) => frames,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), true)),
        Err(error) => return Err(error),
    };
    let list: Vec<Refreshed> = (1..frames.len()).filter_map(|index| frames.get(index)).collect();
    let complete = frames.damage() == Damage::None && frames.get(0) == Some(list.len() as u64);
    Ok((list, complete))
}

/// Replaces the list; its first frame is its length, so that a missing end is noticed.
fn write_refreshed(place: &Place, list: &[Refreshed], probe: Probe) -> io::Result<()> {
    replace_frames(place, REFRESHED_MAGIC, probe, |frames| {
        frames.append(&(list.len() as u64))?;
        frames.append_all(list).map(|_| ())
    })
}

/// All net changes of a step.
#[derive(Debug, Default)]
pub(crate) struct ChangeTable {
    pub(crate) changes: Vec<StoredChange>,
    /// What each path should look like now; `None`: it should not be there.
    expected: HashMap<RelPathBuf, Option<Stamp>>,
    pub(crate) relinked: HashSet<u64>,
    /// Directories that came as a whole and below which every file is known.
    pub(crate) whole: HashSet<RelPathBuf>,
}

impl ChangeTable {
    pub(crate) fn new(net: NetChanges) -> Self {
        let NetChanges { changes, below, whole, relinked } = net;
        let below = below.into_iter().map(|(path, stamp)| (path, Some(stamp)));
        let mut expected: HashMap<_, _> = below.collect();
        for change in &changes {
            if let Some(from) = &change.from {
                expected.entry(from.clone()).or_insert(change.from_after.as_deref().copied());
            }
            expected.insert(change.path.clone(), change.after);
        }
        let (relinked, whole) = (relinked.into_iter().collect(), whole.into_iter().collect());
        Self { changes, expected, relinked, whole }
    }

    pub(crate) fn expected(&self) -> &HashMap<RelPathBuf, Option<Stamp>> {
        &self.expected
    }

    /// Returns how many bytes were written.
    pub(crate) fn write(
        place: &Place,
        net: &NetChanges,
        trailer: &Trailer,
        probe: Probe,
    ) -> io::Result<u64> {
        let frames = FrameWriter::create(place, CHANGES_MAGIC, probe)?;
        let changes = net.changes.chunks(PER_FRAME).map(FrameRef::Changes);
        let below = net.below.chunks(PER_FRAME).map(FrameRef::Below);
        let all: Vec<_> = changes.chain(below).chain([FrameRef::Trailer(trailer)]).collect();
        for some in all.chunks(FRAMES_AT_ONCE) {
            frames.append_all(some)?;
        }
        Ok(frames.extent().1)
    }

    /// The table and its trailer; `InvalidData` if anything is missing or damaged.
    pub(crate) fn read(place: &Place) -> io::Result<(Self, Trailer)> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "changes is damaged");
        let frames = FrameReader::open(place, CHANGES_MAGIC)?;
        if frames.damage() != Damage::None || frames.len() == 0 {
            return Err(damaged());
        }
        let (mut changes, mut below) = (Vec::new(), Vec::new());
        for index in 0..frames.len() - 1 {
            match frames.get(index).ok_or_else(damaged)? {
                Frame::Changes(mut chunk) => changes.append(&mut chunk),
                Frame::Below(mut chunk) => below.append(&mut chunk),
                Frame::Trailer(_) => return Err(damaged()),
            }
        }
        match frames.get(frames.len() - 1).ok_or_else(damaged)? {
            Frame::Trailer(trailer) if trailer.changes == changes.len() as u64 => {
                let (relinked, whole) = (trailer.relinked.clone(), trailer.whole.clone());
                Ok((Self::new(NetChanges { changes, below, whole, relinked }), trailer))
            }
            _ => Err(damaged()),
        }
    }

    /// Takes over newer stamps. They are an aid, not history: damage ends the list, no more.
    pub(crate) fn apply_refreshed(&mut self, place: &Place) -> io::Result<()> {
        for refreshed in read_refreshed(place)?.0 {
            self.refresh(refreshed.path, refreshed.stamp);
        }
        Ok(())
    }

    /// Takes back the stamps that a journal brought which did not come to its end.
    /// `false`: there were none.
    pub(crate) fn drop_refreshed(place: &Place, sequence: u64, probe: Probe) -> io::Result<bool> {
        let (mut list, _) = read_refreshed(place)?;
        let all = list.len();
        list.retain(|refreshed| refreshed.sequence != sequence);
        if list.len() == all {
            return Ok(false);
        }
        write_refreshed(place, &list, probe)?;
        Ok(true)
    }

    pub(crate) fn refresh(&mut self, path: RelPathBuf, stamp: Option<Stamp>) {
        self.expected.insert(path, stamp);
    }

    pub(crate) fn add_refreshed(
        place: &Place,
        fresh: &[Refreshed],
        probe: Probe,
    ) -> io::Result<()> {
        let (mut list, _) = read_refreshed(place)?;
        list.extend_from_slice(fresh);
        write_refreshed(place, &list, probe)
    }

    /// For `verify`.
    pub(crate) fn refreshed_is_sound(place: &Place) -> io::Result<bool> {
        Ok(read_refreshed(place)?.1)
    }
}
