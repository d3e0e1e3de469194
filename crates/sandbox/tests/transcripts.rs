//! Conversations with the binary as they are on the wire, but for what differs from run to run.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::Person;
use common::client::Client;
use serde_json::{Value, json};

const PROJECT: &str = "mkdir -p src; echo one > a; echo two > src/b";

/// A client that writes down what is said.
struct Recorder<'a> {
    client: Client,
    person: &'a Person,
    transcript: Vec<String>,
}

impl<'a> Recorder<'a> {
    fn new(person: &'a Person, flags: &[&str]) -> Self {
        let client = Client::start(&mut person.sandbox(flags));
        Self { client, person, transcript: Vec::new() }
    }

    fn write_down(&mut self, arrow: char, mut message: Value) {
        level(&mut message);
        let project = self.person.project();
        let text = message.to_string().replace(project.to_str().unwrap(), "/home/me/project");
        self.transcript.push(format!("{arrow} {text}"));
    }

    fn say(&mut self, message: Value) {
        self.client.send(&message);
        self.write_down('→', message);
    }

    /// Says something, and hears everything up to the answer.
    fn ask(&mut self, message: Value, is_answer: impl Fn(&Value) -> bool) -> Value {
        self.say(message);
        loop {
            let heard = self.client.wait_for(|_| true);
            self.write_down('←', heard.clone());
            if is_answer(&heard) {
                return heard;
            }
        }
    }

    fn frontend_asks(&mut self, id: u64, operation: &str, payload: Value) {
        let request = json!({"type": operation, "request_id": id, "payload": payload});
        self.ask(request, |heard| heard["request_id"] == id);
    }

    fn agent_asks(&mut self, id: u64, method: &str, parameters: Value) {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": parameters});
        self.ask(request, |heard| heard["id"] == id);
    }

    fn agent_calls(&mut self, id: u64, tool: &str, arguments: Value) {
        self.agent_asks(id, "tools/call", json!({"name": tool, "arguments": arguments}));
    }

    fn end(self) -> String {
        self.client.hang_up();
        self.transcript.join("\n")
    }
}

/// What is another number at another time, or on another machine.
const NUMBERS: [&str; 6] =
    ["started_at_ms", "finished_at_ms", "duration_ms", "stored_bytes", "held_bytes", "free_bytes"];

fn level(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                match name.as_str() {
                    name if NUMBERS.contains(&name) => *field = json!(0),
                    "undo_directory" => *field = json!("/home/me/.codeagent/undo/project"),
                    "warnings" => *field = json!([]),
                    _ => level(field),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(level),
        Value::String(text) => level_text(text),
        _ => {}
    }
}

/// The same for text with JSON, or with warnings, in it.
fn level_text(text: &mut String) {
    if let Ok(mut value @ Value::Object(_)) = serde_json::from_str(text) {
        level(&mut value);
        *text = value.to_string();
    } else {
        let lines: Vec<&str> =
            text.split_inclusive('\n').filter(|line| !line.starts_with("Warning: ")).collect();
        *text = lines.concat();
    }
}

#[test]
fn a_frontend() {
    let person = Person::with(PROJECT);
    let mut recorder = Recorder::new(&person, &[]);
    let start = json!({
        "working_directories": [{"path": person.project()}],
        "isolation": "namespace",
    });
    recorder.frontend_asks(1, "protocol.hello", json!({"protocol_version": 1}));
    recorder.frontend_asks(2, "agent.execute", json!({"command": "true"}));
    recorder.frontend_asks(3, "session.start", start);
    recorder.frontend_asks(4, "agent.execute", json!({"command": "echo bye; rm -r a src"}));
    recorder.frontend_asks(5, "undo.preview", json!({}));
    recorder.frontend_asks(6, "undo.rollback", json!({"count": 1}));
    recorder.frontend_asks(7, "undo.history", json!({}));
    recorder.frontend_asks(8, "fs.read", json!({"path": "src/b"}));
    recorder.frontend_asks(9, "fs.read", json!({"path": "../home"}));
    recorder.frontend_asks(10, "undo.rollback", json!({"count": 1}));
    recorder.frontend_asks(11, "session.stop", json!({}));
    insta::assert_snapshot!(recorder.end());
}

#[test]
fn an_agent() {
    let person = Person::with(PROJECT);
    let mut recorder = Recorder::new(&person, &["--protocol", "mcp"]);
    let hello = json!({
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    });
    recorder.agent_asks(1, "initialize", hello);
    recorder.say(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    recorder.agent_calls(2, "Bash", json!({"command": "echo bye; rm -r a src; exit 3"}));
    recorder.agent_calls(3, "undo", json!({}));
    recorder.agent_calls(4, "undo", json!({}));
    recorder.agent_calls(5, "read_file", json!({"file_path": "src/b"}));
    recorder.agent_calls(6, "read_file", json!({"file_path": "../home"}));
    let edit = json!({"file_path": "a", "old_string": "one", "new_string": "1"});
    recorder.agent_calls(7, "edit_file", edit);
    recorder.agent_calls(8, "get_undo_history", json!({}));
    recorder.agent_calls(9, "dance", json!({}));
    recorder.agent_calls(10, "discard_undo_history", json!({}));
    insta::assert_snapshot!(recorder.end());
}
