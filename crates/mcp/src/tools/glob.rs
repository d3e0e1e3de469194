use std::fmt::Write as _;

use codeagent_tools::GlobQuery;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::locate;
use super::{Answer, Definition, Hints, Run, parameters};
use crate::call::Outcome;
use crate::client::Context;
use crate::schema;

pub(super) const DEFINITION: Definition = Definition {
    name: "glob",
    title: "Find files by name",
    description: "Finds files by a pattern such as **/*.rs or src/**/{a,b}?.ts, newest first, at \
most 100. What .gitignore leaves out is left out, unless the pattern names its directory.",
    input: schema::input::<Parameters>,
    output: None,
    hints: Hints::ReadOnly,
    run: Run::Blocking(run),
};

const MAX_PATHS: usize = 100;

#[derive(Debug, Deserialize, JsonSchema)]
struct Parameters {
    pattern: String,
    /// Where to look; the working directory if not given.
    #[serde(default, alias = "dir_path", alias = "directory_path")]
    path: String,
}

fn run(arguments: JsonObject, context: &Context) -> Outcome<Answer> {
    let parameters: Parameters = parameters(arguments)?;
    let place = locate(context, &parameters.path)?;
    let query = GlobQuery { pattern: parameters.pattern, path: place.path, limit: MAX_PATHS };
    let found = place.folder.glob(&query, &context.call.cancel)?;
    if found.count == 0 {
        return Ok(Answer::text("No files found."));
    }
    let mut text = String::new();
    for path in &found.paths {
        let _ = writeln!(text, "{}", path.display());
    }
    if found.count > found.paths.len() {
        let _ = writeln!(text, "[the newest {MAX_PATHS} of {}]", found.count);
    }
    Ok(Answer::text(text))
}
