//! The working directory as the engine touches it.
//!
//! Everything here starts from a directory descriptor and never follows a symlink, so no path an
//! agent makes up, and no journal somebody tampered with, reaches outside.

mod content;
mod copy;
mod entry;
mod lend;
mod metadata;
mod overlay;
mod scan;
mod stamp;
mod tree;
mod walk;
mod xattr;

pub(crate) use crate::file_id::FileId;
pub(crate) use content::{
    clone_file, copy_range, data_segments, punch, read_exact_at, write_all_at,
};
pub(crate) use copy::{CopiedLinks, copy_entry, copy_linked};
pub(crate) use entry::{Entry, Found};
pub(crate) use lend::Lender;
pub(crate) use metadata::{Meta, MetaScope};
pub(crate) use overlay::OverlayMarks;
pub(crate) use scan::scan;
pub(crate) use stamp::Stamp;
pub(crate) use tree::{Dir, Tree, is_absent};
pub(crate) use walk::{descend, remove_all, walk, walk_some};
