//! Length- and checksum-framed values, appended one after the other.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Place;
use super::mapped::Mapped;
use crate::probe::{Fault, Point, Probe};

pub(crate) const MAGIC_BYTES: usize = 8;
const PREFIX_BYTES: usize = 8;
const MAX_PAYLOAD: usize = 16 << 20;
/// A shorter file is not worth a mapping.
const MAPPED_FROM: u64 = 8 << 10;

fn check(payload: &[u8], index: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = xxh3_64_with_seed(payload, index).to_le_bytes();
    [a, b, c, d]
}

/// Appends frames to a file; safe to share between threads.
pub(crate) struct FrameWriter {
    file: File,
    tail: Mutex<Tail>,
    probe: Probe,
}

struct Tail {
    length: u64,
    frames: u64,
    buffer: Vec<u8>,
    /// An append failed and its bytes could not be taken back: nothing may follow them.
    poisoned: bool,
    mapping: Mapping,
    /// When the file's time was last set; a store to a mapping does not always move it.
    touched_seconds: i64,
}

/// Whether the end of the file is written through memory.
enum Mapping {
    Never,
    /// As soon as the file is long enough for it to pay.
    Later,
    Now(Mapped),
}

impl FrameWriter {
    /// Makes a new file that begins with `magic`.
    pub(crate) fn create(
        place: &Place,
        magic: &[u8; MAGIC_BYTES],
        probe: Probe,
    ) -> io::Result<Self> {
        probe.reach(Point::StoreOpen)?;
        let file = place.create_new()?;
        let writer = Self {
            file,
            tail: Mutex::new(Tail {
                length: 0,
                frames: 0,
                buffer: Vec::with_capacity(512),
                poisoned: false,
                mapping: Mapping::Never,
                touched_seconds: 0,
            }),
            probe,
        };
        let mut tail = writer.tail.lock();
        tail.buffer.extend_from_slice(magic);
        writer.flush(&mut tail, 0)?;
        drop(tail);
        Ok(writer)
    }

    /// As [`FrameWriter::create`], for a file that may get long.
    pub(crate) fn create_long(
        place: &Place,
        magic: &[u8; MAGIC_BYTES],
        probe: Probe,
    ) -> io::Result<Self> {
        let writer = Self::create(place, magic, probe)?;
        writer.tail.lock().mapping = Mapping::Later;
        Ok(writer)
    }

    /// Goes on writing behind the last sound frame of an existing file, or makes it.
    pub(crate) fn open(place: &Place, magic: &[u8; MAGIC_BYTES], probe: Probe) -> io::Result<Self> {
        let bytes = match place.read() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Self::create(place, magic, probe);
            }
            Err(error) => return Err(error),
        };
        probe.reach(Point::StoreOpen)?;
        let file = place.open_to_change()?;
        if !bytes.starts_with(magic) {
            // Died while making it (or it is not ours, which `verify` reports): begin anew.
            file.set_len(0)?;
            file.write_all_at(magic, 0)?;
        }
        let (frames, length) = FrameReader::new(bytes, magic).extent();
        file.set_len(length)?;
        let tail = Tail {
            length,
            frames,
            buffer: Vec::new(),
            poisoned: false,
            mapping: Mapping::Never,
            touched_seconds: 0,
        };
        Ok(Self { file, tail: Mutex::new(tail), probe })
    }

    /// Appends one frame and returns its index.
    pub(crate) fn append(&self, value: &impl Serialize) -> io::Result<u64> {
        self.append_all(std::slice::from_ref(value))
    }

    /// Appends frames with one write; returns the index of the first.
    pub(crate) fn append_all<T: Serialize>(&self, values: &[T]) -> io::Result<u64> {
        let mut tail = self.tail.lock();
        if tail.poisoned {
            return Err(io::Error::other("an earlier append to the journal failed"));
        }
        let first = tail.frames;
        tail.buffer.clear();
        for (offset, value) in values.iter().enumerate() {
            encode(&mut tail.buffer, value, first + offset as u64)?;
        }
        self.flush(&mut tail, values.len() as u64)?;
        Ok(first)
    }

    fn flush(&self, tail: &mut Tail, frames: u64) -> io::Result<()> {
        let written = match self.probe.fault(Point::StoreWrite) {
            Fault::None => self.write(tail),
            Fault::Errno(errno) => Err(io::Error::from_raw_os_error(errno)),
            Fault::ShortWrite(errno) => self
                .file
                .write_all_at(&tail.buffer[..tail.buffer.len() / 2], tail.length)
                .and(Err(io::Error::from_raw_os_error(errno))),
        };
        if let Err(error) = written {
            // A partial frame must not stay in front of later ones.
            tail.poisoned = self.trim_tail(tail).is_err();
            return Err(error);
        }
        tail.length += tail.buffer.len() as u64;
        tail.frames += frames;
        Ok(())
    }

    fn write(&self, tail: &mut Tail) -> io::Result<()> {
        let (at, bytes) = (tail.length, tail.buffer.len());
        let mapped = match &mut tail.mapping {
            Mapping::Now(mapped) if mapped.holds(at, bytes) => mapped,
            Mapping::Never => return self.file.write_all_at(&tail.buffer, at),
            Mapping::Later if at < MAPPED_FROM => {
                return self.file.write_all_at(&tail.buffer, at);
            }
            mapping => {
                *mapping = match Mapped::reserve(&self.file, at, bytes)? {
                    Some(mapped) => Mapping::Now(mapped),
                    None => Mapping::Never,
                };
                return self.write(tail);
            }
        };
        mapped.put(at, &tail.buffer);
        let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse).tv_sec;
        if now != tail.touched_seconds {
            tail.touched_seconds = now;
            // For recovery, which asks when the process was last at work; it can do without.
            let _ = self.file.set_modified(std::time::SystemTime::now());
        }
        Ok(())
    }

    /// Gives back space that was reserved and is not needed.
    pub(crate) fn trim(&self) -> io::Result<()> {
        self.trim_tail(&mut self.tail.lock())
    }

    fn trim_tail(&self, tail: &mut Tail) -> io::Result<()> {
        if let Mapping::Now(_) = tail.mapping {
            tail.mapping = Mapping::Later;
        }
        self.file.set_len(tail.length)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Frames and bytes so far.
    pub(crate) fn extent(&self) -> (u64, u64) {
        let tail = self.tail.lock();
        (tail.frames, tail.length)
    }

    /// Everything written so far.
    pub(crate) fn read_back(&self) -> io::Result<Vec<u8>> {
        let (_, length) = self.extent();
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

impl Drop for FrameWriter {
    fn drop(&mut self) {
        if let Mapping::Now(_) = self.tail.get_mut().mapping {
            // If not, a reader ignores the zeros.
            let _ = self.trim();
        }
    }
}

fn encode(buffer: &mut Vec<u8>, value: &impl Serialize, index: u64) -> io::Result<()> {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; PREFIX_BYTES]);
    let mut encoded =
        postcard::to_extend(value, std::mem::take(buffer)).map_err(io::Error::other)?;
    let payload = start + PREFIX_BYTES;
    let length = encoded.len() - payload;
    if length > MAX_PAYLOAD {
        return Err(io::Error::other("a record is larger than 16 MiB"));
    }
    let check = check(&encoded[payload..], index);
    encoded[start..start + 4].copy_from_slice(&u32::try_from(length).unwrap_or(0).to_le_bytes());
    encoded[start + 4..payload].copy_from_slice(&check);
    *buffer = encoded;
    Ok(())
}

/// Writes a file of frames beside the old one and puts it in its place.
pub(crate) fn replace_frames(
    place: &Place,
    magic: &[u8; MAGIC_BYTES],
    probe: Probe,
    fill: impl FnOnce(&FrameWriter) -> io::Result<()>,
) -> io::Result<()> {
    place.replace(|new| {
        match new.remove_file() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fill(&FrameWriter::create(new, magic, probe)?)
    })
}

/// Cuts off what an interrupted append left. Damage of any other kind stays, to be reported.
pub(crate) fn repair_torn(place: &Place, magic: &[u8; MAGIC_BYTES]) -> io::Result<()> {
    let reader = match FrameReader::open(place, magic) {
        Ok(reader) => reader,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if reader.damage() != Damage::Torn {
        return Ok(());
    }
    if reader.bytes.len() < MAGIC_BYTES {
        return place.remove_file();
    }
    place.open_to_change()?.set_len(reader.extent().1)
}

/// How a file of frames ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    None,
    /// The last append did not finish.
    Torn,
    /// Something else: a wrong magic, a broken frame with others behind it.
    Broken,
}

/// The frames of a file, as far as they are sound.
pub(crate) struct FrameReader {
    bytes: Vec<u8>,
    frames: Vec<(usize, usize)>,
    damage: Damage,
}

impl FrameReader {
    pub(crate) fn open(place: &Place, magic: &[u8; MAGIC_BYTES]) -> io::Result<Self> {
        Ok(Self::new(place.read()?, magic))
    }

    pub(crate) fn new(bytes: Vec<u8>, magic: &[u8; MAGIC_BYTES]) -> Self {
        let mut reader = Self { bytes, frames: Vec::new(), damage: Damage::None };
        if !reader.bytes.starts_with(magic) {
            let torn = magic.starts_with(&reader.bytes);
            reader.damage = if torn { Damage::Torn } else { Damage::Broken };
            return reader;
        }
        let mut at = MAGIC_BYTES;
        while at < reader.bytes.len() {
            let index = reader.frames.len() as u64;
            let Some(end) = frame_at(&reader.bytes, at, index) else {
                reader.damage = reader.damage_at(at, index);
                break;
            };
            reader.frames.push((at + PREFIX_BYTES, end));
            at = end;
        }
        reader
    }

    /// A torn append is a frame that reaches past the end of the file, or, in space that was
    /// reserved, one whose first bytes are still zero. A damaged length can look the same, but
    /// then the next frame is still there to be found.
    fn damage_at(&self, at: usize, index: u64) -> Damage {
        const SEARCHED: usize = 1 << 20;
        // Made up lengths could have everything hashed again and again. Whoever finds that many
        // is not looking at what a crash leaves.
        let mut hashed_at_most: i64 = 256 << 20;
        let claims_more = match declared_length(&self.bytes, at) {
            Some(length) => length == 0 || at + PREFIX_BYTES + length > self.bytes.len(),
            None => true,
        };
        let search_end = self.bytes.len().min(at + SEARCHED);
        let next_follows = (at + 1..search_end).any(|next| {
            hashed_at_most -= claimed_payload(&self.bytes, next)
                .map_or(0, |(start, end)| i64::try_from(end - start).unwrap_or(i64::MAX));
            hashed_at_most < 0 || frame_at(&self.bytes, next, index + 1).is_some()
        });
        if claims_more && !next_follows { Damage::Torn } else { Damage::Broken }
    }

    pub(crate) fn damage(&self) -> Damage {
        self.damage
    }

    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Frames and bytes that are sound.
    pub(crate) fn extent(&self) -> (u64, u64) {
        let end = self.frames.last().map_or(MAGIC_BYTES, |(_, end)| *end);
        (self.frames.len() as u64, end as u64)
    }

    pub(crate) fn payload(&self, index: usize) -> Option<&[u8]> {
        let (start, end) = *self.frames.get(index)?;
        self.bytes.get(start..end)
    }

    /// Decodes one frame. `None`: there is no such frame, or its payload is not a `T`.
    pub(crate) fn get<'a, T: Deserialize<'a>>(&'a self, index: usize) -> Option<T> {
        let (start, end) = *self.frames.get(index)?;
        let (value, rest) = postcard::take_from_bytes(&self.bytes[start..end]).ok()?;
        rest.is_empty().then_some(value)
    }
}

fn declared_length(bytes: &[u8], at: usize) -> Option<usize> {
    let prefix: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(prefix) as usize)
}

/// Where the payload of a frame at `at` would be, if there is one.
fn claimed_payload(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let length = declared_length(bytes, at)?;
    let (start, end) = (at + PREFIX_BYTES, at + PREFIX_BYTES + length);
    (length != 0 && length <= MAX_PAYLOAD && end <= bytes.len()).then_some((start, end))
}

/// The end of a sound frame that begins at `at`.
fn frame_at(bytes: &[u8], at: usize, index: u64) -> Option<usize> {
    let (start, end) = claimed_payload(bytes, at)?;
    (bytes[at + 4..start] == check(&bytes[start..end], index)).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: &[u8; 8] = b"TESTING1";

    fn sample() -> (Vec<u8>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("frames");
        let values: Vec<String> = (0..5).map(|n| format!("value {n}")).collect();
        let writer = FrameWriter::create(&path.clone().into(), MAGIC, Probe::default()).unwrap();
        writer.append(&values[0]).unwrap();
        writer.append_all(&values[1..]).unwrap();
        (std::fs::read(path).unwrap(), values)
    }

    #[test]
    fn frames_come_back_in_order() {
        let (bytes, values) = sample();
        let reader = FrameReader::new(bytes, MAGIC);
        assert_eq!(reader.damage(), Damage::None);
        let read: Vec<String> = (0..reader.len()).map(|n| reader.get(n).unwrap()).collect();
        assert_eq!(read, values);
    }

    #[test]
    fn every_truncation_is_noticed_and_keeps_the_frames_before_it() {
        let (bytes, values) = sample();
        for length in 0..bytes.len() {
            let reader = FrameReader::new(bytes[..length].to_vec(), MAGIC);
            assert_ne!(reader.damage(), Damage::Broken, "cut at {length}");
            assert!(reader.len() < values.len());
            for (index, value) in values.iter().enumerate().take(reader.len()) {
                assert_eq!(reader.get::<String>(index).unwrap(), *value);
            }
        }
    }

    #[test]
    fn every_flipped_byte_before_the_last_frame_is_damage_not_a_crash() {
        let (bytes, values) = sample();
        let last_frame = bytes.len() - 8 - postcard::to_stdvec(&values[4]).unwrap().len();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x41;
            let reader = FrameReader::new(flipped, MAGIC);
            assert_ne!(reader.damage(), Damage::None, "flipped at {at}");
            if at < last_frame {
                assert_eq!(reader.damage(), Damage::Broken, "flipped at {at}");
            }
            for (index, value) in values.iter().enumerate().take(reader.len()) {
                assert_eq!(reader.get::<String>(index).unwrap(), *value);
            }
        }
    }

    /// Lengths that all fit, in place of a frame: what is searched for them stays bounded.
    #[test]
    fn made_up_lengths_do_not_have_everything_hashed_again_and_again() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((0..4 << 20).map(|n: u32| if n % 4 == 2 { 0x0f } else { 0 }));
        let started = std::time::Instant::now();
        let reader = FrameReader::new(bytes, MAGIC);
        assert_eq!((reader.len(), reader.damage()), (0, Damage::Broken));
        assert!(started.elapsed() < std::time::Duration::from_secs(20));
    }

    #[test]
    fn writing_goes_on_behind_the_last_sound_frame() {
        let (mut bytes, _) = sample();
        bytes.truncate(bytes.len() - 3);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("frames");
        std::fs::write(&path, bytes).unwrap();
        let writer = FrameWriter::open(&path.clone().into(), MAGIC, Probe::default()).unwrap();
        assert_eq!(writer.append(&"again").unwrap(), 4);
        let reader = FrameReader::open(&path.clone().into(), MAGIC).unwrap();
        assert_eq!((reader.damage(), reader.len()), (Damage::None, 5));
        assert_eq!(reader.get::<String>(4).unwrap(), "again");
    }
}
