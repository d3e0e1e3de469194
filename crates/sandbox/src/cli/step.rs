use std::time::Duration;

use clap::{Args, Subcommand};
use codeagent_common::ErrorCode;
use codeagent_interceptor::{ClosedStep, StepRequest, UndoError};
use codeagent_worker::{Client, Request, WorkerError};
use serde_json::json;

use super::log::Log;
use super::output::Outcome;
use super::text;
use crate::error::Result;

/// How long to wait for writes that are on their way when a step ends.
const QUIET_TIMEOUT: Duration = Duration::from_secs(5);

/// Say where a step begins and ends, while a mount serves the folder
#[derive(Debug, Args)]
pub(crate) struct Step {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Begin a step; one that is still open ends
    Begin {
        #[command(flatten)]
        log: Log,
        /// What the history will say about it
        #[arg(long, value_name = "TEXT", default_value = "")]
        label: String,
    },
    /// End the step
    End {
        #[command(flatten)]
        log: Log,
        /// How the command in it ended
        #[arg(long, value_name = "N")]
        exit_code: Option<i32>,
    },
}

impl Step {
    pub(crate) fn execute(self) -> Result<Outcome> {
        match self.action {
            Action::Begin { log, label } => begin(&log.served()?, label),
            Action::End { log, exit_code } => {
                let closed = close(&log.served()?, exit_code)?.ok_or(UndoError::NoStepOpen)?;
                Ok(Outcome::new(json!({ "closed": closed }), text::closed(&closed)))
            }
        }
    }
}

/// Begins a step. Whoever began the one that is open may have died; its step ends here.
pub(crate) fn begin(client: &Client, label: String) -> Result<Outcome> {
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
    Ok(Outcome::new(json!({ "step": step, "ended": ended }), text))
}

/// Ends the step that is open, if one is.
pub(crate) fn close(client: &Client, exit_code: Option<i32>) -> Result<Option<ClosedStep>> {
    let _: bool =
        client.call(Request::WaitUntilQuiet { quiet: Duration::ZERO, timeout: QUIET_TIMEOUT })?;
    match client.close_step(exit_code) {
        Err(WorkerError::Failed(failure)) if failure.code == ErrorCode::NoStepOpen => Ok(None),
        outcome => Ok(Some(outcome?)),
    }
}
