//! Each tool, its mistakes, and what clients see of it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use common::{ERAS, User, bad, call, good, place, text};
use rmcp::model::ProtocolVersion;
use serde_json::{Value, json};

const NAMES: [&str; 16] = [
    "Bash",
    "read_file",
    "write_file",
    "edit_file",
    "list_directory",
    "glob",
    "grep",
    "undo",
    "get_undo_history",
    "get_session_status",
    "get_working_directory",
    "discard_undo_history",
    "redo",
    "preview_undo",
    "diff_step",
    "restore_file",
];

#[tokio::test]
async fn every_era_sees_the_same_tools_in_the_same_order_and_is_told_of_the_isolation() {
    let place = place();
    let expected = serde_json::to_value(codeagent_mcp::definitions()).unwrap();
    for version in ERAS {
        let client = place.connect(User::new(version.clone(), None)).await;

        let tools = client.list_all_tools().await.unwrap();
        let info = client.peer_info().unwrap();

        assert!(tools.iter().map(|tool| tool.name.as_ref()).eq(NAMES), "{version}");
        assert_eq!(serde_json::to_value(&tools).unwrap(), expected, "{version}");
        assert!(info.instructions.as_ref().unwrap().contains("Isolation: none"), "{version}");
        assert_eq!(info.server_info.as_ref().unwrap().name, "codeagent-sandbox");
        client.cancel().await.unwrap();
    }
}

#[test]
fn the_tools_are_as_documented() {
    let tools = serde_json::to_value(codeagent_mcp::definitions()).unwrap();
    insta::assert_snapshot!(format!("{tools:#}"));
}

#[test]
fn the_tools_keep_to_what_clients_can_bear() {
    for tool in codeagent_mcp::definitions() {
        let name = tool.name.as_ref();
        let value = serde_json::to_value(&tool).unwrap();
        for schema in ["inputSchema", "outputSchema"] {
            let schema = &value[schema];
            for keyword in ["anyOf", "oneOf", "allOf", "$ref"] {
                assert!(schema.get(keyword).is_none(), "{name}: {keyword}");
            }
            assert!(!schema.to_string().contains("\"format\""), "{name}");
            assert!(!schema.to_string().contains("$defs"), "{name}");
        }
        assert_eq!(value["inputSchema"]["type"], "object", "{name}");
        assert!(tool.description.unwrap().len() < 2048, "{name}");
        let structured = ["get_undo_history", "get_session_status"].contains(&name);
        assert_eq!(value.get("outputSchema").is_some(), structured, "{name}");
        assert_eq!(value["_meta"]["anthropic/alwaysLoad"], true);
        let asks = value["_meta"].get("anthropic/requiresUserInteraction").is_some();
        assert_eq!(asks, name == "discard_undo_history");
        let reads = ["read_file", "list_directory", "glob", "grep", "preview_undo", "diff_step"];
        let reads = reads.contains(&name) || name.starts_with("get_");
        assert_eq!(value["annotations"]["readOnlyHint"], reads, "{name}");
        assert_eq!(value["annotations"]["destructiveHint"], !reads, "{name}");
    }
}

/// MC-02
#[tokio::test]
async fn bash_tells_output_exit_code_and_step() {
    let place = place();
    let client = place.client().await;

    let made = good(&client, "Bash", json!({ "command": "echo out; echo err >&2; touch a" })).await;
    let failed = good(&client, "Bash", json!({ "command": "exit 3" })).await;

    assert_eq!(made, "out\nerr\n[step 1: 1 added; undo takes it back]");
    assert_eq!(failed, "(no output)\n[exit code 3]");
}

#[tokio::test]
async fn the_working_directory_stays_and_variables_do_not() {
    let place = place();
    let client = place.client().await;
    good(&client, "Bash", json!({ "command": "cd src; export X=1" })).await;

    let text = good(&client, "Bash", json!({ "command": "basename $PWD; echo \"<$X>\"" })).await;
    let other = place.client().await;

    assert_eq!(text, "src\n<>\n".trim_end());
    assert!(good(&client, "get_working_directory", json!({})).await.contains("project/src"));
    let root = good(&other, "Bash", json!({ "command": "basename $PWD" })).await;
    assert_eq!(root, "project");
}

#[tokio::test]
async fn long_output_keeps_its_beginning_and_its_end() {
    let place = place();
    let client = place.client().await;

    let text = good(&client, "Bash", json!({ "command": "seq 1 100000" })).await;

    assert!(text.starts_with("1\n2\n3\n") && text.ends_with("100000"), "{}", text.len());
    assert!(text.len() < 31_000 && text.contains("\n… [558895 bytes left out] …\n"));
}

#[tokio::test]
async fn a_command_past_its_time_is_ended() {
    let place = place();
    let client = place.client().await;

    let text = bad(&client, "Bash", json!({ "command": "sleep 60", "timeout": 50 })).await;
    let wrong = bad(&client, "Bash", json!({ "command": "true", "timeout": 600_001 })).await;

    assert!(text.contains("its time was over"));
    assert!(wrong.contains("`timeout` has to be"));
}

/// MC-03, MC-04
#[tokio::test]
async fn files_are_written_edited_undone_and_redone() {
    let place = place();
    let client = place.client().await;
    let file = place.path("new/a.txt");

    let written =
        good(&client, "write_file", json!({ "file_path": "new/a.txt", "content": "one\ntwo\n" }))
            .await;
    let edit = json!({ "file_path": file, "old_string": "two", "new_string": "2" });
    let edited = good(&client, "edit_file", edit).await;
    let history = call(&client, "get_undo_history", json!({})).await.structured_content.unwrap();
    let preview = good(&client, "preview_undo", json!({ "count": 2 })).await;
    let undone = good(&client, "undo", json!({ "steps": 2 })).await;

    assert!(
        written.starts_with("Created new/a.txt.\n--- /dev/null\n+++ b/new/a.txt\n"),
        "{written}"
    );
    assert!(written.ends_with("[step 1: 1 added; undo takes it back]\n"), "{written}");
    assert!(edited.contains("-two\n+2\n[step 2: 1 modified"), "{edited}");
    assert_eq!(history["entries"][0]["type"], "api");
    assert_eq!(preview, "Undoing step 2, 1 would change:\n  D new/a.txt\n");
    assert_eq!(undone, "Undid step 2, 1.\n  D new/a.txt\n");
    assert!(!file.exists());
    assert_eq!(good(&client, "redo", json!({})).await, "Redid step 1.\n  A new/a.txt\n");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\ntwo\n");
}

#[tokio::test]
async fn a_step_is_shown_and_a_file_restored() {
    let place = place();
    let client = place.client().await;
    good(&client, "Bash", json!({ "command": "echo 'fn main() {}' > src/main.rs" })).await;

    let diff = good(&client, "diff_step", json!({ "step": 1 })).await;
    let restored =
        good(&client, "restore_file", json!({ "file_path": "src/main.rs", "step": 1 })).await;

    assert!(diff.contains("-    todo!();"), "{diff}");
    assert!(restored.starts_with("Restored:\n  src/main.rs\n[step 2: 1 modified"), "{restored}");
    let content = std::fs::read_to_string(place.path("src/main.rs")).unwrap();
    assert!(content.contains("todo!()"));
    assert!(bad(&client, "diff_step", json!({ "step": 99 })).await.contains("step_not_found"));
}

#[tokio::test]
async fn files_are_read_listed_and_found() {
    let place = place();
    let client = place.client().await;
    let content = json!({ "pattern": "todo", "output_mode": "content", "-C": 1 });

    assert_eq!(
        good(&client, "read_file", json!({ "file_path": "src/main.rs", "offset": 2, "limit": 1 }))
            .await,
        "     2\t    todo!();\n[more follows: read on with offset 3]\n"
    );
    assert_eq!(good(&client, "list_directory", json!({})).await, "src/\n");
    assert_eq!(good(&client, "glob", json!({ "pattern": "**/*.rs" })).await, "src/main.rs\n");
    assert_eq!(good(&client, "glob", json!({ "pattern": "*.py" })).await, "No files found.");
    assert_eq!(good(&client, "grep", json!({ "pattern": "todo" })).await, "src/main.rs\n");
    assert_eq!(
        good(&client, "grep", content).await,
        "src/main.rs-1-fn main() {\nsrc/main.rs:2:    todo!();\nsrc/main.rs-3-}\n"
    );
}

#[tokio::test]
async fn parameters_have_the_names_that_other_tools_taught_models() {
    let place = place();
    let client = place.client().await;
    for name in ["file_path", "path", "filePath"] {
        good(&client, "read_file", json!({ name: "src/main.rs", "unknown": true })).await;
        good(&client, "write_file", json!({ name: "x", "content": format!("{name} {name}") }))
            .await;
    }
    let edit =
        json!({ "path": "x", "old_string": "filePath", "new_string": "p", "allow_multiple": true });
    good(&client, "edit_file", edit).await;
    good(&client, "list_directory", json!({ "dir_path": "src" })).await;
    good(&client, "glob", json!({ "pattern": "*.rs", "dir_path": "src" })).await;
    good(&client, "grep", json!({ "pattern": "p", "include": "x" })).await;

    assert_eq!(std::fs::read_to_string(place.path("x")).unwrap(), "p p");
    good(&client, "undo", json!({ "count": 4 })).await;
    assert!(!place.path("x").exists());
}

/// MC-05
#[tokio::test]
async fn mistakes_are_told_to_the_model_and_change_nothing() {
    let place = place();
    let client = place.client().await;
    for (name, arguments, expected) in [
        ("read_file", json!({}), "missing field `file_path`"),
        ("read_file", json!({ "file_path": "nothing" }), "does not exist (not_found)"),
        ("read_file", json!({ "file_path": "/etc/passwd" }), "path_outside_root"),
        ("write_file", json!({ "file_path": "../secret", "content": "x" }), "path_outside_root"),
        ("write_file", json!({ "file_path": "src", "content": "x" }), "is a directory"),
        (
            "edit_file",
            json!({ "file_path": "src/main.rs", "old_string": "tod()", "new_string": "" }),
            "0 matches for `old_string`",
        ),
        ("list_directory", json!({ "path": ".." }), "path_outside_root"),
        ("glob", json!({ "pattern": "../*" }), "path_outside_root"),
        ("grep", json!({ "pattern": "(" }), "the pattern is wrong"),
        ("grep", json!({ "pattern": "a", "path": "/" }), "path_outside_root"),
        ("undo", json!({}), "nothing_to_undo"),
        ("undo", json!({ "steps": 0 }), "at least one step"),
        ("redo", json!({}), "nothing_to_redo"),
        ("Bash", json!({}), "`command` is empty"),
        ("Bash", json!({ "handle": "bash_7" }), "no command with the handle"),
        ("restore_file", json!({ "file_path": "a", "step": 1 }), "step_not_found"),
    ] {
        let message = bad(&client, name, arguments).await;
        assert!(message.contains(expected), "{name}: {message}");
    }
    let unknown = client.call_tool(common::request("dance", &json!({}))).await;
    assert!(unknown.unwrap_err().to_string().contains("there is no tool `dance`"));
    let history = call(&client, "get_undo_history", json!({})).await.structured_content.unwrap();
    assert_eq!(history["entries"], json!([]));
    assert_eq!(std::fs::read_to_string(place.root.path().join("secret")).unwrap(), "secret\n");
}

#[tokio::test]
async fn the_status_is_structured_and_other_answers_are_not() {
    let place = place();
    let client = place.connect(User::new(ProtocolVersion::V_2026_07_28, None)).await;

    let status = call(&client, "get_session_status", json!({})).await;
    let listing = call(&client, "list_directory", json!({})).await;

    assert_eq!(status.structured_content.as_ref().unwrap()["isolation"], "host");
    let as_text: Value = serde_json::from_str(&text(&status)).unwrap();
    assert_eq!(&as_text, status.structured_content.as_ref().unwrap());
    assert!(listing.structured_content.is_none());
}
