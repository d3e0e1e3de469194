//! What overlayfs leaves in an upper layer, beside files: whiteouts and attributes.

use std::io;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::lend::{READ, WRITE};
use super::metadata::{list_xattrs, proc_path};
use super::{Entry, Stamp};

/// Attributes of the overlay itself.
const PREFIX: &[u8] = b"user.overlay.";
/// Attributes that a program in the overlay has set, and that look like those.
const ESCAPED: &[u8] = b"user.overlay.overlay.";

/// What the overlay notes about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct OverlayMarks {
    /// A directory that hides what is below it in the lower layer.
    pub(crate) opaque: bool,
    /// A directory with entries that came from the lower layer.
    pub(crate) impure: bool,
    /// It came from the lower layer, with its content.
    pub(crate) copied_up: bool,
    /// There is something to be taken away.
    pub(crate) any: bool,
}

impl OverlayMarks {
    pub(crate) fn of(entry: &Entry<'_>) -> io::Result<Self> {
        let path = proc_path(entry);
        let attributes = entry.permitted_itself(READ, || list_xattrs(&path))?;
        let mut marks = Self::default();
        for (name, value) in &attributes {
            let Some(mark) = name.strip_prefix(PREFIX) else { continue };
            marks.any = true;
            match mark {
                b"opaque" => marks.opaque = value.as_slice() == b"y",
                b"impure" => marks.impure = true,
                b"origin" => marks.copied_up = true,
                _ => {}
            }
        }
        Ok(marks)
    }

    /// Leaves the entry with the attributes that programs in the overlay see.
    pub(crate) fn strip(self, entry: &Entry<'_>) -> io::Result<()> {
        if !self.any {
            return Ok(());
        }
        let path = proc_path(entry);
        entry.permitted_itself(READ | WRITE, || {
            let attributes = list_xattrs(&path)?;
            for (name, _) in attributes.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
                match rustix::fs::lremovexattr(&path, name.as_slice()) {
                    Ok(()) | Err(Errno::NODATA) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            for (name, value) in &attributes {
                if let Some(meant) = name.strip_prefix(ESCAPED) {
                    let meant = [PREFIX, meant].concat();
                    let flags = rustix::fs::XattrFlags::empty();
                    rustix::fs::lsetxattr(&path, meant.as_slice(), value, flags)?;
                }
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
