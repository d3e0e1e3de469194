//! `grep`: text in files, with the libraries ripgrep is made of.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cap_std::fs::Dir;
use codeagent_common::{CancelToken, RelPathBuf};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use ignore::overrides::{Override, OverrideBuilder};
use ignore::types::{Types, TypesBuilder};

use crate::error::{Result, ToolError};
use crate::folder::{Folder, for_reading, native};
use crate::glob::modified;
use crate::read::presentable;
use crate::walk::Walk;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OutputMode {
    #[default]
    FilesWithMatches,
    Content,
    Count,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GrepQuery {
    pub pattern: String,
    /// A directory or a file.
    pub path: RelPathBuf,
    /// Only files whose names match, such as `*.{ts,tsx}`.
    pub glob: Option<String>,
    /// Only files of a kind that ripgrep knows, such as `rust`.
    pub file_type: Option<String>,
    pub output_mode: OutputMode,
    pub before: usize,
    pub after: usize,
    pub line_numbers: bool,
    pub ignore_case: bool,
    pub multiline: bool,
    /// Lines of the answer that are passed over.
    pub offset: usize,
    /// At most so many lines of the answer; 0 means all of them.
    pub limit: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grepped {
    /// Lines as ripgrep prints them.
    pub text: String,
    /// Files that have matches, as far as was looked.
    pub files: usize,
    /// There is more.
    pub truncated: bool,
}

impl Folder {
    pub fn grep(&self, query: &GrepQuery, cancel: &CancelToken) -> Result<Grepped> {
        let mut search = Search::new(query)?;
        let path = query.path.as_path();
        match self.open_dir(path) {
            Ok(dir) => {
                let start = if path.is_root() { PathBuf::new() } else { native(path) };
                Walk::new(cancel)
                    .files(&dir, &start, &mut |dir, name, path| search.visit(dir, name, path))?;
            }
            Err(ToolError::NotADirectory(_)) => {
                let file = self.open_file(path)?;
                search.file(&file, &native(path), SystemTime::UNIX_EPOCH);
            }
            Err(error) => return Err(error),
        }
        Ok(search.finish())
    }
}

/// Errors of patterns come as a drawing with the reason below it.
fn in_one_line(error: &str) -> String {
    match error.lines().find_map(|line| line.strip_prefix("error: ")) {
        Some(reason) => reason.to_owned(),
        None => error.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

struct Search<'a> {
    query: &'a GrepQuery,
    matcher: RegexMatcher,
    searcher: Searcher,
    names: Override,
    types: Option<Types>,
    /// Of each file with matches.
    found: Vec<(SystemTime, Vec<String>)>,
    lines: usize,
}

impl<'a> Search<'a> {
    fn new(query: &'a GrepQuery) -> Result<Self> {
        let wrong =
            |error: &dyn std::fmt::Display| ToolError::Pattern(in_one_line(&error.to_string()));
        let mut builder = RegexMatcherBuilder::new();
        builder.case_insensitive(query.ignore_case).multi_line(true);
        if query.multiline {
            builder.dot_matches_new_line(true);
        } else {
            builder.line_terminator(Some(b'\n'));
        }
        let matcher = builder.build(&query.pattern).map_err(|error| wrong(&error))?;
        let mut names = OverrideBuilder::new("");
        if let Some(glob) = &query.glob {
            names.add(glob).map_err(|error| wrong(&error))?;
        }
        Ok(Self {
            query,
            matcher,
            searcher: searcher(query),
            names: names.build().map_err(|error| wrong(&error))?,
            types: query.file_type.as_deref().map(types).transpose()?,
            found: Vec::new(),
            lines: 0,
        })
    }

    /// Whether to go on.
    fn visit(&mut self, dir: &Dir, name: &OsStr, path: &Path) -> bool {
        let wanted = !self.names.matched(path, false).is_ignore()
            && self.types.as_ref().is_none_or(|types| types.matched(path, false).is_whitelist());
        if !wanted {
            return true;
        }
        // What is no file any more, or cannot be read, is passed over.
        let Ok(file) = open(dir, name) else { return true };
        self.file(&file, path, modified(dir, name));
        // Files are sorted by age, so all of them have to be seen; of other answers, enough is enough.
        self.query.output_mode == OutputMode::FilesWithMatches
            || self.query.limit == 0
            || self.lines <= self.query.offset + self.query.limit
    }

    fn file(&mut self, file: &std::fs::File, path: &Path, modified: SystemTime) {
        let mut sink = Lines { query: self.query, path, lines: Vec::new(), matches: 0 };
        if self.searcher.search_file(&self.matcher, file, &mut sink).is_err() || sink.matches == 0 {
            return;
        }
        let lines = match self.query.output_mode {
            OutputMode::FilesWithMatches => vec![path.display().to_string()],
            OutputMode::Count => vec![format!("{}:{}", path.display(), sink.matches)],
            OutputMode::Content => sink.lines,
        };
        self.lines += lines.len();
        self.found.push((modified, lines));
    }

    fn finish(mut self) -> Grepped {
        if self.query.output_mode == OutputMode::FilesWithMatches {
            self.found.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        }
        let files = self.found.len();
        let limit = if self.query.limit == 0 { usize::MAX } else { self.query.limit };
        let all = self.found.into_iter().flat_map(|(_, lines)| lines);
        let mut rest = all.skip(self.query.offset);
        let mut text = String::new();
        for line in rest.by_ref().take(limit) {
            let _ = writeln!(text, "{line}");
        }
        Grepped { text, files, truncated: rest.next().is_some() }
    }
}

fn searcher(query: &GrepQuery) -> Searcher {
    let content = query.output_mode == OutputMode::Content;
    SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(0))
        .line_number(true)
        .multi_line(query.multiline)
        .before_context(if content { query.before } else { 0 })
        .after_context(if content { query.after } else { 0 })
        // Of a file that is only to be named, one match is enough.
        .max_matches((query.output_mode == OutputMode::FilesWithMatches).then_some(1))
        .build()
}

fn types(name: &str) -> Result<Types> {
    let mut builder = TypesBuilder::new();
    builder.add_defaults().select(name);
    builder.build().map_err(|_| ToolError::FileType(name.to_owned()))
}

fn open(dir: &Dir, name: &OsStr) -> std::io::Result<std::fs::File> {
    let file = dir.open_with(name, &for_reading())?.into_std();
    if file.metadata()?.is_file() { Ok(file) } else { Err(std::io::ErrorKind::InvalidInput.into()) }
}

/// Collects lines as ripgrep prints them: `path:12:text`, with `-` around context.
struct Lines<'a> {
    query: &'a GrepQuery,
    path: &'a Path,
    lines: Vec<String>,
    matches: usize,
}

impl Lines<'_> {
    fn push(&mut self, number: Option<u64>, mark: char, bytes: &[u8]) {
        if self.query.output_mode != OutputMode::Content {
            return;
        }
        let mut number = number;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let mut text = format!("{}{mark}", self.path.display());
            if let (true, Some(number)) = (self.query.line_numbers, number) {
                let _ = write!(text, "{number}{mark}");
            }
            text.push_str(&presentable(line));
            self.lines.push(text);
            number = number.map(|number| number + 1);
        }
    }
}

impl Sink for Lines<'_> {
    type Error = std::io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, Self::Error> {
        self.matches += 1;
        self.push(found.line_number(), ':', found.bytes());
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> Result<bool, Self::Error> {
        self.push(context.line_number(), '-', context.bytes());
        Ok(true)
    }

    fn context_break(&mut self, _: &Searcher) -> Result<bool, Self::Error> {
        if self.query.output_mode == OutputMode::Content {
            self.lines.push("--".to_owned());
        }
        Ok(true)
    }
}
