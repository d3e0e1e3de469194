//! Bytes between a request and a host file.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;

use rustix::io::{Errno, ReadWriteFlags};
use virtiofsd::filesystem::{ZeroCopyReader, ZeroCopyWriter};
use virtiofsd::oslib::{ReadvFlags, WritevFlags};

/// What a client writes.
#[derive(Debug)]
pub struct Outgoing<'a>(pub &'a [u8]);

impl ZeroCopyReader for Outgoing<'_> {
    fn write_to_file_at(
        &mut self,
        file: &File,
        count: usize,
        offset: u64,
        flags: Option<WritevFlags>,
    ) -> io::Result<usize> {
        let bytes = &self.0[..count.min(self.0.len())];
        let append = flags.is_some_and(|flags| flags.contains(WritevFlags::RWF_APPEND));
        let how = if append { ReadWriteFlags::APPEND } else { ReadWriteFlags::empty() };
        let mut written = 0;
        while written < bytes.len() {
            let rest = [IoSlice::new(&bytes[written..])];
            match rustix::io::pwritev2(file, &rest, offset + written as u64, how) {
                Ok(0) => break,
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                // What has arrived has arrived.
                Err(_) if written > 0 => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        self.0 = &self.0[written..];
        Ok(written)
    }
}

/// What a client reads.
#[derive(Debug)]
pub struct Incoming<'a>(pub &'a mut Vec<u8>);

impl ZeroCopyWriter for Incoming<'_> {
    fn read_from_file_at(
        &mut self,
        file: &File,
        count: usize,
        offset: u64,
        _flags: Option<ReadvFlags>,
    ) -> io::Result<usize> {
        self.0.resize(count, 0);
        let mut filled = 0;
        while filled < count {
            match file.read_at(&mut self.0[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.0.truncate(filled);
        Ok(filled)
    }
}
