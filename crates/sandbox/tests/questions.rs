//! Questions of safeguards to clients of 2026-07-28, which call again with the answer.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::Path;

use codeagent_test_support::{TreeSnapshot, assert_tree_eq};
use common::Person;
use common::client::Client;
use serde_json::{Value, json};

const PROJECT: &str = "mkdir -p src; echo one > a; echo two > src/b; ln -s a link; chmod 600 a";

/// A client that can ask its user.
fn agent(person: &Person, folders: &[&Path]) -> Client {
    let mut command = person.sandbox(["--protocol", "mcp"]);
    for folder in folders {
        command.arg("--working-dir").arg(folder);
    }
    let mut agent = Client::start(&mut command);
    let id = agent.call("server/discover", of_newest_era(json!({})));
    let found = agent.answer(id);
    assert!(found["supportedVersions"].to_string().contains("2026-07-28"), "{found}");
    agent
}

fn of_newest_era(mut parameters: Value) -> Value {
    parameters["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    });
    parameters
}

/// What comes of a call, which may bring the answer to a question that an earlier one ended with.
fn bash(agent: &mut Client, arguments: &Value, answer: Option<(&Value, bool)>) -> Value {
    tool(agent, "Bash", arguments, answer)
}

fn tool(
    agent: &mut Client,
    name: &str,
    arguments: &Value,
    answer: Option<(&Value, bool)>,
) -> Value {
    let mut call = json!({"name": name, "arguments": arguments});
    if let Some((asked, yes)) = answer {
        let said = json!({"action": "accept", "content": {"confirm": yes}});
        call["inputResponses"] = json!({ "confirm": said });
        call["requestState"] = asked["requestState"].clone();
    }
    let id = agent.call("tools/call", of_newest_era(call));
    agent.answer(id)
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}"))
}

#[track_caller]
fn assert_asked(result: &Value) {
    assert_eq!(result["resultType"], "input_required", "{result}");
    let request = &result["inputRequests"]["confirm"];
    assert!(request.to_string().contains("is about to delete"), "{result}");
}

fn views() -> &'static [&'static str] {
    if common::can_use_fuse() { &["transactional", "live"] } else { &["transactional"] }
}

/// SG-04
#[test]
fn a_question_that_nobody_answers_in_time_holds_up_nothing() {
    for view in views() {
        let person = Person::with(PROJECT);
        person.configure(&format!(
            "[sandbox]\nview = '{view}'\n[safeguards]\ndelete_threshold = 2\ntimeout_seconds = 1\n"
        ));
        let before = person.snapshot();
        let mut agent = agent(&person, &[]);
        let destroy = json!({"command": "rm -rf a src; echo over"});
        let asked = bash(&mut agent, &destroy, None);
        assert_asked(&asked);
        // It waits for its turn until the other has been denied.
        let next = bash(&mut agent, &json!({"command": "echo next"}), None);
        assert_eq!(text(&next), "next", "{view}");
        let late = bash(&mut agent, &destroy, Some((&asked, true)));
        assert!(late["isError"] == true, "{view}: {late}");
        assert!(text(&late).contains("the answer came too late"), "{view}: {late}");
        assert!(text(&late).contains("safeguard_denied"), "{view}: {late}");
        assert_tree_eq(&before, &person.snapshot());
        // Its end has been told, and its state used.
        let again = bash(&mut agent, &destroy, Some((&asked, true)));
        assert!(text(&again).contains("nothing was started"), "{view}: {again}");
        assert_tree_eq(&before, &person.snapshot());
        agent.hang_up();
    }
}

/// In a live view both are asked at the same time, in the other one after the other.
#[test]
fn questions_of_two_folders_are_all_answered() {
    for view in views() {
        for answers in [[true, true], [true, false]] {
            let person = Person::with(PROJECT);
            let other = person.root().join("other");
            std::fs::create_dir(&other).unwrap();
            common::sh("touch c d", &other);
            person.configure(&format!(
                "[sandbox]\nview = '{view}'\n[safeguards]\ndelete_threshold = 2\n"
            ));
            let before = (person.snapshot(), TreeSnapshot::capture(&other));
            let mut agent = agent(&person, &[&person.project(), &other]);
            let destroy = json!({"command": "(rm -rf a src) & (rm ../other/c ../other/d); wait"});
            let mut result = bash(&mut agent, &destroy, None);
            for answer in answers {
                assert_asked(&result);
                result = bash(&mut agent, &destroy, Some((&result, answer)));
            }
            let is_kept = answers == [true, true];
            assert_eq!(result["isError"] != true, is_kept, "{view}: {result}");
            if is_kept {
                assert!(!person.path("a").exists() && !other.join("d").exists());
                for directory in ["project", "other"] {
                    let undo = json!({"name": "undo", "arguments": {"directory": directory}});
                    let id = agent.call("tools/call", of_newest_era(undo));
                    let undone = agent.answer(id);
                    assert!(undone["isError"] != true, "{undone}");
                }
            }
            assert_tree_eq(&before.0, &person.snapshot());
            assert_tree_eq(&before.1, &TreeSnapshot::capture(&other));
            agent.hang_up();
        }
    }
}

/// Neither the command nor the question outlives it.
#[test]
fn a_client_that_goes_away_with_a_question_leaves_the_folder_as_it_was() {
    for view in views() {
        let person = Person::with(PROJECT);
        person.configure(&format!(
            "[sandbox]\nview = '{view}'\n[safeguards]\ndelete_threshold = 2\ntimeout_seconds = 600\n"
        ));
        let before = person.snapshot();
        let mut agent = agent(&person, &[]);
        assert_asked(&bash(&mut agent, &json!({"command": "rm -rf a src"}), None));
        agent.hang_up();
        assert_tree_eq(&before, &person.snapshot());
    }
}

#[test]
fn a_command_that_waits_with_a_question_can_be_stopped() {
    for view in views() {
        let person = Person::with(PROJECT);
        person.configure(&format!(
            "[sandbox]\nview = '{view}'\n[safeguards]\ndelete_threshold = 2\ntimeout_seconds = 600\n"
        ));
        let before = person.snapshot();
        let mut agent = agent(&person, &[]);
        assert_asked(&bash(&mut agent, &json!({"command": "rm -rf a src"}), None));
        let stopped = bash(&mut agent, &json!({"handle": "bash_1", "stop": true}), None);
        assert!(stopped["isError"] == true, "{view}: {stopped}");
        assert_tree_eq(&before, &person.snapshot());
        let next = bash(&mut agent, &json!({"command": "echo next"}), None);
        assert_eq!(text(&next), "next");
        agent.hang_up();
    }
}

/// It was denied and taken back before; the answer comes with the next call.
#[test]
fn a_file_tool_that_has_to_ask_first_does_it_when_the_answer_comes() {
    let person = Person::with("head -c 100000 /dev/zero | tr '\\0' x > large");
    person.configure("[safeguards]\noverwrite_threshold_bytes = 50000\n");
    let before = person.snapshot();
    let write = json!({"path": "large", "content": "small"});
    let edit = json!({"path": "large", "old_string": "x", "new_string": "y", "replace_all": true});
    let mut agent = agent(&person, &[]);
    for (name, arguments) in [("write_file", &write), ("edit_file", &edit)] {
        for answer in [false, true] {
            let asked = tool(&mut agent, name, arguments, None);
            assert_eq!(asked["resultType"], "input_required", "{asked}");
            assert_tree_eq(&before, &person.snapshot());
            let done = tool(&mut agent, name, arguments, Some((&asked, answer)));
            assert_eq!(done["isError"] != true, answer, "{done}");
            if answer {
                assert_ne!(person.read("large").as_bytes()[..3], *b"xxx");
                tool(&mut agent, "undo", &json!({}), None);
            }
            assert_tree_eq(&before, &person.snapshot());
        }
    }
    agent.hang_up();

    // Clients of earlier revisions are asked while the call waits.
    for answer in [false, true] {
        let mut agent = Client::start(&mut person.sandbox(["--protocol", "mcp"]));
        agent.initialize(json!({"elicitation": {}}));
        let id = agent.call("tools/call", json!({"name": "write_file", "arguments": write}));
        let question = agent.wait_for(|line| line["method"] == "elicitation/create");
        let said = json!({"action": "accept", "content": {"confirm": answer}});
        agent.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": said}));
        let done = agent.answer(id);
        assert_eq!(done["isError"] != true, answer, "{done}");
        assert_eq!(person.read("large") == "small", answer);
        agent.hang_up();
    }
}
