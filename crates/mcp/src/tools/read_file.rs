use codeagent_tools::ReadQuery;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::locate;
use super::{Answer, Definition, Hints, Run, parameters};
use crate::call::Outcome;
use crate::client::Context;
use crate::schema;

pub(super) const DEFINITION: Definition = Definition {
    name: "read_file",
    title: "Read a file",
    description: "Reads a text file in the working directory, with line numbers. Without limit, the \
first 2000 lines; use offset and limit for the rest. Long lines are cut.",
    input: schema::input::<Parameters>,
    output: None,
    hints: Hints::ReadOnly,
    run: Run::Blocking(run),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct Parameters {
    /// Absolute, or relative to the working directory.
    #[serde(alias = "path", alias = "filePath", alias = "absolute_path")]
    file_path: String,
    /// The first line to read, counted from 1.
    #[serde(default)]
    offset: Option<usize>,
    /// How many lines to read.
    #[serde(default)]
    limit: Option<usize>,
}

fn run(arguments: JsonObject, context: &Context) -> Outcome<Answer> {
    let parameters: Parameters = parameters(arguments)?;
    let place = locate(context, &parameters.file_path)?;
    let query = ReadQuery { offset: parameters.offset, limit: parameters.limit };
    let file = place.folder.read_file(place.path.as_path(), &query)?;
    if file.lines == 0 {
        return Ok(Answer::text(format!("{} is empty.", place.path)));
    }
    let mut text = file.numbered;
    if !file.at_end {
        let next = file.first_line + file.lines;
        text.push_str(&format!("[more follows: read on with offset {next}]\n"));
    }
    Ok(Answer::text(text))
}
