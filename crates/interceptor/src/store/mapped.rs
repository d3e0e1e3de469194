//! The end of a long file, written through memory.
//!
//! A store to a shared mapping survives the death of the process just as a write does, without the
//! system call. Space is reserved before it is mapped, so that no store can find the disk full.

#![allow(unsafe_code, reason = "a mapping of a file is unsafe to make; this module holds it")]

use std::fs::File;
use std::io;
use std::sync::atomic::{Ordering, compiler_fence};

use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{FallocateFlags, fstatfs};
use rustix::io::Errno;

/// Reserved at once: as much as the file has already, within these bounds. What is reserved has to
/// be cleared, and given back at the end.
const LEAST_STRETCH: u64 = 64 << 10;
const MOST_STRETCH: u64 = 1 << 20;

/// Filesystems that keep what `fallocate` promised when a mapping is written to. Those that write
/// elsewhere each time (btrfs after a snapshot) can run out of space even then.
const KEEP_RESERVATIONS: [i64; 3] = [
    0x0102_1994, // tmpfs
    0xEF53,      // ext4
    0x5846_5342, // xfs
];

/// A stretch of a file, in memory.
pub(super) struct Mapped {
    map: MmapMut,
    /// Where in the file it begins.
    start: u64,
}

impl Mapped {
    /// Reserves and maps a stretch that holds at least `bytes` from `at` on.
    /// `None`: this filesystem is better written to by system calls.
    pub(super) fn reserve(file: &File, at: u64, bytes: usize) -> io::Result<Option<Self>> {
        #[allow(clippy::unnecessary_cast, reason = "its width differs between platforms")]
        let kind = fstatfs(file)?.f_type as i64;
        if !KEEP_RESERVATIONS.contains(&kind) {
            return Ok(None);
        }
        let start = at & !(LEAST_STRETCH - 1);
        let stretch = start.next_power_of_two().clamp(LEAST_STRETCH, MOST_STRETCH);
        let length = (at + bytes as u64 - start).next_multiple_of(stretch);
        match rustix::fs::fallocate(file, FallocateFlags::empty(), start, length) {
            Ok(()) => {}
            // Where there is no room for a stretch, there may still be some for a record.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOSPC | Errno::DQUOT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        let length = usize::try_from(length).map_err(io::Error::other)?;
        // SAFETY: the file lies in the undo directory, which only the process that holds its lock
        // changes, and this one neither cuts the file nor writes to the stretch by other means
        // while the mapping lives.
        let map = unsafe { MmapOptions::new().offset(start).len(length).map_mut(file)? };
        Ok(Some(Self { map, start }))
    }

    pub(super) fn holds(&self, at: u64, bytes: usize) -> bool {
        at >= self.start && at - self.start + bytes as u64 <= self.map.len() as u64
    }

    /// Writes `bytes`, which [`Mapped::holds`], the first eight last: until they are there, a
    /// reader finds zeros in their place.
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) {
        let from = usize::try_from(at - self.start).unwrap_or(usize::MAX);
        let Some(room) = self.map.get_mut(from..).and_then(|room| room.get_mut(..bytes.len()))
        else {
            return;
        };
        let (room_first, room_rest) = room.split_at_mut(bytes.len().min(8));
        let (first, rest) = bytes.split_at(room_first.len());
        room_rest.copy_from_slice(rest);
        compiler_fence(Ordering::Release);
        room_first.copy_from_slice(first);
    }
}
