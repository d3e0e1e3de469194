use clap::Args;
use codeagent_common::{ChangeKind, StepId};
use codeagent_interceptor::{HistoryEntry, UndoError};
use codeagent_worker::Client;
use serde_json::json;

use super::log::Log;
use super::output::{Outcome, has_colours};
use super::text::{self, printable};
use crate::diff::{self, Body, FileDiff};
use crate::error::{Result, SandboxError};

/// Show what a step changed, as a diff
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    log: Log,
    /// The number of the step; the newest one if not given
    #[arg(value_name = "STEP", allow_negative_numbers = true)]
    step: Option<i64>,
    /// Say only how much changed in which file
    #[arg(long)]
    stat: bool,
}

impl Show {
    pub(crate) fn execute(self) -> Result<Outcome> {
        let client = self.log.holder()?;
        let step = match self.step {
            Some(step) => StepId(step),
            None => newest(&client)?,
        };
        let diffs = diff::of_step(&client, step)?;
        let paint = Paint { colours: has_colours() };
        let parts = diffs.iter().map(|diff| match self.stat {
            true => paint.stat(diff),
            false => paint.diff(diff),
        });
        let text = parts.collect::<Vec<_>>().join("\n");
        Ok(Outcome::new(json!({ "step": step, "changes": diffs }), text))
    }
}

fn newest(client: &Client) -> Result<StepId> {
    let step = |entry| match entry {
        HistoryEntry::Step(info) => Some(info.id),
        HistoryEntry::Barrier(_) => None,
    };
    if let Some(newest) = client.history()?.into_iter().rev().find_map(step) {
        return Ok(newest);
    }
    Err(match client.redoable()?.first() {
        Some(undone) => UndoError::StepUndone(undone.id).into(),
        None => SandboxError::usage("nothing has been recorded yet", "run something first"),
    })
}

const RED: &str = "31";
const GREEN: &str = "32";
const CYAN: &str = "36";
const BOLD: &str = "1";

struct Paint {
    colours: bool,
}

impl Paint {
    fn in_colour(&self, colour: &str, text: &str) -> String {
        match self.colours {
            true => format!("\x1b[{colour}m{text}\x1b[0m"),
            false => text.into(),
        }
    }

    fn stat(&self, diff: &FileDiff) -> String {
        let about = match &diff.body {
            Body::Text { added_lines, removed_lines, .. } => format!(
                "{} {}",
                self.in_colour(GREEN, &format!("+{added_lines}")),
                self.in_colour(RED, &format!("-{removed_lines}"))
            ),
            other => remark(other),
        };
        format!("{}  {about}", text::change(&diff.change))
    }

    fn diff(&self, diff: &FileDiff) -> String {
        let change = &diff.change;
        let name = printable(&change.path.to_string());
        let former = change.from.as_ref().map_or(name.clone(), |from| printable(&from.to_string()));
        let Body::Text { text, .. } = &diff.body else {
            return self.in_colour(
                BOLD,
                &format!("{}  {}", text::change(change).trim_start(), remark(&diff.body)),
            );
        };
        let old = if change.kind == ChangeKind::Added {
            "/dev/null".into()
        } else {
            format!("a/{former}")
        };
        let new = if change.kind == ChangeKind::Deleted {
            "/dev/null".into()
        } else {
            format!("b/{name}")
        };
        let mut lines = vec![
            self.in_colour(BOLD, &format!("--- {old}")),
            self.in_colour(BOLD, &format!("+++ {new}")),
        ];
        for line in text.lines() {
            let shown = printable_line(line);
            lines.push(match line.as_bytes().first() {
                Some(b'+') => self.in_colour(GREEN, &shown),
                Some(b'-') => self.in_colour(RED, &shown),
                Some(b'@') => self.in_colour(CYAN, &shown),
                _ => shown,
            });
        }
        lines.join("\n")
    }
}

fn remark(body: &Body) -> String {
    let bytes =
        |size: &Option<u64>| size.map_or("nothing".to_owned(), |size| format!("{size} bytes"));
    match body {
        Body::Binary { size_before, size_after } => {
            format!("(binary: {} → {})", bytes(size_before), bytes(size_after))
        }
        Body::Attributes { mode_before: Some(before), mode_after: Some(after) }
            if before != after =>
        {
            format!("(mode {before:o} → {after:o})")
        }
        Body::Attributes { .. } => "(attributes or times)".into(),
        Body::Unknown { reason } => format!("({})", printable(reason)),
        Body::NoContent | Body::Text { .. } => String::new(),
    }
}

/// Tabs stay: they are part of most files.
fn printable_line(line: &str) -> String {
    line.split('\t').map(printable).collect::<Vec<_>>().join("\t")
}
