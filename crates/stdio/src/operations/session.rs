//! `session.*`: the life of a session, and how it is.

use codeagent_common::{ExternalModificationPolicy, StepId, SymlinkPolicy, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Check, SafeguardSettings, UndoLimits, invalid_field};
use crate::call::Call;
use crate::envelope::{RequestId, check_version};
use crate::event::SafeguardTriggered;
use crate::failure::Outcome;

/// So many working directories a session may have.
const MAX_DIRECTORIES: usize = 8;

pub trait SessionOperations: Send + Sync {
    fn start(&self, request: SessionStart, call: &Call) -> Outcome<SessionStatus>;
    fn stop(&self, request: SessionStop, call: &Call) -> Outcome<()>;
    fn reset(&self, request: SessionReset, call: &Call) -> Outcome<SessionStatus>;
    fn status(&self, request: SessionStatusQuery, call: &Call) -> Outcome<SessionStatus>;
}

/// What is not given is as the configuration has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionStart {
    #[serde(default)]
    pub protocol_version: Option<u32>,
    /// One to eight; the first is the primary one.
    pub working_directories: Vec<WorkingDirectory>,
    #[serde(default)]
    pub isolation: Option<Isolation>,
    #[serde(default)]
    pub view: Option<View>,
    #[serde(default)]
    pub network_policy: Option<NetworkPolicy>,
    /// For `allowlist`: addresses, networks, host names.
    #[serde(default)]
    pub network_allowlist: Vec<String>,
    #[serde(default)]
    pub vm_mode: Option<VmMode>,
    #[serde(default)]
    pub external_modifications: Option<ExternalModificationPolicy>,
    #[serde(default)]
    pub symlinks: Option<SymlinkPolicy>,
    #[serde(default)]
    pub safeguards: Option<SafeguardSettings>,
    #[serde(default)]
    pub undo_limits: Option<UndoLimits>,
}

impl Check for SessionStart {
    fn check(&self) -> Outcome<()> {
        if let Some(version) = self.protocol_version {
            check_version(version).map_err(|failure| failure.at("payload.protocol_version"))?;
        }
        if !(1..=MAX_DIRECTORIES).contains(&self.working_directories.len()) {
            return Err(invalid_field(
                "payload.working_directories",
                format!("a session has one to {MAX_DIRECTORIES} working directories"),
            ));
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkingDirectory {
    pub path: String,
    /// The last component of the path, if not given.
    #[serde(default)]
    pub label: Option<String>,
    #[serde(default)]
    pub access: Access,
    /// Where its history is kept; beside it, if not given.
    #[serde(default)]
    pub undo_directory: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    #[default]
    ReadWrite,
    ReadOnly,
}

/// What commands are kept in. One that is asked for by name is never replaced by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    Auto,
    Vm,
    Namespace,
    Host,
}

/// How commands see the folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum View {
    /// Read-only for a command that is known to only read, transactional for others.
    Auto,
    /// Nothing reaches the folder before the command has ended.
    Transactional,
    /// Everybody sees changes at once.
    Live,
    /// Changes are refused, and there is no step.
    ReadOnly,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NetworkPolicy {
    Disabled,
    Allowlist,
    Open,
}

/// Whether what commands leave outside the working directories stays for the next session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VmMode {
    Persistent,
    Ephemeral,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SessionStop {}

impl Check for SessionStop {}

/// Throws away what commands left outside the working directories, and starts again.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SessionReset {}

impl Check for SessionReset {}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SessionStatusQuery {}

impl Check for SessionStatusQuery {}

/// How the session is. Loss of protection is always in here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionStatus {
    pub state: SessionState,
    /// What commands are really kept in; missing without a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view: Option<View>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_mode: Option<VmMode>,
    /// What is not as protected as it could be, a sentence each.
    pub warnings: Vec<String>,
    pub directories: Vec<DirectoryStatus>,
    pub commands: Vec<RunningCommand>,
    /// Questions that wait for `safeguard.confirm`.
    pub safeguards: Vec<SafeguardTriggered>,
    /// Where MCP clients connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp_socket: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// There is no session.
    Idle,
    Starting,
    Running,
    Stopping,
    Error,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DirectoryStatus {
    pub path: String,
    pub label: String,
    pub access: Access,
    /// What stands between commands and the folder: `overlay`, `fuse`, `virtiofs`, `9p`, `none`.
    pub backend: String,
    /// Missing for read-only directories, which have no history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<UndoStatus>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UndoStatus {
    pub undo_directory: String,
    pub steps: u64,
    pub redoable: u64,
    pub stored_bytes: u64,
    pub held_bytes: u64,
    pub free_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_step_id: Option<StepId>,
    /// Steps that cannot be undone.
    pub unprotected_step_ids: Vec<StepId>,
    /// Why nothing is being recorded, if nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunningCommand {
    /// Missing for commands of other clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    pub command: String,
    pub started_at_ms: Timestamp,
}
