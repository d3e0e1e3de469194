//! External edits that were noticed, in the order they were.

use std::io;
use std::path::{Path, PathBuf};

use codeagent_common::{BarrierId, BarrierInfo};
use serde::{Deserialize, Serialize};

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
    path: PathBuf,
    probe: Probe,
    standing: Standing,
}

impl BarrierLog {
    /// Makes the file, with nothing in it, unless it is there.
    pub(crate) fn make(path: &Path, probe: &Probe) -> io::Result<()> {
        if path.exists() {
            return Ok(());
        }
        let standing = Standing { next: 1, barriers: Vec::new() };
        let mut log = Self { path: path.into(), probe: probe.clone(), standing: standing.clone() };
        log.replace(standing)
    }

    /// A damaged file counts as empty: edits are then found by comparison alone.
    pub(crate) fn open(path: &Path, probe: Probe) -> io::Result<Self> {
        let standing = read(path)?.unwrap_or(Standing { next: 1, barriers: Vec::new() });
        Ok(Self { path: path.into(), probe, standing })
    }

    /// For `verify`.
    pub(crate) fn is_sound(path: &Path) -> io::Result<bool> {
        Ok(read(path)?.is_some())
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
        replace_frames(&self.path, MAGIC, self.probe.clone(), |frames| {
            frames.append(&standing).map(|_| ())
        })?;
        self.standing = standing;
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<Option<Standing>> {
    match FrameReader::open(path, MAGIC) {
        Ok(frames) if frames.damage() == Damage::None && frames.len() == 1 => Ok(frames.get(0)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
