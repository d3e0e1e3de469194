//! What agent clients tell their hooks, as far as it is about the beginning and end of a call.
//!
//! Claude Code and Codex say `PreToolUse` and `PostToolUse`, Gemini CLI `BeforeTool` and
//! `AfterTool`, Cursor `beforeShellExecution` and `afterShellExecution` and their like; all of them
//! in the field `hook_event_name`.

use serde::Deserialize;
use serde_json::Value;

/// Long enough for people to recognise a call by.
const MAX_LABEL_CHARS: usize = 200;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// A call is about to begin; this is what it is.
    Begins(String),
    /// A call is over, or the agent has stopped.
    Ends,
    Other,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Message {
    #[serde(default)]
    hook_event_name: String,
    #[serde(default)]
    tool_name: String,
    #[serde(default)]
    tool_input: Value,
    /// Cursor's shell hooks have it here.
    #[serde(default)]
    command: Value,
}

pub(crate) fn moment(message: &Message) -> Moment {
    match message.hook_event_name.as_str() {
        "PreToolUse"
        | "BeforeTool"
        | "preToolUse"
        | "beforeShellExecution"
        | "beforeMCPExecution" => Moment::Begins(label(message)),
        "PostToolUse"
        | "PostToolUseFailure"
        | "AfterTool"
        | "postToolUse"
        | "postToolUseFailure"
        | "afterShellExecution"
        | "afterMCPExecution"
        | "Stop"
        | "SessionEnd"
        | "AfterAgent"
        | "stop"
        | "sessionEnd" => Moment::Ends,
        _ => Moment::Other,
    }
}

/// `Bash: make test`, `Write: src/main.rs`, or only the tool.
fn label(message: &Message) -> String {
    let about = ["command", "file_path", "path", "notebook_path", "pattern", "url"]
        .iter()
        .find_map(|key| message.tool_input.get(key)?.as_str())
        .or(message.command.as_str());
    let label = match (message.tool_name.as_str(), about) {
        ("", Some(about)) => about.to_owned(),
        (tool, Some(about)) => format!("{tool}: {about}"),
        (tool, None) => tool.to_owned(),
    };
    label.chars().take(MAX_LABEL_CHARS).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn moment_of(json: &str) -> Moment {
        moment(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn calls_of_the_known_clients_begin_and_end() {
        let begins = |text: &str| Moment::Begins(text.into());
        for (message, expected) in [
            (
                r#"{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{"command":"make"}}"#,
                begins("Bash: make"),
            ),
            (
                r#"{"hook_event_name":"BeforeTool","tool_name":"write_file","tool_input":{"file_path":"a"}}"#,
                begins("write_file: a"),
            ),
            (
                r#"{"hook_event_name":"beforeShellExecution","command":"ls","cwd":"/x"}"#,
                begins("ls"),
            ),
            (
                r#"{"hook_event_name":"PreToolUse","tool_name":"Task","tool_input":null}"#,
                begins("Task"),
            ),
            (
                r#"{"hook_event_name":"PostToolUse","tool_name":"Bash","tool_response":{}}"#,
                Moment::Ends,
            ),
            (r#"{"hook_event_name":"AfterTool"}"#, Moment::Ends),
            (r#"{"hook_event_name":"Stop"}"#, Moment::Ends),
            (r#"{"hook_event_name":"Notification"}"#, Moment::Other),
            (r"{}", Moment::Other),
        ] {
            assert_eq!(moment_of(message), expected, "{message}");
        }
    }

    #[test]
    fn labels_are_short() {
        let long = "x".repeat(10_000);
        let message = format!(
            r#"{{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{{"command":"{long}"}}}}"#
        );
        let Moment::Begins(label) = moment_of(&message) else { panic!("it begins") };
        assert_eq!(label.chars().count(), MAX_LABEL_CHARS);
    }
}
