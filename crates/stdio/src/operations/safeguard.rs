//! `safeguard.*`: questions before something destructive happens, and their answers.

use codeagent_common::SafeguardDecision;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Check, invalid_field};
use crate::call::Call;
use crate::failure::Outcome;

pub trait SafeguardOperations: Send + Sync {
    fn configure(&self, request: SafeguardConfigure, call: &Call) -> Outcome<SafeguardSettings>;
    fn confirm(&self, request: SafeguardConfirm, call: &Call) -> Outcome<()>;
}

/// Replaces all settings: a question that is not mentioned is not asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SafeguardConfigure(pub SafeguardSettings);

impl Check for SafeguardConfigure {
    fn check(&self) -> Outcome<()> {
        for (field, value) in [
            ("payload.delete_threshold", self.0.delete_threshold),
            ("payload.timeout_seconds", self.0.timeout_seconds),
        ] {
            if value == Some(0) {
                return Err(invalid_field(field, "has to be at least one, or left out"));
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SafeguardSettings {
    /// Ask before a step deletes this many things that it did not itself create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_threshold: Option<u64>,
    /// Ask before a file at least this large is overwritten or truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overwrite_threshold_bytes: Option<u64>,
    /// Ask before a rename replaces something.
    #[serde(default)]
    pub rename_over_existing: bool,
    /// No answer by then means deny.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SafeguardConfirm {
    pub safeguard_id: String,
    pub action: SafeguardDecision,
}

impl Check for SafeguardConfirm {}
