use codeagent_stdio::operations::{UndoHistory, UndoHistoryReply};
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::directory;
use super::{Answer, Definition, Hints, Run, parameters};
use crate::call::Outcome;
use crate::client::Context;
use crate::schema;

pub(super) const DEFINITION: Definition = Definition {
    name: "get_undo_history",
    title: "Show the undo history",
    description: "Lists the newest steps that can be undone, with what they changed, edits by \
others in between (barriers), and what can be redone.",
    input: schema::input::<Parameters>,
    output: Some(schema::output::<UndoHistoryReply>),
    hints: Hints::ReadOnly,
    run: Run::Blocking(run),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct Parameters {
    /// How many; 20 if not given.
    #[serde(default = "twenty", alias = "count")]
    limit: u32,
    /// Which working directory: its index, label or path; the first if not given.
    #[serde(default)]
    directory: Option<String>,
}

fn twenty() -> u32 {
    20
}

fn run(arguments: JsonObject, context: &Context) -> Outcome<Answer> {
    let parameters: Parameters = parameters(arguments)?;
    let directory = directory(parameters.directory);
    let request = UndoHistory { limit: parameters.limit, directory };
    Ok(Answer::structured(&context.backend.history(request, &context.call)?))
}
