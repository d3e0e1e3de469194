//! Safeguards: questions asked before a destructive operation happens.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{RelPathBuf, StepId};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SafeguardId(pub u64);

impl fmt::Display for SafeguardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sg_{:03}", self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SafeguardKind {
    /// The step removes this many things that it did not itself create.
    DeleteCount,
    /// An existing file at least this large is overwritten or truncated.
    OverwriteLarge,
    /// A rename replaces something that exists.
    RenameOver,
}

/// Which questions are asked. All are off until configured: what can be undone need not be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SafeguardConfig {
    pub delete_threshold: Option<u64>,
    pub overwrite_threshold_bytes: Option<u64>,
    pub rename_over_existing: bool,
    /// No answer by then means deny.
    pub timeout: Duration,
    /// Operations held while a question is open; further ones fail with ENOSPC.
    pub max_held_operations: usize,
}

impl SafeguardConfig {
    /// No safeguard is configured.
    pub fn asks_nothing(&self) -> bool {
        self.delete_threshold.is_none()
            && self.overwrite_threshold_bytes.is_none()
            && !self.rename_over_existing
    }
}

impl Default for SafeguardConfig {
    fn default() -> Self {
        Self {
            delete_threshold: None,
            overwrite_threshold_bytes: None,
            rename_over_existing: false,
            timeout: Duration::from_secs(30),
            max_held_operations: 10_000,
        }
    }
}

/// The question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SafeguardRequest {
    pub id: SafeguardId,
    pub step: StepId,
    pub kind: SafeguardKind,
    /// Deletions so far, this one included; bytes for `OverwriteLarge`; 1 for `RenameOver`.
    pub count: u64,
    pub sample_paths: Vec<RelPathBuf>,
    pub message: String,
    /// A command in the background runs beside the step, or did: it may be that one's doing.
    pub shared: bool,
}

/// Operations of one kind that were refused because the answer to a question was no, in a step of
/// which nothing is taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub safeguard: SafeguardId,
    pub kind: SafeguardKind,
    /// The question.
    pub asked: String,
    /// How many, the one that was asked about included.
    pub count: u64,
    /// What some of them were about.
    pub sample_paths: Vec<RelPathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SafeguardDecision {
    Allow,
    Deny,
}
