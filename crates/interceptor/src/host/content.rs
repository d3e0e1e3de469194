//! Bytes of files: reading, writing, cloning, holes.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

/// Reads until `buffer` is full or the file ends; returns how much was read.
pub(crate) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

pub(crate) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)
}

/// Shares the blocks of `source` with `target`; `false` where the filesystem cannot.
pub(crate) fn clone_file(target: impl AsFd, source: impl AsFd) -> io::Result<bool> {
    match rustix::fs::ioctl_ficlone(target, source) {
        Ok(()) => Ok(true),
        Err(
            Errno::OPNOTSUPP
            | Errno::XDEV
            | Errno::INVAL
            | Errno::NOTTY
            | Errno::NOSYS
            | Errno::PERM
            | Errno::TXTBSY,
        ) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// The parts of `start..end` that hold data, in order; holes are left out.
pub(crate) fn data_segments(file: &File, start: u64, end: u64) -> io::Result<Vec<(u64, u64)>> {
    // Filesystems in memory look at every page up to the next hole, so they are asked only if there
    // can be one.
    let stat = file.metadata()?;
    if stat.blocks().saturating_mul(512) >= stat.len() {
        let end = end.min(stat.len());
        return Ok((start < end).then_some((start, end)).into_iter().collect());
    }
    let mut segments = Vec::new();
    let mut at = start;
    while at < end {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                segments.push((at, end));
                break;
            }
            Err(errno) => return Err(errno.into()),
        };
        if data >= end {
            break;
        }
        let hole = rustix::fs::seek(file, SeekFrom::Hole(data))?.min(end);
        segments.push((data.max(start), hole));
        at = hole;
    }
    Ok(segments)
}

/// Makes `start..end` read as zeros, giving the blocks back where the filesystem can.
pub(crate) fn punch(file: &File, start: u64, end: u64) -> io::Result<()> {
    if start >= end {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, start, end - start) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let zeros = vec![0_u8; 64 << 10];
            let mut at = start;
            while at < end {
                let length = zeros.len().min(usize::try_from(end - at).unwrap_or(zeros.len()));
                file.write_all_at(&zeros[..length], at)?;
                at += length as u64;
            }
            Ok(())
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Copies `start..end` of one file to the same place in another.
pub(crate) fn copy_range(source: &File, target: &File, start: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0_u8; 256 << 10];
    let mut at = start;
    while at < end {
        let wanted = buffer.len().min(usize::try_from(end - at).unwrap_or(buffer.len()));
        let read = read_exact_at(source, &mut buffer[..wanted], at)?;
        if read == 0 {
            break;
        }
        write_all_at(target, &buffer[..read], at)?;
        at += read as u64;
    }
    Ok(())
}
