//! Output is sent in pieces: when enough is there, or when it has waited long enough.

use std::time::{Duration, Instant};

/// A piece of output is at most this long,
pub(crate) const FLUSH_BYTES: usize = 4096;
/// and waits at most this long.
pub(crate) const FLUSH_AFTER: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(crate) struct OutputBuffer {
    bytes: Vec<u8>,
    /// When its first byte came.
    since: Option<Instant>,
}

impl OutputBuffer {
    /// How much more it takes.
    pub(crate) fn room(&self) -> usize {
        FLUSH_BYTES - self.bytes.len()
    }

    /// At most [`room`](Self::room) bytes.
    pub(crate) fn push(&mut self, bytes: &[u8], now: Instant) {
        self.bytes.extend_from_slice(bytes);
        self.since.get_or_insert(now);
    }

    /// When it has to be sent, full or not.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.since.map(|since| since + FLUSH_AFTER)
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.room() == 0 || self.deadline().is_some_and(|deadline| now >= deadline)
    }

    /// What is in it, if anything.
    pub(crate) fn take(&mut self) -> Option<Vec<u8>> {
        self.since.take()?;
        Some(std::mem::take(&mut self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_sent_when_it_is_full() {
        let (mut buffer, now) = (OutputBuffer::default(), Instant::now());
        buffer.push(&[b'x'; FLUSH_BYTES - 1], now);
        assert!(!buffer.is_due(now));
        buffer.push(b"x", now);
        assert!(buffer.is_due(now));
        assert_eq!(buffer.take().map(|bytes| bytes.len()), Some(FLUSH_BYTES));
        assert_eq!((buffer.room(), buffer.take()), (FLUSH_BYTES, None));
    }

    #[test]
    fn it_is_sent_when_its_first_byte_has_waited_long_enough() {
        let (mut buffer, now) = (OutputBuffer::default(), Instant::now());
        buffer.push(b"a", now);
        buffer.push(b"b", now + FLUSH_AFTER / 2);
        assert!(!buffer.is_due(now + FLUSH_AFTER - Duration::from_millis(1)));
        assert!(buffer.is_due(now + FLUSH_AFTER));
        assert_eq!(buffer.deadline(), Some(now + FLUSH_AFTER));
    }

    #[test]
    fn an_empty_one_is_never_due() {
        let buffer = OutputBuffer::default();
        assert_eq!(buffer.deadline(), None);
        assert!(!buffer.is_due(Instant::now()));
    }
}
