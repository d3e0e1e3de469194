//! `undo.*`: the history, and going back and forth in it.

use codeagent_common::{ByteString, Change, ChangeKind, ErrorCode, RelPathBuf, StepId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Check, invalid_field, one};
use crate::call::Call;
use crate::failure::{Failure, Outcome};
use crate::values::{Barrier, Conflict, DirectoryRef, HistoryEntry, StepSummary, WirePath};

pub trait UndoOperations: Send + Sync {
    fn rollback(&self, request: UndoRollback, call: &Call) -> Outcome<RollbackReport>;
    fn redo(&self, request: UndoRedo, call: &Call) -> Outcome<RollbackReport>;
    fn preview(&self, request: UndoPreview, call: &Call) -> Outcome<UndoPreviewed>;
    fn restore(&self, request: UndoRestore, call: &Call) -> Outcome<RestoreReport>;
    fn history(&self, request: UndoHistory, call: &Call) -> Outcome<UndoHistoryReply>;
    fn diff(&self, request: UndoDiff, call: &Call) -> Outcome<StepDiff>;
    fn pin(&self, request: UndoPin, call: &Call) -> Outcome<()>;
    fn configure(&self, request: UndoConfigure, call: &Call) -> Outcome<UndoLimits>;
    fn discard(&self, request: UndoDiscard, call: &Call) -> Outcome<()>;
}

/// Undoes the newest steps. Other people's edits are not overwritten unless it is forced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UndoRollback {
    #[serde(default = "one", alias = "steps")]
    pub count: u32,
    /// Overwrite what others have changed since.
    #[serde(default)]
    pub force: bool,
    /// Undo the rest, and leave alone what others have changed.
    #[serde(default)]
    pub skip_conflicts: bool,
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

impl Check for UndoRollback {
    fn check(&self) -> Outcome<()> {
        check_count(self.count)?;
        check_conflicts(self.force, self.skip_conflicts)
    }
}

/// Does again what was undone last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UndoRedo {
    #[serde(default = "one", alias = "steps")]
    pub count: u32,
    #[serde(default)]
    pub force: bool,
    #[serde(default)]
    pub skip_conflicts: bool,
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

impl Check for UndoRedo {
    fn check(&self) -> Outcome<()> {
        check_count(self.count)?;
        check_conflicts(self.force, self.skip_conflicts)
    }
}

fn check_count(count: u32) -> Outcome<()> {
    if count == 0 {
        return Err(invalid_field("payload.count", "at least one step has to be meant"));
    }
    Ok(())
}

fn check_conflicts(force: bool, skip_conflicts: bool) -> Outcome<()> {
    if force && skip_conflicts {
        let message = "`force` overwrites what `skip_conflicts` keeps: choose one of them";
        return Err(Failure::new(ErrorCode::InvalidField, message).at("payload.force"));
    }
    Ok(())
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RollbackReport {
    /// In the order they were undone or redone.
    pub step_ids: Vec<StepId>,
    pub paths_restored: u64,
    pub paths_removed: u64,
    /// Other people's edits that were found: overwritten when forced, otherwise left alone.
    pub conflicts: Vec<Conflict>,
    /// Paths that are not as the step would have them, because something was in the way.
    pub left: Vec<RelPathBuf>,
    pub crossed_barriers: Vec<Barrier>,
    /// Of edits that were left alone: the directory with what would have been brought back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<ByteString>,
    /// What a person should know, such as that edits were overwritten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// What an undo would do, without doing it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UndoPreview {
    #[serde(default = "one", alias = "steps")]
    pub count: u32,
    /// At most so many changes are listed.
    #[serde(default = "listed")]
    pub limit: u32,
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

fn listed() -> u32 {
    1000
}

impl Check for UndoPreview {
    fn check(&self) -> Outcome<()> {
        check_count(self.count)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UndoPreviewed {
    /// Newest first.
    pub step_ids: Vec<StepId>,
    /// What would become of each path.
    pub changes: Vec<Change>,
    pub change_count: u64,
    /// What would be refused, skipped or overwritten.
    pub conflicts: Vec<Conflict>,
}

/// Brings paths back as they were before a step, with everything below them, as a step of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UndoRestore {
    pub step_id: StepId,
    pub paths: Vec<WirePath>,
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

impl Check for UndoRestore {
    fn check(&self) -> Outcome<()> {
        if self.paths.is_empty() {
            return Err(invalid_field("payload.paths", "at least one path has to be named"));
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RestoreReport {
    /// The new step; missing if nothing had to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepSummary>,
    pub restored: Vec<RelPathBuf>,
    pub removed: Vec<RelPathBuf>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UndoHistory {
    /// The newest so many.
    #[serde(default = "hundred")]
    pub limit: u32,
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

fn hundred() -> u32 {
    100
}

impl Check for UndoHistory {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UndoHistoryReply {
    /// Newest first; a barrier stands before the step it came after.
    pub entries: Vec<HistoryEntry>,
    pub entry_count: u64,
    /// What was undone and can be done again, the next first.
    pub redoable: Vec<StepSummary>,
}

/// What a step did to files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UndoDiff {
    pub step_id: StepId,
    /// These and what is below them; everything, if there is none.
    #[serde(default)]
    pub paths: Vec<WirePath>,
    /// Text past this is left out.
    #[serde(default = "diff_bytes")]
    pub max_bytes: u32,
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

fn diff_bytes() -> u32 {
    256 * 1024
}

impl Check for UndoDiff {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepDiff {
    pub step_id: StepId,
    pub files: Vec<FileDiff>,
    pub file_count: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FileDiff {
    pub path: RelPathBuf,
    pub kind: ChangeKind,
    /// The former name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<RelPathBuf>,
    /// Unified; missing for what is no text, too large, or not known any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    /// Why there is no diff, or not all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Keeps a step from being dropped to make room.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UndoPin {
    pub step_id: StepId,
    #[serde(default = "yes")]
    pub pinned: bool,
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

fn yes() -> bool {
    true
}

impl Check for UndoPin {}

/// Bounds of the history; what is not given stays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UndoConfigure {
    #[serde(default)]
    pub max_log_size_bytes: Option<u64>,
    #[serde(default)]
    pub max_step_count: Option<u64>,
    #[serde(default)]
    pub max_single_step_size_bytes: Option<u64>,
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

impl Check for UndoConfigure {}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct UndoLimits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_log_size_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_step_count: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_single_step_size_bytes: Option<u64>,
}

/// Throws the whole history of a directory away. The files stay as they are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UndoDiscard {
    #[serde(default)]
    pub directory: Option<DirectoryRef>,
}

impl Check for UndoDiscard {}
