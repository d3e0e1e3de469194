//! What directories held when a guest began to read them. Windows has no numbers to go on from, so
//! all of it is kept until the guest has read to the end.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::host::{self, Listed};

/// What one client may have in memory of them, through all its openings: some 400,000 names.
const MOST_BYTES: usize = 64 << 20;

/// What all listings of a client take together.
#[derive(Debug, Default)]
pub(super) struct Listings(Arc<AtomicUsize>);

/// The entries of one directory, without `.` and `..`.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) entries: Vec<Listed>,
    room: Room,
}

/// Given back when it is dropped.
#[derive(Debug)]
struct Room {
    taken: Arc<AtomicUsize>,
    bytes: usize,
}

impl Listings {
    /// Fails when the client has too much of them; it may finish or close some.
    pub(super) fn read(&self, dir: &File) -> io::Result<Listing> {
        let room = Room { taken: Arc::clone(&self.0), bytes: 0 };
        let mut listing = Listing { entries: Vec::new(), room };
        host::list_each(dir, |entry| {
            if super::serve::is_dots(&entry.name) {
                return Ok(());
            }
            listing.room.grow(size_of::<Listed>() + size_of_val(entry.name.as_slice()))?;
            listing.entries.push(entry);
            Ok(())
        })?;
        Ok(listing)
    }
}

impl Room {
    fn grow(&mut self, bytes: usize) -> io::Result<()> {
        self.bytes += bytes;
        match self.taken.fetch_add(bytes, Ordering::Relaxed) + bytes {
            sum if sum > MOST_BYTES => Err(io::ErrorKind::OutOfMemory.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
