//! Recording: what is written to the store before the host is touched.

mod content;
mod inodes;
mod listing;
mod moved;
mod reader;
mod recorder;
mod space;

pub(crate) use content::{Capture, Span};
pub(crate) use inodes::{InodeState, InodeTable, Wanted};
pub(crate) use moved::Moved;
pub(crate) use recorder::{Recorder, Removal, Taken, Workspace};
pub(crate) use space::FreeSpace;

/// Files up to this size are captured as a whole.
pub(crate) const SMALL: u64 = 64 << 10;

/// The content of a file of this length is captured in blocks of this size, each once per inode
/// and step. Of a large file little more is kept than is overwritten: programs that write here and
/// there would otherwise pay for what they leave alone.
pub(crate) fn block_size(length: u64) -> u64 {
    if length <= SMALL { SMALL } else { 4 << 10 }
}
