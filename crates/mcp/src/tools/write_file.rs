use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::{locate, write};
use super::{Answer, Definition, Hints, Run, parameters};
use crate::call::Outcome;
use crate::client::Context;
use crate::schema;

pub(super) const DEFINITION: Definition = Definition {
    name: "write_file",
    title: "Write a file",
    description: "Writes a file in the working directory: makes it, with the directories above it, \
or replaces all of it. The answer shows what changed. One step, which undo takes back.",
    input: schema::input::<Parameters>,
    output: None,
    hints: Hints::Destroys { lasting: false },
    run: Run::Blocking(run),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct Parameters {
    /// Absolute, or relative to the working directory.
    #[serde(alias = "path", alias = "filePath")]
    file_path: String,
    /// All of the file.
    #[serde(alias = "contents")]
    content: String,
}

fn run(arguments: JsonObject, context: &Context) -> Outcome<Answer> {
    let parameters: Parameters = parameters(arguments)?;
    let place = locate(context, &parameters.file_path)?;
    let plan = place.folder.plan_write(place.path.as_path(), parameters.content.as_bytes())?;
    write(context, &place, &plan)
}
