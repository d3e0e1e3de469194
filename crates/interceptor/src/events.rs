//! What the engine tells whoever listens.

use codeagent_common::{BarrierInfo, RelPathBuf, SafeguardRequest, StepId};

/// Something the people in front of the screen may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineEvent {
    /// A safeguard holds an operation; answer with `UndoEngine::confirm`.
    SafeguardTriggered(SafeguardRequest),
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

/// Shows the working directory to others, who may have to be told when it changes.
pub trait Onlooker: Send + Sync {
    /// The engine has changed the working directory of its own accord: undo, redo, restore,
    /// adoption, a step taken back. No lock is held.
    ///
    /// `in_request`: in a thread of the front end that is serving a request. It must not wait for
    /// those it serves, or they could wait for each other.
    fn changed(&self, in_request: bool);
}

/// Nobody listens.
#[derive(Debug, Clone, Copy, Default)]
pub struct IgnoreEvents;

impl EventSink for IgnoreEvents {
    fn event(&self, _event: EngineEvent) {}
}
