//! Recording: what is written to the store before the host is touched.

mod content;
mod inodes;
mod listing;
mod moved;
mod recorder;
mod space;

pub(crate) use content::{Capture, Span};
pub(crate) use inodes::{InodeState, InodeTable, Wanted};
pub(crate) use moved::Moved;
pub(crate) use recorder::{Recorder, Removal, Workspace};
pub(crate) use space::FreeSpace;

/// Content is captured in blocks of this size, each once per inode and step.
pub(crate) const BLOCK: u64 = 64 << 10;
