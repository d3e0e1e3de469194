//! `glob`: files by name, newest first.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use codeagent_common::{CancelToken, RelPathBuf};
use globset::{GlobBuilder, GlobMatcher};

use crate::error::{Result, ToolError};
use crate::folder::{Folder, native};
use crate::walk::Walk;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GlobQuery {
    pub pattern: String,
    /// Where to look; everywhere, if it is the root.
    pub path: RelPathBuf,
    pub limit: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Globbed {
    /// Relative to the working directory, newest first.
    pub paths: Vec<PathBuf>,
    /// How many there are altogether.
    pub count: usize,
}

impl Folder {
    pub fn glob(&self, query: &GlobQuery, cancel: &CancelToken) -> Result<Globbed> {
        let pattern = self.below_root(&query.pattern);
        let (start, pattern) = literal_start(&pattern);
        let matcher = compile(pattern)?;
        let base = RelPathBuf::resolve(b"/", start.as_bytes())
            .map_err(|source| ToolError::Path { path: query.pattern.clone(), source })?;
        let start = query.path.as_path().concat(base.as_path());
        let dir = match self.open_dir(start.as_path()) {
            Ok(dir) => dir,
            Err(ToolError::NotFound(_) | ToolError::NotADirectory(_))
                if !base.as_path().is_root() =>
            {
                return Ok(Globbed { paths: vec![], count: 0 });
            }
            Err(error) => return Err(error),
        };
        let start =
            if start.as_path().is_root() { PathBuf::new() } else { native(start.as_path()) };
        let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
        Walk::new(cancel).files(&dir, &start, &mut |dir, name, path| {
            if path.strip_prefix(&start).is_ok_and(|below| matcher.is_match(below)) {
                found.push((modified(dir, name), path.to_owned()));
            }
            true
        })?;
        found.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let count = found.len();
        let paths = found.into_iter().take(query.limit).map(|(_, path)| path).collect();
        Ok(Globbed { paths, count })
    }

    /// A pattern that begins with the directory's own path means the same without it.
    fn below_root(&self, pattern: &str) -> String {
        let root = format!("{}/", self.path().display());
        pattern.strip_prefix(&root).unwrap_or(pattern).to_owned()
    }
}

/// The directories that a pattern names outright, and the rest of it.
fn literal_start(pattern: &str) -> (&str, &str) {
    let special = pattern.find(['*', '?', '[', '{', '\\']).unwrap_or(pattern.len());
    pattern[..special].rfind('/').map_or(("", pattern), |at| (&pattern[..at], &pattern[at + 1..]))
}

pub(crate) fn compile(pattern: &str) -> Result<GlobMatcher> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    Ok(glob.map_err(|error| ToolError::Pattern(error.to_string()))?.compile_matcher())
}

pub(crate) fn modified(dir: &cap_std::fs::Dir, name: impl AsRef<Path>) -> SystemTime {
    let metadata = dir.symlink_metadata(name).and_then(|metadata| metadata.modified());
    metadata.map_or(SystemTime::UNIX_EPOCH, cap_std::time::SystemTime::into_std)
}
