//! Steps and barriers: the entries of the undo history.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::RelPathBuf;

/// Identifies a step. Positive for steps somebody asked for, negative for ambient ones.
/// Never used twice in one undo directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct StepId(pub i64);

impl StepId {
    pub fn is_ambient(self) -> bool {
        self.0 < 0
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// What made a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// A command that ran in the sandbox.
    Command,
    /// A file tool or API call.
    Api,
    /// Writes that arrived while no step was open.
    Ambient,
    /// Several commands grouped by `step.begin` and `step.commit`.
    Transaction,
    /// Single paths brought back from an earlier step.
    Restore,
}

/// Milliseconds since the Unix epoch.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Whether a step can be undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protection {
    Protected,
    /// Recording stopped before the step ended, for the reason given.
    Unprotected(String),
}

impl Protection {
    pub fn is_protected(&self) -> bool {
        matches!(self, Self::Protected)
    }
}

/// One step of the history, as shown to people and sent to clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepInfo {
    pub id: StepId,
    /// Position in time; unlike ids, sequence numbers of all kinds of steps can be compared.
    pub sequence: u64,
    pub kind: StepKind,
    /// The command line, tool call or label; empty for ambient steps.
    pub command: String,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    pub exit_code: Option<i32>,
    pub added: u64,
    pub modified: u64,
    pub deleted: u64,
    pub renamed: u64,
    /// New bytes on disk that the step costs.
    pub stored_bytes: u64,
    /// Bytes of files that were moved into the store or cloned: held, not copied.
    pub held_bytes: u64,
    pub protection: Protection,
    pub pinned: bool,
    /// Paths the path policy wants a person to look at.
    pub flagged: Vec<RelPathBuf>,
}

/// Identifies a barrier; grows with every external modification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct BarrierId(pub u64);

/// Somebody outside the sandbox changed these paths after a step was closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarrierInfo {
    pub id: BarrierId,
    /// The newest step at that time; undoing it, or an older one, would cross the barrier.
    pub after_step: StepId,
    pub after_sequence: u64,
    pub at: Timestamp,
    pub paths: Vec<RelPathBuf>,
}
