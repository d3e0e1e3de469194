//! External edits that were noticed, in the order they were.

use std::io;

use codeagent_common::{BarrierId, BarrierInfo};
use serde::{Deserialize, Serialize};

use super::Place;
use super::frame::{Damage, FrameReader, replace_frames};
use crate::probe::Probe;

const MAGIC: &[u8; 8] = b"CAUBARR1";

/// All there is to say, in one frame.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Standing {
    next: u64,
    barriers: Vec<BarrierInfo>,
}

pub(crate) struct BarrierLog {
    place: Place,
    probe: Probe,
    standing: Standing,
}

impl BarrierLog {
    /// Makes the file, with nothing in it, unless it is there.
    pub(crate) fn make(place: &Place, probe: &Probe) -> io::Result<()> {
        if place.exists() {
            return Ok(());
        }
        let standing = Standing { next: 1, barriers: Vec::new() };
        let mut log =
            Self { place: place.clone(), probe: probe.clone(), standing: standing.clone() };
        log.replace(standing)
    }

    /// A damaged file counts as empty: edits are then found by comparison alone.
    pub(crate) fn open(place: &Place, probe: Probe) -> io::Result<Self> {
        let standing = read(place)?.unwrap_or(Standing { next: 1, barriers: Vec::new() });
        Ok(Self { place: place.clone(), probe, standing })
    }

    /// For `verify`.
    pub(crate) fn is_sound(place: &Place) -> io::Result<bool> {
        Ok(read(place)?.is_some())
    }

    pub(crate) fn standing(&self) -> &[BarrierInfo] {
        &self.standing.barriers
    }

    pub(crate) fn raise(
        &mut self,
        barrier: impl FnOnce(BarrierId) -> BarrierInfo,
    ) -> io::Result<BarrierInfo> {
        let mut standing = self.standing.clone();
        let barrier = barrier(BarrierId(standing.next));
        standing.next = standing.next.saturating_add(1);
        standing.barriers.push(barrier.clone());
        self.replace(standing)?;
        Ok(barrier)
    }

    /// Takes barriers away that were crossed by force, or whose step is gone.
    pub(crate) fn lift(&mut self, lifted: impl Fn(&BarrierInfo) -> bool) -> io::Result<()> {
        if !self.standing.barriers.iter().any(&lifted) {
            return Ok(());
        }
        let mut standing = self.standing.clone();
        standing.barriers.retain(|barrier| !lifted(barrier));
        self.replace(standing)
    }

    fn replace(&mut self, standing: Standing) -> io::Result<()> {
        replace_frames(&self.place, MAGIC, self.probe.clone(), |frames| {
            frames.append(&standing).map(|_| ())
        })?;
        self.standing = standing;
        Ok(())
    }
}

fn read(place: &Place) -> io::Result<Option<Standing>> {
    match FrameReader::open(place, MAGIC) {
        Ok(frames) if frames.damage() == Damage::None && frames.len() == 1 => Ok(frames.get(0)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
