//! The journal of one step: a header, then records.

use std::io;

use super::Place;
use super::frame::{Damage, FrameReader, FrameWriter};
use super::record::{Header, Record};
use crate::probe::Probe;

const MAGIC: &[u8; 8] = b"CAUJRNL1";

pub(crate) struct Journal {
    frames: FrameWriter,
}

impl Journal {
    pub(crate) fn create(place: &Place, header: &Header, probe: Probe) -> io::Result<Self> {
        let frames = FrameWriter::create_long(place, MAGIC, probe)?;
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

    /// To be called when nothing more will be appended.
    pub(crate) fn finish(&self) -> io::Result<()> {
        self.frames.trim()
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
    pub(crate) fn open(place: &Place) -> io::Result<Self> {
        Ok(Self { frames: FrameReader::open(place, MAGIC)? })
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

    /// Records that only say something about others, from first to last.
    pub(crate) fn marks(&self) -> impl Iterator<Item = (u64, io::Result<Record<'_>>)> {
        let is_mark = |index: &u64| {
            let payload = usize::try_from(*index).ok().and_then(|index| self.frames.payload(index));
            // What cannot be told apart here is decoded, and found out then.
            payload.and_then(<[u8]>::first).is_none_or(|tag| Record::MARK_TAGS.contains(tag))
        };
        (1..self.end()).filter(is_mark).map(|index| (index, self.record(index)))
    }

    /// Records from first to last.
    pub(crate) fn records(&self) -> impl Iterator<Item = (u64, io::Result<Record<'_>>)> {
        (1..self.end()).map(|index| (index, self.record(index)))
    }
}

#[cfg(test)]
mod tests {
    use codeagent_common::EntryKind;

    use super::*;
    use crate::store::Purpose;

    #[test]
    fn marks_are_told_from_other_records_by_their_first_byte() {
        let dir = tempfile::tempdir().unwrap();
        let header = Header {
            id: codeagent_common::StepId(1),
            sequence: 1,
            kind: codeagent_common::StepKind::Command,
            command: String::new(),
            started_at: codeagent_common::Timestamp::default(),
            purpose: Purpose::Step,
        };
        let place = dir.path().join("journal").into();
        let journal = Journal::create(&place, &header, Probe::default()).unwrap();
        let path = codeagent_common::RelPath::new(b"a").unwrap();
        let records = [
            Record::Create { path, kind: EntryKind::File, settled: 0 },
            Record::Cancelled { record: 1 },
            Record::Mkdir { path },
            Record::Done { record: 3 },
            Record::Unprotected { reason: "test".into() },
            Record::Mkdir { path },
        ];
        journal.append(&records).unwrap();
        let reader = journal.read_back().unwrap();
        let marks: Vec<u64> = reader.marks().map(|(index, _)| index).collect();
        assert_eq!(marks, [2, 4, 5]);
    }
}
