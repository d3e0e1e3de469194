use codeagent_tools::Edit;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::{locate, write};
use super::{Answer, Definition, Hints, Run, parameters};
use crate::call::Outcome;
use crate::client::Context;
use crate::schema;

pub(super) const DEFINITION: Definition = Definition {
    name: "edit_file",
    title: "Edit a file",
    description: "Replaces text in a file. old_string has to match exactly, indentation included, \
and only once, unless replace_all is set; line ends (LF or CRLF) do not matter and stay as they are. \
Leave out the line numbers that read_file shows. One step, which undo takes back.",
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
    /// The text to replace.
    #[serde(alias = "oldString", alias = "old_text", alias = "old_str")]
    old_string: String,
    /// The text to put in its place.
    #[serde(alias = "newString", alias = "new_text", alias = "new_str")]
    new_string: String,
    /// Replace every occurrence.
    #[serde(default, alias = "replaceAll", alias = "allow_multiple")]
    replace_all: bool,
}

fn run(arguments: JsonObject, context: &Context) -> Outcome<Answer> {
    let parameters: Parameters = parameters(arguments)?;
    let place = locate(context, &parameters.file_path)?;
    let edit = Edit {
        old: parameters.old_string,
        new: parameters.new_string,
        replace_all: parameters.replace_all,
    };
    let plan = place.folder.plan_edit(place.path.as_path(), &edit)?;
    write(context, &place, &plan)
}
