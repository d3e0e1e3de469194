use codeagent_stdio::operations::{Check, UndoPreview};
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::{directory, push_changes, push_conflicts};
use super::undo::one;
use super::{Answer, Definition, Hints, Run, parameters};
use crate::call::Outcome;
use crate::client::Context;
use crate::schema;

pub(super) const DEFINITION: Definition = Definition {
    name: "preview_undo",
    title: "Preview an undo",
    description: "Shows what undo would do to which files, and changes nothing.",
    input: schema::input::<Parameters>,
    output: None,
    hints: Hints::ReadOnly,
    run: Run::Blocking(run),
};

const MAX_CHANGES: u32 = 200;

#[derive(Debug, Deserialize, JsonSchema)]
struct Parameters {
    /// How many steps; 1 if not given.
    #[serde(default = "one", alias = "count")]
    steps: u32,
    /// Which working directory: its index, label or path; the first if not given.
    #[serde(default)]
    directory: Option<String>,
}

fn run(arguments: JsonObject, context: &Context) -> Outcome<Answer> {
    let parameters: Parameters = parameters(arguments)?;
    let directory = directory(parameters.directory);
    let request = UndoPreview { count: parameters.steps, limit: MAX_CHANGES, directory };
    request.check()?;
    let preview = context.backend.preview(request, &context.call)?;
    let steps: Vec<String> = preview.step_ids.iter().map(ToString::to_string).collect();
    let mut text = format!("Undoing step {} would change:\n", steps.join(", "));
    push_changes(&mut text, &preview.changes, preview.change_count);
    let title = "Others have changed these since; they need skip_conflicts or force";
    push_conflicts(&mut text, title, &preview.conflicts);
    Ok(Answer::text(text))
}
