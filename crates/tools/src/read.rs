//! `read_file`: text with line numbers; and bytes, for frontends.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};

use codeagent_common::RelPath;

use crate::error::{Result, ToolError};
use crate::folder::{Folder, shown};

const DEFAULT_LINES: usize = 2000;

/// What is longer is cut, and says so.
const MAX_LINE_CHARACTERS: usize = 2000;

/// A file with a NUL in so many first bytes is no text.
const SNIFFED_BYTES: usize = 8192;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadQuery {
    /// The first line, counted from 1.
    pub offset: Option<usize>,
    /// So many lines.
    pub limit: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileText {
    /// Each line with its number, as `cat -n` prints it.
    pub numbered: String,
    pub first_line: usize,
    pub lines: usize,
    /// Whether this reaches the end of the file.
    pub at_end: bool,
}

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileBytes {
    pub content: Vec<u8>,
    pub size_bytes: u64,
    pub at_end: bool,
}

impl Folder {
    pub fn read_file(&self, path: RelPath<'_>, query: &ReadQuery) -> Result<FileText> {
        let mut file = BufReader::with_capacity(64 * 1024, self.open_file(path)?);
        let failed = || ToolError::io(shown(path));
        let head = file.fill_buf().map_err(failed())?;
        if head[..head.len().min(SNIFFED_BYTES)].contains(&0) {
            return Err(ToolError::Binary(shown(path)));
        }
        if head.starts_with(b"\xef\xbb\xbf") {
            file.consume(3);
        }
        let first_line = query.offset.unwrap_or(1).max(1);
        let limit = query.limit.unwrap_or(DEFAULT_LINES);
        let mut text = FileText { numbered: String::new(), first_line, lines: 0, at_end: false };
        let mut line = Vec::new();
        let mut number = 0;
        loop {
            line.clear();
            if file.read_until(b'\n', &mut line).map_err(failed())? == 0 {
                text.at_end = true;
                break;
            }
            if text.lines == limit {
                break;
            }
            number += 1;
            if number >= first_line {
                text.numbered.push_str(&format!("{number:>6}\t{}\n", presentable(&line)));
                text.lines += 1;
            }
        }
        if text.lines == 0 && number > 0 && limit > 0 {
            return Err(ToolError::PastTheEnd { path: shown(path), lines: number });
        }
        Ok(text)
    }

    pub fn read_bytes(
        &self,
        path: RelPath<'_>,
        offset_bytes: u64,
        limit_bytes: u32,
    ) -> Result<FileBytes> {
        let mut file = self.open_file(path)?;
        let failed = || ToolError::io(shown(path));
        file.seek(SeekFrom::Start(offset_bytes)).map_err(failed())?;
        let mut content = Vec::new();
        file.by_ref().take(limit_bytes.into()).read_to_end(&mut content).map_err(failed())?;
        let size_bytes = file.metadata().map_err(failed())?.len();
        let at_end = offset_bytes.saturating_add(content.len() as u64) >= size_bytes;
        Ok(FileBytes { content, size_bytes, at_end })
    }
}

/// A line for somebody who reads: without its end, not too long, text in any case.
pub(crate) fn presentable(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = String::from_utf8_lossy(line);
    match text.char_indices().nth(MAX_LINE_CHARACTERS) {
        None => text.into_owned(),
        Some((end, _)) => format!("{}… [line cut]", &text[..end]),
    }
}
