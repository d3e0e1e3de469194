//! `agent.*`: commands, and the coding agent.

use std::collections::BTreeMap;

use codeagent_common::{ByteString, RelPathBuf};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Check, View, invalid_field};
use crate::call::Call;
use crate::failure::Outcome;
use crate::values::{DeniedOperations, DirectoryRef, StepSummary, WirePath};

pub trait AgentOperations: Send + Sync {
    /// Returns when the command has ended; what it writes are events meanwhile. When the call is
    /// cancelled, everything the command started ends.
    fn execute(&self, request: AgentExecute, call: &Call) -> Outcome<Executed>;
    fn prompt(&self, request: AgentPrompt, call: &Call) -> Outcome<Prompted>;
}

/// Runs a command line in a shell, in the sandbox, as one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentExecute {
    pub command: String,
    /// Where it runs, below the working directory.
    #[serde(default)]
    pub cwd: WirePath,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What it reads from its standard input.
    #[serde(default)]
    pub stdin: Option<ByteString>,
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub view: Option<View>,
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

impl Check for AgentExecute {
    fn check(&self) -> Outcome<()> {
        if self.command.trim().is_empty() {
            return Err(invalid_field("payload.command", "the command is empty"));
        }
        if self.command.contains('\0') {
            return Err(invalid_field("payload.command", "the command has a NUL character"));
        }
        Ok(())
    }
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Executed {
    /// Missing if it did not end by itself.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    #[serde(default)]
    pub timed_out: bool,
    #[serde(default)]
    pub cancelled: bool,
    pub duration_ms: u64,
    /// One for each directory it changed.
    pub steps: Vec<StepSummary>,
    /// What may help, if it failed because of its view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Why what it did cannot be undone, if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_undoable: Option<String>,
    /// Protected paths it wanted to change, and did not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_paths: Vec<RelPathBuf>,
    /// Paths that somebody else changed meanwhile, too. The command's version is there now; theirs
    /// is what an undo brings back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed_meanwhile: Vec<RelPathBuf>,
    /// Refused, because a question about it was denied while a command ran in the background: of this
    /// one, or of that. What else was done is kept. Without a command in the background a denial is an
    /// error, `safeguard_denied`, and nothing is kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<DeniedOperations>,
}

/// Gives the configured coding agent something to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentPrompt {
    pub prompt: String,
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

impl Check for AgentPrompt {
    fn check(&self) -> Outcome<()> {
        if self.prompt.trim().is_empty() {
            return Err(invalid_field("payload.prompt", "the prompt is empty"));
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prompted {
    pub exit_code: Option<i32>,
    pub steps: Vec<StepSummary>,
    /// As in the reply to `agent.execute`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<DeniedOperations>,
}
