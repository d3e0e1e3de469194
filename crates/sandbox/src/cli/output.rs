//! What a command has to say, to people or to programs.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use codeagent_common::{ErrorCode, StepId};
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
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let what = "it was done, and this could not be printed";
            complain(false, &SandboxError::doing(what)(error));
            ExitCode::FAILURE
        }
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
            "hint": hint(error),
            "conflicts": conflicts,
            "done": done,
        }});
        let _ = writeln!(io::stdout(), "{json}"); // nobody reads it: the exit code says it, too
        return;
    }
    notice(&error.to_string());
    if let Some(hint) = hint(error) {
        let _ = writeln!(io::stderr(), "hint: {}", text::printable(&hint));
    }
}

/// As everybody gets it, or with the command to type.
fn hint(error: &SandboxError) -> Option<String> {
    let code = match error {
        SandboxError::Failed(failure) => failure.code,
        SandboxError::NotKept { reason, .. } if !reason.is_lost_worker() => return hint(reason),
        SandboxError::PartlyKept { kept, .. } if !kept.is_empty() => {
            let folder = text::quoted(&kept[0].folder);
            let hint = format!(
                "take it back in each of them: sandbox undo --working-dir {folder}; what a background \
                 command did there meanwhile goes, too"
            );
            return Some(hint);
        }
        _ => return error.hint(),
    };
    Some(
        match code {
            ErrorCode::StepNotFound | ErrorCode::NothingToUndo => {
                "`sandbox history` lists the steps there are"
            }
            ErrorCode::StepUndone => "`sandbox redo` brings it back",
            ErrorCode::NoStepOpen => "begin one with `sandbox step begin`",
            ErrorCode::PathNotInStep => "`sandbox show STEP --stat` lists what it changed",
            ErrorCode::UndoCorrupt => {
                "`sandbox undo-log verify` names what is damaged; other steps are unaffected"
            }
            ErrorCode::UndoVersionMismatch | ErrorCode::UndoDisabled => {
                "use the program that wrote it, or move the undo directory away to start afresh; \
                 `sandbox status` names it"
            }
            ErrorCode::LowDiskSpace => {
                "free some disk space (removing files still works), or lower undo.min_free_bytes \
                 in the configuration"
            }
            _ => return error.hint(),
        }
        .into(),
    )
}

/// A line for people.
pub(crate) fn notice(line: &str) {
    // A terminal that a shell in a sandbox has for itself goes back to the margin only if told so.
    let modes = rustix::termios::tcgetattr(io::stderr()).map(|terminal| terminal.output_modes);
    let is_raw = modes.is_ok_and(|modes| !modes.contains(rustix::termios::OutputModes::OPOST));
    let end = if is_raw { "\r\n" } else { "\n" };
    let _ = write!(io::stderr(), "sandbox: {}{end}", text::printable(line)); // or nobody reads it
}

/// Whether what is printed on standard output may have colours.
pub(crate) fn has_colours() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !set("NO_COLOR") && !is_dumb
}
