//! Output of commands, short enough for a model to read.

use std::collections::VecDeque;

/// What is longer loses its middle.
pub const MAX_OUTPUT_CHARACTERS: usize = 30_000;

const HALF_BYTES: usize = MAX_OUTPUT_CHARACTERS / 2;

/// The beginning and the end of a stream, whatever its length.
#[derive(Debug, Default)]
pub struct OutputBuffer {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    dropped_bytes: u64,
}

impl OutputBuffer {
    pub fn push(&mut self, bytes: &[u8]) {
        let room = HALF_BYTES - self.head.len();
        let (head, rest) = bytes.split_at(bytes.len().min(room));
        self.head.extend_from_slice(head);
        // What would be dropped at once is not even copied.
        let (skipped, kept) = rest.split_at(rest.len().saturating_sub(HALF_BYTES));
        let excess = (self.tail.len() + kept.len()).saturating_sub(HALF_BYTES);
        self.tail.drain(..excess);
        self.tail.extend(kept);
        self.dropped_bytes += (excess + skipped.len()) as u64;
    }

    /// Everything so far, as text.
    pub fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if self.dropped_bytes == 0 {
            return text(&[self.head.as_slice(), &tail].concat());
        }
        // Characters that were cut in two would become marks of replacement.
        let head_end = self.head.iter().rposition(|byte| byte & 0xc0 != 0x80).unwrap_or(0);
        let tail_start = tail.iter().position(|byte| byte & 0xc0 != 0x80).unwrap_or(0);
        format!(
            "{}\n… [{} bytes left out] …\n{}",
            text(&self.head[..head_end]),
            self.dropped_bytes,
            text(&tail[tail_start..])
        )
    }

    /// The last line that has something in it, for progress.
    pub fn last_line(&self) -> Option<String> {
        let text = self.text();
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(line.chars().take(200).collect())
    }
}

/// Without what only a terminal understands.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// A text that may be too long, with its beginning and its end.
pub(crate) fn shorten(text: String) -> String {
    if text.len() <= MAX_OUTPUT_CHARACTERS {
        return text;
    }
    let mut buffer = OutputBuffer::default();
    buffer.push(text.as_bytes());
    buffer.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(pieces: &[&[u8]]) -> OutputBuffer {
        let mut buffer = OutputBuffer::default();
        pieces.iter().for_each(|piece| buffer.push(piece));
        buffer
    }

    #[test]
    fn short_output_is_whole() {
        let whole = "ä".repeat(HALF_BYTES / 2 + 100);

        assert_eq!(buffer(&[whole.as_bytes()]).text(), whole);
        assert_eq!(buffer(&[b"a\r\n", b"\x1b[1mb\xff"]).text(), "a\n[1mb\u{fffd}");
    }

    #[test]
    fn long_output_keeps_its_ends_however_it_comes() {
        let line = |n: u32| format!("line {n} ä\n");
        let all: String = (0..100_000).map(line).collect();
        let lines: Vec<String> = (0..100_000).map(line).collect();
        let pieces: Vec<&[u8]> = lines.iter().map(String::as_bytes).collect();

        for text in [buffer(&[all.as_bytes()]).text(), buffer(&pieces).text()] {
            assert!(text.starts_with("line 0 ä\nline 1 ä\n"));
            assert!(text.ends_with("line 99999 ä\n"));
            assert!(text.contains("bytes left out] …\n"));
            assert!(!text.contains('\u{fffd}'));
            assert!(text.len() < MAX_OUTPUT_CHARACTERS + 100);
        }
        assert_eq!(buffer(&pieces).last_line().unwrap(), "line 99999 ä");
    }
}
