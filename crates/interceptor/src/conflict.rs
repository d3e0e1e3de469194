//! What undo would overwrite.

use codeagent_common::{RelPathBuf, StepId};
use serde::{Deserialize, Serialize};

/// A path that undo would touch, and that somebody else has touched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    pub path: RelPathBuf,
    /// The step whose undo it concerns.
    pub step: StepId,
    pub kind: ConflictKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

#[cfg(target_os = "linux")] // only the engine finds any
impl Conflict {
    pub(crate) fn new(path: RelPathBuf, step: StepId, kind: ConflictKind) -> Self {
        Self { path, step, kind }
    }
}
