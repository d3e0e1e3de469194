//! `write_file` and `edit_file` as plans: what a file is to become, for whoever can undo it.

use std::io::Read;

use codeagent_common::{RelPath, RelPathBuf};

use crate::diff::short_diff;
use crate::edit::{Edit, edit};
use crate::error::{Result, ToolError};
use crate::folder::{Folder, shown};

/// Larger files are not edited; a command does that better.
const MAX_EDIT_BYTES: u64 = 64 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WritePlan {
    /// Where to write: symlinks inside the directory have been followed.
    pub path: RelPathBuf,
    /// `None` if there is no such file yet.
    pub before: Option<Vec<u8>>,
    pub after: Vec<u8>,
    /// Pieces of text that were replaced; 0 for a write.
    pub replacements: usize,
}

impl WritePlan {
    pub fn diff(&self) -> String {
        short_diff(&self.path.to_string(), self.before.as_deref(), Some(&self.after))
    }
}

impl Folder {
    /// The file as a whole. What is there now is read only if it is text of a size that can be shown.
    pub fn plan_write(&self, path: RelPath<'_>, content: &[u8]) -> Result<WritePlan> {
        if path.is_root() {
            return Err(ToolError::IsDirectory(shown(path)));
        }
        let target = self.target(path)?;
        let before = match self.open_file(target.as_path()) {
            Ok(file) => Some(read_some(file, &target)?),
            Err(ToolError::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        Ok(WritePlan { path: target, before, after: content.to_vec(), replacements: 0 })
    }

    pub fn plan_edit(&self, path: RelPath<'_>, change: &Edit) -> Result<WritePlan> {
        let target = self.target(path)?;
        let file = self.open_file(target.as_path())?;
        let size_bytes = file.metadata().map_err(ToolError::io(shown(path)))?.len();
        if size_bytes > MAX_EDIT_BYTES {
            return Err(ToolError::TooLarge { path: shown(path), size_bytes });
        }
        let before = read_some(file, &target)?;
        let edited = edit(&before, change)?;
        Ok(WritePlan {
            path: target,
            before: Some(before),
            after: edited.content,
            replacements: edited.replacements,
        })
    }

    /// The path without symlinks: whoever writes follows none. One that leads outside is refused.
    fn target(&self, path: RelPath<'_>) -> Result<RelPathBuf> {
        let native = crate::folder::native(path);
        match self.dir.canonicalize(&native) {
            Ok(real) => self.relative(path, &real),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                // The file is new; a symlink without a target must not be written through.
                if self.dir.symlink_metadata(&native).is_ok() {
                    return Err(ToolError::NotAFile(shown(path)));
                }
                let Some((parent, name)) = path.split() else { return Ok(path.to_buf()) };
                let parent = self.target(parent)?;
                let joined = parent.as_path().join(name);
                joined.map_err(|source| ToolError::Path { path: shown(path), source })
            }
            Err(error) => Err(ToolError::io(shown(path))(error)),
        }
    }

    fn relative(&self, path: RelPath<'_>, real: &std::path::Path) -> Result<RelPathBuf> {
        RelPathBuf::resolve(b"/", real.as_os_str().as_encoded_bytes())
            .map_err(|source| ToolError::Path { path: shown(path), source })
    }
}

fn read_some(file: std::fs::File, path: &RelPathBuf) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(MAX_EDIT_BYTES + 1)
        .read_to_end(&mut content)
        .map_err(ToolError::io(path.to_string()))?;
    Ok(content)
}
