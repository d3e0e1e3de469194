//! Lines of a byte stream, none longer than the limit in memory.

use std::io::{self, BufRead, ErrorKind};

use crate::MAX_LINE_BYTES;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Whole(Vec<u8>),
    /// Its bytes are gone, up to its newline.
    TooLong,
}

/// The next line, without its newline; `None` at the end. A last line needs no newline: an object
/// that was cut off is no JSON anyway.
pub(crate) fn read_line(stream: &mut impl BufRead) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    let mut too_long = false;
    let mut anything = false;
    loop {
        let available = match stream.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let at_end = available.is_empty();
        let newline = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..newline.unwrap_or(available.len())];
        anything |= !at_end;
        too_long |= line.len() + part.len() > MAX_LINE_BYTES;
        if too_long {
            line = Vec::new();
        } else {
            line.extend_from_slice(part);
        }
        let used = part.len() + usize::from(newline.is_some());
        stream.consume(used);
        if at_end && !anything {
            return Ok(None);
        }
        if at_end || newline.is_some() {
            return Ok(Some(if too_long { Line::TooLong } else { Line::Whole(line) }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    fn lines(bytes: &[u8], piece: usize) -> Vec<Line> {
        let mut stream = BufReader::with_capacity(piece, bytes);
        std::iter::from_fn(|| read_line(&mut stream).unwrap()).collect()
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.into())
    }

    #[test]
    fn lines_are_the_same_however_the_stream_is_cut() {
        for piece in [1, 2, 3, 100] {
            assert_eq!(
                lines(b"a\n\nbc\nd", piece),
                [whole("a"), whole(""), whole("bc"), whole("d")]
            );
        }
    }

    #[test]
    fn a_line_past_the_limit_is_skipped_and_nothing_else() {
        let exact = "x".repeat(MAX_LINE_BYTES);
        let stream = format!("a\n{exact}y\n{exact}\nb\n{exact}yy");

        let lines = lines(stream.as_bytes(), 8192);

        assert_eq!(lines, [whole("a"), Line::TooLong, whole(&exact), whole("b"), Line::TooLong]);
    }
}
