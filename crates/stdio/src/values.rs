//! Values that several operations and events share.

use codeagent_common::{
    BarrierInfo, InvalidPath, Protection, RelPathBuf, SafeguardKind, StepId, StepInfo, StepKind,
    Timestamp,
};
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// Lists of paths in events and summaries have no more entries; a count says how many there are.
const MAX_LISTED_PATHS: usize = 100;

/// The first of these paths, and how many there are.
pub fn limit_paths(mut paths: Vec<RelPathBuf>) -> (Vec<RelPathBuf>, u64) {
    let count = paths.len() as u64;
    paths.truncate(MAX_LISTED_PATHS);
    (paths, count)
}

/// Which working directory: its place in the list, its label, or its path. The first if not given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected an index, a label or a path")]
pub enum DirectoryRef {
    Index(u32),
    Name(String),
}

/// A path of a client: relative to the working directory, or absolute and below it. One that
/// climbs out of the directory is refused as it is read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct WirePath(String);

/// How a refused path is told from other wrong values; the prefix of serde's message.
pub(crate) const OUTSIDE: &str = "path outside root: ";

impl WirePath {
    /// `None` if the path climbs out of the directory.
    pub fn new(path: &str) -> Option<Self> {
        RelPathBuf::resolve(b"/", path.as_bytes()).ok().map(|_| Self(path.to_owned()))
    }

    /// The path below `root`. Symlinks are not looked at: whoever opens it must not follow them out.
    pub fn within(&self, root: &[u8]) -> Result<RelPathBuf, InvalidPath> {
        RelPathBuf::resolve(root, self.0.as_bytes())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for WirePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let path = String::deserialize(deserializer)?;
        // Whether an absolute path is below the directory, only the session can tell.
        match RelPathBuf::resolve(b"/", path.as_bytes()) {
            Ok(_) => Ok(Self(path)),
            Err(InvalidPath::Nul) => Err(D::Error::custom(InvalidPath::Nul)),
            Err(error) => Err(D::Error::custom(format!("{OUTSIDE}{error}"))),
        }
    }
}

/// A step of the history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepSummary {
    pub step_id: StepId,
    /// The label of the working directory.
    pub directory: String,
    #[serde(rename = "type")]
    pub kind: StepKind,
    /// The command line, tool call or label; empty for ambient steps.
    pub command: String,
    pub started_at_ms: Timestamp,
    pub finished_at_ms: Timestamp,
    pub exit_code: Option<i32>,
    pub added: u64,
    pub modified: u64,
    pub deleted: u64,
    pub renamed: u64,
    /// The first of the paths it changed; the four numbers say how many there are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub affected_paths: Vec<RelPathBuf>,
    /// New bytes on disk that the step costs.
    pub stored_bytes: u64,
    /// Bytes that were moved into the store or cloned: held, not copied.
    pub held_bytes: u64,
    /// Why it cannot be undone, if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unprotected: Option<String>,
    pub pinned: bool,
    /// Paths that a person should look at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flagged: Vec<RelPathBuf>,
}

impl StepSummary {
    pub fn new(directory: impl Into<String>, step: StepInfo, affected: Vec<RelPathBuf>) -> Self {
        Self {
            step_id: step.id,
            directory: directory.into(),
            kind: step.kind,
            command: step.command,
            started_at_ms: step.started_at,
            finished_at_ms: step.finished_at,
            exit_code: step.exit_code,
            added: step.added,
            modified: step.modified,
            deleted: step.deleted,
            renamed: step.renamed,
            affected_paths: limit_paths(affected).0,
            stored_bytes: step.stored_bytes,
            held_bytes: step.held_bytes,
            unprotected: match step.protection {
                Protection::Protected => None,
                Protection::Unprotected(reason) => Some(reason),
            },
            pinned: step.pinned,
            flagged: limit_paths(step.flagged).0,
        }
    }
}

/// Operations of one kind that were refused because somebody said no.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeniedOperations {
    pub directory: String,
    pub kind: SafeguardKind,
    /// What was asked.
    pub question: String,
    /// How many, the one that was asked about included.
    pub count: u64,
    /// What some of them were about.
    pub paths: Vec<RelPathBuf>,
}

/// A step, or somebody else's edit between two steps; `type` tells them apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum HistoryEntry {
    Step(Box<StepSummary>),
    Barrier(Barrier),
}

/// Undo does not cross it unless forced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Barrier {
    #[serde(rename = "type")]
    kind: BarrierTag,
    pub barrier_id: u64,
    /// Undoing this step, or an older one, would cross the barrier.
    pub after_step_id: StepId,
    pub at_ms: Timestamp,
    pub paths: Vec<RelPathBuf>,
    pub path_count: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum BarrierTag {
    Barrier,
}

impl From<BarrierInfo> for Barrier {
    fn from(barrier: BarrierInfo) -> Self {
        let (paths, path_count) = limit_paths(barrier.paths);
        Self {
            kind: BarrierTag::Barrier,
            barrier_id: barrier.id.0,
            after_step_id: barrier.after_step,
            at_ms: barrier.at,
            paths,
            path_count,
        }
    }
}

/// A path that an undo would touch and somebody else has touched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Conflict {
    pub path: RelPathBuf,
    /// The step whose undo it concerns.
    pub step_id: StepId,
    pub kind: ConflictKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConflictKind {
    /// It is not as the step left it.
    Changed,
    /// Something is there that the step had removed.
    Appeared,
    /// It is gone.
    Disappeared,
    /// It lies in a directory that undo would remove.
    Foreign,
    /// It was changed between this step and a later one.
    ChangedBetweenSteps,
    /// The watcher saw somebody else write to it.
    Barrier,
    /// The step took it away while somebody had it open, and he has gone on writing to it.
    WrittenSince,
}
