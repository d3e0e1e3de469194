//! What overlayfs leaves in an upper layer, beside files: whiteouts and attributes.

use std::io;

use rustix::fs::FileType;
use serde_bytes::ByteBuf;

use super::lend::{READ, WRITE};
use super::metadata::Xattrs;
use super::{Entry, Stamp, xattr};

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
    /// All other attributes.
    others: Vec<Vec<u8>>,
}

impl OverlayMarks {
    pub(crate) fn of(entry: &Entry<'_>) -> io::Result<Self> {
        let names = entry.permitted_itself(READ, || xattr::names(entry))?;
        let mut marks = Self::default();
        for name in names {
            let Some(mark) = name.strip_prefix(PREFIX) else {
                marks.others.push(name);
                continue;
            };
            match mark {
                b"opaque" => {
                    let value = entry.permitted_itself(READ, || xattr::get(entry, &name))?;
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

    /// The inode number in the lower layer of what was copied up, whatever it was called there; as
    /// far as the overlay has noted that, and in a way we know.
    pub(crate) fn origin(&self, entry: &Entry<'_>) -> io::Result<Option<u64>> {
        if !self.copied_up {
            return Ok(None);
        }
        let name = [PREFIX, b"origin"].concat();
        let value = entry.permitted_itself(READ, || xattr::get(entry, &name))?;
        Ok(value.as_deref().and_then(inode_in_handle))
    }

    /// Leaves the entry with the attributes that programs in the overlay see.
    pub(crate) fn strip(&self, entry: &Entry<'_>) -> io::Result<()> {
        if self.names.is_empty() {
            return Ok(());
        }
        entry.permitted_itself(READ | WRITE, || {
            let meant = self.meant(entry)?;
            for name in &self.names {
                xattr::remove(entry, name)?;
            }
            meant.iter().try_for_each(|(name, value)| xattr::set(entry, name, value))
        })
    }

    /// The attributes that programs in the overlay see.
    pub(crate) fn seen(&self, entry: &Entry<'_>) -> io::Result<Xattrs> {
        entry.permitted_itself(READ, || {
            let mut seen = self.meant(entry)?;
            for name in &self.others {
                if let Some(value) = xattr::get(entry, name)? {
                    seen.push((ByteBuf::from(name.clone()), ByteBuf::from(value)));
                }
            }
            seen.sort();
            Ok(seen)
        })
    }

    /// Those that look like the overlay's own, under their right names.
    fn meant(&self, entry: &Entry<'_>) -> io::Result<Xattrs> {
        let mut meant = Xattrs::new();
        for name in self.names.iter().filter(|name| name.starts_with(ESCAPED)) {
            if let Some(value) = xattr::get(entry, name)? {
                let right = [PREFIX, &name[ESCAPED.len()..]].concat();
                meant.push((ByteBuf::from(right), ByteBuf::from(value)));
            }
        }
        Ok(meant)
    }
}

/// A file handle as overlayfs writes it down: a header whose fifth byte is the kind of the handle, a
/// UUID, and the handle itself, which filesystems make up in a few ways.
fn inode_in_handle(noted: &[u8]) -> Option<u64> {
    const HEADER: usize = 5 + 16;
    let (kind, handle) = (*noted.get(4)?, noted.get(HEADER..)?);
    let word = |at: usize| handle.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let long = |at: usize| handle.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    match (kind, handle.len()) {
        (1, 8) => word(0).map(u64::from), // ext4, XFS with small numbers: number, generation
        (1, 12) => long(4),               // tmpfs: generation, number
        (0x81 | 0x4d, 12..) => long(0),   // XFS, btrfs: number, …
        _ => None,
    }
}

impl Stamp {
    /// The overlay's note that an entry of the lower layer is gone.
    pub(crate) fn is_whiteout(&self) -> bool {
        self.file_type() == FileType::CharacterDevice && self.rdev == 0
    }
}
