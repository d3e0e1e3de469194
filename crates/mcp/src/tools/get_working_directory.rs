use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Answer, Definition, Hints, Run};
use crate::call::Outcome;
use crate::client::Context;
use crate::schema;

pub(super) const DEFINITION: Definition = Definition {
    name: "get_working_directory",
    title: "Show the working directory",
    description: "Shows the working directories, the first one first, and where the next Bash \
command begins.",
    input: schema::input::<Parameters>,
    output: None,
    hints: Hints::ReadOnly,
    run: Run::Blocking(run),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct Parameters {}

fn run(_: JsonObject, context: &Context) -> Outcome<Answer> {
    let mut text = String::new();
    for directory in context.backend.surroundings().directories {
        text.push_str(&format!("{}\n", directory.display()));
    }
    if let Some(cwd) = context.client.cwd.lock().as_deref() {
        text.push_str(&format!("The next command begins in {cwd}\n"));
    }
    Ok(Answer::text(text))
}
