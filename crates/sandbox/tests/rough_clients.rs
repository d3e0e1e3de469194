//! Clients that say nonsense, do not read, or go away in the middle, on every protocol of the binary.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use codeagent_test_support::{TreeSnapshot, assert_tree_eq};
use common::malformed::{Requests, malformed_lines};
use common::{Person, eventually, eventually_within, resident_bytes, text};
use serde_json::{Value, json};

const PROJECT: &str = "mkdir -p src; echo one > a; echo two > src/b; ln -s a link; chmod 600 a";

const LINES: usize = 10_000;

/// A test build prints ten megabytes a second, if it has a processor to itself.
const PATIENCE: Duration = Duration::from_secs(180);

/// Whatever clients do, the server needs no more than this on top.
const MAX_GROWTH_BYTES: u64 = 64 << 20;

/// Both ways of a connection; nothing is read unless somebody wants it.
struct Connection<W> {
    input: W,
    output: BufReader<Box<dyn std::io::Read + Send>>,
    last_id: u64,
}

impl<W> Connection<W> {
    fn new(input: W, output: impl std::io::Read + Send + 'static) -> Self {
        Self { input, output: BufReader::new(Box::new(output)), last_id: 1_000_000 }
    }

    /// The next message. Nothing but the protocol may be there.
    #[track_caller]
    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"));
        assert!(message.is_object(), "{message}");
        message
    }

    /// Everything up to the first message of which this is true, and that one.
    #[track_caller]
    fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> (Vec<Value>, Value) {
        let mut others = Vec::new();
        loop {
            let message = self.next();
            if wanted(&message) {
                return (others, message);
            }
            others.push(message);
        }
    }
}

impl<W: Write> Connection<W> {
    fn send(&mut self, message: &Value) {
        self.input.write_all(format!("{message}\n").as_bytes()).unwrap();
    }

    fn request(&mut self, operation: &str, payload: &Value) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({"type": operation, "request_id": id, "payload": payload}));
        id
    }

    /// Asks a frontend's question; it has to be met.
    #[track_caller]
    fn ask(&mut self, operation: &str, payload: &Value) -> Value {
        let id = self.request(operation, payload);
        let (_, response) = self.until(|message| message["request_id"] == id);
        assert_eq!(response["status"], "ok", "{response}");
        response["payload"].clone()
    }

    fn call(&mut self, method: &str, parameters: &Value) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": parameters}));
        id
    }

    /// Asks an agent's question; it has to be met.
    #[track_caller]
    fn answer(&mut self, method: &str, parameters: &Value) -> Value {
        let id = self.call(method, parameters);
        let (_, answer) = self.until(|message| message["id"] == id);
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"].clone()
    }

    #[track_caller]
    fn tool(&mut self, name: &str, arguments: &Value) -> String {
        let result = self.answer("tools/call", &json!({"name": name, "arguments": arguments}));
        assert_ne!(result["isError"], true, "{result}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }

    fn initialize(&mut self) {
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "rough", "version": "0"}});
        self.answer("initialize", &hello);
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }
}

type Pipes = Connection<ChildStdin>;

/// The server, and the log that it writes.
struct Server {
    process: Child,
    log: std::thread::JoinHandle<String>,
    _watched: Sender<()>,
}

/// Ends a server that says nothing more, so that nobody waits for it, until the result is dropped.
fn watch(pid: u32) -> Sender<()> {
    let (watched, dropped) = channel::<()>();
    std::thread::spawn(move || {
        if dropped.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            common::sh(&format!("kill -KILL {pid}"), std::path::Path::new("/"));
        }
    });
    watched
}

impl Server {
    fn start(person: &Person, flags: &[&str]) -> (Self, Pipes) {
        let mut command = person.sandbox(flags);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let connection = Connection::new(
            process.stdin.take().unwrap(),
            process.stdout.take().unwrap() as ChildStdout,
        );
        let stderr = process.stderr.take().unwrap();
        let log = std::thread::spawn(|| std::io::read_to_string(stderr).unwrap());
        let _watched = watch(process.id());
        (Self { process, log, _watched }, connection)
    }

    fn memory_bytes(&self) -> u64 {
        resident_bytes(self.process.id())
    }

    /// Its end, which has to be a good one, and a log of nothing but JSON.
    #[track_caller]
    fn ends(mut self) {
        eventually("the server ends", || self.process.try_wait().unwrap().is_some());
        assert!(self.process.wait().unwrap().success());
        for line in self.log.join().unwrap().lines() {
            let logged: Value = serde_json::from_str(line).expect(line);
            assert!(logged["timestamp"].is_string() && logged["level"].is_string(), "{line}");
        }
    }
}

/// A frontend with a session in the project, and maybe a socket for agents.
fn frontend(person: &Person, flags: &[&str]) -> (Server, Pipes) {
    let (server, mut frontend) = Server::start(person, flags);
    let directories = json!([{"path": person.project()}]);
    let start = json!({"working_directories": directories, "isolation": "namespace"});
    frontend.ask("session.start", &start);
    (server, frontend)
}

fn agent(person: &Person) -> (Server, Pipes) {
    let (server, mut agent) = Server::start(person, &["--protocol", "mcp"]);
    agent.initialize();
    (server, agent)
}

fn agent_on_socket(socket: &std::path::Path) -> Connection<UnixStream> {
    let mut stream = UnixStream::connect(socket).unwrap();
    let token = fs::read_to_string(format!("{}.token", socket.display())).unwrap();
    write!(stream, "token {token}").unwrap();
    let mut agent = Connection::new(stream.try_clone().unwrap(), stream);
    agent.initialize();
    agent
}

fn requests_of_frontends() -> Requests {
    let request =
        |name: &str, payload: Value| json!({"type": name, "request_id": 7, "payload": payload});
    Requests {
        harmful: vec![
            request("agent.execute", json!({"command": "rm -rf ./* .[!.]*; touch harm"})),
            request("session.stop", json!({})),
        ],
        harmless: vec![
            request("session.status", json!({})),
            request("undo.history", json!({"limit": 10, "directory": 0})),
            request("undo.rollback", json!({"count": 3})),
            request("undo.preview", json!({"count": 1, "limit": 5})),
            request("fs.read", json!({"path": "a", "offset": 1, "limit": 1})),
            request("fs.list", json!({"path": "src", "depth": 1})),
            request("safeguard.confirm", json!({"safeguard_id": "sg_9", "action": "deny"})),
            request("request.cancel", json!({"request_id": 4})),
            request("protocol.hello", json!({"protocol_version": 1})),
        ],
        name: "type",
        max_line_bytes: 1 << 20,
    }
}

fn requests_of_agents() -> Requests {
    let request = |name: &str, arguments: Value| {
        let call = json!({"name": name, "arguments": arguments});
        json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call})
    };
    Requests {
        harmful: vec![
            request("Bash", json!({"command": "rm -rf ./* .[!.]*; touch harm"})),
            request("write_file", json!({"file_path": "a", "content": "harm"})),
        ],
        harmless: vec![
            request("read_file", json!({"file_path": "a", "offset": 1, "limit": 1})),
            request("list_directory", json!({"path": "src"})),
            request("grep", json!({"pattern": "one", "-C": 3, "head_limit": 2})),
            request("glob", json!({"pattern": "*"})),
            request("undo", json!({"steps": 2})),
            request("Bash", json!({"handle": "bash_9"})),
            json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list"}),
            json!({"jsonrpc": "2.0", "id": 7, "method": "ping"}),
        ],
        name: "method",
        // That of the library.
        max_line_bytes: 16 << 20,
    }
}

/// Sends all lines while the answers are read up to that of a good request behind them; the
/// answers come back.
fn say_nonsense<W: Write + Send>(
    connection: &mut Connection<W>,
    requests: &Requests,
    good: &Value,
    is_answer: impl Fn(&Value) -> bool,
) -> Vec<Value> {
    let input = &mut connection.input;
    let output = &mut connection.output;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for mut line in malformed_lines(requests, LINES) {
                line.push(b'\n');
                input.write_all(&line).unwrap();
            }
            input.write_all(format!("{good}\n").as_bytes()).unwrap();
        });
        let mut answers = Vec::new();
        loop {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            let message: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"));
            if is_answer(&message) {
                return answers;
            }
            answers.push(message);
        }
    })
}

/// SA-12, on the binary.
#[test]
fn ten_thousand_malformed_lines_of_a_frontend_do_no_harm() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let (server, mut frontend) = frontend(&person, &[]);
    let memory = server.memory_bytes();

    let good = json!({"type": "fs.read", "request_id": "good", "payload": {"path": "a"}});
    let is_answer = |message: &Value| message["request_id"] == "good";
    let mut answers = say_nonsense(&mut frontend, &requests_of_frontends(), &good, is_answer);
    // Of requests that run side by side, some may be answered after the good one.
    while answers.len() < LINES {
        answers.push(frontend.next());
    }

    assert!(answers.iter().all(|answer| answer["type"] == "response"));
    let refused = answers.iter().filter(|answer| answer["status"] == "error").count();
    assert!(refused > LINES * 6 / 10, "only {refused} were refused");
    assert_eq!(frontend.ask("undo.history", &json!({}))["entries"], json!([]));
    let growth = server.memory_bytes().saturating_sub(memory);
    assert!(growth < MAX_GROWTH_BYTES, "it takes {growth} bytes more");
    drop(frontend);
    server.ends();
    assert_tree_eq(&before, &person.snapshot());
}

#[track_caller]
fn nonsense_of_an_agent_does_no_harm<W: Write + Send>(
    server: &Server,
    agent: &mut Connection<W>,
    (person, before): (&Person, &TreeSnapshot),
) {
    let memory = server.memory_bytes();
    let good = json!({"jsonrpc": "2.0", "id": "good", "method": "tools/call",
        "params": {"name": "read_file", "arguments": {"file_path": "a"}}});
    let is_answer = |message: &Value| message["id"] == "good";
    let answers = say_nonsense(agent, &requests_of_agents(), &good, is_answer);

    assert!(answers.iter().all(|answer| answer["jsonrpc"] == "2.0"));
    let history = agent.tool("get_undo_history", &json!({}));
    assert!(history.contains("\"entry_count\":0"), "{history}");
    let growth = server.memory_bytes().saturating_sub(memory);
    assert!(growth < MAX_GROWTH_BYTES, "it takes {growth} bytes more");
    assert_tree_eq(before, &person.snapshot());
}

#[test]
fn ten_thousand_malformed_lines_of_an_agent_do_no_harm() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let (server, mut agent) = agent(&person);
    nonsense_of_an_agent_does_no_harm(&server, &mut agent, (&person, &before));
    drop(agent);
    server.ends();
}

#[test]
fn ten_thousand_malformed_lines_on_the_socket_do_no_harm() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let socket = person.root().join("mcp.sock");
    let (server, mut frontend) = frontend(&person, &["--mcp-socket", socket.to_str().unwrap()]);
    let mut agent = agent_on_socket(&socket);
    nonsense_of_an_agent_does_no_harm(&server, &mut agent, (&person, &before));
    frontend.ask("session.status", &json!({}));
    drop((agent, frontend));
    server.ends();
}

/// Two hundred megabytes of output, and a file.
const MUCH: &str = "head -c 200000000 /dev/zero | tr '\\0' x; touch done";

/// SA-09, on the binary.
#[test]
fn a_frontend_that_stops_reading_holds_up_nobody() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let socket = person.root().join("mcp.sock");
    let (server, mut frontend) = frontend(&person, &["--mcp-socket", socket.to_str().unwrap()]);
    let mut agent = agent_on_socket(&socket);
    let memory = server.memory_bytes();

    let id = frontend.request("agent.execute", &json!({"command": MUCH}));
    assert!(agent.tool("read_file", &json!({"file_path": "a"})).contains("one"));
    eventually_within(PATIENCE, "the command ends", || person.path("done").exists());
    agent.tool("Bash", &json!({"command": "touch beside"}));
    let growth = server.memory_bytes().saturating_sub(memory);
    assert!(growth < MAX_GROWTH_BYTES, "it takes {growth} bytes more");

    let (events, response) = frontend.until(|message| message["request_id"] == id);
    assert_eq!(response["payload"]["exit_code"], 0, "{response}");
    assert_eq!(response["payload"]["steps"][0]["added"], 1, "{response}");
    let is = |name: &'static str| move |event: &&Value| event["type"] == name;
    assert!(events.iter().any(|event| is("event.lagged")(&event)));
    let heard: usize = events
        .iter()
        .filter(is("event.terminal_output"))
        .map(|event| event["payload"]["data"].as_str().unwrap().len())
        .sum();
    assert!((1 << 20..100 << 20).contains(&heard), "{heard}");
    assert_eq!(events.iter().filter(is("event.step_completed")).count(), 1);
    frontend.ask("undo.rollback", &json!({"count": 2}));
    assert_tree_eq(&before, &person.snapshot());
    drop((agent, frontend));
    server.ends();
}

/// Answers of a hundred megabytes that nobody reads.
#[test]
fn an_agent_that_stops_reading_costs_bounded_memory() {
    const CALLS: usize = 4_000;
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let (server, mut agent) = agent(&person);
    let memory = server.memory_bytes();

    let bash = json!({"command": MUCH, "run_in_background": true});
    assert!(agent.tool("Bash", &bash).contains("bash_1"));
    let mut input = agent.input;
    let asking = std::thread::spawn(move || {
        for call in 0..CALLS {
            let list = json!({"jsonrpc": "2.0", "id": call, "method": "tools/list"});
            writeln!(input, "{list}").unwrap();
        }
        input
    });
    eventually_within(PATIENCE, "the command ends", || person.path("done").exists());
    let growth = server.memory_bytes().saturating_sub(memory);
    assert!(growth < MAX_GROWTH_BYTES, "it takes {growth} bytes more");

    let mut agent = Connection { input: (), output: agent.output, last_id: agent.last_id };
    let mut listed = vec![0; CALLS];
    while listed.contains(&0) {
        let answer = agent.next();
        listed[usize::try_from(answer["id"].as_u64().unwrap()).unwrap()] += 1;
    }
    assert!(listed.iter().all(|times| *times == 1));
    let mut agent =
        Connection { input: asking.join().unwrap(), output: agent.output, last_id: agent.last_id };
    let said = agent.tool("Bash", &json!({"handle": "bash_1"}));
    assert!(said.contains("\n… [199970000 bytes left out] …\n"), "{said}");
    assert!(said.ends_with("1 added; undo takes it back]"), "{said}");
    agent.tool("undo", &json!({}));
    assert_tree_eq(&before, &person.snapshot());
    drop(agent);
    server.ends();
}

/// What it did until then is a step, as after a cancel.
const ENDLESS: &str = "echo new > new; while :; do echo still here; sleep 0.01; done";

#[track_caller]
fn what_was_done_is_a_step(person: &Person, before: &TreeSnapshot) {
    assert_eq!(person.read("new"), "new\n");
    person.ok(&["undo"]);
    assert_tree_eq(before, &person.snapshot());
}

#[test]
fn a_frontend_that_closes_its_side_ends_the_server() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let (server, mut frontend) = frontend(&person, &[]);
    frontend.request("agent.execute", &json!({"command": ENDLESS}));
    frontend.until(|message| message["type"] == "event.terminal_output");
    // Its requests stay open.
    let Connection { input, output, .. } = frontend;
    drop(output);
    server.ends();
    drop(input);
    what_was_done_is_a_step(&person, &before);
}

#[test]
fn an_agent_that_closes_its_side_ends_the_server() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let (server, mut agent) = agent(&person);
    let bash = json!({"name": "Bash", "arguments": {"command": ENDLESS},
        "_meta": {"progressToken": 1}});
    agent.call("tools/call", &bash);
    agent.until(|message| message["params"]["message"] == "still here");
    let Connection { mut input, output, .. } = agent;
    drop(output);
    // The answer to this finds nobody.
    writeln!(input, "{}", json!({"jsonrpc": "2.0", "id": 1, "method": "ping"})).unwrap();
    server.ends();
    drop(input);
    what_was_done_is_a_step(&person, &before);
}

/// Logs are for whoever wants them; that nobody does, holds up nothing.
#[test]
fn a_client_that_does_not_read_the_log_is_served_all_the_same() {
    let person = Person::with(PROJECT);
    let mut command = person.sandbox([] as [&str; 0]);
    command.env("RUST_LOG", "trace");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let _watched = watch(process.id());
    let mut frontend =
        Connection::new(process.stdin.take().unwrap(), process.stdout.take().unwrap());
    let directories = json!([{"path": person.project()}]);
    let start = json!({"working_directories": directories, "isolation": "namespace"});
    frontend.ask("session.start", &start);
    // More than a pipe holds.
    let long = format!("true {}", "x".repeat(100_000));
    for _ in 0..3 {
        assert_eq!(frontend.ask("agent.execute", &json!({"command": long}))["exit_code"], 0);
    }
    drop(frontend);
    eventually("the server ends", || process.try_wait().unwrap().is_some());
    let log = text(&{
        let mut log = Vec::new();
        std::io::Read::read_to_end(&mut process.stderr.take().unwrap(), &mut log).unwrap();
        log
    });
    assert!(log.lines().next().unwrap().contains("serving"));
}
