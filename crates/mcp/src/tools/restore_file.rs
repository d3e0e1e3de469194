use codeagent_common::{ErrorCode, StepId};
use codeagent_stdio::operations::UndoRestore;
use codeagent_stdio::{Failure, WirePath};
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::{has_several_directories, locate, push_paths, push_steps};
use super::{Answer, Definition, Hints, Run, parameters};
use crate::call::Outcome;
use crate::client::Context;
use crate::schema;

pub(super) const DEFINITION: Definition = Definition {
    name: "restore_file",
    title: "Restore a file",
    description: "Brings one file or directory back as it was before a step, and leaves everything \
else as it is. A step of its own, which undo takes back. get_undo_history has the steps.",
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
    /// The number of the step before which it was right.
    #[serde(alias = "step_id")]
    step: i64,
}

fn run(arguments: JsonObject, context: &Context) -> Outcome<Answer> {
    let parameters: Parameters = parameters(arguments)?;
    let place = locate(context, &parameters.file_path)?;
    let path = WirePath::new(&place.path.to_string()).ok_or_else(|| {
        Failure::new(ErrorCode::InvalidPath, "the path leads out of the working directory")
    })?;
    let request = UndoRestore {
        step_id: StepId(parameters.step),
        paths: vec![path],
        directory: place.directory,
    };
    let report = context.backend.restore(request, &context.call)?;
    let mut text = String::new();
    push_paths(&mut text, "Restored", &report.restored);
    push_paths(&mut text, "Removed", &report.removed);
    if text.is_empty() {
        text.push_str("It is as it was then.\n");
    }
    let several = report.step.is_some() && has_several_directories(context);
    push_steps(&mut text, report.step.as_slice(), several);
    Ok(Answer::text(text))
}
