//! Preimage bytes of one step, back to back in one file.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use super::Place;
use super::record::{Codec, Extent};
use crate::probe::{Fault, Point, Probe};

const ZSTD_LEVEL: i32 = 1;
/// Larger stretches are stored as they are: for them, time matters more than space.
pub(crate) const COMPRESSED_UP_TO: usize = 64 << 10;
/// Behind the headers that many files begin with.
const SAMPLE_AT: usize = 8 << 10;
const SAMPLE_BYTES: usize = 2 << 10;

thread_local! {
    static COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
}

/// Takes bytes in; safe to share between threads.
pub(crate) struct Pack {
    file: File,
    length: Mutex<u64>,
    probe: Probe,
}

impl Pack {
    pub(crate) fn create(place: &Place, probe: Probe) -> io::Result<Self> {
        probe.reach(Point::StoreOpen)?;
        let file = place.create_new()?;
        Ok(Self { file, length: Mutex::new(0), probe })
    }

    /// Stores `plain`, which stood at `file_offset`, in as few bytes as it can.
    pub(crate) fn add_compressed(&self, plain: &[u8], file_offset: u64) -> io::Result<Extent> {
        let compressed = if plain.len() <= COMPRESSED_UP_TO { compress(plain)? } else { None };
        match &compressed {
            Some(bytes) => self.store(plain, bytes, Codec::Zstd, file_offset),
            None => self.add(plain, file_offset),
        }
    }

    /// Stores `plain`, which stood at `file_offset`, as it is.
    pub(crate) fn add(&self, plain: &[u8], file_offset: u64) -> io::Result<Extent> {
        self.store(plain, plain, Codec::Plain, file_offset)
    }

    fn store(
        &self,
        plain: &[u8],
        stored: &[u8],
        codec: Codec,
        file_offset: u64,
    ) -> io::Result<Extent> {
        // The length counts what is there: it moves only when the bytes are written.
        let mut length = self.length.lock();
        let pack_offset = *length;
        let written = match self.probe.fault(Point::StoreWrite) {
            Fault::None => self.file.write_all_at(stored, pack_offset),
            Fault::Errno(errno) => Err(io::Error::from_raw_os_error(errno)),
            Fault::ShortWrite(errno) => self
                .file
                .write_all_at(&stored[..stored.len() / 2], pack_offset)
                .and(Err(io::Error::from_raw_os_error(errno))),
        };
        if let Err(error) = written {
            let _ = self.file.set_len(pack_offset);
            return Err(error);
        }
        *length += stored.len() as u64;
        drop(length);
        Ok(Extent {
            file_offset,
            pack_offset,
            stored_bytes: u32::try_from(stored.len()).map_err(io::Error::other)?,
            plain_bytes: u32::try_from(plain.len()).map_err(io::Error::other)?,
            codec,
            check: xxh3_64(plain),
        })
    }

    pub(crate) fn length(&self) -> u64 {
        *self.length.lock()
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// `None` where it saves less than an eighth.
fn compress(plain: &[u8]) -> io::Result<Option<Vec<u8>>> {
    const TOO_SMALL: usize = 128;
    if plain.len() < TOO_SMALL {
        return Ok(None);
    }
    let pays = |plain: &[u8], compressed: &[u8]| compressed.len() <= plain.len() - plain.len() / 8;
    COMPRESSOR.with_borrow_mut(|slot| {
        let compressor = match slot {
            Some(compressor) => compressor,
            None => slot.insert(zstd::bulk::Compressor::new(ZSTD_LEVEL)?),
        };
        // Much of what is large cannot be compressed, and takes longest to find that out.
        if let Some(sample) = plain.get(SAMPLE_AT..SAMPLE_AT + SAMPLE_BYTES)
            && !pays(sample, &compressor.compress(sample)?)
        {
            return Ok(None);
        }
        let compressed = compressor.compress(plain)?;
        Ok(pays(plain, &compressed).then_some(compressed))
    })
}

/// Gives bytes back, checked.
pub(crate) struct PackReader {
    file: Option<File>,
}

impl PackReader {
    /// A step that stored no bytes has no pack.
    pub(crate) fn open(place: &Place) -> io::Result<Self> {
        match place.open() {
            Ok(file) => Ok(Self { file: Some(file) }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self { file: None }),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn length(&self) -> io::Result<u64> {
        self.file.as_ref().map_or(Ok(0), |file| Ok(file.metadata()?.len()))
    }

    /// The plain bytes of an extent, or an error: never other bytes.
    pub(crate) fn read(&self, extent: &Extent) -> io::Result<Vec<u8>> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a preimage is damaged");
        let file = self.file.as_ref().ok_or_else(damaged)?;
        if extent.pack_offset.saturating_add(extent.stored_bytes.into()) > file.metadata()?.len() {
            return Err(damaged());
        }
        let mut stored = vec![0; extent.stored_bytes as usize];
        file.read_exact_at(&mut stored, extent.pack_offset)?;
        let plain = match extent.codec {
            Codec::Plain => stored,
            Codec::Zstd if extent.plain_bytes as usize <= COMPRESSED_UP_TO => {
                zstd::bulk::decompress(&stored, extent.plain_bytes as usize)
                    .map_err(|_| damaged())?
            }
            Codec::Zstd => return Err(damaged()),
        };
        if plain.len() != extent.plain_bytes as usize || xxh3_64(&plain) != extent.check {
            return Err(damaged());
        }
        Ok(plain)
    }
}
