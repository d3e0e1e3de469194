//! What a command has to say, to people or to programs.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use codeagent_common::StepId;
use serde_json::{Value, json};

use super::text;
use crate::error::SandboxError;

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) json: Value,
    pub(crate) text: String,
    pub(crate) exit_code: u8,
}

impl Outcome {
    pub(crate) fn new(json: Value, text: impl Into<String>) -> Self {
        Self { json, text: text.into(), exit_code: 0 }
    }
}

pub(crate) fn say(json: bool, outcome: &Outcome) -> ExitCode {
    let mut stdout = io::stdout().lock();
    let said = if json {
        writeln!(stdout, "{}", outcome.json)
    } else if outcome.text.is_empty() {
        Ok(())
    } else {
        writeln!(stdout, "{}", outcome.text)
    };
    // Whoever closed the pipe does not want to know more; what was to be done is done.
    match said.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::from(outcome.exit_code),
    }
}

pub(crate) fn complain(json: bool, error: &SandboxError) {
    if json {
        let cause = match error {
            SandboxError::NotKept { reason, .. } => reason,
            other => other,
        };
        let (conflicts, done): (_, Vec<StepId>) = match cause {
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
    notice(&error.to_string());
    if let Some(hint) = error.hint() {
        let _ = writeln!(io::stderr(), "hint: {}", text::printable(&hint));
    }
}

/// A line for people.
pub(crate) fn notice(line: &str) {
    let _ = writeln!(io::stderr(), "sandbox: {}", text::printable(line)); // or nobody reads it
}

/// Whether what is printed on standard output may have colours.
pub(crate) fn has_colours() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !set("NO_COLOR") && !is_dumb
}
