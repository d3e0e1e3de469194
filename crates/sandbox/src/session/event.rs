//! What a session tells whoever listens.

use std::sync::Arc;

use codeagent_common::{
    BarrierInfo, RelPathBuf, SafeguardDecision, SafeguardId, SafeguardRequest, StepId,
};
use codeagent_interceptor::{ClosedStep, RecoveryReport};
use parking_lot::RwLock;
use serde::Serialize;

use crate::classify::Class;
use crate::executor::Isolation;

/// `directory` is the label of the working directory it happened in.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The session runs. Says aloud what stands between commands and the machine.
    Started {
        isolation: Isolation,
        /// What would have been better, and why it could not be had.
        passed_over: Vec<(Isolation, String)>,
    },
    Stopped,
    /// An earlier session was interrupted; what its last step did has been taken back.
    Recovery {
        directory: String,
        report: RecoveryReport,
    },
    CommandStarted {
        command: u64,
        line: String,
        /// What it probably does.
        class: Class,
    },
    CommandEnded {
        command: u64,
        exit_code: Option<i32>,
        steps: Vec<StepId>,
    },
    /// Changes that belong to no command have become a step.
    AmbientStep {
        directory: String,
        closed: ClosedStep,
    },
    SafeguardTriggered {
        directory: String,
        request: SafeguardRequest,
    },
    SafeguardAnswered {
        directory: String,
        question: SafeguardId,
        decision: SafeguardDecision,
    },
    ExternalModification {
        directory: String,
        paths: Vec<RelPathBuf>,
        barrier: Option<BarrierInfo>,
    },
    /// Old steps were dropped to stay within the limits.
    Evicted {
        directory: String,
        steps: Vec<StepId>,
    },
    StepUnprotected {
        directory: String,
        step: StepId,
        reason: String,
    },
    VersionMismatch {
        directory: String,
        found: String,
        expected: u32,
    },
    /// The process that holds the folder's history died; the next request starts another.
    WorkerLost {
        directory: String,
    },
    /// A command wanted to reach something that nobody allowed. Told once for each destination.
    NetworkRefused {
        destination: String,
        /// Why, and how it can be allowed.
        message: String,
    },
    Warning {
        directory: Option<String>,
        message: String,
    },
}

/// Must not wait for the session.
pub type Listener = Box<dyn Fn(&Event) + Send + Sync>;

/// Everybody who listens.
#[derive(Clone, Default)]
pub(crate) struct Bus(Arc<RwLock<Vec<Listener>>>);

impl Bus {
    pub(crate) fn add(&self, listener: Listener) {
        self.0.write().push(listener);
    }

    pub(crate) fn tell(&self, event: &Event) {
        self.0.read().iter().for_each(|listener| listener(event));
    }
}

impl std::fmt::Debug for Bus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bus({})", self.0.read().len())
    }
}
