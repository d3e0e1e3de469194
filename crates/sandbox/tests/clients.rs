//! The binary driven by clients that no one here wrote: the Python package `mcp` in both of its
//! eras, and the MCP Inspector in all three.
//!
//! `cargo xtask test` installs them and says where they are.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use codeagent_test_support::assert_tree_eq;
use codeagent_test_support::filesystems::skip;
use common::client::Client;
use common::repository::{EVERYTHING, REPOSITORY};
use common::{PROGRAM, Person};
use serde_json::{Value, json};

const PROJECT: &str = "mkdir -p src; echo one > a; echo two > src/b; ln -s a link; chmod 600 a
    touch -d '2001-02-03 04:05:06' src/b src";

/// What a variable names, or a loud skip.
fn installed(test: &str, variable: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).filter(|value| !value.is_empty());
    if named.is_none() {
        skip(test, &format!("{variable} is not set; `cargo xtask test` sets it"));
    }
    named.map(PathBuf::from)
}

/// The Python client, which has listed the tools and waits for calls.
struct Python(Client);

impl Python {
    fn start(python: &Path, era: &str, person: &Person) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/client.py");
        let mut command = Command::new(python);
        command.arg(script).args([era, PROGRAM, "--protocol", "mcp", "--working-dir"]);
        command.arg(person.project()).env("HOME", person.home()).env_remove("CODEAGENT_HOME");
        let mut client = Client::start(&mut command);
        let tools = client.wait_for(|_| true);
        assert_eq!(tools["tools"].as_array().map(Vec::len), Some(16), "{era}: {tools}");
        Self(client)
    }

    /// What came of a call, whose questions the user answers like this.
    #[track_caller]
    fn call(&mut self, tool: &str, arguments: &Value, answer: bool) -> Value {
        self.0.send(&json!({"tool": tool, "arguments": arguments, "answer": answer}));
        self.0.wait_for(|_| true)
    }

    /// What a call says that has to succeed, and asks nothing.
    #[track_caller]
    fn good(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, &arguments, false);
        assert_eq!(
            (&result["failed"], &result["questions"]),
            (&json!(false), &json!([])),
            "{result}"
        );
        result["text"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    fn bad(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, &arguments, false);
        assert_eq!(result["failed"], true, "{result}");
        result["text"].as_str().unwrap().to_owned()
    }
}

const PYTHON_ERAS: [&str; 2] = ["legacy", "2026-07-28"];

#[test]
fn the_python_client_destroys_undoes_and_redoes() {
    let test = "the_python_client_destroys_undoes_and_redoes";
    let Some(python) = installed(test, "CODEAGENT_TEST_MCP_PYTHON") else { return };
    for era in PYTHON_ERAS {
        let person = Person::with(PROJECT);
        let before = person.snapshot();
        let mut client = Python::start(&python, era, &person);
        let said = client.good("Bash", json!({"command": "echo bye; rm -rf ./*"}));
        assert_eq!(said, "bye\n[step 1: 3 deleted; undo takes it back]");
        let after = person.snapshot();
        assert_eq!(fs::read_dir(person.project()).unwrap().count(), 0);
        assert!(client.good("preview_undo", json!({})).contains("src"));
        assert!(client.good("undo", json!({})).starts_with("Undid step 1."));
        assert_tree_eq(&before, &person.snapshot());
        client.good("redo", json!({}));
        assert_tree_eq(&after, &person.snapshot());
        client.good("undo", json!({"steps": 1}));
        assert_tree_eq(&before, &person.snapshot());
        let status = client.call("get_session_status", &json!({}), false);
        assert_eq!(status["structured"]["isolation"], "namespace", "{status}");
        client.0.hang_up();
    }
}

#[test]
fn the_python_client_works_with_files_and_reaches_nothing_outside() {
    let test = "the_python_client_works_with_files_and_reaches_nothing_outside";
    let Some(python) = installed(test, "CODEAGENT_TEST_MCP_PYTHON") else { return };
    for era in PYTHON_ERAS {
        let person = Person::with(PROJECT);
        let before = person.snapshot();
        let victim = person.root().join("victim");
        fs::write(&victim, "untouched").unwrap();
        let mut client = Python::start(&python, era, &person);
        client.good("write_file", json!({"file_path": "src/c", "content": "three\n"}));
        let edit = json!({"file_path": "src/c", "old_string": "three", "new_string": "four"});
        client.good("edit_file", edit);
        assert!(client.good("read_file", json!({"file_path": "src/c"})).contains("four"));
        assert!(client.good("grep", json!({"pattern": "f.ur"})).contains("src/c"));
        assert!(client.good("glob", json!({"pattern": "**/c"})).contains("src/c"));
        assert!(client.good("list_directory", json!({"path": "src"})).contains('c'));
        assert!(client.good("diff_step", json!({"step": 2})).contains("+four"));
        for path in ["../victim", victim.to_str().unwrap(), "/etc/passwd"] {
            client.bad("read_file", json!({"file_path": path}));
            client.bad("write_file", json!({"file_path": path, "content": "changed"}));
        }
        client.good("undo", json!({"steps": 2}));
        assert_tree_eq(&before, &person.snapshot());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        client.0.hang_up();
    }
}

/// MC-08: elicitation, as the client does it by itself.
#[test]
fn the_user_of_the_python_client_is_asked() {
    let test = "the_user_of_the_python_client_is_asked";
    let Some(python) = installed(test, "CODEAGENT_TEST_MCP_PYTHON") else { return };
    let views = ["transactional", "live"];
    let views = if common::can_use_fuse() { &views[..] } else { &views[..1] };
    for (era, view) in PYTHON_ERAS.iter().flat_map(|era| views.iter().map(move |view| (era, view)))
    {
        let person = Person::with(PROJECT);
        let view = format!("[sandbox]\nview = \"{view}\"\n");
        person.configure(&format!("{view}[safeguards]\ndelete_threshold = 2\n"));
        let before = person.snapshot();
        let mut client = Python::start(&python, era, &person);
        let destroy = json!({"command": "echo ran; rm -rf a src"});
        let denied = client.call("Bash", &destroy, false);
        assert_eq!(denied["questions"].as_array().unwrap().len(), 1, "{era} {view}{denied}");
        assert_eq!(denied["failed"], true, "{era} {view}{denied}");
        assert_tree_eq(&before, &person.snapshot());
        let allowed = client.call("Bash", &destroy, true);
        assert_eq!(allowed["questions"].as_array().unwrap().len(), 1, "{era} {view}{allowed}");
        assert_eq!(allowed["failed"], false, "{era} {view}{allowed}");
        // Once, though the newest era calls twice.
        let said = allowed["text"].as_str().unwrap();
        assert_eq!(said.matches("ran").count(), 1, "{said}");
        assert!(!person.path("a").exists() && !person.path("src").exists());
        client.good("undo", json!({}));
        assert_tree_eq(&before, &person.snapshot());
        client.0.hang_up();
    }
}

/// The one who waits for it is asked, and nothing has happened before that.
#[test]
fn the_user_of_the_python_client_is_asked_about_a_background_command() {
    let test = "the_user_of_the_python_client_is_asked_about_a_background_command";
    let Some(python) = installed(test, "CODEAGENT_TEST_MCP_PYTHON") else { return };
    if !common::can_use_fuse() {
        return skip(test, "/dev/fuse cannot be used");
    }
    for answer in [true, false] {
        let person = Person::with(PROJECT);
        person.configure("[safeguards]\ndelete_threshold = 2\n");
        let before = person.snapshot();
        let mut client = Python::start(&python, "2026-07-28", &person);
        let destroy = json!({"command": "rm -rf a src", "run_in_background": true});
        let begun = client.good("Bash", destroy);
        assert!(begun.contains("bash_1"), "{begun}");
        let end = client.call("Bash", &json!({"handle": "bash_1"}), answer);
        assert_eq!(end["questions"].as_array().unwrap().len(), 1, "{end}");
        // Denied, it is refused; what was done before is a step like any other.
        assert!(!person.path("a").exists(), "{end}");
        assert_eq!(person.path("src").exists(), !answer, "{end}");
        client.good("undo", json!({}));
        assert_tree_eq(&before, &person.snapshot());
        client.0.hang_up();
    }
}

/// In the newest era the call is made twice, and the second brings the answer.
#[test]
fn the_python_client_asks_before_the_history_is_gone() {
    let test = "the_python_client_asks_before_the_history_is_gone";
    let Some(python) = installed(test, "CODEAGENT_TEST_MCP_PYTHON") else { return };
    for era in PYTHON_ERAS {
        let person = Person::with(PROJECT);
        let mut client = Python::start(&python, era, &person);
        client.good("Bash", json!({"command": "rm a"}));
        let denied = client.call("discard_undo_history", &json!({}), false);
        assert_eq!(denied["failed"], true, "{era}: {denied}");
        assert!(client.good("get_undo_history", json!({})).contains("rm a"));
        let allowed = client.call("discard_undo_history", &json!({}), true);
        assert_eq!(allowed["failed"], false, "{era}: {allowed}");
        assert_eq!(allowed["questions"].as_array().unwrap().len(), 1, "{era}: {allowed}");
        client.bad("undo", json!({}));
        client.0.hang_up();
    }
}

/// The Inspector, which starts a server for every call.
struct Inspector<'a> {
    bin: PathBuf,
    era: &'static str,
    person: &'a Person,
}

const INSPECTOR_ERAS: [&str; 3] = ["legacy", "auto", "modern"];

impl Inspector<'_> {
    fn run(&self, arguments: &[&str]) -> Value {
        let arguments_of_server =
            json!(["--protocol", "mcp", "--working-dir", self.person.project()]);
        let server = json!({
            "command": PROGRAM,
            "args": arguments_of_server,
            "env": {"HOME": self.person.home()},
        });
        let config = self.person.root().join("inspector.json");
        fs::write(&config, json!({"mcpServers": {"sandbox": server}}).to_string()).unwrap();
        // Its own Node first.
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new(self.bin.join("mcp-inspector"))
            .env("PATH", format!("{}:{path}", self.bin.display()))
            .env("HOME", self.person.home())
            .env("MCP_INSPECTOR_SECRET_STORE", "memory")
            .arg("--cli")
            .arg("--config")
            .arg(config)
            .args(["--server", "sandbox", "--protocol-era", self.era, "--format", "json"])
            .args(arguments)
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{} {arguments:?}: {output:?}", self.era))
    }

    /// What a tool says, and whether it failed.
    fn call(&self, tool: &str, arguments: &Value) -> (String, bool) {
        let arguments = arguments.to_string();
        let said = self.run(&[
            "--method",
            "tools/call",
            "--tool-name",
            tool,
            "--tool-args-json",
            &arguments,
        ]);
        let result = &said["result"];
        let text = result["content"][0]["text"].as_str();
        (text.unwrap_or_else(|| panic!("{said}")).to_owned(), result["isError"] == true)
    }
}

#[test]
fn the_inspector_destroys_and_undoes_in_every_era() {
    let test = "the_inspector_destroys_and_undoes_in_every_era";
    let Some(bin) = installed(test, "CODEAGENT_TEST_MCP_INSPECTOR") else { return };
    for era in INSPECTOR_ERAS {
        let person = Person::with(PROJECT);
        let before = person.snapshot();
        let inspector = Inspector { bin: bin.clone(), era, person: &person };
        let list = inspector.run(&["--method", "tools/list", "--strict"]);
        assert_eq!(list["result"]["tools"].as_array().map(Vec::len), Some(16), "{era}: {list}");
        let (said, failed) = inspector.call("Bash", &json!({"command": "rm -rf ./*"}));
        assert!(!failed && said.contains("[step 1: 3 deleted"), "{era}: {said}");
        assert_eq!(fs::read_dir(person.project()).unwrap().count(), 0);
        let (said, failed) = inspector.call("undo", &json!({}));
        assert!(!failed && said.starts_with("Undid step 1."), "{era}: {said}");
        assert_tree_eq(&before, &person.snapshot());
        let (said, failed) = inspector.call("read_file", &json!({"file_path": "src/b"}));
        assert!(!failed && said.contains("two"), "{era}: {said}");
        let (said, failed) = inspector.call("read_file", &json!({"file_path": "/etc/passwd"}));
        assert!(failed && said.contains("path_outside_root"), "{era}: {said}");
    }
}

/// A repository of ten thousand files, destroyed and brought back by an agent.
#[test]
fn a_repository_that_an_agent_destroyed_comes_back_exactly() {
    let person = Person::with(REPOSITORY);
    let before = person.snapshot();
    let mut agent = Client::start(&mut person.sandbox(["--protocol", "mcp"]));
    agent.initialize(json!({"elicitation": {}}));
    let (said, failed) = agent.tool("Bash", json!({"command": EVERYTHING}));
    assert!(!failed && said.contains("[step 1: "), "{said}");
    assert_eq!(fs::read_dir(person.project()).unwrap().count(), 0);
    let after = person.snapshot();
    for tool in ["undo", "redo", "undo"] {
        let (said, failed) = agent.tool(tool, json!({}));
        assert!(!failed, "{tool}: {said}");
        assert_tree_eq(if tool == "undo" { &before } else { &after }, &person.snapshot());
    }
    common::sh(
        "git fsck --strict && test -z \"$(git --no-optional-locks status --porcelain)\"",
        &person.project(),
    );
    agent.hang_up();
}
