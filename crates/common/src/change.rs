//! Net changes of a step, or of an undo that is only previewed.

use serde::{Deserialize, Serialize};

use crate::RelPathBuf;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    Device,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Added,
    /// Content, metadata, or type.
    Modified,
    Deleted,
    Renamed,
}

/// What became of one path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Change {
    /// The name it has (or had, when deleted).
    pub path: RelPathBuf,
    pub kind: ChangeKind,
    /// The former name, for `Renamed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<RelPathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryKind>,
    /// The directory came or went as a whole; what is below it is not listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_directory: bool,
}
