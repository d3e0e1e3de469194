//! Values by which the edge tells the mechanism what to do.

use serde::{Deserialize, Serialize};

/// What an external modification does to the undo history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExternalModificationPolicy {
    /// Undo refuses to overwrite it unless forced.
    #[default]
    Barrier,
    /// It is reported, and undo may overwrite it.
    Warn,
    /// As `Barrier`; the front end also keeps other processes from writing, where it can.
    Lock,
}

/// How undo treats symlinks.
///
/// The engine never follows one, whatever the policy says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SymlinkPolicy {
    /// Not recorded, not restored.
    Ignore,
    /// Recorded, but undo leaves symlinks as they are.
    ReadOnly,
    /// Recorded and restored like everything else.
    #[default]
    ReadWrite,
}

/// What happens to a step that outgrows [`ResourceLimits::max_step_bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverLimitPolicy {
    /// The step goes on unprotected, and says so.
    #[default]
    Unprotect,
    /// The write that would pass the limit fails with ENOSPC.
    Refuse,
}

/// Bounds of the undo store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceLimits {
    pub max_log_bytes: u64,
    pub max_steps: usize,
    /// Newly stored bytes of one step; moved and cloned files do not count.
    pub max_step_bytes: u64,
    pub over_step_limit: OverLimitPolicy,
    /// Recording fails with ENOSPC rather than leave less than this on the store's filesystem.
    pub min_free_bytes: u64,
}

impl Default for ResourceLimits {
    fn default() -> Self {
        Self {
            max_log_bytes: 1 << 30,
            max_steps: 100,
            max_step_bytes: 200 << 20,
            over_step_limit: OverLimitPolicy::Unprotect,
            min_free_bytes: 64 << 20,
        }
    }
}

/// What is about to happen to a path, for the path policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathUse {
    /// A new entry takes this name: created, linked, renamed or adopted.
    Appear,
    /// Its content changes in place.
    Write,
    /// Its mode, owner, times or attributes change.
    Attributes,
    /// The name goes away: removed, or renamed to another.
    Disappear,
}

/// The path policy's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathVerdict {
    Allow,
    /// Allowed, and reported with the step.
    Flag,
    /// Refused with EPERM; the string names the rule, for the message.
    Deny(String),
}
