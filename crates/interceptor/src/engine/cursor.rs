//! How far an interrupted recovery came.

use std::io;

use crate::probe::Probe;
use crate::store::{FrameReader, FrameWriter, Place};

const MAGIC: &[u8; 8] = b"CAUCURS1";

/// Each frame is the index of the record that is about to be inverted.
pub(super) struct Cursor {
    frames: FrameWriter,
    position: Option<u64>,
}

impl Cursor {
    pub(super) fn open(place: &Place, probe: Probe) -> io::Result<Self> {
        let position = FrameReader::open(place, MAGIC)
            .ok()
            .and_then(|frames| frames.get(frames.len().checked_sub(1)?));
        Ok(Self { frames: FrameWriter::open(place, MAGIC, probe)?, position })
    }

    pub(super) fn position(&self) -> Option<u64> {
        self.position
    }

    pub(super) fn advance(&mut self, record: u64) -> io::Result<()> {
        self.frames.append(&record).map(|_| ())
    }
}
