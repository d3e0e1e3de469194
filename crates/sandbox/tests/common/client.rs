//! A client of a server, line by line.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

/// Nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(180);

/// The server, and what it says.
pub(crate) struct Client {
    pub(crate) server: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
    /// What was read and not wanted.
    others: VecDeque<Value>,
    last_id: u64,
}

impl Client {
    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = command.spawn().unwrap();
        let input = server.stdin.take();
        let lines = read_lines(server.stdout.take().unwrap());
        Self { server, input, lines, others: VecDeque::new(), last_id: 0 }
    }

    pub(crate) fn send(&mut self, message: &Value) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{message}").unwrap();
        input.flush().unwrap();
    }

    /// The first message of which this is true.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, mut wanted: impl FnMut(&Value) -> bool) -> Value {
        if let Some(at) = self.others.iter().position(&mut wanted) {
            return self.others.remove(at).unwrap();
        }
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| {
                panic!("it did not come; others: {:?}", self.others);
            });
            if wanted(&line) {
                return line;
            }
            self.others.push_back(line);
        }
    }

    /// Asks a frontend's question, without waiting for the answer.
    pub(crate) fn request(&mut self, operation: &str, payload: Value) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({"type": operation, "request_id": id, "payload": payload}));
        id
    }

    #[track_caller]
    pub(crate) fn response(&mut self, id: u64) -> Value {
        self.wait_for(|line| line["type"] == "response" && line["request_id"] == id)
    }

    #[track_caller]
    pub(crate) fn event(&mut self, name: &str) -> Value {
        self.wait_for(|line| line["type"] == name)["payload"].clone()
    }

    /// Asks a frontend's question; it has to be met.
    #[track_caller]
    pub(crate) fn ask(&mut self, operation: &str, payload: Value) -> Value {
        let id = self.request(operation, payload);
        let response = self.response(id);
        assert_eq!(response["status"], "ok", "{operation}: {response}");
        response["payload"].clone()
    }

    /// Says hello, as agents do.
    #[track_caller]
    pub(crate) fn initialize(&mut self, capabilities: Value) -> Value {
        let parameters = json!({
            "protocolVersion": "2025-06-18",
            "capabilities": capabilities,
            "clientInfo": {"name": "test", "version": "0"},
        });
        let id = self.call("initialize", parameters);
        let answer = self.answer(id);
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        answer
    }

    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": parameters}));
        id
    }

    #[track_caller]
    pub(crate) fn answer(&mut self, id: u64) -> Value {
        self.wait_for(|line| line["id"] == id)["result"].clone()
    }

    /// What a tool says, and whether it failed.
    #[track_caller]
    pub(crate) fn tool(&mut self, name: &str, arguments: Value) -> (String, bool) {
        let id = self.call("tools/call", json!({"name": name, "arguments": arguments}));
        let result = self.answer(id);
        let text = result["content"][0]["text"].as_str().unwrap_or_default().to_owned();
        (text, result["isError"] == true)
    }

    /// Everything that was read and not wanted.
    pub(crate) fn passed_over(&self) -> impl Iterator<Item = &Value> {
        self.others.iter()
    }

    /// Says no more, and waits for the server's end. What it logged comes back.
    pub(crate) fn hang_up(mut self) -> String {
        drop(self.input.take());
        let output = self.server.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        super::text(&output.stderr)
    }
}

pub(crate) fn read_lines(from: impl std::io::Read + Send + 'static) -> Receiver<Value> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // Nothing but the protocol may be there.
            let _ = sender.send(serde_json::from_str(&line).unwrap_or(Value::String(line)));
        }
    });
    lines
}

/// A frontend with a session in the project.
#[track_caller]
pub(crate) fn frontend(person: &super::Person, flags: &[&str], session: Value) -> Client {
    let mut client = Client::start(&mut person.sandbox(flags));
    let mut start = json!({
        "working_directories": [{"path": person.project()}],
        "isolation": "namespace",
    });
    for (key, value) in session.as_object().into_iter().flatten() {
        start[key] = value.clone();
    }
    let isolation = start["isolation"].clone();
    let status = client.ask("session.start", start);
    assert_eq!((&status["state"], &status["isolation"]), (&json!("running"), &isolation));
    client
}
