//! What the engine tells whoever listens.

use codeagent_common::{
    BarrierInfo, Refusal, RelPathBuf, SafeguardDecision, SafeguardId, SafeguardRequest, StepId,
};
use serde::{Deserialize, Serialize};

/// Something the people in front of the screen may want to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineEvent {
    /// A safeguard holds an operation; answer with `UndoEngine::confirm`.
    SafeguardTriggered(SafeguardRequest),
    /// A question is not open any more.
    SafeguardDecided {
        question: SafeguardId,
        step: StepId,
        decision: SafeguardDecision,
        /// Somebody gave an answer; without one it was denied.
        in_time: bool,
        /// Denied in a shared step, of which nothing is taken back: what is refused instead.
        refused: Option<Refusal>,
    },
    /// Somebody outside the sandbox changed these paths.
    ExternalModification { paths: Vec<RelPathBuf>, barrier: Option<BarrierInfo> },
    /// Old steps were dropped to stay within the limits.
    Evicted { steps: Vec<StepId> },
    /// From here on the step cannot be undone.
    StepUnprotected { step: StepId, reason: String },
    /// The undo log has another format; nothing is recorded until it is discarded.
    VersionMismatch { found: String, expected: u32 },
    /// Anything else worth a line.
    Warning(String),
}

/// Receives events. Called from whichever thread caused them; must not call back into the engine,
/// except for `confirm`.
pub trait EventSink: Send + Sync {
    fn event(&self, event: EngineEvent);
}

/// Nobody listens.
#[derive(Debug, Clone, Copy, Default)]
pub struct IgnoreEvents;

impl EventSink for IgnoreEvents {
    fn event(&self, _event: EngineEvent) {}
}
