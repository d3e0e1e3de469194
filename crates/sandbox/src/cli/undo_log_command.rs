use std::io;
use std::path::Path;

use clap::{Args, Subcommand};
use codeagent_interceptor::{dump, verify};
use serde_json::json;

use super::log::Log;
use super::output::Outcome;
use super::text::printable;
use crate::error::{Result, SandboxError};

/// Look at what is kept, record by record
#[derive(Debug, Args)]
pub(crate) struct UndoLog {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print the records of one entry
    Dump {
        #[command(flatten)]
        log: Log,
        /// As steps/3, redo/4 or wal/in_progress; the newest step that is not ambient, if not given
        #[arg(value_name = "ENTRY")]
        entry: Option<String>,
    },
    /// Read everything, and say what is damaged; changes nothing
    Verify {
        #[command(flatten)]
        log: Log,
    },
}

impl UndoLog {
    pub(crate) fn execute(self) -> Result<Outcome> {
        let reading = || SandboxError::doing("cannot read the undo log");
        match self.action {
            Action::Dump { log, entry } => {
                let undo_dir = log.find()?.undo_dir;
                let entry = match entry {
                    Some(entry) => entry,
                    None => newest(&undo_dir).map_err(reading())?.ok_or_else(|| {
                        SandboxError::usage("nothing has been recorded yet", "run something first")
                    })?,
                };
                let text = dump(&undo_dir, &entry).map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::InvalidInput => SandboxError::usage(
                        format!("there is no entry {entry:?} in the undo log"),
                        "name it as steps/3, redo/4 or wal/in_progress; `sandbox history` lists the steps",
                    ),
                    _ => reading()(error),
                })?;
                Ok(Outcome::new(json!({ "dump": text }), text.trim_end()))
            }
            Action::Verify { log } => {
                let report = verify(&log.find()?.undo_dir).map_err(reading())?;
                let mut lines = vec![format!(
                    "{} steps, {} to redo, {} records: {}",
                    report.steps,
                    report.redoable,
                    report.records,
                    if report.is_sound() { "sound" } else { "DAMAGED" }
                )];
                let findings: Vec<_> = report
                    .findings
                    .iter()
                    .map(|finding| {
                        lines.push(printable(&format!("  {}: {}", finding.place, finding.problem)));
                        json!({ "place": finding.place, "problem": finding.problem })
                    })
                    .collect();
                let json = json!({
                    "steps": report.steps, "redoable": report.redoable,
                    "records": report.records, "findings": findings, "sound": report.is_sound(),
                });
                let exit_code = u8::from(!report.is_sound());
                Ok(Outcome { exit_code, ..Outcome::new(json, lines.join("\n")) })
            }
        }
    }
}

/// The entry of the newest step; ambient ones have numbers of their own, below zero.
fn newest(undo_dir: &Path) -> io::Result<Option<String>> {
    let mut newest = None;
    for entry in std::fs::read_dir(undo_dir.join("steps"))? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
        newest = newest.max(number);
    }
    Ok(newest.map(|number| format!("steps/{number}")))
}
