use std::fmt::Write as _;

use codeagent_common::{ChangeKind, StepId};
use codeagent_stdio::operations::{FileDiff, UndoDiff};
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::directory;
use super::{Answer, Definition, Hints, Run, parameters};
use crate::call::Outcome;
use crate::client::Context;
use crate::output::MAX_OUTPUT_CHARACTERS;
use crate::schema;

pub(super) const DEFINITION: Definition = Definition {
    name: "diff_step",
    title: "Show what a step changed",
    description: "Shows what a step did to files, as a unified diff. get_undo_history has the \
steps.",
    input: schema::input::<Parameters>,
    output: None,
    hints: Hints::ReadOnly,
    run: Run::Blocking(run),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct Parameters {
    /// The number of the step.
    #[serde(alias = "step_id")]
    step: i64,
    /// Which working directory: its index, label or path; the first if not given.
    #[serde(default)]
    directory: Option<String>,
}

fn run(arguments: JsonObject, context: &Context) -> Outcome<Answer> {
    let parameters: Parameters = parameters(arguments)?;
    let request = UndoDiff {
        step_id: StepId(parameters.step),
        paths: vec![],
        max_bytes: u32::try_from(MAX_OUTPUT_CHARACTERS).unwrap_or(u32::MAX),
        directory: directory(parameters.directory),
    };
    let diff = context.backend.diff(request, &context.call)?;
    let mut text = String::new();
    for file in &diff.files {
        match (&file.diff, &file.note) {
            (Some(diff), _) => {
                push_header(&mut text, file);
                text.push_str(diff);
            }
            (None, note) => {
                let note = note.as_deref().unwrap_or("no diff");
                let kind = format!("{:?}", file.kind).to_lowercase();
                let _ = writeln!(text, "{kind} {} ({note})", file.path);
            }
        }
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    let listed = diff.files.len() as u64;
    if diff.file_count > listed {
        let _ = writeln!(text, "… and {} more files", diff.file_count - listed);
    }
    if text.is_empty() {
        text.push_str("The step changed nothing.");
    }
    Ok(Answer::text(text))
}

/// Which file it is, unless the diff says so itself.
fn push_header(text: &mut String, file: &FileDiff) {
    if file.diff.as_ref().is_some_and(|diff| diff.starts_with("--- ")) {
        return;
    }
    let before = match (file.kind, &file.from) {
        (ChangeKind::Added, _) => "/dev/null".to_owned(),
        (_, from) => format!("a/{}", from.as_ref().unwrap_or(&file.path)),
    };
    let after = match file.kind {
        ChangeKind::Deleted => "/dev/null".to_owned(),
        _ => format!("b/{}", file.path),
    };
    let _ = writeln!(text, "--- {before}\n+++ {after}");
}
