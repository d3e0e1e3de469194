//! All files below a directory, as ripgrep would look for them. By handle, unlike the walker of
//! `ignore`, which opens paths and could be led out by a directory that becomes a symlink.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use cap_std::fs::Dir;
use codeagent_common::CancelToken;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::error::{Result, ToolError};
use crate::folder::for_reading;

/// What version control keeps for itself.
const SKIPPED: [&str; 4] = [".git", ".hg", ".jj", ".svn"];

/// Rules of this size and no larger are read.
const MAX_IGNORE_BYTES: u64 = 1 << 20;

pub(crate) struct Walk<'a> {
    pub(crate) cancel: &'a CancelToken,
    /// Rules of the directories above, outermost first, each with the path it stands for.
    rules: Vec<Gitignore>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(cancel: &'a CancelToken) -> Self {
        Self { cancel, rules: Vec::new() }
    }

    /// Visits every ordinary file below `dir`, whose path is `at`; stops when told to. Neither
    /// symlinks nor what the rules ignore are visited.
    pub(crate) fn files(
        &mut self,
        dir: &Dir,
        at: &Path,
        visit: &mut dyn FnMut(&Dir, &OsString, &Path) -> bool,
    ) -> Result<bool> {
        if self.cancel.is_cancelled() {
            return Err(ToolError::Cancelled);
        }
        self.rules.push(rules_of(dir, at));
        let outcome = self.entries(dir, at, visit);
        self.rules.pop();
        outcome
    }

    fn entries(
        &mut self,
        dir: &Dir,
        at: &Path,
        visit: &mut dyn FnMut(&Dir, &OsString, &Path) -> bool,
    ) -> Result<bool> {
        // What cannot be read is passed over, as ripgrep does.
        let Ok(entries) = dir.entries() else { return Ok(true) };
        let mut entries: Vec<_> = entries.filter_map(std::io::Result::ok).collect();
        entries.sort_by_cached_key(cap_std::fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name();
            let Ok(kind) = entry.file_type() else { continue };
            let path = at.join(&name);
            if kind.is_dir() {
                let skipped = SKIPPED.iter().any(|skipped| name == *skipped);
                if skipped || self.is_ignored(&path, true) {
                    continue;
                }
                // If it has become a symlink meanwhile, it leads nowhere but below `dir`.
                let Ok(below) = dir.open_dir(&name) else { continue };
                if !self.files(&below, &path, visit)? {
                    return Ok(false);
                }
            } else if kind.is_file() && !self.is_ignored(&path, false) && !visit(dir, &name, &path)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The innermost rule that says anything decides.
    fn is_ignored(&self, path: &Path, is_dir: bool) -> bool {
        for rules in self.rules.iter().rev() {
            match rules.matched(path, is_dir) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => {}
            }
        }
        false
    }
}

fn rules_of(dir: &Dir, at: &Path) -> Gitignore {
    let mut builder = GitignoreBuilder::new(at);
    for name in [".git/info/exclude", ".gitignore", ".ignore"] {
        for line in read_rules(dir, name).lines() {
            // A line that is no pattern ignores nothing.
            let _ = builder.add_line(None, line);
        }
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}

fn read_rules(dir: &Dir, name: &str) -> String {
    let mut text = Vec::new();
    if let Ok(file) = dir.open_with(PathBuf::from(name), &for_reading())
        && file.metadata().is_ok_and(|metadata| metadata.is_file())
    {
        // Half a file of rules is better than none.
        let _ = file.take(MAX_IGNORE_BYTES).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}
