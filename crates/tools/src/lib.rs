//! File tools for agents, on a directory handle: nothing outside the directory is ever opened,
//! wherever symlinks lead and whoever replaces directories meanwhile.
//!
//! Nothing is written here. [`Folder::plan_write`] and [`Folder::plan_edit`] say what a file is to
//! become; whoever has the undo engine does it.

mod diff;
mod edit;
mod error;
mod folder;
mod glob;
mod grep;
mod list;
mod plan;
mod read;
mod walk;

pub use diff::{MAX_DIFF_LINES, short_diff, unified_diff};
pub use edit::{Edit, Edited, edit};
pub use error::{Result, ToolError};
pub use folder::Folder;
pub use glob::{GlobQuery, Globbed};
pub use grep::{GrepQuery, Grepped, OutputMode};
pub use list::{DirectoryListing, ListedEntry};
pub use plan::WritePlan;
pub use read::{FileBytes, FileText, ReadQuery};
