//! What each command does.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use codeagent_common::{ErrorCode, StepId, StepInfo};
use codeagent_interceptor::{ClosedStep, HistoryEntry, OnConflict, RollbackReport, StepRequest};
use codeagent_worker::{Client, Request, WorkerError};
use serde_json::{Value, json};

use crate::arguments::{Arguments, Backwards, Command, Log, StepAction};
use crate::error::{Result, SandboxError};
use crate::hook::{self, Moment};
use crate::text;
use crate::undo_log::{holder, served};

/// How long to wait for writes that are on their way when a step ends.
const QUIET_TIMEOUT: Duration = Duration::from_secs(5);

/// What agent clients take as "do not make this call".
const REFUSE: u8 = 2;

/// What a command has to say.
struct Outcome {
    json: Value,
    text: String,
}

pub(crate) fn main() -> ExitCode {
    let command = Arguments::parse().command;
    let log = log_of(&command).clone();
    let require = matches!(command, Command::Hook { require: true, .. });
    match run(command) {
        Ok(outcome) => say(&log, &outcome),
        Err(Failed { error, at_the_end }) => {
            complain(&log, &error);
            // An agent that is told so when it stops goes on, for ever.
            if require && !at_the_end { ExitCode::from(REFUSE) } else { ExitCode::FAILURE }
        }
    }
}

/// Why a command failed.
struct Failed {
    error: SandboxError,
    /// Of a call or of the agent: there is nothing left to refuse.
    at_the_end: bool,
}

impl<E: Into<SandboxError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self { error: error.into(), at_the_end: false }
    }
}

fn log_of(command: &Command) -> &Log {
    match command {
        Command::Step { action: StepAction::Begin { log, .. } | StepAction::End { log, .. } }
        | Command::History(log)
        | Command::Undo { log, .. }
        | Command::Redo { log, .. }
        | Command::Hook { log, .. } => log,
    }
}

fn run(command: Command) -> std::result::Result<Outcome, Failed> {
    match command {
        Command::Step { action: StepAction::Begin { log, label } } => {
            Ok(begin(&served(&log.undo_dir)?, label)?)
        }
        Command::Step { action: StepAction::End { log, exit_code } } => {
            Ok(end(&served(&log.undo_dir)?, exit_code)?)
        }
        Command::History(log) => Ok(history(&holder(&log.undo_dir)?)?),
        Command::Undo { log, how, preview: true } => {
            Ok(preview(&holder(&log.undo_dir)?, how.count as usize)?)
        }
        Command::Undo { log, how, preview: false } => {
            let client = holder(&log.undo_dir)?;
            let report = client.undo(how.count as usize, conflicts(&how))?;
            Ok(gone_back("undone", &report))
        }
        Command::Redo { log, how } => {
            let client = holder(&log.undo_dir)?;
            let report = client.redo(how.count as usize, conflicts(&how))?;
            Ok(gone_back("redone", &report))
        }
        Command::Hook { log, .. } => react(&log),
    }
}

fn conflicts(how: &Backwards) -> OnConflict {
    match how {
        Backwards { force: true, .. } => OnConflict::Force,
        Backwards { skip_conflicts: true, .. } => OnConflict::Skip,
        _ => OnConflict::Refuse,
    }
}

/// Begins a step. Whoever began the one that is open may have died; its step ends here.
fn begin(client: &Client, label: String) -> Result<Outcome> {
    let request = StepRequest::command(label);
    let mut ended = None;
    let step = match client.open_step(request.clone()) {
        Err(WorkerError::Failed(failure)) if failure.code == ErrorCode::StepOpen => {
            ended = close(client, None)?;
            client.open_step(request)?
        }
        outcome => outcome?,
    };
    let mut text = String::new();
    if let Some(closed) = &ended {
        text = format!("{}\n", text::closed(closed));
    }
    text.push_str(&format!("step {step} has begun"));
    Ok(Outcome { json: json!({ "step": step, "ended": ended }), text })
}

fn end(client: &Client, exit_code: Option<i32>) -> Result<Outcome> {
    let closed = close(client, exit_code)?
        .ok_or_else(|| SandboxError::Failed(codeagent_interceptor::UndoError::NoStepOpen.into()))?;
    Ok(Outcome { json: json!({ "closed": closed }), text: text::closed(&closed) })
}

/// Ends the step that is open, if one is.
fn close(client: &Client, exit_code: Option<i32>) -> Result<Option<ClosedStep>> {
    let _: bool = client.call(Request::WaitUntilQuiet { timeout: QUIET_TIMEOUT })?;
    match client.close_step(exit_code) {
        Err(WorkerError::Failed(failure)) if failure.code == ErrorCode::NoStepOpen => Ok(None),
        outcome => Ok(Some(outcome?)),
    }
}

fn history(client: &Client) -> Result<Outcome> {
    let (history, redoable) = (client.history()?, client.redoable()?);
    let open = client.status()?.open_step;
    let text = text::history(&history, &redoable, open);
    let newest_first: Vec<&HistoryEntry> = history.iter().rev().collect();
    let redoable: Vec<&StepInfo> = redoable.iter().rev().collect();
    let json = json!({ "history": newest_first, "redoable": redoable, "open_step": open });
    Ok(Outcome { json, text })
}

fn preview(client: &Client, count: usize) -> Result<Outcome> {
    let preview = client.preview(count)?;
    Ok(Outcome { text: text::preview(&preview), json: json!(preview) })
}

fn gone_back(what: &str, report: &RollbackReport) -> Outcome {
    Outcome { json: json!(report), text: text::gone_back(what, report) }
}

/// A message of an agent client.
fn react(log: &Log) -> std::result::Result<Outcome, Failed> {
    let message = serde_json::from_reader(io::stdin().lock()).map_err(SandboxError::Hook)?;
    let nothing = || Outcome { json: json!({ "ignored": true }), text: String::new() };
    match hook::moment(&message) {
        Moment::Begins(label) => {
            let begun = begin(&served(&log.undo_dir)?, label)?;
            // Some clients show the agent what a hook says.
            Ok(Outcome { text: String::new(), ..begun })
        }
        Moment::Ends => {
            let closed = served(&log.undo_dir)
                .and_then(|client| close(&client, None))
                .map_err(|error| Failed { error, at_the_end: true })?;
            Ok(Outcome { json: json!({ "closed": closed }), text: String::new() })
        }
        Moment::Other => Ok(nothing()),
    }
}

fn say(log: &Log, outcome: &Outcome) -> ExitCode {
    let mut stdout = io::stdout().lock();
    let said = if log.json {
        writeln!(stdout, "{}", outcome.json)
    } else if outcome.text.is_empty() {
        Ok(())
    } else {
        writeln!(stdout, "{}", outcome.text)
    };
    // Whoever closed the pipe does not want to know more; what was to be done is done.
    match said.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

#[expect(clippy::print_stderr, reason = "errors are for people")]
fn complain(log: &Log, error: &SandboxError) {
    if log.json {
        let (conflicts, done): (_, Vec<StepId>) = match error {
            SandboxError::Failed(failure) => (failure.conflicts.clone(), failure.done.clone()),
            _ => (vec![], vec![]),
        };
        let json = json!({ "error": {
            "code": error.code(),
            "message": error.to_string(),
            "hint": error.hint(),
            "conflicts": conflicts,
            "done": done,
        }});
        let _ = writeln!(io::stdout(), "{json}"); // nobody reads it: the exit code says it, too
        return;
    }
    eprintln!("sandbox: {}", text::printable(&error.to_string()));
    if let Some(hint) = error.hint() {
        eprintln!("hint: {}", text::printable(&hint));
    }
}
