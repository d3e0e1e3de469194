use codeagent_tools::{GrepQuery, OutputMode};
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::locate;
use super::{Answer, Definition, Hints, Run, parameters};
use crate::call::Outcome;
use crate::client::Context;
use crate::schema;

pub(super) const DEFINITION: Definition = Definition {
    name: "grep",
    title: "Search in files",
    description: "Searches file contents with a regular expression, as ripgrep does. output_mode is \
files_with_matches (the default, newest first), content (matching lines) or count. What .gitignore \
leaves out, and binary files, are not searched.",
    input: schema::input::<Parameters>,
    output: None,
    hints: Hints::ReadOnly,
    run: Run::Blocking(run),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct Parameters {
    /// A regular expression, in ripgrep's syntax.
    pattern: String,
    /// A directory or file; the working directory if not given.
    #[serde(default, alias = "dir_path", alias = "file_path")]
    path: String,
    /// Only files whose name matches, such as *.{ts,tsx}.
    #[serde(default, alias = "include")]
    glob: Option<String>,
    /// Only files of this type, such as rust, js, py.
    #[serde(default, rename = "type")]
    file_type: Option<String>,
    #[serde(default)]
    output_mode: Mode,
    /// Lines after each match, for content.
    #[serde(default, rename = "-A")]
    after: Option<usize>,
    /// Lines before each match, for content.
    #[serde(default, rename = "-B")]
    before: Option<usize>,
    /// Lines around each match, for content.
    #[serde(default, rename = "-C", alias = "context")]
    around: Option<usize>,
    /// Line numbers, for content; shown unless false.
    #[serde(default, rename = "-n")]
    line_numbers: Option<bool>,
    /// Ignore case.
    #[serde(default, rename = "-i")]
    ignore_case: bool,
    /// At most so many lines or files; 250 if not given, 0 for all.
    #[serde(default)]
    head_limit: Option<usize>,
    /// Lines or files to pass over.
    #[serde(default)]
    offset: usize,
    /// Let matches span lines, and . match line ends.
    #[serde(default)]
    multiline: bool,
}

#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Mode {
    #[default]
    FilesWithMatches,
    Content,
    Count,
}

fn run(arguments: JsonObject, context: &Context) -> Outcome<Answer> {
    let parameters: Parameters = parameters(arguments)?;
    let place = locate(context, &parameters.path)?;
    let around = parameters.around.unwrap_or(0);
    let query = GrepQuery {
        pattern: parameters.pattern,
        path: place.path,
        glob: parameters.glob,
        file_type: parameters.file_type,
        output_mode: match parameters.output_mode {
            Mode::FilesWithMatches => OutputMode::FilesWithMatches,
            Mode::Content => OutputMode::Content,
            Mode::Count => OutputMode::Count,
        },
        before: parameters.before.unwrap_or(around),
        after: parameters.after.unwrap_or(around),
        line_numbers: parameters.line_numbers.unwrap_or(true),
        ignore_case: parameters.ignore_case,
        multiline: parameters.multiline,
        offset: parameters.offset,
        limit: parameters.head_limit.unwrap_or(250),
    };
    let found = place.folder.grep(&query, &context.call.cancel)?;
    let mut text = found.text;
    if text.is_empty() {
        text.push_str("No matches found.");
    }
    if found.truncated {
        let next = query.offset + query.limit;
        text.push_str(&format!("[more follows: go on with offset {next}]"));
    }
    Ok(Answer::text(text))
}
