//! An exact picture of a directory tree, and the comparison of two of them.

mod capture;
mod compare;
mod unlock;

use std::collections::BTreeMap;
use std::path::Path;

pub use compare::{CompareOptions, assert_tree_eq, assert_tree_eq_with};

/// Everything a rollback has to bring back, for a directory and all that is below it.
///
/// Inode numbers, atime and ctime are no part of it: a restored tree may differ in them.
#[derive(Clone, Debug)]
pub struct TreeSnapshot {
    /// By path relative to the root, in byte order; the root itself is the empty path.
    pub entries: BTreeMap<Vec<u8>, Entry>,
}

/// One file, directory, link or special file.
#[derive(Clone, Debug)]
pub struct Entry {
    pub kind: EntryKind,
    /// The 12 bits chmod can set.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Always 0 for a directory, whose size is the filesystem's own affair.
    pub size_bytes: u64,
    pub mtime_ns: i128,
    /// All that `llistxattr` lists, so ACLs too.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Entries with the same number are the same inode. `None` when no other name in the
    /// tree leads to it. Numbers follow the order of each group's first path.
    pub hard_link_group: Option<usize>,
    /// Names of the inode inside and outside the tree; 0 for a directory. Compared only
    /// when [`CompareOptions::link_counts`] asks for it.
    pub link_count: u64,
}

/// The type of an entry, with what only this type has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Regular { content: [u8; 32] },
    Directory,
    Symlink { target: Vec<u8> },
    Fifo,
    Socket,
    CharDevice { rdev: u64 },
    BlockDevice { rdev: u64 },
}

impl EntryKind {
    /// How a diff calls this type.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Regular { .. } => "regular file",
            Self::Directory => "directory",
            Self::Symlink { .. } => "symlink",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::CharDevice { .. } => "character device",
            Self::BlockDevice { .. } => "block device",
        }
    }
}

impl TreeSnapshot {
    /// Takes the picture of the directory `root`. Follows no symlink, has no limit on
    /// the length of paths, and leaves the tree as it is. What its owner has locked against
    /// himself is unlocked meanwhile.
    ///
    /// # Panics
    /// When something cannot be read, or changes so much meanwhile that it disappears.
    pub fn capture(root: &Path) -> Self {
        let unlocked = unlock::Unlocked::below(root);
        let mut snapshot = capture::capture(root);
        for (path, mode) in &unlocked.modes {
            snapshot.entries.entry(path.clone()).and_modify(|entry| entry.mode = *mode);
        }
        snapshot
    }

    /// The entry at `path`, where one is.
    pub fn get(&self, path: impl AsRef<[u8]>) -> Option<&Entry> {
        self.entries.get(path.as_ref())
    }

    /// How `other` differs from `self`, a line for each difference; empty when equal.
    pub fn diff(&self, other: &Self) -> Vec<String> {
        self.diff_with(other, &CompareOptions::default())
    }

    /// As [`Self::diff`], less strict where `options` say so.
    pub fn diff_with(&self, other: &Self, options: &CompareOptions) -> Vec<String> {
        compare::diff(self, other, options)
    }
}

impl PartialEq for TreeSnapshot {
    fn eq(&self, other: &Self) -> bool {
        self.diff(other).is_empty()
    }
}
