use codeagent_stdio::operations::{Check, UndoRollback};
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::{directory, undone};
use super::{Answer, Definition, Hints, Run, parameters};
use crate::call::Outcome;
use crate::client::Context;
use crate::schema;

pub(super) const DEFINITION: Definition = Definition {
    name: "undo",
    title: "Undo steps",
    description: "Takes the newest steps back: every command and every edit is one. Files that \
somebody else changed since are not overwritten: the undo is refused and lists them, unless \
skip_conflicts (undo the rest) or force (overwrite them) is set. redo takes an undo back.",
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
    /// Leave alone what others have changed, and undo the rest.
    #[serde(default)]
    skip_conflicts: bool,
    /// Which working directory: its index, label or path; the first if not given.
    #[serde(default)]
    directory: Option<String>,
}

pub(super) fn one() -> u32 {
    1
}

fn run(arguments: JsonObject, context: &Context) -> Outcome<Answer> {
    let parameters: Parameters = parameters(arguments)?;
    let request = UndoRollback {
        count: parameters.steps,
        force: parameters.force,
        skip_conflicts: parameters.skip_conflicts,
        directory: directory(parameters.directory),
    };
    request.check()?;
    let report = context.backend.undo(request, &context.call)?;
    Ok(undone("Undid", &report, parameters.force))
}
