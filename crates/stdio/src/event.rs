//! What a client learns without having asked.

use codeagent_common::{BarrierId, ByteString, ErrorCode, RelPathBuf, SafeguardKind, StepId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::envelope::RequestId;
use crate::values::StepSummary;

/// One event; on the wire `{"type": "event.…", "payload": {…}}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", content = "payload")]
pub enum Event {
    #[serde(rename = "event.step_completed")]
    StepCompleted(StepCompleted),
    #[serde(rename = "event.agent_output")]
    AgentOutput(AgentOutput),
    #[serde(rename = "event.terminal_output")]
    TerminalOutput(TerminalOutput),
    #[serde(rename = "event.warning")]
    Warning(Warning),
    #[serde(rename = "event.error")]
    Error(ErrorReport),
    #[serde(rename = "event.safeguard_triggered")]
    SafeguardTriggered(SafeguardTriggered),
    #[serde(rename = "event.external_modification")]
    ExternalModification(ExternalModification),
    #[serde(rename = "event.recovery")]
    Recovery(Recovery),
    #[serde(rename = "event.undo_version_mismatch")]
    UndoVersionMismatch(UndoVersionMismatch),
    #[serde(rename = "event.lagged")]
    Lagged(Lagged),
}

impl Event {
    /// Output, of which there may be any amount; it is the first to be dropped.
    pub(crate) fn is_bulk(&self) -> bool {
        matches!(self, Self::AgentOutput(_) | Self::TerminalOutput(_))
    }
}

/// A step has ended: a command, a file tool, a transaction, or writes in between.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepCompleted {
    /// The request that made it, if one of this client did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    #[serde(flatten)]
    pub step: StepSummary,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// The coding agent that `agent.prompt` runs said something.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentOutput {
    pub request_id: RequestId,
    pub stream: OutputStream,
    pub data: ByteString,
}

/// A command wrote something.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TerminalOutput {
    /// The `agent.execute` that runs it; missing for commands of other clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    pub stream: OutputStream,
    pub data: ByteString,
}

/// Something a person should know: protection that was lost, history that was dropped, names that
/// mean something else on this host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Warning {
    pub code: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<StepId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<RelPathBuf>,
}

/// The session, or a part of it, does not work any more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorReport {
    pub code: ErrorCode,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// An operation waits for `safeguard.confirm`; no answer in time means deny.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SafeguardTriggered {
    pub safeguard_id: String,
    pub kind: SafeguardKind,
    pub step_id: StepId,
    pub directory: String,
    /// For `delete_count`: deletions so far, the one that waits included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_count: Option<u64>,
    /// For `overwrite_large`: how large the file is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    pub sample_paths: Vec<RelPathBuf>,
    pub message: String,
    pub timeout_seconds: u64,
}

/// Somebody outside the sandbox changed files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExternalModification {
    pub directory: String,
    pub paths: Vec<RelPathBuf>,
    /// How many there are; `paths` has the first of them.
    pub path_count: u64,
    /// The barrier that undo will not cross unasked, if the policy makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier_id: Option<BarrierId>,
}

/// What a crash had left unfinished has been taken back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recovery {
    pub directory: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<StepId>,
    pub rolled_back: bool,
    pub paths_restored: u64,
    pub paths_removed: u64,
    /// Could not be put back: something else is there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<RelPathBuf>,
    /// May be somebody else's, and is in the quarantine of the undo directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_aside: Vec<RelPathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Nothing is recorded until `undo.discard` throws the old log away.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UndoVersionMismatch {
    pub directory: String,
    pub found: String,
    pub expected: u32,
}

/// So many events are missing here, because too much was left unread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Lagged {
    pub missed: u64,
}
