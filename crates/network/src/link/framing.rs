//! Frames on a stream, as QEMU's `-netdev stream` has them: the length in four bytes, the most
//! significant first, then the frame.

/// The largest frame that is looked at: an Ethernet header, and what fits behind it.
pub(super) const MAX_FRAME_BYTES: usize = 14 + 1500;
/// QEMU sends nothing longer. Whoever does speaks something else.
const LONGEST_BYTES: usize = 4096 + (64 << 10);

const PREFIX_BYTES: usize = 4;

/// The other side does not speak this protocol.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {0} bytes was announced")]
pub(super) struct TooLong(usize);

/// What came in, cut into frames. Frames that are too large are left out without being kept.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// Never more than one unfinished frame and one piece.
    bytes: Vec<u8>,
    /// Of a frame that is too large, still to come.
    skip: usize,
}

impl Incoming {
    /// Takes a piece of the stream, and hands out the frames that are complete.
    pub(super) fn take(
        &mut self,
        piece: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), TooLong> {
        self.bytes.extend_from_slice(piece);
        let mut rest = self.bytes.as_slice();
        loop {
            let skipped = self.skip.min(rest.len());
            (self.skip, rest) = (self.skip - skipped, &rest[skipped..]);
            let Some((prefix, after)) = rest.split_first_chunk::<PREFIX_BYTES>() else { break };
            let length = u32::from_be_bytes(*prefix) as usize;
            if length > LONGEST_BYTES {
                return Err(TooLong(length));
            }
            if length > MAX_FRAME_BYTES {
                (self.skip, rest) = (length, after);
                continue;
            }
            let Some((frame, after)) = after.split_at_checked(length) else { break };
            each(frame);
            rest = after;
        }
        let done = self.bytes.len() - rest.len();
        self.bytes.drain(..done);
        Ok(())
    }
}

/// What is to go out. Nothing is added when it is full, and nothing is lost then: TCP sends later,
/// and no more is read.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    /// Of those, how many have gone.
    sent: usize,
}

const ROOM_BYTES: usize = 256 << 10;
/// For the answers to frames that are read once there is room.
pub(super) const RESERVE_FRAMES: usize = 64;

impl Outgoing {
    /// For a frame that TCP wants to send.
    pub(super) fn has_room(&self) -> bool {
        self.pending().len() < ROOM_BYTES
    }

    pub(super) fn add<R>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let start = self.bytes.len() + PREFIX_BYTES;
        let prefix = u32::try_from(length).unwrap_or(u32::MAX);
        self.bytes.extend_from_slice(&prefix.to_be_bytes());
        self.bytes.resize(start + length, 0);
        fill(&mut self.bytes[start..])
    }

    pub(super) fn pending(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    pub(super) fn has_sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        } else if self.sent > ROOM_BYTES {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(frame: &[u8]) -> Vec<u8> {
        let mut out = Outgoing::default();
        out.add(frame.len(), |into| into.copy_from_slice(frame));
        out.pending().to_vec()
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_the_stream_is_cut() {
        let frames = [b"one".to_vec(), Vec::new(), vec![7; MAX_FRAME_BYTES], b"four".to_vec()];
        let stream: Vec<u8> = frames.iter().flat_map(|frame| framed(frame)).collect();
        for size in [1, 2, 3, 5, 1000, stream.len()] {
            let (mut incoming, mut seen) = (Incoming::default(), Vec::new());
            for piece in stream.chunks(size) {
                incoming.take(piece, |frame| seen.push(frame.to_vec())).unwrap();
            }
            assert_eq!(seen, frames);
            assert!(incoming.bytes.is_empty());
        }
    }

    #[test]
    fn a_frame_that_is_too_large_is_passed_over_and_not_kept() {
        let mut stream = framed(&vec![1; LONGEST_BYTES]);
        stream.extend(framed(b"next"));
        let (mut incoming, mut seen) = (Incoming::default(), Vec::new());
        for piece in stream.chunks(1000) {
            incoming.take(piece, |frame| seen.push(frame.to_vec())).unwrap();
            assert!(incoming.bytes.len() <= MAX_FRAME_BYTES + 1000);
        }
        assert_eq!(seen, [b"next"]);
    }

    #[test]
    fn what_is_no_frame_at_all_ends_it() {
        let error = Incoming::default().take(b"GET / HTTP/1.1\r\n", |_| {}).unwrap_err();
        assert!(matches!(error, TooLong(_)));
    }

    #[test]
    fn what_went_out_is_forgotten() {
        let mut out = Outgoing::default();
        while out.has_room() {
            out.add(1000, |_| {});
        }
        let before = out.pending().len();
        out.has_sent(10);
        assert_eq!(out.pending().len(), before - 10);
        out.has_sent(before - 10);
        assert!(out.pending().is_empty() && out.bytes.is_empty() && out.has_room());
    }
}
