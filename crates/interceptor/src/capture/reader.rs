//! Large files that a step overwrites piece by piece, open for reading as long as it runs.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Span;
use crate::host::{FileId, Stamp, data_segments};

/// So many are kept open.
const LIMIT: usize = 64;

/// A file open for reading.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) file: File,
    /// What it was when it was opened.
    pub(crate) stamp: Stamp,
    /// Holes are made by mutations, which capture what was there before: what had none when it was
    /// opened has none in what is still to be captured.
    has_holes: bool,
}

impl Reader {
    pub(crate) fn new(file: File, stamp: Stamp) -> io::Result<Self> {
        let has_holes = file.metadata()?.blocks().saturating_mul(512) < stamp.size;
        Ok(Self { file, stamp, has_holes })
    }

    /// The stretches of `span` that are no holes.
    pub(crate) fn segments(&self, span: Span) -> io::Result<Vec<(u64, u64)>> {
        if self.has_holes {
            return data_segments(&self.file, span.start, span.end);
        }
        Ok(vec![(span.start, span.end)])
    }
}

/// By identity; an inode that is open keeps its number.
#[derive(Debug, Default)]
pub(crate) struct Readers(Mutex<HashMap<FileId, Arc<Reader>, foldhash::fast::FixedState>>);

impl Readers {
    pub(crate) fn get(&self, id: FileId) -> Option<Arc<Reader>> {
        self.0.lock().get(&id).cloned()
    }

    pub(crate) fn keep(&self, id: FileId, reader: Arc<Reader>) {
        let mut readers = self.0.lock();
        if readers.len() >= LIMIT {
            readers.clear();
        }
        readers.insert(id, reader);
    }
}
