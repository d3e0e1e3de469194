//! Commands, and the coding agent that the user has configured.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use codeagent_common::{ByteString, CancelToken, ErrorCode, RelPathBuf};
use codeagent_control::{Cause, Order, Stream};
use codeagent_stdio::operations::{AgentExecute, AgentPrompt, Executed, Prompted};
use codeagent_stdio::{DeniedOperations, Failure, Outcome, OutputStream, RequestId, StepSummary};

use super::{Desk, failure, summary, view_of, within};
use crate::session::{CommandReport, CommandRequest, Directory, Session};

/// Something that a command wrote.
pub(crate) struct Said {
    pub(crate) stream: OutputStream,
    pub(crate) data: ByteString,
}

/// What the client calls the command, and how it says that it does not want it any more.
pub(crate) type Asked<'a> = (&'a RequestId, &'a CancelToken);

impl Desk {
    pub(crate) fn execute(
        &self,
        request: AgentExecute,
        asked: Asked<'_>,
        said: impl FnMut(Said),
    ) -> Outcome<Executed> {
        let (session, folder) = self.directory(request.directory.as_ref())?;
        let mut command = CommandRequest::shell(request.command.as_str());
        command.cwd = Some(folder.path.join(native(&within(&folder, &request.cwd)?)));
        command.env =
            request.env.into_iter().map(|(name, value)| (name, ByteString::from(value))).collect();
        command.takes_input = request.stdin.is_some();
        command.timeout = request.timeout_ms.map(Duration::from_millis);
        command.view = request.view.map(view_of);
        command.is_checked = true;

        let started = Instant::now();
        let report = self.run(&session, &command, request.stdin, asked, |_| {}, said)?;
        Ok(Executed {
            exit_code: (report.cause == Cause::Exited).then_some(report.exit_code),
            signal: report.signal,
            timed_out: report.cause == Cause::TimedOut,
            cancelled: report.cause == Cause::Cancelled,
            duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            steps: steps(&session, &report),
            hint: report.hint.clone(),
            not_undoable: report.not_undoable.clone(),
            refused_paths: refused_paths(&report),
            changed_meanwhile: changed_meanwhile(&report),
            denied: denied(&report),
        })
    }

    pub(crate) fn prompt(
        &self,
        request: AgentPrompt,
        asked: Asked<'_>,
        said: impl FnMut(Said),
    ) -> Outcome<Prompted> {
        let (session, folder) = self.directory(request.directory.as_ref())?;
        let agent = session.options().agent.clone().ok_or_else(|| {
            Failure::new(ErrorCode::NotConfigured, "no coding agent has been configured")
                .hinted("set `agent.command` in codeagent.toml, as [\"claude\", \"-p\"]")
        })?;
        let mut command = CommandRequest::argv(agent.into_iter().chain([request.prompt]));
        command.cwd = Some(folder.path.clone());
        let report = self.run(&session, &command, None, asked, |_| {}, said)?;
        Ok(Prompted {
            exit_code: (report.cause == Cause::Exited).then_some(report.exit_code),
            steps: steps(&session, &report),
            denied: denied(&report),
        })
    }

    /// Runs a command for this client, to its end. Its number is announced before it begins.
    pub(crate) fn run(
        &self,
        session: &Session,
        command: &CommandRequest,
        stdin: Option<ByteString>,
        (request_id, cancel): Asked<'_>,
        announce: impl FnOnce(u64),
        mut said: impl FnMut(Said),
    ) -> Outcome<CommandReport> {
        let line = command.label();
        let (orders, taken) = channel();
        // The command may have ended by then; nobody hears it, and nothing is lost.
        if let Some(stdin) = stdin {
            let _ = orders.send(Order::Input { data: stdin.into_bytes(), eof: true });
        }
        cancel.on_cancel(move || drop(orders.send(Order::Cancel)));
        let begins = |id| {
            announce(id);
            self.requests.lock().insert(id, request_id.clone());
            tracing::info!(component = "session", %request_id, command = line, "a command begins");
        };
        let ran = session.exec_announced(command, taken, begins, |stream, bytes| {
            let stream = match stream {
                Stream::Stdout => OutputStream::Stdout,
                Stream::Stderr => OutputStream::Stderr,
            };
            said(Said { stream, data: ByteString::from(bytes) });
        });
        self.requests.lock().retain(|_, known| known != request_id);
        let report = ran.map_err(|error| {
            tracing::warn!(component = "session", %request_id, %error, "a command failed");
            failure(error)
        })?;
        for step in report.directories.iter().filter_map(|directory| directory.step) {
            tracing::info!(component = "session", %request_id, step_id = step.0, "a step has ended");
        }
        Ok(report)
    }
}

pub(crate) fn steps(session: &Session, report: &CommandReport) -> Vec<StepSummary> {
    let recorded = report.directories.iter().filter_map(|directory| {
        Some(summary(session, &directory.directory, directory.info.clone()?))
    });
    recorded.collect()
}

/// What somebody else changed while the command ran, and the command as well.
pub(crate) fn changed_meanwhile(report: &CommandReport) -> Vec<RelPathBuf> {
    report.directories.iter().flat_map(|directory| &directory.changed_meanwhile).cloned().collect()
}

/// What was refused because somebody said no, in folders in which something is kept nevertheless.
pub(crate) fn denied(report: &CommandReport) -> Vec<DeniedOperations> {
    let of = |directory: &Directory| {
        let label = directory.directory.clone();
        directory.denied.clone().into_iter().map(move |refusal| DeniedOperations {
            directory: label.clone(),
            kind: refusal.kind,
            question: refusal.asked,
            count: refusal.count,
            paths: refusal.sample_paths,
        })
    };
    report.directories.iter().flat_map(of).collect()
}

pub(crate) fn refused_paths(report: &CommandReport) -> Vec<RelPathBuf> {
    let refused = report.directories.iter().flat_map(|directory| &directory.protected);
    refused.map(|(path, _)| path.clone()).collect()
}

fn native(path: &RelPathBuf) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(path.as_path().as_bytes()).into()
}
