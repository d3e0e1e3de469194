//! Paths the user does not want undo for: those `.gitignore` names, if that was asked for.

use std::path::{Path, PathBuf};

use codeagent_common::RelPath;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// Rules are read once, when the engine starts: an agent cannot switch undo off by editing them.
pub(crate) struct Ignored {
    root: PathBuf,
    /// Rule files with the directory they apply to, deepest last.
    rules: Vec<Gitignore>,
}

impl Ignored {
    pub(crate) fn nothing() -> Self {
        Self { root: PathBuf::new(), rules: Vec::new() }
    }

    /// Reads `.git/info/exclude` and every `.gitignore` below `root`.
    pub(crate) fn from_gitignore(root: &Path) -> Self {
        let mut rules = Vec::new();
        let mut exclude = GitignoreBuilder::new(root);
        if exclude.add(root.join(".git/info/exclude")).is_none() {
            rules.extend(exclude.build());
        }
        let walk = ignore::WalkBuilder::new(root)
            .standard_filters(false)
            .follow_links(false)
            .filter_entry(|entry| entry.file_name() != ".git")
            .build();
        for entry in walk.flatten() {
            let is_rules = entry.file_name() == ".gitignore"
                && entry.file_type().is_some_and(|kind| kind.is_file());
            if let (true, Some(dir)) = (is_rules, entry.path().parent()) {
                let mut builder = GitignoreBuilder::new(dir);
                if builder.add(entry.path()).is_none() {
                    rules.extend(builder.build());
                }
            }
        }
        rules.sort_by_key(|rules| rules.path().components().count());
        Self { root: root.into(), rules }
    }

    /// Whether undo leaves this path alone.
    pub(crate) fn covers(&self, path: RelPath<'_>, is_dir: bool) -> bool {
        if self.rules.is_empty() || path.is_root() {
            return false;
        }
        use std::os::unix::ffi::OsStrExt;
        let full = self.root.join(std::ffi::OsStr::from_bytes(path.as_bytes()));
        self.rules
            .iter()
            .rev()
            .filter(|rules| full.starts_with(rules.path()))
            .map(|rules| rules.matched_path_or_any_parents(&full, is_dir))
            .find(|matched| !matched.is_none())
            .is_some_and(|matched| matched.is_ignore())
    }
}
