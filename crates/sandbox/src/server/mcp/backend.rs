//! A session, as agents see it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use codeagent_common::{ErrorCode, RelPathBuf, SafeguardDecision};
use codeagent_control::Cause;
use codeagent_interceptor::ClosedStep;
use codeagent_mcp::{
    Backend, BashEnd, BashRequest, Call, Failure, Outcome, Question, Surroundings, Undone,
};
use codeagent_stdio::operations::{
    Isolation, RestoreReport, SessionStatus, StepDiff, UndoDiff, UndoDiscard, UndoHistory,
    UndoHistoryReply, UndoPreview, UndoPreviewed, UndoRedo, UndoRestore, UndoRollback,
};
use codeagent_stdio::{DirectoryRef, OutputStream, RequestId, StepSummary};
use codeagent_tools::{Folder, WritePlan};

use super::end_mark::EndMark;
use crate::server::desk::{
    Desk, changed_meanwhile, failure, isolation, open, refused_paths, steps, summary, warnings,
};
use crate::server::hub::{Heard, Hub, Listening, Pending, Role};
use crate::session::{CommandRequest, FileChange, FolderInfo, Session};

/// All agents of one hub.
#[derive(Debug)]
pub(super) struct Agents {
    desk: Desk,
    next_request: AtomicU64,
}

impl Agents {
    pub(super) fn new(hub: &Arc<Hub>) -> Self {
        Self { desk: Desk::new(hub), next_request: AtomicU64::new(1) }
    }

    fn directory(&self, named: Option<&DirectoryRef>) -> Outcome<(Arc<Session>, FolderInfo)> {
        Ok(self.desk.directory(named)?)
    }

    /// Puts the questions of safeguards to the agent's user for as long as the result lives, unless
    /// a frontend shows them to a person anyway.
    fn ask_the_user(&self, call: &Call) -> Listening {
        let (hub, call) = (Arc::clone(&self.desk.hub), call.clone());
        let (asked, questions) = channel::<Pending>();
        let listening = self.desk.hub.listen(Role::Agent, move |heard| {
            if let Heard::Question(question) = heard {
                let _ = asked.send((*question).clone()); // nobody is there to ask any more
            }
        });
        // Nobody waits for it: a user may take longer than the question is open. Without a thread
        // there is no answer, which means no.
        let asking = std::thread::Builder::new().name("question".to_owned()).spawn(move || {
            for question in questions {
                if hub.has_frontend() {
                    continue;
                }
                let wanted = Question::in_the_middle(question.request.message.clone());
                let decision = match call.ask_user(&wanted) {
                    Ok(true) => SafeguardDecision::Allow,
                    _ => SafeguardDecision::Deny,
                };
                // Its time may be over, and then it was denied.
                let _ = hub.answer(&question.name, decision);
            }
        });
        drop(asking);
        listening
    }
}

impl Backend for Agents {
    fn surroundings(&self) -> Surroundings {
        let status = self.desk.hub.session().and_then(|session| session.status());
        match status {
            Ok(status) => Surroundings {
                directories: status.directories.iter().map(|folder| folder.path.clone()).collect(),
                isolation: status.isolation.map_or(Isolation::Host, isolation),
                warnings: warnings(&status),
            },
            Err(error) => Surroundings {
                directories: vec![],
                isolation: Isolation::Auto,
                warnings: vec![error.to_string()],
            },
        }
    }

    fn folder(&self, directory: Option<&DirectoryRef>) -> Outcome<Arc<Folder>> {
        let (_, folder) = self.directory(directory)?;
        Ok(Arc::new(open(&folder)?))
    }

    fn write(
        &self,
        directory: Option<&DirectoryRef>,
        plan: &WritePlan,
        _: &Call,
    ) -> Outcome<Option<StepSummary>> {
        let (session, folder) = self.directory(directory)?;
        let now = open(&folder)?.plan_write(plan.path.as_path(), &plan.after)?;
        if now.before != plan.before {
            let message = format!("{} has changed since it was read", plan.path);
            return Err(Failure::new(ErrorCode::RollbackBlocked, message)
                .hinted("read it again first")
                .into());
        }
        let path = folder.path.join(native(&plan.path));
        let verb = if plan.replacements > 0 { "edit_file" } else { "write_file" };
        let label = format!("{verb} {}", plan.path);
        let change = FileChange::Write { path, content: plan.after.clone() };
        let closed = session.change_files(&label, &[change]).map_err(failure)?;
        Ok(match closed {
            ClosedStep::Recorded { step, .. } => Some(summary(&session, &folder.label, step)),
            _ => None,
        })
    }

    fn bash(&self, request: &BashRequest, call: &Call) -> Outcome<BashEnd> {
        let (session, folder) = self.directory(None)?;
        let mut mark = EndMark::new();
        let script = mark.script();
        let words = [shell(), "-c", &script, "bash", &request.command];
        let mut command = CommandRequest::argv(words);
        command.label = Some(request.command.clone());
        command.cwd = Some(beginning(request.cwd.as_deref(), &session, &folder));
        command.timeout = request.timeout_ms.map(Duration::from_millis);
        command.background = request.background;
        command.is_checked = true;
        let number = self.next_request.fetch_add(1, Ordering::Relaxed);
        let asked = (&RequestId::Text(format!("mcp-{number}")), &call.cancel);
        let _asking = self.ask_the_user(call);
        let report = self.desk.run(&session, &command, None, asked, |said| {
            let data = said.data.as_bytes();
            match said.stream {
                OutputStream::Stdout => call.output(&mark.pass(data)),
                OutputStream::Stderr => call.output(data),
            }
        })?;
        let (rest, cwd) = mark.end();
        call.output(&rest);
        Ok(BashEnd {
            exit_code: (report.cause == Cause::Exited).then_some(report.exit_code),
            signal: report.signal,
            timed_out: report.cause == Cause::TimedOut,
            cancelled: report.cause == Cause::Cancelled,
            cwd,
            steps: steps(&session, &report),
            not_undoable: report.not_undoable.clone(),
            refused_paths: refused_paths(&report),
            changed_meanwhile: changed_meanwhile(&report),
        })
    }

    fn undo(&self, request: UndoRollback, _: &Call) -> Outcome<Undone> {
        let preview = UndoPreview {
            count: request.count,
            limit: u32::MAX,
            directory: request.directory.clone(),
        };
        // What cannot be previewed cannot be undone either, and that is said better there.
        let changes = self.desk.preview(preview).map(|preview| preview.changes).unwrap_or_default();
        Ok(Undone { report: self.desk.rollback(request)?, changes })
    }

    fn redo(&self, request: UndoRedo, _: &Call) -> Outcome<Undone> {
        let (session, folder) = self.directory(request.directory.as_ref())?;
        let report = self.desk.redo(request)?;
        let changes_of = |step| session.changes(Some(&folder.label), step).unwrap_or_default();
        let changes = report.step_ids.iter().copied().flat_map(changes_of).collect();
        Ok(Undone { report, changes })
    }

    fn preview(&self, request: UndoPreview, _: &Call) -> Outcome<UndoPreviewed> {
        Ok(self.desk.preview(request)?)
    }

    fn history(&self, request: UndoHistory, _: &Call) -> Outcome<UndoHistoryReply> {
        Ok(self.desk.history(request)?)
    }

    fn diff(&self, request: UndoDiff, _: &Call) -> Outcome<StepDiff> {
        Ok(self.desk.diff(request)?)
    }

    fn restore(&self, request: UndoRestore, _: &Call) -> Outcome<RestoreReport> {
        Ok(self.desk.restore(request)?)
    }

    fn discard(&self, request: UndoDiscard, _: &Call) -> Outcome<()> {
        Ok(self.desk.discard(request)?)
    }

    fn status(&self, _: &Call) -> Outcome<SessionStatus> {
        Ok(self.desk.status()?)
    }
}

/// What the tool is called after, where there is one.
fn shell() -> &'static str {
    let is_there = ["/bin/bash", "/usr/bin/bash"].iter().any(|path| Path::new(path).exists());
    if is_there { "bash" } else { "sh" }
}

/// Where the last command ended, unless that has been undone.
fn beginning(cwd: Option<&str>, session: &Session, folder: &FolderInfo) -> PathBuf {
    let cwd = cwd.map(PathBuf::from).filter(|cwd| {
        let folders = session.folders().unwrap_or_default();
        let in_a_folder = folders.iter().any(|folder| cwd.starts_with(&folder.path));
        !in_a_folder || cwd.is_dir()
    });
    cwd.unwrap_or_else(|| folder.path.clone())
}

fn native(path: &RelPathBuf) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(path.as_path().as_bytes()).into()
}
