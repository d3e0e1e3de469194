//! What was tried, and what became of it: plain data, made in a process of its own and sent out.

use serde::{Deserialize, Serialize};

use crate::report::Failed;
use crate::spec::HostPath;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TrialRequest {
    pub(crate) folder: HostPath,
    /// Holds `up`, `work`, and `low` with an empty file in it.
    pub(crate) staging: Option<HostPath>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Trials {
    pub(crate) namespaces: Trial,
    pub(crate) capabilities: Trial,
    pub(crate) mount_api: Trial,
    pub(crate) proc: Trial,
    pub(crate) overlay: Trial,
    pub(crate) fuse: Trial,
    pub(crate) landlock: Landlock,
    pub(crate) seccomp: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Trial {
    /// Something before it failed.
    #[default]
    Untried,
    Works,
    Failed(Failed),
}

impl Trial {
    pub(crate) fn works(&self) -> bool {
        *self == Self::Works
    }
}

impl From<Result<(), Failed>> for Trial {
    fn from(outcome: Result<(), Failed>) -> Self {
        outcome.map_or_else(Self::Failed, |()| Self::Works)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Landlock {
    #[default]
    NotBuilt,
    NotEnabled,
    Version(i32),
}
