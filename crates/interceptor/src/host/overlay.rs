//! What overlayfs leaves in an upper layer, beside files: whiteouts and attributes.

use std::io;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::lend::{READ, WRITE};
use super::metadata::{list_xattr_names, proc_path, read_xattr};
use super::{Entry, Stamp};

/// Attributes of the overlay itself.
const PREFIX: &[u8] = b"user.overlay.";
/// Attributes that a program in the overlay has set, and that look like those.
const ESCAPED: &[u8] = b"user.overlay.overlay.";

/// What the overlay notes about an entry.
#[derive(Debug, Default)]
pub(crate) struct OverlayMarks {
    /// A directory that hides what is below it in the lower layer.
    pub(crate) opaque: bool,
    /// A directory with entries that came from the lower layer.
    pub(crate) impure: bool,
    /// It came from the lower layer, with its content.
    pub(crate) copied_up: bool,
    /// The attributes that say so, and those that programs have set and that look like them.
    names: Vec<Vec<u8>>,
}

impl OverlayMarks {
    pub(crate) fn of(entry: &Entry<'_>) -> io::Result<Self> {
        let path = proc_path(entry);
        let names = entry.permitted_itself(READ, || list_xattr_names(&path))?;
        let mut marks = Self::default();
        for name in names {
            let Some(mark) = name.strip_prefix(PREFIX) else { continue };
            match mark {
                b"opaque" => {
                    let value = entry.permitted_itself(READ, || read_xattr(&path, &name))?;
                    marks.opaque = value.as_deref() == Some(b"y");
                }
                b"impure" => marks.impure = true,
                b"origin" => marks.copied_up = true,
                _ => {}
            }
            marks.names.push(name);
        }
        Ok(marks)
    }

    /// Leaves the entry with the attributes that programs in the overlay see.
    pub(crate) fn strip(&self, entry: &Entry<'_>) -> io::Result<()> {
        if self.names.is_empty() {
            return Ok(());
        }
        let path = proc_path(entry);
        entry.permitted_itself(READ | WRITE, || {
            let mut meant = Vec::new();
            for name in self.names.iter().filter(|name| name.starts_with(ESCAPED)) {
                if let Some(value) = read_xattr(&path, name)? {
                    meant.push(([PREFIX, &name[ESCAPED.len()..]].concat(), value));
                }
            }
            for name in &self.names {
                match rustix::fs::lremovexattr(&path, name.as_slice()) {
                    Ok(()) | Err(Errno::NODATA) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            for (name, value) in &meant {
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::lsetxattr(&path, name.as_slice(), value, flags)?;
            }
            Ok(())
        })
    }
}

impl Stamp {
    /// The overlay's note that an entry of the lower layer is gone.
    pub(crate) fn is_whiteout(&self) -> bool {
        self.file_type() == FileType::CharacterDevice && self.rdev == 0
    }
}
