//! What a command prints, for programs that want it in one value: never more than they, and we,
//! can hold.

use std::collections::VecDeque;
use std::io::{self, Write};

/// So much of the beginning, and of the end, is kept.
const KEPT_BYTES: usize = 1 << 20;

/// The beginning and the end of a stream.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    beginning: Vec<u8>,
    end: VecDeque<u8>,
    left_out: u64,
}

impl Write for Kept {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let room = KEPT_BYTES - self.beginning.len();
        let (first, rest) = data.split_at(room.min(data.len()));
        self.beginning.extend(first);
        let rest_kept = &rest[rest.len().saturating_sub(KEPT_BYTES)..];
        let over = (self.end.len() + rest_kept.len()).saturating_sub(KEPT_BYTES);
        self.end.drain(..over);
        self.end.extend(rest_kept);
        self.left_out += (rest.len() - rest_kept.len() + over) as u64;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Kept {
    /// Between the beginning and the end.
    pub(crate) fn left_out_bytes(&self) -> u64 {
        self.left_out
    }

    pub(crate) fn into_text(self) -> String {
        let mut all = self.beginning;
        if self.left_out > 0 {
            let _ = write!(all, "\n[{} bytes left out]\n", self.left_out); // to memory
        }
        all.extend(self.end);
        String::from_utf8_lossy(&all).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_kept_as_it_is() {
        let mut kept = Kept::default();
        let half = vec![b'x'; KEPT_BYTES];
        kept.write_all(&half).unwrap();
        kept.write_all(&half).unwrap();
        assert_eq!(kept.left_out_bytes(), 0);
        assert_eq!(kept.into_text().into_bytes(), [half.clone(), half].concat());
    }

    #[test]
    fn of_more_the_beginning_and_the_end_are_kept_and_the_rest_is_counted() {
        for piece in [1, 7, 64 << 10, 3 * KEPT_BYTES] {
            let mut kept = Kept::default();
            let all: Vec<u8> = (0..3 * KEPT_BYTES).map(|at| b'a' + (at % 23) as u8).collect();
            all.chunks(piece).for_each(|part| kept.write_all(part).unwrap());
            assert_eq!(kept.left_out_bytes(), KEPT_BYTES as u64, "{piece}");
            assert!(kept.beginning.len() + kept.end.len() == 2 * KEPT_BYTES);
            let text = kept.into_text().into_bytes();
            assert!(text.starts_with(&all[..KEPT_BYTES]), "{piece}");
            assert!(text.ends_with(&all[2 * KEPT_BYTES..]), "{piece}");
        }
    }
}
