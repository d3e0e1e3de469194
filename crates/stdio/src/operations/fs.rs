//! `fs.*`: looking at the working directory.

use codeagent_common::{ByteString, EntryKind, RelPathBuf, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Check, invalid_field};
use crate::call::Call;
use crate::failure::Outcome;
use crate::values::{DirectoryRef, WirePath};

/// One response has no more of a file: in base64 it still is shorter than a line may be.
pub const MAX_READ_BYTES: u32 = 512 * 1024;

pub trait FsOperations: Send + Sync {
    fn list(&self, request: FsList, call: &Call) -> Outcome<Listing>;
    fn read(&self, request: FsRead, call: &Call) -> Outcome<FileContent>;
    fn status(&self, request: FsStatusQuery, call: &Call) -> Outcome<FsStatus>;
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FsList {
    #[serde(default)]
    pub path: WirePath,
    /// So many entries are passed over.
    #[serde(default)]
    pub offset: u64,
    #[serde(default = "thousand")]
    pub limit: u32,
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

fn thousand() -> u32 {
    1000
}

impl Check for FsList {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Listing {
    /// Sorted by name.
    pub entries: Vec<ListingEntry>,
    pub entry_count: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ListingEntry {
    pub name: ByteString,
    pub kind: EntryKind,
    pub size_bytes: u64,
    pub modified_at_ms: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FsRead {
    pub path: WirePath,
    #[serde(default)]
    pub offset_bytes: u64,
    #[serde(default = "read_bytes")]
    pub limit_bytes: u32,
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

fn read_bytes() -> u32 {
    MAX_READ_BYTES
}

impl Check for FsRead {
    fn check(&self) -> Outcome<()> {
        if self.limit_bytes > MAX_READ_BYTES {
            let message = format!("at most {MAX_READ_BYTES} bytes are read at once");
            return Err(invalid_field("payload.limit_bytes", message));
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FileContent {
    pub content: ByteString,
    /// Of the whole file.
    pub size_bytes: u64,
    /// Whether `content` reaches its end.
    pub at_end: bool,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct FsStatusQuery {
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

impl Check for FsStatusQuery {}

/// What does not come through between the host's files and what commands see.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FsStatus {
    pub backend: String,
    pub warnings: Vec<FsWarning>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FsWarning {
    pub code: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<RelPathBuf>,
}
