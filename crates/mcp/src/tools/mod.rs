//! The tools, one file each, in the order clients see them.

mod bash;
mod diff_step;
mod discard_undo_history;
mod edit_file;
mod get_session_status;
mod get_undo_history;
mod get_working_directory;
mod glob;
mod grep;
mod list_directory;
mod preview_undo;
mod read_file;
mod redo;
mod restore_file;
mod undo;
mod write_file;

mod shared;

use std::sync::Arc;

use codeagent_common::ErrorCode;
use codeagent_stdio::Failure;
use rmcp::model::{JsonObject, MetaObject, Tool, ToolAnnotations};
use rmcp::service::{RequestContext, RoleServer};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::call::Outcome;
use crate::client::Context;
use crate::output::{MAX_OUTPUT_CHARACTERS, shorten};

const ALL: &[Definition] = &[
    bash::DEFINITION,
    read_file::DEFINITION,
    write_file::DEFINITION,
    edit_file::DEFINITION,
    list_directory::DEFINITION,
    glob::DEFINITION,
    grep::DEFINITION,
    undo::DEFINITION,
    get_undo_history::DEFINITION,
    get_session_status::DEFINITION,
    get_working_directory::DEFINITION,
    discard_undo_history::DEFINITION,
    redo::DEFINITION,
    preview_undo::DEFINITION,
    diff_step::DEFINITION,
    restore_file::DEFINITION,
];

/// All tools, always in the same order.
pub fn definitions() -> Vec<Tool> {
    ALL.iter().map(Definition::tool).collect()
}

pub(crate) fn find(name: &str) -> Option<&'static Definition> {
    ALL.iter().find(|definition| definition.name == name)
}

/// One tool.
pub(crate) struct Definition {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    input: fn() -> Arc<JsonObject>,
    /// Only where clients can do something with it: some show their model nothing else.
    output: Option<fn() -> Arc<JsonObject>>,
    hints: Hints,
    run: Run,
}

/// What the tool does to files.
#[derive(Clone, Copy)]
enum Hints {
    ReadOnly,
    /// May destroy, though undo brings it back; `lasting` if it does not.
    Destroys {
        lasting: bool,
    },
}

#[derive(Clone, Copy)]
enum Run {
    Blocking(fn(JsonObject, &Context) -> Outcome<Answer>),
    /// Has to do with time, and so is async.
    Bash,
}

/// What a tool says.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) structured: Option<Value>,
    pub(crate) is_error: bool,
}

impl Answer {
    fn text(text: impl Into<String>) -> Self {
        Self { text: shorten(text.into()), ..Self::default() }
    }

    /// A text whose long part has been shortened already: what that says of itself must stay.
    fn short(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    fn structured(value: &impl serde::Serialize) -> Self {
        let value = serde_json::to_value(value).unwrap_or_default();
        Self { text: value.to_string(), structured: Some(value), is_error: false }
    }
}

impl Definition {
    pub(crate) fn tool(&self) -> Tool {
        let (read_only, destructive, lasting) = match self.hints {
            Hints::ReadOnly => (true, false, false),
            Hints::Destroys { lasting } => (false, true, lasting),
        };
        let mut annotations = ToolAnnotations::with_title(self.title);
        annotations.read_only_hint = Some(read_only);
        annotations.destructive_hint = Some(destructive);
        annotations.idempotent_hint = Some(read_only || self.name == "write_file");
        annotations.open_world_hint = Some(matches!(self.run, Run::Bash));
        let mut meta = MetaObject::new();
        meta.0.insert("anthropic/alwaysLoad".to_owned(), json!(true));
        // More than a shaped answer ever has.
        let most = MAX_OUTPUT_CHARACTERS * 2;
        meta.0.insert("anthropic/maxResultSizeChars".to_owned(), json!(most));
        if lasting {
            meta.0.insert("anthropic/requiresUserInteraction".to_owned(), json!(true));
        }
        let mut tool = Tool::new(self.name, self.description, (self.input)())
            .with_title(self.title)
            .with_annotations(annotations)
            .with_meta(meta);
        tool.output_schema = self.output.map(|schema| schema());
        tool
    }

    pub(crate) async fn run(
        &self,
        arguments: JsonObject,
        context: Context,
        request: &RequestContext<RoleServer>,
    ) -> Outcome<Answer> {
        let run = match self.run {
            Run::Bash => return bash::run(arguments, context, request).await,
            Run::Blocking(run) => run,
        };
        let ran = tokio::task::spawn_blocking(move || run(arguments, &context)).await;
        ran.unwrap_or_else(|_| Err(lost()))
    }
}

/// The tool panicked.
fn lost() -> crate::call::Interruption {
    let message = "the tool could not answer because of a mistake in the sandbox";
    Failure::new(ErrorCode::Internal, message).into()
}

/// Typed parameters; what is wrong with them is for the model to read. Unknown ones are ignored.
fn parameters<T: DeserializeOwned>(arguments: JsonObject) -> Outcome<T> {
    serde_path_to_error::deserialize(Value::Object(arguments)).map_err(|error| {
        let (path, reason) = (error.path().to_string(), error.inner().to_string());
        let message = match path.as_str() {
            "." => format!("wrong parameters: {reason}"),
            name => format!("the parameter `{name}` is wrong: {reason}"),
        };
        Failure::new(ErrorCode::InvalidField, message).into()
    })
}
