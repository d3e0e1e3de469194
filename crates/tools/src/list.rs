//! `list_directory`.

use std::time::SystemTime;

use codeagent_common::{EntryKind, RelPath};

use crate::error::{Result, ToolError};
use crate::folder::{Folder, shown};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryListing {
    /// Sorted by name.
    pub entries: Vec<ListedEntry>,
    /// How many there are altogether.
    pub count: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedEntry {
    pub name: Vec<u8>,
    pub kind: EntryKind,
    pub size_bytes: u64,
    pub modified: SystemTime,
}

impl Folder {
    /// The entries from `offset` on, at most `limit`. Symlinks are listed as what they are.
    pub fn list_directory(
        &self,
        path: RelPath<'_>,
        offset: usize,
        limit: usize,
    ) -> Result<DirectoryListing> {
        let dir = self.open_dir(path)?;
        let failed = || ToolError::io(shown(path));
        let mut entries = dir
            .entries()
            .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
            .map_err(failed())?;
        entries.sort_by_cached_key(cap_std::fs::DirEntry::file_name);
        let count = entries.len();
        let listed = entries
            .iter()
            .skip(offset)
            .take(limit)
            // One that vanished meanwhile is not there any more.
            .filter_map(|entry| {
                let metadata = entry.metadata().ok()?;
                let modified = metadata.modified().ok()?.into_std();
                Some(ListedEntry {
                    name: entry.file_name().into_encoded_bytes(),
                    kind: kind(metadata.file_type()),
                    size_bytes: metadata.len(),
                    modified,
                })
            })
            .collect();
        Ok(DirectoryListing { entries: listed, count })
    }
}

fn kind(kind: cap_std::fs::FileType) -> EntryKind {
    #[cfg(unix)]
    {
        use cap_std::fs::FileTypeExt;
        if kind.is_fifo() {
            return EntryKind::Fifo;
        }
        if kind.is_socket() {
            return EntryKind::Socket;
        }
        if kind.is_char_device() || kind.is_block_device() {
            return EntryKind::Device;
        }
    }
    if kind.is_dir() {
        EntryKind::Directory
    } else if kind.is_symlink() {
        EntryKind::Symlink
    } else {
        EntryKind::File
    }
}
