//! A session, as agents see it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use codeagent_common::{ErrorCode, RelPathBuf, StepInfo};
use codeagent_control::Cause;
use codeagent_interceptor::{ClosedStep, HistoryEntry};
use codeagent_mcp::{Backend, BashEnd, BashRequest, Call, Failure, Outcome, Surroundings, Undone};
use codeagent_stdio::operations::{
    Isolation, RestoreReport, SessionStatus, StepDiff, UndoDiff, UndoDiscard, UndoHistory,
    UndoHistoryReply, UndoPreview, UndoPreviewed, UndoRedo, UndoRestore, UndoRollback,
};
use codeagent_stdio::{DirectoryRef, OutputStream, RequestId, StepSummary};
use codeagent_tools::{Folder, WritePlan};

use super::asking::{Asking, Asks};
use super::end_mark::EndMark;
use crate::server::desk::{
    Desk, changed_meanwhile, denied, failure, isolation, open, refused_paths, steps, summary,
    warnings,
};
use crate::server::hub::Hub;
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
        call: &Call,
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
        let mut asking = None;
        let name = Some(label.clone());
        let begins = |command| {
            let asks = Asks { command, name };
            asking = Asking::start(&self.desk.hub, call, asks);
        };
        let closed = session.change_files_announced(&label, &[change], begins).map_err(failure)?;
        Ok(match closed {
            ClosedStep::Recorded { step, .. } => Some(summary(&session, &folder.label, step)),
            _ => None,
        })
    }

    fn bash(&self, request: &BashRequest, call: &Call) -> Outcome<BashEnd> {
        let (session, folder) = self.directory(None)?;
        let mut mark = EndMark::new();
        let script = mark.script();
        let isolation = session.isolation().map_err(failure)?;
        let mut command = CommandRequest::argv(shell(isolation, &script, &request.command));
        command.label = Some(request.command.clone());
        command.script = Some(request.command.clone());
        command.cwd = Some(beginning(request.cwd.as_deref(), &session, &folder));
        command.timeout = request.timeout_ms.map(Duration::from_millis);
        command.background = request.background;
        command.is_checked = true;
        let number = self.next_request.fetch_add(1, Ordering::Relaxed);
        let asked = (&RequestId::Text(format!("mcp-{number}")), &call.cancel);
        let before = if request.background { ambient_steps(&session) } else { vec![] };
        let mut asking = None;
        let begins = |command| {
            let asks = Asks { command, name: None };
            asking = Asking::start(&self.desk.hub, call, asks);
        };
        let report = self.desk.run(&session, &command, None, asked, begins, |said| {
            let data = said.data.as_bytes();
            match said.stream {
                OutputStream::Stdout => call.output(&mark.pass(data)),
                OutputStream::Stderr => call.output(data),
            }
        })?;
        let (rest, cwd) = mark.end();
        call.output(&rest);
        let mut steps = steps(&session, &report);
        if request.background {
            add_ambient(&mut steps, &before, &session);
        }
        Ok(BashEnd {
            exit_code: (report.cause == Cause::Exited).then_some(report.exit_code),
            signal: report.signal,
            timed_out: report.cause == Cause::TimedOut,
            cancelled: report.cause == Cause::Cancelled,
            cwd,
            steps,
            hint: report.hint.clone(),
            not_undoable: report.not_undoable.clone(),
            refused_paths: refused_paths(&report),
            changed_meanwhile: changed_meanwhile(&report),
            denied: denied(&report),
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

/// All that are in the histories, with their directories, oldest first.
fn ambient_steps(session: &Session) -> Vec<(String, StepInfo)> {
    let folders = session.folders().unwrap_or_default();
    let of = |folder: FolderInfo| {
        let history = session.history(Some(&folder.label)).unwrap_or_default();
        history.into_iter().filter_map(move |entry| match entry {
            HistoryEntry::Step(step) if step.id.is_ambient() => Some((folder.label.clone(), step)),
            _ => None,
        })
    };
    folders.into_iter().flat_map(of).collect()
}

/// While a command ran in the background, quiet moments and other commands ended its steps; its
/// report has the last one.
fn add_ambient(steps: &mut Vec<StepSummary>, before: &[(String, StepInfo)], session: &Session) {
    let last = std::mem::take(steps);
    for (directory, step) in ambient_steps(session) {
        let is_same =
            |(known, info): &(String, StepInfo)| *known == directory && info.id == step.id;
        if !before.iter().any(is_same) {
            steps.push(summary(session, &directory, step));
        }
    }
    for step in last {
        let is_same = |known: &StepSummary| {
            known.directory == step.directory && known.step_id == step.step_id
        };
        if !steps.iter().any(is_same) {
            steps.push(step);
        }
    }
}

/// Has the shell that the tool is called after, where there is one, run `script` with `command` as
/// its argument.
fn shell<'a>(
    isolation: crate::executor::Isolation,
    script: &'a str,
    command: &'a str,
) -> Vec<&'a str> {
    /// Which shells a guest has, only the guest knows.
    const WHICHEVER: &str =
        "if command -v bash > /dev/null; then exec bash -c \"$2\" bash \"$1\"; fi
        exec sh -c \"$2\" sh \"$1\"";
    if isolation == crate::executor::Isolation::Vm {
        return vec!["sh", "-c", WHICHEVER, "sh", command, script];
    }
    let is_there = ["/bin/bash", "/usr/bin/bash"].iter().any(|path| Path::new(path).exists());
    vec![if is_there { "bash" } else { "sh" }, "-c", script, "bash", command]
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
