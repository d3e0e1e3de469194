//! A backend for small directories: commands run on the host, and undo keeps copies of everything.
#![allow(unreachable_pub, reason = "tests use it, too")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use codeagent_common::{
    CancelToken, Change, ChangeKind, ErrorCode, RelPathBuf, StepId, StepKind, Timestamp,
};
use codeagent_mcp::{
    Backend, BashEnd, BashRequest, Call, Failure, OpenQuestion, Outcome, Question, Surroundings,
    Undone,
};
use codeagent_stdio::operations::*;
use codeagent_stdio::{DirectoryRef, HistoryEntry, StepSummary};
use codeagent_tools::{Folder, WritePlan, unified_diff};

/// Every file, with its content.
type Snapshot = BTreeMap<PathBuf, Vec<u8>>;

#[derive(Debug)]
pub struct PlainDirectory {
    folder: Arc<Folder>,
    state: Mutex<State>,
    /// What somebody at a frontend would say, if there is somebody.
    pub elsewhere: Mutex<Option<bool>>,
    /// Asked one after the other before what a command did is kept.
    pub questions: Mutex<Vec<OpenQuestion>>,
}

#[derive(Debug, Default)]
struct State {
    last: i64,
    history: Vec<Step>,
    undone: Vec<Step>,
}

#[derive(Debug, Clone)]
struct Step {
    summary: StepSummary,
    before: Snapshot,
    after: Snapshot,
}

impl PlainDirectory {
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            folder: Arc::new(Folder::open(path)?),
            state: Mutex::default(),
            elsewhere: Mutex::default(),
            questions: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    fn snapshot(&self) -> Outcome<Snapshot> {
        let mut snapshot = Snapshot::new();
        read_all(self.root(), Path::new(""), &mut snapshot).map_err(failed)?;
        Ok(snapshot)
    }

    fn close(
        &self,
        state: &mut State,
        kind: StepKind,
        command: &str,
        before: Snapshot,
    ) -> Outcome<Option<StepSummary>> {
        let after = self.snapshot()?;
        if before == after {
            return Ok(None);
        }
        state.last += 1;
        state.undone.clear();
        let changes = changes(&before, &after);
        let count = |kind| changes.iter().filter(|change| change.kind == kind).count() as u64;
        let now = Timestamp::from(SystemTime::now());
        let summary = StepSummary {
            step_id: StepId(state.last),
            directory: self.root().display().to_string(),
            kind,
            command: command.to_owned(),
            started_at_ms: now,
            finished_at_ms: now,
            exit_code: None,
            added: count(ChangeKind::Added),
            modified: count(ChangeKind::Modified),
            deleted: count(ChangeKind::Deleted),
            renamed: 0,
            affected_paths: changes.into_iter().map(|change| change.path).collect(),
            stored_bytes: 0,
            held_bytes: 0,
            unprotected: None,
            pinned: false,
            flagged: vec![],
        };
        state.history.push(Step { summary: summary.clone(), before, after });
        Ok(Some(summary))
    }

    /// Whether the user allows everything that is to be asked.
    fn is_allowed(&self, call: &Call) -> bool {
        let questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        questions.iter().all(|question| call.ask_meanwhile(question) == Some(true))
    }

    fn become_like(&self, wanted: &Snapshot) -> Outcome<Vec<Change>> {
        let present = self.snapshot()?;
        let changes = changes(&present, wanted);
        for path in present.keys().filter(|path| !wanted.contains_key(*path)) {
            fs::remove_file(self.root().join(path)).map_err(failed)?;
        }
        for (path, content) in wanted {
            let path = self.root().join(path);
            fs::create_dir_all(path.parent().unwrap_or(self.root())).map_err(failed)?;
            fs::write(path, content).map_err(failed)?;
        }
        Ok(changes)
    }

    fn find(state: &State, step: StepId) -> Outcome<Step> {
        let found = state.history.iter().find(|known| known.summary.step_id == step);
        found.cloned().ok_or_else(|| {
            Failure::new(ErrorCode::StepNotFound, format!("there is no step {step}")).into()
        })
    }
}

fn failed(error: io::Error) -> Failure {
    Failure::new(ErrorCode::Io, error.to_string())
}

fn read_all(root: &Path, at: &Path, into: &mut Snapshot) -> io::Result<()> {
    for entry in fs::read_dir(root.join(at))? {
        let entry = entry?;
        let path = at.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            read_all(root, &path, into)?;
        } else if kind.is_file() {
            into.insert(path, fs::read(entry.path())?);
        }
    }
    Ok(())
}

fn changes(before: &Snapshot, after: &Snapshot) -> Vec<Change> {
    let paths: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let kind = |path| match (before.get(path), after.get(path)) {
        (None, Some(_)) => Some(ChangeKind::Added),
        (Some(_), None) => Some(ChangeKind::Deleted),
        (Some(before), Some(after)) if before != after => Some(ChangeKind::Modified),
        _ => None,
    };
    paths
        .into_iter()
        .filter_map(|path| {
            let name = RelPathBuf::new(path.as_os_str().as_encoded_bytes()).ok()?;
            let kind = kind(path)?;
            Some(Change { path: name, kind, from: None, entry: None, whole_directory: false })
        })
        .collect()
}

fn report(steps: Vec<StepId>, changes: &[Change]) -> RollbackReport {
    RollbackReport {
        step_ids: steps,
        paths_restored: changes.len() as u64,
        paths_removed: 0,
        conflicts: vec![],
        left: vec![],
        crossed_barriers: vec![],
        kept: None,
        warning: None,
    }
}

impl Backend for PlainDirectory {
    fn surroundings(&self) -> Surroundings {
        Surroundings {
            directories: vec![self.root().to_owned()],
            isolation: Isolation::Host,
            warnings: vec!["this is an example without a sandbox".to_owned()],
        }
    }

    fn folder(&self, directory: Option<&DirectoryRef>) -> Outcome<Arc<Folder>> {
        match directory {
            None | Some(DirectoryRef::Index(0)) => Ok(Arc::clone(&self.folder)),
            Some(_) => Err(Failure::new(ErrorCode::NotFound, "there is one directory only").into()),
        }
    }

    fn write(
        &self,
        _: Option<&DirectoryRef>,
        plan: &WritePlan,
        _: &Call,
    ) -> Outcome<Option<StepSummary>> {
        let mut state = self.state();
        let before = self.snapshot()?;
        let path = self.root().join(plan.path.to_string());
        fs::create_dir_all(path.parent().unwrap_or(self.root())).map_err(failed)?;
        fs::write(&path, &plan.after).map_err(failed)?;
        self.close(&mut state, StepKind::Api, &format!("write {}", plan.path), before)
    }

    fn bash(&self, request: &BashRequest, call: &Call) -> Outcome<BashEnd> {
        if request.background {
            let mut end = run(self.root(), request, call).map_err(failed)?;
            end.not_undoable = Some("background commands are not recorded here".to_owned());
            if !self.is_allowed(call) {
                end.cancelled = true;
            }
            return Ok(end);
        }
        let mut state = self.state();
        let before = self.snapshot()?;
        let mut end = run(self.root(), request, call).map_err(failed)?;
        if !self.is_allowed(call) {
            self.become_like(&before)?;
            return Err(Failure::new(ErrorCode::SafeguardDenied, "it was denied").into());
        }
        end.steps.extend(self.close(&mut state, StepKind::Command, &request.command, before)?);
        Ok(end)
    }

    fn undo(&self, request: UndoRollback, _: &Call) -> Outcome<Undone> {
        let mut state = self.state();
        let count = request.count as usize;
        if state.history.len() < count {
            return Err(
                Failure::new(ErrorCode::NothingToUndo, "there are not so many steps").into()
            );
        }
        let present = self.snapshot()?;
        let newest = state.history.last().map(|step| &step.after);
        if newest.is_some_and(|after| *after != present) && !request.force {
            let message = "somebody else changed files since";
            return Err(Failure::new(ErrorCode::RollbackBlocked, message).into());
        }
        let first = state.history.len() - count;
        let undone = state.history.split_off(first);
        let steps = undone.iter().rev().map(|step| step.summary.step_id).collect();
        let changes = self.become_like(&undone[0].before)?;
        state.undone.extend(undone.into_iter().rev());
        Ok(Undone { report: report(steps, &changes), changes })
    }

    fn redo(&self, _: UndoRedo, _: &Call) -> Outcome<Undone> {
        let mut state = self.state();
        let Some(step) = state.undone.pop() else {
            return Err(Failure::new(ErrorCode::NothingToRedo, "nothing was undone").into());
        };
        let changes = self.become_like(&step.after)?;
        let steps = vec![step.summary.step_id];
        state.history.push(step);
        Ok(Undone { report: report(steps, &changes), changes })
    }

    fn preview(&self, request: UndoPreview, _: &Call) -> Outcome<UndoPreviewed> {
        let state = self.state();
        let Some(first) = state.history.len().checked_sub(request.count as usize) else {
            return Err(
                Failure::new(ErrorCode::NothingToUndo, "there are not so many steps").into()
            );
        };
        let changes = changes(&self.snapshot()?, &state.history[first].before);
        let step_ids = state.history[first..].iter().rev().map(|step| step.summary.step_id);
        Ok(UndoPreviewed {
            step_ids: step_ids.collect(),
            change_count: changes.len() as u64,
            changes,
            conflicts: vec![],
        })
    }

    fn history(&self, request: UndoHistory, _: &Call) -> Outcome<UndoHistoryReply> {
        let state = self.state();
        let newest = state.history.iter().rev().take(request.limit as usize);
        let entry = |step: &Step| HistoryEntry::Step(Box::new(step.summary.clone()));
        Ok(UndoHistoryReply {
            entries: newest.map(entry).collect(),
            entry_count: state.history.len() as u64,
            redoable: state.undone.iter().rev().map(|step| step.summary.clone()).collect(),
        })
    }

    fn diff(&self, request: UndoDiff, _: &Call) -> Outcome<StepDiff> {
        let step = Self::find(&self.state(), request.step_id)?;
        let files: Vec<FileDiff> = changes(&step.before, &step.after)
            .into_iter()
            .map(|change| {
                let path = PathBuf::from(change.path.to_string());
                let content = |side: &Snapshot| side.get(&path).cloned();
                let (before, after) = (content(&step.before), content(&step.after));
                let name = change.path.to_string();
                let diff = unified_diff(&name, before.as_deref(), after.as_deref());
                FileDiff {
                    path: change.path,
                    kind: change.kind,
                    from: None,
                    note: diff.as_ref().err().map(|note| (*note).to_owned()),
                    diff: diff.ok(),
                }
            })
            .collect();
        Ok(StepDiff { step_id: request.step_id, file_count: files.len() as u64, files })
    }

    fn restore(&self, request: UndoRestore, _: &Call) -> Outcome<RestoreReport> {
        let mut state = self.state();
        let step = Self::find(&state, request.step_id)?;
        let before = self.snapshot()?;
        let mut wanted = before.clone();
        let path = PathBuf::from(request.paths[0].as_str());
        match step.before.get(&path) {
            Some(content) => drop(wanted.insert(path.clone(), content.clone())),
            None => drop(wanted.remove(&path)),
        }
        self.become_like(&wanted)?;
        let step = self.close(&mut state, StepKind::Restore, "restore", before)?;
        let name = RelPathBuf::new(path.as_os_str().as_encoded_bytes())
            .map_err(|error| Failure::new(ErrorCode::InvalidPath, error.to_string()))?;
        Ok(RestoreReport { step, restored: vec![name], removed: vec![] })
    }

    fn discard(&self, _: UndoDiscard, _: &Call) -> Outcome<()> {
        let mut state = self.state();
        state.history.clear();
        state.undone.clear();
        Ok(())
    }

    fn status(&self, _: &Call) -> Outcome<SessionStatus> {
        Ok(SessionStatus {
            state: SessionState::Running,
            isolation: Some(Isolation::Host),
            view: None,
            network_policy: Some(NetworkPolicy::Open),
            vm_mode: None,
            warnings: self.surroundings().warnings,
            directories: vec![],
            commands: vec![],
            safeguards: vec![],
            mcp_socket: None,
        })
    }

    fn ask_elsewhere(&self, _: &Question) -> Option<bool> {
        *self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a command line and says where its shell was at the end.
fn run(root: &Path, request: &BashRequest, call: &Call) -> io::Result<BashEnd> {
    let (mut output, writer) = io::pipe()?;
    let (mut place, place_writer) = io::pipe()?;
    let cwd = request.cwd.as_deref().map_or(root, Path::new);
    // The shell says where it is on its standard input, which is no input of anybody's.
    let script = "eval \"$1\"\ncode=$?\npwd >&0\nexit $code";
    let mut child = Command::new("sh")
        .args(["-c", script, "sh", &request.command])
        .current_dir(if cwd.is_dir() { cwd } else { root })
        .stdin(Stdio::from(place_writer))
        .stdout(Stdio::from(writer.try_clone()?))
        .stderr(Stdio::from(writer))
        .process_group(0)
        .spawn()?;
    let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    let end_all = move || {
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    };
    call.cancel.on_cancel(end_all);
    let done = CancelToken::new();
    let timed_out = Arc::new(AtomicBool::new(false));
    if let Some(timeout_ms) = request.timeout_ms {
        let (done, timed_out) = (done.clone(), Arc::clone(&timed_out));
        std::thread::spawn(move || {
            if !done.wait(Duration::from_millis(timeout_ms)) {
                timed_out.store(true, Ordering::SeqCst);
                end_all();
            }
        });
    }
    let mut chunk = [0; 8192];
    while let Ok(count @ 1..) = output.read(&mut chunk) {
        call.output(&chunk[..count]);
    }
    let status = child.wait()?;
    done.cancel();
    let mut cwd = String::new();
    place.read_to_string(&mut cwd)?;
    Ok(BashEnd {
        exit_code: status.code(),
        signal: status.signal(),
        timed_out: timed_out.load(Ordering::SeqCst),
        cancelled: call.cancel.is_cancelled(),
        cwd: Some(cwd.trim_end().to_owned()).filter(|cwd| !cwd.is_empty()),
        ..BashEnd::default()
    })
}
