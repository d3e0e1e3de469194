//! Content preimages: the ladder from "nothing" to "copy".

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::reader::Reader;
use super::recorder::{Recorder, Room, Workspace};
use super::{InodeState, SMALL};
use crate::error::{Result, UndoError};
use crate::host::{Entry, FileId, Stamp, clone_file, is_absent, read_exact_at};
use crate::probe::Point;
use crate::store::{Content, Region};

/// Bytes stored at once; large enough to be quick, small enough to fit in memory many times over.
const CHUNK: u64 = 1 << 20;

/// A stretch of a file, end exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Span {
    pub(crate) const ALL: Self = Self { start: 0, end: u64::MAX };

    pub(crate) fn from(start: u64) -> Self {
        Self { start, end: u64::MAX }
    }

    pub(crate) fn of(start: u64, length: u64) -> Self {
        Self { start, end: start.saturating_add(length) }
    }
}

/// Content that is in the store, but not in the journal yet.
pub(crate) struct CapturedContent {
    pub(crate) content: Content,
    covered: Covered,
}

enum Covered {
    Whole,
    Spans(Vec<Span>),
}

/// What came of an attempt to store content.
pub(crate) enum Capture {
    Stored(CapturedContent),
    /// Another file has the name by now.
    Elsewhere,
    /// The step is no longer protected.
    Unprotected,
}

impl Capture {
    /// Only the length needs to be known.
    fn nothing(length: u64) -> Self {
        let content = Content::Ranges { length, regions: Vec::new() };
        Self::Stored(CapturedContent { content, covered: Covered::Spans(Vec::new()) })
    }
}

impl CapturedContent {
    /// To be called once the record is in the journal.
    pub(crate) fn mark(&self, state: &InodeState) {
        match (&self.content, &self.covered) {
            (Content::Ranges { length, .. }, Covered::Spans(spans)) => {
                state.set_length(*length);
                spans.iter().for_each(|span| state.set_span(*span));
            }
            (Content::Ranges { length, .. } | Content::Clone { length, .. }, _) => {
                state.set_length(*length);
                state.set_whole();
            }
        }
    }
}

impl Recorder {
    /// Stores what `span` of the file `id` held before the step, as far as that is still missing.
    /// Nobody else may be capturing the file; its name may change meanwhile.
    pub(crate) fn capture_content(
        &self,
        workspace: &Workspace,
        entry: &Entry<'_>,
        id: FileId,
        state: &InodeState,
        span: Span,
    ) -> Result<Capture> {
        let known = state.former_length();
        if known.is_some() && state.missing(span).next().is_none() {
            return Ok(Capture::nothing(known.unwrap_or(0)));
        }
        let Some(reader) = self.reader(entry, id)? else {
            return Ok(Capture::Elsewhere);
        };
        let length = known.unwrap_or(reader.stamp.size);
        let fresh = InodeState::default();
        fresh.set_length(length);
        let missing: Vec<Span> =
            if known.is_some() { state } else { &fresh }.missing(span).collect();
        if missing.is_empty() {
            return Ok(Capture::nothing(length));
        }
        if known.is_none()
            && length > SMALL
            && let Some(content) = self.clone_content(workspace, &reader.file, length)?
        {
            return Ok(Capture::Stored(CapturedContent { content, covered: Covered::Whole }));
        }
        let mut regions = Vec::with_capacity(missing.len());
        for span in &missing {
            match self.store_region(workspace, &reader, *span)? {
                Some(region) => regions.push(region),
                None => return Ok(Capture::Unprotected),
            }
        }
        if length > SMALL {
            self.readers.keep(id, &reader);
        }
        let content = Content::Ranges { length, regions };
        Ok(Capture::Stored(CapturedContent { content, covered: Covered::Spans(missing) }))
    }

    /// Opens a file to read from; `None` if another one has the name by now.
    fn reader(&self, entry: &Entry<'_>, id: FileId) -> Result<Option<Arc<Reader>>> {
        if let Some(reader) = self.readers.get(id) {
            return Ok(Some(reader));
        }
        let file = match entry.open_read() {
            Err(error) if is_absent(&error) => return Ok(None),
            result => result.map_err(UndoError::host)?,
        };
        // What is read must be this file, whatever has been done to its name since it was found.
        let (found, stamp) = Stamp::of(&file).map_err(UndoError::host)?;
        if found != id {
            return Ok(None);
        }
        let reader = Reader::new(file, stamp).map_err(UndoError::host)?;
        Ok(Some(Arc::new(reader)))
    }

    /// Shares the file's blocks with an object, where the filesystem can.
    fn clone_content(
        &self,
        workspace: &Workspace,
        file: &File,
        length: u64,
    ) -> Result<Option<Content>> {
        if !workspace.can_clone.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let number = self.next_object();
        let name = number.to_string().into_bytes();
        let object = self.objects.entry(name);
        let attempt = || -> io::Result<Option<Stamp>> {
            workspace.store.probe.reach(Point::StoreOpen)?;
            let clone = object.create_file()?;
            if !clone_file(&clone, file)? {
                object.unlink()?;
                return Ok(None);
            }
            if workspace.store.durable {
                clone.sync_all()?;
            }
            drop(clone);
            object.stat()
        };
        match attempt().map_err(UndoError::io("cloning a preimage"))? {
            Some(stamp) => {
                self.hold(stamp.held_bytes());
                Ok(Some(Content::Clone { length, object: number, stamp }))
            }
            None => {
                workspace.can_clone.store(false, Ordering::Relaxed);
                Ok(None)
            }
        }
    }

    /// Appends a stretch of a file to the pack, holes left out.
    /// `None`: the step is no longer protected.
    pub(crate) fn store_region(
        &self,
        workspace: &Workspace,
        reader: &Reader,
        span: Span,
    ) -> Result<Option<Region>> {
        let failed = |context| UndoError::io(context);
        let mut region = Region { start: span.start, end: span.end, extents: Vec::new() };
        // Of pieces of large files, compression takes longer than anything else.
        let whole_file = span.start == 0 && span.end <= SMALL;
        let segments = reader.segments(span).map_err(failed("reading what is about to change"))?;
        let mut buffer = Vec::new();
        for (start, end) in segments {
            let mut at = start;
            while at < end {
                let wanted = usize::try_from((end - at).min(CHUNK)).unwrap_or(0);
                buffer.resize(wanted, 0);
                let read = read_exact_at(&reader.file, &mut buffer, at)
                    .map_err(failed("reading what is about to change"))?;
                if read == 0 {
                    break;
                }
                if self.make_room_in_pack(workspace, read as u64)? == Room::Unprotected {
                    return Ok(None);
                }
                let pack = self.pack(workspace)?;
                let extent = if whole_file {
                    pack.add_compressed(&buffer[..read], at)
                } else {
                    pack.add(&buffer[..read], at)
                };
                let extent = extent.map_err(failed("storing a preimage"))?;
                self.charge(extent.stored_bytes.into());
                region.extents.push(extent);
                at += read as u64;
            }
        }
        Ok(Some(region))
    }
}
