//! `step.*`: several commands as one step.

use codeagent_common::StepId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use crate::call::Call;
use crate::failure::Outcome;
use crate::values::{DirectoryRef, StepSummary};

pub trait StepOperations: Send + Sync {
    fn begin(&self, request: StepBegin, call: &Call) -> Outcome<StepBegun>;
    fn commit(&self, request: StepCommit, call: &Call) -> Outcome<StepCommitted>;
    fn rollback(&self, request: StepRollback, call: &Call) -> Outcome<StepBegun>;
}

/// From now on, whatever happens in the directory is one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepBegin {
    #[serde(default)]
    pub label: String,
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

impl Check for StepBegin {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepBegun {
    pub step_id: StepId,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepCommit {
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

impl Check for StepCommit {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepCommitted {
    /// Missing if nothing had changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepSummary>,
}

/// Takes back what happened since `step.begin`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepRollback {
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

impl Check for StepRollback {}
