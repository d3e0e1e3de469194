//! The journal of one step: a header, then records.

use std::io;
use std::path::Path;

use super::frame::{Damage, FrameReader, FrameWriter};
use super::record::{Header, Record};
use crate::probe::Probe;

const MAGIC: &[u8; 8] = b"CAUJRNL1";

pub(crate) struct Journal {
    frames: FrameWriter,
}

impl Journal {
    pub(crate) fn create(path: &Path, header: &Header, probe: Probe) -> io::Result<Self> {
        let frames = FrameWriter::create(path, MAGIC, probe)?;
        frames.append(header)?;
        Ok(Self { frames })
    }

    /// Appends records with one write; returns the index of the first.
    pub(crate) fn append(&self, records: &[Record<'_>]) -> io::Result<u64> {
        self.frames.append_all(records)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.frames.sync()
    }

    /// Frames and bytes so far.
    pub(crate) fn extent(&self) -> (u64, u64) {
        self.frames.extent()
    }

    pub(crate) fn read_back(&self) -> io::Result<JournalReader> {
        Ok(JournalReader { frames: FrameReader::new(self.frames.read_back()?, MAGIC) })
    }
}

/// A journal in memory.
pub(crate) struct JournalReader {
    frames: FrameReader,
}

impl JournalReader {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { frames: FrameReader::open(path, MAGIC)? })
    }

    /// No header, no records.
    pub(crate) fn empty() -> Self {
        Self { frames: FrameReader::new(Vec::new(), MAGIC) }
    }

    pub(crate) fn header(&self) -> Option<Header> {
        self.frames.get(0)
    }

    pub(crate) fn damage(&self) -> Damage {
        self.frames.damage()
    }

    /// Frames and bytes that are sound.
    pub(crate) fn extent(&self) -> (u64, u64) {
        self.frames.extent()
    }

    /// Index behind the last record; records begin at 1.
    pub(crate) fn end(&self) -> u64 {
        self.frames.len() as u64
    }

    /// The record at `index`; an error if the frame is sound but not a record.
    pub(crate) fn record(&self, index: u64) -> io::Result<Record<'_>> {
        usize::try_from(index)
            .ok()
            .and_then(|index| self.frames.get(index))
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a journal record"))
    }

    /// Records from first to last.
    pub(crate) fn records(&self) -> impl Iterator<Item = (u64, io::Result<Record<'_>>)> {
        (1..self.end()).map(|index| (index, self.record(index)))
    }
}
