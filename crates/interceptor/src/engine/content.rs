//! What was in a file before a step, or is in it now.

use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};

use codeagent_common::{RelPath, StepId};
use rustix::fs::FileType;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::UndoEngine;
use crate::error::{Result, UndoError};
use crate::host::{Dir, Entry, is_absent};

/// Tells those apart that are looked at the same time.
static LOOKS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryContent {
    Nothing,
    File {
        size: u64,
        mode: u32,
        /// `None`: larger than was asked for.
        content: Option<ByteBuf>,
    },
    Symlink {
        target: ByteBuf,
    },
    Directory,
    Special,
}

impl UndoEngine {
    /// What `path` was before a step, or is now. Of directories, nothing but that they are: to be
    /// asked about paths that are none, because what was below them is brought back for this.
    ///
    /// # Errors
    /// `PathNotInStep` if neither the step nor a later one had anything to do with it.
    pub fn content(
        &self,
        before: Option<StepId>,
        path: RelPath<'_>,
        most_bytes: u64,
    ) -> Result<EntryContent> {
        let failed = || UndoError::io("looking at a file");
        let Some(step) = before else {
            let entry = self.workspace.tree.owned_entry(path);
            return match entry.and_then(|entry| read(&entry, most_bytes)) {
                Err(error) if is_absent(&error) => Ok(EntryContent::Nothing),
                content => content.map_err(failed()),
            };
        };
        let name = format!("look-{}", LOOKS.fetch_add(1, Ordering::Relaxed));
        let trash = self.workspace.store.root().join("trash");
        let dir = Dir::open(&trash).map_err(failed())?;
        let entry = dir.entry(name.clone().into_bytes());
        let content = match self.extract(step, path, &trash.join(&name)) {
            Ok(true) => read(&entry, most_bytes).map_err(failed()),
            Ok(false) => Ok(EntryContent::Nothing),
            Err(error) => Err(error),
        };
        // What is left in the trash goes at the next start.
        let _ = crate::host::remove_all(&entry);
        content
    }
}

fn read(entry: &Entry<'_>, most_bytes: u64) -> io::Result<EntryContent> {
    let Some(stamp) = entry.stat()? else { return Ok(EntryContent::Nothing) };
    Ok(match stamp.file_type() {
        FileType::Directory => EntryContent::Directory,
        FileType::Symlink => EntryContent::Symlink { target: ByteBuf::from(entry.read_link()?) },
        FileType::RegularFile => {
            let mut content = None;
            if stamp.size <= most_bytes {
                let mut bytes = Vec::new();
                entry.open_read()?.take(most_bytes).read_to_end(&mut bytes)?;
                content = Some(ByteBuf::from(bytes));
            }
            EntryContent::File { size: stamp.size, mode: stamp.mode & 0o7777, content }
        }
        _ => EntryContent::Special,
    })
}
