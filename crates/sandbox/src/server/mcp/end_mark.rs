//! Where a shell was at its end: it says so behind a mark, which is taken out of its output.

use std::hash::{BuildHasher, RandomState};

/// Takes a mark, and the path behind it, out of a stream.
#[derive(Debug)]
pub(super) struct EndMark {
    mark: Vec<u8>,
    /// The end of what has come, as long as it may be the beginning of the mark.
    held: Vec<u8>,
    /// What has come behind the mark.
    path: Option<Vec<u8>>,
}

impl EndMark {
    pub(super) fn new() -> Self {
        let number = RandomState::new().hash_one(0);
        let mark = format!("\u{1e}cwd-{number:016x}:").into_bytes();
        Self { mark, held: Vec::new(), path: None }
    }

    /// Runs its first argument. A trap that the command sets itself takes the place of this one,
    /// and then nobody learns where it was.
    pub(super) fn script(&self) -> String {
        let mark = String::from_utf8_lossy(&self.mark);
        format!("trap 'e=$?; printf \"%s%s\\0\" \"{mark}\" \"$PWD\"; exit $e' EXIT\neval \"$1\"")
    }

    /// What of the bytes, and of those before, is output.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(bytes);
        if let Some(path) = &mut self.path {
            // Processes that outlive the shell may write behind it.
            let ended = path.last() == Some(&0);
            let end = if ended { Some(0) } else { memchr(&self.held) };
            let output = match end {
                Some(at) if !ended => {
                    path.extend_from_slice(&self.held[..=at]);
                    self.held.split_off(at + 1)
                }
                Some(_) => std::mem::take(&mut self.held),
                None => {
                    path.append(&mut self.held);
                    Vec::new()
                }
            };
            self.held.clear();
            return output;
        }
        if let Some(at) = find(&self.held, &self.mark) {
            let rest = self.held.split_off(at + self.mark.len());
            let mut output = std::mem::take(&mut self.held);
            output.truncate(at);
            self.path = Some(Vec::new());
            output.extend(self.pass(&rest));
            return output;
        }
        let keeps = |length: &usize| self.held.ends_with(&self.mark[..*length]);
        let kept = (1..self.mark.len().min(self.held.len() + 1)).rev().find(keeps).unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - kept);
        std::mem::replace(&mut self.held, rest)
    }

    /// What is left, and the path.
    pub(super) fn end(self) -> (Vec<u8>, Option<String>) {
        let path = self.path.and_then(|mut path| {
            let whole = path.pop() == Some(0);
            String::from_utf8(path).ok().filter(|_| whole)
        });
        (self.held, path)
    }
}

fn memchr(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == 0)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(pieces: impl Fn(&EndMark) -> Vec<Vec<u8>>) -> (Vec<u8>, Option<String>) {
        let mut mark = EndMark::new();
        let pieces = pieces(&mark);
        let mut output: Vec<u8> = pieces.iter().flat_map(|piece| mark.pass(piece)).collect();
        let (rest, path) = mark.end();
        output.extend(rest);
        (output, path)
    }

    fn whole(mark: &EndMark) -> Vec<u8> {
        [b"before\n", &mark.mark[..], b"/a dir\0after"].concat()
    }

    #[test]
    fn the_path_is_found_wherever_the_stream_is_cut() {
        let expected = (b"before\nafter".to_vec(), Some("/a dir".to_owned()));
        assert_eq!(through(|mark| vec![whole(mark)]), expected);
        assert_eq!(
            through(|mark| whole(mark).into_iter().map(|byte| vec![byte]).collect()),
            expected
        );
    }

    #[test]
    fn output_without_a_mark_comes_through_as_it_is() {
        let almost = |mark: &EndMark| vec![b"x".to_vec(), mark.mark[..5].to_vec(), b"y".to_vec()];
        let (output, path) = through(almost);
        assert!(output.starts_with(b"x") && output.ends_with(b"y") && output.len() == 7);
        assert_eq!(path, None);
        let cut = |mark: &EndMark| vec![mark.mark.clone(), b"/half".to_vec()];
        assert_eq!(through(cut), (vec![], None));
    }
}
