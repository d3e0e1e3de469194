use codeagent_stdio::operations::{Check, UndoRedo};
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::{directory, undone};
use super::undo::one;
use super::{Answer, Definition, Hints, Run, parameters};
use crate::call::Outcome;
use crate::client::Context;
use crate::schema;

pub(super) const DEFINITION: Definition = Definition {
    name: "redo",
    title: "Redo steps",
    description: "Does again what undo took back, the last one first. Possible until something \
else is changed.",
    input: schema::input::<Parameters>,
    output: None,
    hints: Hints::Destroys { lasting: false },
    run: Run::Blocking(run),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct Parameters {
    /// How many steps; 1 if not given.
    #[serde(default = "one", alias = "count")]
    steps: u32,
    /// Overwrite what others have changed.
    #[serde(default)]
    force: bool,
    /// Leave alone what others have changed, and redo the rest.
    #[serde(default)]
    skip_conflicts: bool,
    /// Which working directory: its index, label or path; the first if not given.
    #[serde(default)]
    directory: Option<String>,
}

fn run(arguments: JsonObject, context: &Context) -> Outcome<Answer> {
    let parameters: Parameters = parameters(arguments)?;
    let request = UndoRedo {
        count: parameters.steps,
        force: parameters.force,
        skip_conflicts: parameters.skip_conflicts,
        directory: directory(parameters.directory),
    };
    request.check()?;
    let report = context.backend.redo(request, &context.call)?;
    Ok(undone("Redid", &report, parameters.force))
}
