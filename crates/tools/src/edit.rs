//! `edit_file`: one piece of text becomes another. A function of bytes to bytes.

use crate::error::{Nearest, Result, ToolError};

const BOM: &[u8] = b"\xef\xbb\xbf";

/// So many lines of matches are told.
const MAX_LISTED: usize = 10;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edit {
    pub old: String,
    pub new: String,
    /// Every match, not just the only one.
    pub replace_all: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edited {
    pub content: Vec<u8>,
    pub replacements: usize,
}

/// Replaces `old`, which has to be there exactly once unless all matches are meant.
///
/// Line ends do not matter when matching; those of the file stay as they are, and new text gets the
/// file's. So does its byte order mark.
pub fn edit(text: &[u8], edit: &Edit) -> Result<Edited> {
    let (bom, body) = match text.strip_prefix(BOM) {
        Some(body) => (BOM, body),
        None => (&b""[..], text),
    };
    let old = lf(edit.old.strip_prefix('\u{feff}').unwrap_or(&edit.old).as_bytes());
    let new = lf(edit.new.strip_prefix('\u{feff}').unwrap_or(&edit.new).as_bytes());
    if old.is_empty() {
        return Err(ToolError::EmptyOld);
    }
    if old == new {
        return Err(ToolError::NothingToChange);
    }
    let normal = Normalised::of(body);
    let matches = find_all(&normal.text, &old);
    match matches.len() {
        0 => return Err(ToolError::NoMatch { nearest: nearest(&normal.text, &old) }),
        1 => {}
        _ if edit.replace_all => {}
        count => {
            let lines = matches.iter().take(MAX_LISTED).map(|at| line_of(&normal.text, *at));
            return Err(ToolError::ManyMatches { count, lines: lines.collect() });
        }
    }
    let new = if normal.prefers_crlf(body) { crlf(&new) } else { new };
    let mut content = bom.to_vec();
    let mut done = 0;
    for at in &matches {
        content.extend_from_slice(&body[done..normal.original(*at)]);
        content.extend_from_slice(&new);
        done = normal.original(at + old.len());
    }
    content.extend_from_slice(&body[done..]);
    Ok(Edited { content, replacements: matches.len() })
}

/// A text with LF only, and where its CRs were.
struct Normalised {
    text: Vec<u8>,
    /// Places of newlines, in `text`, that had a CR before them.
    dropped: Vec<usize>,
}

impl Normalised {
    fn of(original: &[u8]) -> Self {
        let mut text = Vec::with_capacity(original.len());
        let mut dropped = Vec::new();
        for (at, byte) in original.iter().enumerate() {
            if *byte == b'\r' && original.get(at + 1) == Some(&b'\n') {
                dropped.push(text.len());
            } else {
                text.push(*byte);
            }
        }
        Self { text, dropped }
    }

    /// Where that is in the original. Before a CRLF, if a newline is there.
    fn original(&self, at: usize) -> usize {
        at + self.dropped.partition_point(|dropped| *dropped < at)
    }

    fn prefers_crlf(&self, original: &[u8]) -> bool {
        let newlines = original.iter().filter(|byte| **byte == b'\n').count();
        self.dropped.len() * 2 > newlines
    }
}

fn lf(text: &[u8]) -> Vec<u8> {
    Normalised::of(text).text
}

fn crlf(text: &[u8]) -> Vec<u8> {
    let mut result = Vec::with_capacity(text.len());
    for byte in text {
        if *byte == b'\n' {
            result.push(b'\r');
        }
        result.push(*byte);
    }
    result
}

/// Where `needle` begins, without overlaps.
fn find_all(text: &[u8], needle: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = find(&text[from..], needle) {
        found.push(from + at);
        from += at + needle.len();
    }
    found
}

fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    loop {
        let at = from + text.get(from..)?.iter().position(|byte| *byte == first)?;
        if text[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
}

fn line_of(text: &[u8], at: usize) -> usize {
    text[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The line most like the first one that was looked for.
fn nearest(text: &[u8], old: &[u8]) -> Option<Nearest> {
    let wanted = old.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty())?;
    let (score, line, found) = text
        .split(|byte| *byte == b'\n')
        .enumerate()
        .map(|(number, line)| (likeness(line, wanted), number + 1, line))
        .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))?;
    if score < 0.3 {
        return None;
    }
    let squeezed = |line: &[u8]| -> Vec<u8> {
        line.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect()
    };
    let only_whitespace = found != wanted && squeezed(found) == squeezed(wanted);
    let text: String = String::from_utf8_lossy(found).chars().take(200).collect();
    Some(Nearest { line, text, only_whitespace })
}

/// How much of two lines is the same, seen from both ends, indentation aside.
fn likeness(a: &[u8], b: &[u8]) -> f64 {
    let (a, b) = (a.trim_ascii(), b.trim_ascii());
    let shorter = a.len().min(b.len());
    let longer = a.len().max(b.len());
    if shorter == 0 {
        return 0.0;
    }
    let prefix = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let suffix = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    (prefix + suffix).min(shorter) as f64 / longer as f64
}
