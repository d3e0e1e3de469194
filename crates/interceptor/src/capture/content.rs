//! Content preimages: the ladder from "nothing" to "copy".

use std::cell::RefCell;
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
use crate::store::{Content, Extent, Region};

/// Bytes stored at once; large enough to be quick, small enough to fit in memory many times over.
const CHUNK: u64 = 1 << 20;
/// As many bytes of memory each thread keeps to read into.
const KEPT_BUFFER: usize = 64 << 10;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

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
    pub(crate) covered: Covered,
}

/// What is known of a file once some content of it is in the journal.
pub(crate) struct Covered {
    length: u64,
    /// `None`: all of it.
    spans: Option<Vec<Span>>,
}

/// What came of reading on.
enum Stored {
    Extent(Extent),
    /// The file ends here.
    End,
    Unprotected,
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
        let covered = Covered { length, spans: Some(Vec::new()) };
        Self::Stored(CapturedContent { content, covered })
    }
}

impl Covered {
    /// To be called once the record is in the journal.
    pub(crate) fn mark(&self, state: &InodeState) {
        state.set_length(self.length);
        match &self.spans {
            Some(spans) => spans.iter().for_each(|span| state.set_span(*span)),
            None => state.set_whole(),
        }
    }
}

impl Recorder {
    /// Stores what `span` of the file `id` held before the step, as far as that is still missing.
    /// Nobody else may be capturing the file; its name may change meanwhile. The caller has seen
    /// that something is missing.
    pub(crate) fn capture_content(
        &self,
        workspace: &Workspace,
        entry: &Entry<'_>,
        id: FileId,
        state: &InodeState,
        span: Span,
    ) -> Result<Capture> {
        let known = state.former_length();
        let open = self.readers.get(id);
        let is_kept = open.is_some();
        let reader = match open {
            Some(reader) => reader,
            None => match self.open_reader(entry, id)? {
                Some(reader) => reader,
                None => return Ok(Capture::Elsewhere),
            },
        };
        let length = known.unwrap_or(reader.stamp.size);
        let missing: Vec<Span> = if known.is_some() {
            state.missing(state.with_sequel(span)).collect()
        } else {
            let fresh = InodeState::default();
            fresh.set_length(length);
            fresh.missing(span).collect()
        };
        if missing.is_empty() {
            return Ok(Capture::nothing(length));
        }
        if known.is_none()
            && length > SMALL
            && let Some(content) = self.clone_content(workspace, &reader.file, length)?
        {
            let covered = Covered { length, spans: None };
            return Ok(Capture::Stored(CapturedContent { content, covered }));
        }
        let mut regions = Vec::with_capacity(missing.len());
        for span in &missing {
            match self.store_region(workspace, &reader, *span)? {
                Some(region) => regions.push(region),
                None => return Ok(Capture::Unprotected),
            }
        }
        if length > SMALL && !is_kept {
            self.readers.keep(id, reader);
        }
        let content = Content::Ranges { length, regions };
        let covered = Covered { length, spans: Some(missing) };
        Ok(Capture::Stored(CapturedContent { content, covered }))
    }

    /// Opens a file to read from; `None` if another one has the name by now.
    fn open_reader(&self, entry: &Entry<'_>, id: FileId) -> Result<Option<Arc<Reader>>> {
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
        let mut region = Region { start: span.start, end: span.end, extents: Vec::new() };
        // Of pieces of large files, compression takes longer than anything else.
        let whole_file = span.start == 0 && span.end <= SMALL;
        let segments =
            reader.segments(span).map_err(UndoError::io("reading what is about to change"))?;
        for (start, end) in segments {
            let mut at = start;
            while at < end {
                let wanted = usize::try_from((end - at).min(CHUNK)).unwrap_or(0);
                let store =
                    |buffer: &mut [u8]| self.store_chunk(workspace, reader, at, buffer, whole_file);
                match with_buffer(wanted, store)? {
                    Stored::Extent(extent) => {
                        at += u64::from(extent.plain_bytes);
                        region.extents.push(extent);
                    }
                    Stored::End => break,
                    Stored::Unprotected => return Ok(None),
                }
            }
        }
        Ok(Some(region))
    }

    /// As many bytes as `buffer` takes.
    fn store_chunk(
        &self,
        workspace: &Workspace,
        reader: &Reader,
        at: u64,
        buffer: &mut [u8],
        compress: bool,
    ) -> Result<Stored> {
        let read = read_exact_at(&reader.file, buffer, at)
            .map_err(UndoError::io("reading what is about to change"))?;
        if read == 0 {
            return Ok(Stored::End);
        }
        if self.make_room_in_pack(workspace, read as u64)? == Room::Unprotected {
            return Ok(Stored::Unprotected);
        }
        let (pack, bytes) = (self.pack(workspace)?, &buffer[..read]);
        let extent = if compress { pack.add_compressed(bytes, at) } else { pack.add(bytes, at) };
        let extent = extent.map_err(UndoError::io("storing a preimage"))?;
        self.charge(extent.stored_bytes.into());
        Ok(Stored::Extent(extent))
    }
}

/// Memory to read into, which is made once for each thread, unless it is large.
fn with_buffer<T>(bytes: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    if bytes > KEPT_BUFFER {
        return work(&mut vec![0; bytes]);
    }
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < bytes {
            buffer.resize(bytes, 0);
        }
        work(&mut buffer[..bytes])
    })
}
