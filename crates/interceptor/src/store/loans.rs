//! Permissions that are lent at the moment, so that a crash does not leave them lent for good.

use std::io;
use std::path::Path;

use codeagent_common::RelPathBuf;
use serde::{Deserialize, Serialize};

use super::Place;
use super::frame::{Damage, FrameReader, FrameWriter};
use crate::probe::Probe;

const MAGIC: &[u8; 8] = b"CAULOAN1";

/// Where a path begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Root {
    Working,
    Undo,
}

/// An inode whose owner has more permissions for a moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Loan {
    /// Where it is, and where it is about to be.
    pub(crate) names: Vec<(Root, RelPathBuf)>,
    pub(crate) inode: u64,
    /// The mode to give back.
    pub(crate) mode: u32,
    pub(crate) lent: u32,
}

/// The file `loans`: as long as a loan lasts, it has a frame there. Loans end in the opposite
/// order to that in which they began, so ending one is cutting the file off.
pub(crate) struct LoanBook {
    place: Place,
    pub(crate) probe: Probe,
    durable: bool,
}

impl LoanBook {
    pub(crate) fn new(undo: &Path, probe: Probe, durable: bool) -> Self {
        Self { place: undo.join("loans").into(), probe, durable }
    }

    /// Notes a loan that is about to begin; returns what [`LoanBook::strike`] needs.
    pub(crate) fn note(&self, loan: &Loan) -> io::Result<u64> {
        let frames = FrameWriter::open(&self.place, MAGIC, self.probe.clone())?;
        let (_, length) = frames.extent();
        frames.append(loan)?;
        if self.durable {
            frames.sync()?;
            self.place.sync_name()?;
        }
        Ok(length)
    }

    /// The loan has ended, and so have all that were noted after it.
    pub(crate) fn strike(&self, length: u64) -> io::Result<()> {
        let file = self.place.open_to_change()?;
        file.set_len(length)?;
        if self.durable { file.sync_all() } else { Ok(()) }
    }

    /// What a process that died had lent, oldest first. A torn note is of a loan that never began.
    pub(crate) fn left(&self) -> io::Result<Vec<Loan>> {
        match FrameReader::open(&self.place, MAGIC) {
            Ok(frames) => Ok((0..frames.len()).filter_map(|n| frames.get(n)).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn clear(&self) -> io::Result<()> {
        match self.place.remove_file() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// For `verify`.
    pub(crate) fn is_sound(undo: &Path) -> io::Result<bool> {
        match FrameReader::open(&undo.join("loans").into(), MAGIC) {
            Ok(frames) => Ok(frames.damage() != Damage::Broken),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }
}
