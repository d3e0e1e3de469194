use codeagent_stdio::operations::SessionStatus;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Answer, Definition, Hints, Run};
use crate::call::Outcome;
use crate::client::Context;
use crate::schema;

pub(super) const DEFINITION: Definition = Definition {
    name: "get_session_status",
    title: "Show the session's status",
    description: "Shows how commands are isolated, what is not protected, the working directories, \
and how full their histories are.",
    input: schema::input::<Parameters>,
    output: Some(schema::output::<SessionStatus>),
    hints: Hints::ReadOnly,
    run: Run::Blocking(run),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct Parameters {}

fn run(_: JsonObject, context: &Context) -> Outcome<Answer> {
    Ok(Answer::structured(&context.backend.status(&context.call)?))
}
