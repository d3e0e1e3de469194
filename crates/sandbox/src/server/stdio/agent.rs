//! `agent.*`: commands, and the coding agent that the user has configured.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use codeagent_common::{ByteString, ErrorCode, RelPathBuf};
use codeagent_control::{Cause, Stream};
use codeagent_namespace::Order;
use codeagent_stdio::operations::{
    AgentExecute, AgentOperations, AgentPrompt, Executed, Prompted,
};
use codeagent_stdio::{
    AgentOutput, Call, Event, Failure, Outcome, OutputStream, StepCompleted, StepSummary,
    TerminalOutput,
};

use super::{Frontend, failure, summary, within};
use crate::session::{CommandReport, CommandRequest, Session};

impl AgentOperations for Frontend {
    fn execute(&self, request: AgentExecute, call: &Call) -> Outcome<Executed> {
        let (session, folder) = self.directory(request.directory.as_ref())?;
        if let Some(reason) = crate::classify::refuse(&request.command) {
            return Err(failure(crate::SandboxError::Refused { reason }));
        }
        let mut command = CommandRequest::shell(request.command.as_str());
        command.cwd = Some(folder.path.join(native(&within(&folder, &request.cwd)?)));
        command.env =
            request.env.into_iter().map(|(name, value)| (name, ByteString::from(value))).collect();
        command.takes_input = request.stdin.is_some();
        command.timeout = request.timeout_ms.map(Duration::from_millis);
        command.view = request.view.map(super::session::view_of);

        let started = Instant::now();
        let emit = |stream, data| {
            Event::TerminalOutput(TerminalOutput {
                request_id: Some(call.request_id.clone()),
                stream,
                data,
            })
        };
        let report = self.run(&session, &command, request.stdin, call, emit)?;
        let steps = completed(&session, &report, call);
        let refused_paths: Vec<RelPathBuf> = report
            .directories
            .iter()
            .flat_map(|directory| directory.protected.iter().map(|(path, _)| path.clone()))
            .collect();
        Ok(Executed {
            exit_code: (report.cause == Cause::Exited).then_some(report.exit_code),
            signal: (report.exit_code > 128).then(|| report.exit_code - 128),
            timed_out: report.cause == Cause::TimedOut,
            cancelled: report.cause == Cause::Cancelled,
            duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            steps,
            not_undoable: (!report.undoable)
                .then(|| "the command worked in the folder itself, unrecorded".to_owned()),
            refused_paths,
        })
    }

    fn prompt(&self, request: AgentPrompt, call: &Call) -> Outcome<Prompted> {
        let (session, folder) = self.directory(request.directory.as_ref())?;
        let agent = session.options().agent.clone().ok_or_else(|| {
            Failure::new(ErrorCode::NotConfigured, "no coding agent has been configured")
                .hinted("set `agent.command` in codeagent.toml, as [\"claude\", \"-p\"]")
        })?;
        let words = agent.into_iter().chain([request.prompt]);
        let mut command = CommandRequest::argv(words);
        command.cwd = Some(folder.path.clone());
        let emit = |stream, data| {
            Event::AgentOutput(AgentOutput { request_id: call.request_id.clone(), stream, data })
        };
        let report = self.run(&session, &command, None, call, emit)?;
        Ok(Prompted {
            exit_code: (report.cause == Cause::Exited).then_some(report.exit_code),
            steps: completed(&session, &report, call),
        })
    }
}

impl Frontend {
    fn run(
        &self,
        session: &Session,
        command: &CommandRequest,
        stdin: Option<ByteString>,
        call: &Call,
        emit: impl Fn(OutputStream, ByteString) -> Event,
    ) -> Outcome<CommandReport> {
        let (orders, taken) = channel();
        // The command may have ended by then; nobody hears it, and nothing is lost.
        if let Some(stdin) = stdin {
            let _ = orders.send(Order::Input { data: stdin.as_bytes().to_vec(), eof: true });
        }
        call.cancel.on_cancel(move || drop(orders.send(Order::Cancel)));
        let line = command.command.to_string();
        tracing::info!(component = "session", request_id = %call.request_id, command = %line, "a command begins");
        let id = |id| drop(self.requests.lock().insert(id, call.request_id.clone()));
        let output = |stream, bytes: &[u8]| {
            let stream = match stream {
                Stream::Stdout => OutputStream::Stdout,
                Stream::Stderr => OutputStream::Stderr,
            };
            call.events.emit(&emit(stream, ByteString::from(bytes)));
        };
        let ran = session.exec_announced(command, taken, id, output);
        self.requests.lock().retain(|_, request| *request != call.request_id);
        ran.map_err(failure)
    }
}

/// The steps of a command, of which the frontend hears as events, too.
fn completed(session: &Session, report: &CommandReport, call: &Call) -> Vec<StepSummary> {
    let infos = report.directories.iter().filter_map(|directory| {
        Some(summary(session, &directory.directory, directory.info.clone()?))
    });
    infos
        .inspect(|step| {
            tracing::info!(component = "session", request_id = %call.request_id, step_id = step.step_id.0, "a step has ended");
            call.events.emit(&Event::StepCompleted(StepCompleted {
                request_id: Some(call.request_id.clone()),
                step: step.clone(),
            }));
        })
        .collect()
}

fn native(path: &RelPathBuf) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(path.as_path().as_bytes()).into()
}
