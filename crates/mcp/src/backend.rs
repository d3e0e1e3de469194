//! What the tools need of whoever has a session.

use std::path::PathBuf;
use std::sync::Arc;

use codeagent_common::{Change, RelPathBuf};
use codeagent_stdio::operations::{
    Isolation, RestoreReport, RollbackReport, SessionStatus, StepDiff, UndoDiff, UndoDiscard,
    UndoHistory, UndoHistoryReply, UndoPreview, UndoPreviewed, UndoRedo, UndoRestore, UndoRollback,
};
use codeagent_stdio::{DeniedOperations, DirectoryRef, StepSummary};
use codeagent_tools::{Folder, WritePlan};

use crate::ask::Question;
use crate::call::{Call, Outcome};

/// A session, as agents see it. Methods block; they are called from several threads at once, because
/// clients call tools at the same time. What has to be one step after the other, the backend puts in
/// order. Payloads and replies are those of the STDIO API, so that both can share what is behind.
pub trait Backend: Send + Sync + 'static {
    /// Where commands run and what keeps them there; told to every client.
    fn surroundings(&self) -> Surroundings;

    /// The working directory for file tools; the first if none is named.
    fn folder(&self, directory: Option<&DirectoryRef>) -> Outcome<Arc<Folder>>;

    /// Does what was planned, as a step of its own if no step is open. `plan.before` is what the
    /// file was when it was looked at: if it is not any more, refuse.
    fn write(
        &self,
        directory: Option<&DirectoryRef>,
        plan: &WritePlan,
        call: &Call,
    ) -> Outcome<Option<StepSummary>>;

    /// Runs a command to its end, as a step. What it writes goes to [`Call::output`] as it comes;
    /// when `call.cancel` is cancelled or the time is over, everything the command started ends.
    fn bash(&self, request: &BashRequest, call: &Call) -> Outcome<BashEnd>;

    fn undo(&self, request: UndoRollback, call: &Call) -> Outcome<Undone>;
    fn redo(&self, request: UndoRedo, call: &Call) -> Outcome<Undone>;
    fn preview(&self, request: UndoPreview, call: &Call) -> Outcome<UndoPreviewed>;
    fn history(&self, request: UndoHistory, call: &Call) -> Outcome<UndoHistoryReply>;
    fn diff(&self, request: UndoDiff, call: &Call) -> Outcome<StepDiff>;
    fn restore(&self, request: UndoRestore, call: &Call) -> Outcome<RestoreReport>;
    /// The user has been asked.
    fn discard(&self, request: UndoDiscard, call: &Call) -> Outcome<()>;
    fn status(&self, call: &Call) -> Outcome<SessionStatus>;

    /// Asks the user some other way, because this client cannot: a frontend, a desktop. `None` if
    /// nobody is there.
    fn ask_elsewhere(&self, question: &Question) -> Option<bool> {
        let _ = question;
        None
    }
}

/// What a client should know before it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    /// The first is the primary one.
    pub directories: Vec<PathBuf>,
    pub isolation: Isolation,
    /// What is not as protected as it could be, a sentence each.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BashRequest {
    pub command: String,
    /// Where the last command of this client ended; the primary directory if it is `None`.
    pub cwd: Option<String>,
    pub timeout_ms: Option<u64>,
    /// It may outlive the call; a view in which others see what it does is the better one.
    pub background: bool,
}

/// How a command ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BashEnd {
    /// Missing if it did not end by itself.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub timed_out: bool,
    pub cancelled: bool,
    /// Where its shell was at the end, for the next one.
    pub cwd: Option<String>,
    /// One for each directory it changed.
    pub steps: Vec<StepSummary>,
    /// What may help, if it failed because of its view.
    pub hint: Option<String>,
    /// Why what it did cannot be undone, if it cannot.
    pub not_undoable: Option<String>,
    /// Protected paths it wanted to change, and did not.
    pub refused_paths: Vec<RelPathBuf>,
    /// Somebody else changed these meanwhile, too; theirs is what undo brings back.
    pub changed_meanwhile: Vec<RelPathBuf>,
    /// Refused, because the answer to a question was no; the rest is kept.
    pub denied: Vec<DeniedOperations>,
}

/// What an undo or redo did, with the files.
#[derive(Debug, Clone, PartialEq)]
pub struct Undone {
    pub report: RollbackReport,
    pub changes: Vec<Change>,
}
