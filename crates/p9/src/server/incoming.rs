//! Requests as they come in: several per read, each borrowed from where it was read to.

use std::io::{self, ErrorKind, Read};

use super::ServeError;
use crate::wire::HEADER;

/// How much is read at once, if there is that much.
const AT_ONCE: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Incoming {
    bytes: Vec<u8>,
    /// What has been read and not been looked at.
    begin: usize,
    end: usize,
}

impl Incoming {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; AT_ONCE], begin: 0, end: 0 }
    }

    /// The next whole request, if there is one. Nothing is set aside for one that claims more than
    /// `most` bytes.
    pub(super) fn next(&mut self, most: usize) -> Result<Option<&[u8]>, ServeError> {
        let Some(size) = self.size(most)? else { return Ok(None) };
        if self.end - self.begin < size {
            return Ok(None);
        }
        let begin = self.begin;
        self.begin += size;
        Ok(Some(&self.bytes[begin..begin + size]))
    }

    /// The size of the next request, as soon as it is there.
    fn size(&self, most: usize) -> Result<Option<usize>, ServeError> {
        let there = &self.bytes[self.begin..self.end];
        let Some(size) = there.first_chunk() else { return Ok(None) };
        let claimed = u32::from_le_bytes(*size);
        match usize::try_from(claimed) {
            Ok(size) if (HEADER..=most).contains(&size) => Ok(Some(size)),
            _ => Err(ServeError::Size { claimed, most }),
        }
    }

    /// Reads on. `false` if the client has hung up.
    pub(super) fn fill(&mut self, most: usize, read: &mut impl Read) -> Result<bool, ServeError> {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
        let wanted = self.size(most)?.unwrap_or(HEADER);
        if self.begin + wanted > self.bytes.len() {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
            if wanted > self.bytes.len() {
                self.bytes.resize(wanted, 0);
            }
        }
        let got = loop {
            match read.read(&mut self.bytes[self.end..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Hung up without taking what was on its way.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break 0,
                got => break got?,
            }
        };
        if got == 0 && self.begin != self.end {
            return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
        }
        self.end += got;
        Ok(got > 0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A request of this size whose other bytes are its number.
    fn request(size: u32, number: u8) -> Vec<u8> {
        let mut bytes = vec![number; size as usize];
        bytes[..4].copy_from_slice(&size.to_le_bytes());
        bytes
    }

    /// Gives at most so many bytes at once.
    struct Dripping<'a>(&'a [u8], usize);

    impl Read for Dripping<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(into.len());
            let (mut now, later) = self.0.split_at(count.min(self.0.len()));
            self.0 = later;
            now.read(into)
        }
    }

    #[test]
    fn requests_arrive_whole_however_they_are_cut() {
        let sizes = [7, 100, 65_530, 7, 200_000, 64, 65_536, 9];
        let all: Vec<u8> =
            (0..).zip(sizes).flat_map(|(number, size)| request(size, number)).collect();
        for at_once in [1, 3, 4096, usize::MAX] {
            let (mut incoming, mut stream) = (Incoming::new(), Dripping(&all, at_once));
            let mut seen = Vec::new();
            loop {
                while let Some(request) = incoming.next(1 << 20).unwrap() {
                    seen.push((request.len() as u32, request[4]));
                }
                if !incoming.fill(1 << 20, &mut stream).unwrap() {
                    break;
                }
            }
            let expected: Vec<(u32, u8)> = sizes.into_iter().zip(0..).collect();
            assert_eq!(seen, expected, "{at_once} bytes at once");
        }
    }

    /// DOS-04, P9-05.
    #[test]
    fn a_size_that_is_not_allowed_is_refused_when_its_four_bytes_are_there() {
        for claimed in [0_u32, 6, 8193, 2 << 30, u32::MAX] {
            let mut incoming = Incoming::new();
            let bytes = claimed.to_le_bytes();
            assert!(incoming.fill(8192, &mut &bytes[..]).unwrap());
            let refused = incoming.next(8192);
            assert!(matches!(refused, Err(ServeError::Size { .. })), "{claimed}");
            assert_eq!(incoming.bytes.len(), AT_ONCE, "nothing was set aside for it");
        }
    }

    #[test]
    fn a_request_that_breaks_off_is_an_error_and_the_end_between_two_is_none() {
        let whole = request(20, 1);
        let mut incoming = Incoming::new();
        let mut broken = &whole[..15];
        assert!(incoming.fill(8192, &mut broken).unwrap());
        assert!(incoming.next(8192).unwrap().is_none());
        assert!(incoming.fill(8192, &mut broken).is_err());
        let mut incoming = Incoming::new();
        let mut stream = &whole[..];
        assert!(incoming.fill(8192, &mut stream).unwrap());
        assert!(incoming.next(8192).unwrap().is_some());
        assert!(!incoming.fill(8192, &mut stream).unwrap());
    }
}
