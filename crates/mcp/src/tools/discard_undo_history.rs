use codeagent_common::ErrorCode;
use codeagent_stdio::Failure;
use codeagent_stdio::operations::UndoDiscard;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::directory;
use super::{Answer, Definition, Hints, Run, parameters};
use crate::ask::Question;
use crate::call::Outcome;
use crate::client::Context;
use crate::schema;

pub(super) const DEFINITION: Definition = Definition {
    name: "discard_undo_history",
    title: "Discard the undo history",
    description: "Throws the whole undo history of a working directory away; its files stay as they \
are. This cannot be undone, so the user is asked, and nothing happens without their consent.",
    input: schema::input::<Parameters>,
    output: None,
    hints: Hints::Destroys { lasting: true },
    run: Run::Blocking(run),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct Parameters {
    /// Which working directory: its index, label or path; the first if not given.
    #[serde(default)]
    directory: Option<String>,
}

fn run(arguments: JsonObject, context: &Context) -> Outcome<Answer> {
    let parameters: Parameters = parameters(arguments)?;
    let directory = directory(parameters.directory);
    let folder = context.backend.folder(directory.as_ref())?;
    let question = Question::before(format!(
        "Throw the undo history of {} away? Nothing that happened so far can be undone afterwards.",
        folder.path().display()
    ));
    if !context.call.ask_user(&question)? {
        return Err(Failure::new(ErrorCode::SafeguardDenied, "the user did not agree")
            .hinted("it is for the user alone; old steps are dropped by themselves in time")
            .into());
    }
    context.backend.discard(UndoDiscard { directory }, &context.call)?;
    Ok(Answer::text("The undo history is gone. The files are as they were."))
}
