//! The binary as a server: of frontends, of agents, and of both at once.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use codeagent_test_support::assert_tree_eq;
use common::client::{Client, read_lines};
use common::{Person, eventually, processes_that_name};
use serde_json::{Value, json};

const PROJECT: &str = "mkdir -p src; echo one > a; echo two > src/b; ln -s a link; chmod 600 a";

fn frontend(person: &Person, flags: &[&str]) -> Client {
    common::client::frontend(person, flags, json!({}))
}

fn agent(person: &Person) -> Client {
    let mut client = Client::start(&mut person.sandbox(["--protocol", "mcp"]));
    let hello = client.initialize(json!({}));
    assert_eq!(hello["serverInfo"]["name"], "codeagent-sandbox");
    assert!(hello["instructions"].as_str().unwrap().contains("Isolation: namespace"));
    client
}

/// AO-01, UH-01.
#[test]
fn what_a_frontends_command_destroys_comes_back() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let mut client = frontend(&person, &[]);
    let id = client.request("agent.execute", json!({"command": "echo said; rm -rf ./*"}));
    assert_eq!(client.event("event.terminal_output")["data"], "said\n");
    let step = client.event("event.step_completed");
    assert_eq!((&step["request_id"], &step["exit_code"]), (&json!(id), &json!(0)));
    let executed = client.response(id)["payload"].clone();
    assert_eq!(executed["steps"][0]["deleted"], 3);
    assert_eq!(fs::read_dir(person.project()).unwrap().count(), 0);

    let preview = client.ask("undo.preview", json!({}));
    assert_eq!(preview["change_count"], 3);
    client.ask("undo.rollback", json!({}));
    assert_tree_eq(&before, &person.snapshot());
    let history = client.ask("undo.history", json!({}));
    assert_eq!(history["redoable"][0]["command"], "echo said; rm -rf ./*");
    client.ask("undo.redo", json!({}));
    assert_eq!(fs::read_dir(person.project()).unwrap().count(), 0);
    client.hang_up();
}

/// SA-07, SA-08, OB-01, OB-02, OB-03, OB-04: stdout is the protocol, stderr are the logs.
#[test]
fn logs_are_json_lines_that_say_who_when_and_for_which_request() {
    let person = Person::with(PROJECT);
    let mut client = frontend(&person, &[]);
    let id = client.request("agent.execute", json!({"command": "touch new"}));
    let step = client.response(id)["payload"]["steps"][0]["step_id"].clone();
    for line in client.passed_over() {
        assert!(line.is_object() && line["level"].is_null(), "{line}");
        assert!(line["component"].is_null(), "{line}");
    }
    let log = client.hang_up();
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    for line in &lines {
        assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
        assert!(line["component"].is_string(), "{line}");
    }
    let ended = lines.iter().find(|line| line["message"] == "a step has ended").unwrap();
    assert_eq!((&ended["request_id"], &ended["step_id"]), (&json!(id.to_string()), &step));
    // What goes over a protocol is not in the log.
    assert!(lines.iter().all(|line| line["type"].is_null()), "{log}");
    assert!(!log.contains("step_started") && !log.contains("session.start"), "{log}");
}

/// OB-05
#[test]
fn logs_say_as_much_as_is_wanted() {
    let person = Person::with(PROJECT);
    for (level, is_told) in [("info", true), ("warn", false), ("off", false)] {
        let mut server = person.sandbox(["--protocol", "mcp"]);
        let mut agent = Client::start(server.env("RUST_LOG", level));
        agent.initialize(json!({}));
        let log = agent.hang_up();
        assert_eq!(log.contains("\"level\":\"INFO\""), is_told, "{level}: {log}");
    }
}

/// SG-01, SG-02, SG-03, SG-09: asked before anything is done, and nothing is done if the answer is no.
#[test]
fn a_frontend_is_asked_before_much_is_deleted() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let mut client = frontend(&person, &[]);
    client.ask("safeguard.configure", json!({"delete_threshold": 2, "timeout_seconds": 60}));
    for (answer, is_kept) in [("deny", false), ("allow", true)] {
        let id = client.request("agent.execute", json!({"command": "rm -rf a src"}));
        let question = client.event("event.safeguard_triggered");
        assert_eq!(question["kind"], "delete_count");
        assert_tree_eq(&before, &person.snapshot());
        let waiting = client.ask("session.status", json!({}))["safeguards"].clone();
        assert_eq!(waiting[0]["safeguard_id"], question["safeguard_id"]);
        let answer = json!({"safeguard_id": question["safeguard_id"], "action": answer});
        client.ask("safeguard.confirm", answer);
        let response = client.response(id);
        assert_eq!(response["status"] == "ok", is_kept, "{response}");
        assert_eq!(!person.path("a").exists(), is_kept);
    }
    let unknown =
        client.request("safeguard.confirm", json!({"safeguard_id": "x", "action": "deny"}));
    assert_eq!(client.response(unknown)["error"]["code"], "safeguard_unknown");
    client.hang_up();
}

#[test]
fn a_cancelled_command_and_one_whose_frontend_has_gone_take_everything_with_them() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let mut client = frontend(&person, &[]);
    let sleepers = |nap: &str| processes_that_name(&format!("sleep\0{nap}"));
    for nap in ["4711.5", "4712.5"] {
        let line = format!("touch new; sleep {nap} & sleep {nap}");
        let id = client.request("agent.execute", json!({"command": line}));
        eventually("it runs", || sleepers(nap).len() == 2);
        if nap == "4711.5" {
            client.ask("request.cancel", json!({"request_id": id}));
            let response = client.response(id);
            assert_eq!(response["payload"]["cancelled"], true, "{response}");
            client.ask("undo.rollback", json!({}));
            assert_tree_eq(&before, &person.snapshot());
        }
    }
    client.hang_up();
    eventually("they are gone", || sleepers("4711.5").is_empty() && sleepers("4712.5").is_empty());
}

#[test]
fn without_a_session_a_frontend_learns_that_it_has_to_start_one() {
    let person = Person::new();
    let mut client = Client::start(&mut person.sandbox([] as [&str; 0]));
    let id = client.request("agent.execute", json!({"command": "true"}));
    assert_eq!(client.response(id)["error"]["code"], "no_session");
    let id = client.request(
        "session.start",
        json!({"working_directories": [{"path": person.path("missing")}]}),
    );
    assert_eq!(client.response(id)["error"]["code"], "working_dir_unusable");
    let id = client.request("agent.prompt", json!({"prompt": "hello"}));
    assert_eq!(client.response(id)["error"]["code"], "no_session");
    client.hang_up();
}

#[test]
fn the_configured_agent_gets_prompts_and_works_in_the_sandbox() {
    let person = Person::with(PROJECT);
    person.configure("[agent]\ncommand = [\"sh\", \"-c\", \"echo heard $0; rm a\"]\n");
    let mut client = frontend(&person, &[]);
    let id = client.request("agent.prompt", json!({"prompt": "you"}));
    assert_eq!(client.event("event.agent_output")["data"], "heard you\n");
    assert_eq!(client.response(id)["payload"]["steps"][0]["deleted"], 1);
    client.ask("undo.rollback", json!({}));
    assert_eq!(person.read("a"), "one\n");
    client.hang_up();
}

#[test]
fn what_an_agents_command_destroys_comes_back() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let mut agent = agent(&person);
    let (said, failed) = agent.tool("Bash", json!({"command": "cd src && rm -rf ../*; echo gone"}));
    assert!(said.starts_with("gone\n[step 1: 3 deleted"), "{said}");
    assert!(!failed);
    assert_eq!(fs::read_dir(person.project()).unwrap().count(), 0);
    let (said, failed) = agent.tool("undo", json!({}));
    assert!(said.starts_with("Undid step 1."), "{said}");
    assert!(!failed);
    assert_tree_eq(&before, &person.snapshot());
    agent.hang_up();
}

/// MC-08: an agent that cannot ask its user has no answer but no.
#[test]
fn an_agents_user_is_asked_before_much_is_deleted() {
    let person = Person::with(PROJECT);
    person.configure("[safeguards]\ndelete_threshold = 2\n");
    let before = person.snapshot();
    for (answer, is_kept) in [(None, false), (Some(false), false), (Some(true), true)] {
        let mut agent = Client::start(&mut person.sandbox(["--protocol", "mcp"]));
        agent.initialize(answer.map_or(json!({}), |_| json!({"elicitation": {}})));
        let bash = json!({"name": "Bash", "arguments": {"command": "rm -rf a src"}});
        let id = agent.call("tools/call", bash);
        if let Some(answer) = answer {
            let question = agent.wait_for(|line| line["method"] == "elicitation/create");
            assert_tree_eq(&before, &person.snapshot());
            let result = json!({"action": "accept", "content": {"confirm": answer}});
            agent.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result}));
        }
        let result = agent.answer(id);
        assert_eq!(result["isError"] != true, is_kept, "{result}");
        assert_eq!(!person.path("a").exists(), is_kept);
        agent.hang_up();
    }
}

#[test]
fn an_agents_shell_stays_where_it_was_and_its_output_is_its_own() {
    let person = Person::with(PROJECT);
    let mut agent = agent(&person);
    let (said, _) = agent.tool("Bash", json!({"command": "cd src; false"}));
    assert_eq!(said, "(no output)\n[exit code 1]");
    let (said, _) = agent.tool("Bash", json!({"command": "pwd; printf x; exit 3"}));
    assert_eq!(said, format!("{}\nx\n[exit code 3]", person.path("src").display()));
    // A directory that is not there any more is left.
    person.run("rm -rf src");
    let (said, _) = agent.tool("Bash", json!({"command": "pwd"}));
    assert_eq!(said, person.project().display().to_string());
    agent.hang_up();
}

#[test]
fn file_tools_make_steps_and_reach_nothing_outside() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let victim = person.root().join("victim");
    fs::write(&victim, "untouched").unwrap();
    let mut agent = agent(&person);
    let (said, _) = agent.tool("write_file", json!({"file_path": "new/c", "content": "three\n"}));
    assert!(said.contains("+three") && said.contains("[step 1: "), "{said}");
    let edit = json!({"file_path": "new/c", "old_string": "three", "new_string": "four"});
    let (said, _) = agent.tool("edit_file", edit);
    assert!(said.contains("+four") && said.contains("[step 2: 1 modified"), "{said}");
    for path in ["../victim", victim.to_str().unwrap()] {
        let write = json!({"file_path": path, "content": "changed"});
        assert!(agent.tool("write_file", write).1);
        assert!(agent.tool("read_file", json!({"file_path": path})).1);
    }
    let protected = json!({"file_path": ".envrc", "content": "evil"});
    let (said, failed) = agent.tool("write_file", protected);
    assert!(failed && said.contains("path_protected"), "{said}");
    let (said, failed) = agent.tool("undo", json!({"steps": 2}));
    assert!(!failed, "{said}");
    assert_tree_eq(&before, &person.snapshot());
    assert_eq!(fs::read_to_string(victim).unwrap(), "untouched");
    agent.hang_up();
}

/// An edit by hand between a step and its undo.
#[test]
fn an_agents_undo_overwrites_nobodys_edit() {
    let person = Person::with(PROJECT);
    let mut agent = agent(&person);
    agent.tool("Bash", json!({"command": "echo theirs > a; rm src/b"}));
    fs::write(person.path("a"), "mine").unwrap();
    let (said, failed) = agent.tool("undo", json!({}));
    assert!(failed && said.contains("rollback_blocked") && said.contains("\"a\""), "{said}");
    let (said, failed) = agent.tool("undo", json!({"skip_conflicts": true}));
    assert!(!failed, "{said}");
    assert_eq!(person.read("a"), "mine");
    assert_eq!(person.read("src/b"), "two\n");
    agent.hang_up();
}

/// An agent on the socket.
struct OnSocket {
    stream: UnixStream,
    lines: std::sync::mpsc::Receiver<Value>,
}

impl OnSocket {
    fn connect(socket: &std::path::Path, capabilities: Value) -> Self {
        eventually("there is a token", || token_of(socket).exists());
        let mut stream = UnixStream::connect(socket).unwrap();
        let lines = read_lines(stream.try_clone().unwrap());
        let token = fs::read_to_string(token_of(socket)).unwrap();
        write!(stream, "token {token}").unwrap();
        let mut agent = Self { stream, lines };
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": capabilities,
            "clientInfo": {"name": "test", "version": "0"}});
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello});
        agent.say(&hello);
        agent.lines.recv().unwrap();
        agent.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        agent
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.stream, "{message}").unwrap();
    }

    fn call(&mut self, id: u64, tool: &str, arguments: Value) {
        let call = json!({"name": tool, "arguments": arguments});
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": call}));
    }
}

/// Neither answers for the other.
#[test]
fn an_agent_is_asked_about_its_own_commands_only() {
    if !common::can_use_fuse() {
        let test = "an_agent_is_asked_about_its_own_commands_only";
        return codeagent_test_support::filesystems::skip(test, "/dev/fuse cannot be used");
    }
    let person = Person::with(PROJECT);
    person.configure("[safeguards]\ndelete_threshold = 2\n");
    let before = person.snapshot();
    let socket = person.root().join("mcp.sock");
    let flags = ["--protocol", "mcp", "--mcp-socket", socket.to_str().unwrap()];
    let mut mute = Client::start(&mut person.sandbox(flags));
    mute.initialize(json!({}));
    let mut asking = OnSocket::connect(&socket, json!({"elicitation": {}}));
    let destroy = json!({"command": "rm -rf a src"});

    // One that cannot ask has a command running, and does not say no for the other.
    let long = |nap: &str| json!({"command": format!("sleep {nap}"), "run_in_background": true});
    mute.tool("Bash", long("4721.5"));
    eventually("it runs", || processes_that_name("sleep\x004721.5").len() == 1);
    asking.call(2, "Bash", destroy.clone());
    let question = asking.lines.recv().unwrap();
    assert_eq!(question["method"], "elicitation/create", "{question}");
    assert_tree_eq(&before, &person.snapshot());
    let yes = json!({"action": "accept", "content": {"confirm": true}});
    asking.say(&json!({"jsonrpc": "2.0", "id": question["id"], "result": yes}));
    let said = asking.lines.recv().unwrap();
    assert!(said["id"] == 2 && said["result"]["isError"] != true, "{said}");
    assert!(!person.path("a").exists());
    let (said, failed) = mute.tool("undo", json!({}));
    assert!(!failed, "{said}");
    assert_tree_eq(&before, &person.snapshot());

    // One that can ask has a command running, and is not asked about the other's.
    mute.tool("Bash", json!({"handle": "bash_1", "stop": true}));
    asking.call(3, "Bash", long("4722.5"));
    asking.lines.recv().unwrap();
    eventually("it runs", || processes_that_name("sleep\x004722.5").len() == 1);
    let (said, failed) = mute.tool("Bash", destroy);
    assert!(failed && said.contains("safeguard_denied"), "{said}");
    assert_tree_eq(&before, &person.snapshot());
    asking.say(&json!({"jsonrpc": "2.0", "id": 4, "method": "ping"}));
    let pong = asking.lines.recv().unwrap();
    assert_eq!(pong["id"], 4, "{pong}");
    mute.hang_up();
}

/// MC-06, MC-07: one history, whoever asks.
#[test]
fn agents_on_the_socket_share_the_session_of_the_frontend() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let socket = person.root().join("mcp.sock");
    let mut client = frontend(&person, &["--mcp-socket", socket.to_str().unwrap()]);
    let token_file = token_of(&socket);
    for private in [&socket, &token_file] {
        assert_eq!(fs::metadata(private).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let status = client.ask("session.status", json!({}));
    assert_eq!(status["mcp_socket"], socket.to_str().unwrap());

    let mut agent = OnSocket::connect(&socket, json!({}));
    agent.call(2, "Bash", json!({"command": "rm -rf ./*"}));
    let said = agent.lines.recv().unwrap();
    assert!(said["result"]["content"][0]["text"].as_str().unwrap().contains("[step 1: "), "{said}");

    let history = client.ask("undo.history", json!({}));
    assert_eq!(history["entries"][0]["command"], "rm -rf ./*");
    client.ask("undo.rollback", json!({}));
    assert_tree_eq(&before, &person.snapshot());

    let mut stranger = UnixStream::connect(&socket).unwrap();
    let nothing = read_lines(stranger.try_clone().unwrap());
    writeln!(stranger, "token wrong").unwrap();
    assert!(nothing.recv().is_err(), "it is sent away");
    client.hang_up();
    assert!(!socket.exists() && !token_file.exists());
}

#[test]
fn a_socket_that_is_in_use_is_an_error_with_a_hint() {
    let person = Person::with(PROJECT);
    let socket = person.root().join("mcp.sock");
    let flags = ["--mcp-socket", socket.to_str().unwrap()];
    let first = frontend(&person, &flags);
    let output = person.sandbox(flags).stdin(std::process::Stdio::piped()).output().unwrap();
    let said = common::text(&output.stderr);
    assert!(
        !output.status.success() && said.contains("another program serves the socket"),
        "{said}"
    );
    assert!(said.contains("hint: name another one with --mcp-socket"), "{said}");
    first.hang_up();
}

/// What begins and ends with a live view is not what file tools work with.
#[test]
fn file_tools_work_after_and_beside_background_commands() {
    if !common::can_use_fuse() {
        let test = "file_tools_work_after_and_beside_background_commands";
        return codeagent_test_support::filesystems::skip(test, "/dev/fuse cannot be used");
    }
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let mut agent = agent(&person);
    let background = |line: &str| json!({"command": line, "run_in_background": true});
    agent.tool("Bash", background("true"));
    agent.tool("Bash", json!({"handle": "bash_1"}));
    let (said, failed) = agent.tool("write_file", json!({"file_path": "n", "content": "1"}));
    assert!(!failed, "{said}");
    let (said, _) = agent.tool("Bash", background("sleep 4718.5"));
    assert!(said.contains("bash_2"), "{said}");
    eventually("it runs", || processes_that_name("sleep\x004718.5").len() == 1);
    for nth in 0..3 {
        let write = json!({"file_path": "n", "content": format!("again {nth}")});
        let (said, failed) = agent.tool("write_file", write);
        assert!(!failed, "{said}");
    }
    agent.tool("Bash", json!({"handle": "bash_2", "stop": true}));
    let (said, failed) = agent.tool("write_file", json!({"file_path": "n", "content": "last"}));
    assert!(!failed, "{said}");
    let (said, failed) = agent.tool("undo", json!({"steps": 5}));
    assert!(!failed, "{said}");
    assert_tree_eq(&before, &person.snapshot());
    agent.hang_up();
}

/// Background commands wait for the step of a file tool, with whatever they hold in the kernel; the
/// file tool waits for nothing that they hold.
#[test]
fn file_tools_and_background_commands_do_not_wait_for_each_other() {
    if !common::can_use_fuse() {
        let test = "file_tools_and_background_commands_do_not_wait_for_each_other";
        return codeagent_test_support::filesystems::skip(test, "/dev/fuse cannot be used");
    }
    const MAPS: &str = "import mmap
f = open('mapped', 'w+b'); f.truncate(65536); m = mmap.mmap(f.fileno(), 65536)
while True:
    for at in range(0, 65536, 4096): m[at] = (m[at] + 1) % 256";
    let person = Person::with(PROJECT);
    fs::write(person.path("maps.py"), MAPS).unwrap();
    let before = person.snapshot();
    let mut agent = agent(&person);
    let renames = "mkdir moving; cd moving; mkdir a; while :; do mv a b; mv b a; done";
    for line in [renames, "python3 maps.py", "while :; do echo line >> log; done"] {
        agent.tool("Bash", json!({"command": line, "run_in_background": true}));
    }
    eventually("they run", || person.path("log").exists() && person.path("mapped").exists());
    for nth in 0..15 {
        let name = format!("made{}/{nth}", nth % 7);
        let (said, failed) = agent.tool("write_file", json!({"file_path": name, "content": "x"}));
        assert!(!failed, "{said}");
        let (said, failed) = agent.tool("Bash", json!({"command": format!("echo y >> {name}")}));
        assert!(!failed && said.contains("1 modified"), "{said}");
    }
    for handle in ["bash_1", "bash_2", "bash_3"] {
        agent.tool("Bash", json!({"handle": handle, "stop": true}));
    }
    agent.hang_up();
    let history = person.json(&["history"]);
    let history = history["history"].as_array().unwrap();
    let steps = history.iter().filter(|entry| entry["type"] == "step").count().to_string();
    person.ok(&["undo", &steps]);
    assert_tree_eq(&before, &person.snapshot());
}

/// Quiet moments and other commands end the steps of one that runs in the background.
#[test]
fn all_steps_of_a_background_command_are_told_with_their_folder() {
    if !common::can_use_fuse() {
        let test = "all_steps_of_a_background_command_are_told_with_their_folder";
        return codeagent_test_support::filesystems::skip(test, "/dev/fuse cannot be used");
    }
    let person = Person::with(PROJECT);
    let other = person.root().join("other");
    fs::create_dir(&other).unwrap();
    let mut command = person.sandbox(["--protocol", "mcp", "--working-dir"]);
    command.arg(person.project()).arg("--working-dir").arg(&other);
    let mut agent = Client::start(&mut command);
    agent.initialize(json!({}));
    // One operation: a `touch` would go on after the file is there.
    let line = ": > one; until test -e go; do sleep 0.01; done; touch two ../other/three";
    agent.tool("Bash", json!({"command": line, "run_in_background": true}));
    eventually("it has begun", || person.path("one").exists());
    let (said, failed) = agent.tool("Bash", json!({"command": "touch go"}));
    assert!(!failed && said.contains("[step 1 in project: 1 added"), "{said}");
    assert!(said.contains("; undo with directory \"project\" takes it back]"), "{said}");
    let (said, failed) = agent.tool("Bash", json!({"handle": "bash_1"}));
    assert!(!failed, "{said}");
    let steps: Vec<&str> = said.lines().filter(|line| line.starts_with("[step ")).collect();
    assert_eq!(
        steps,
        [
            "[step -1 in project: 1 added]",
            "[step -2 in project: 1 added; undo with directory \"project\" takes steps back, the newest first]",
            "[step -1 in other: 1 added; undo with directory \"other\" takes it back]",
        ],
        "{said}"
    );
    agent.hang_up();
}

#[test]
fn texts_of_tools_say_which_file_and_what_is_wrong() {
    let person = Person::with(PROJECT);
    let mut agent = agent(&person);
    agent.tool("Bash", json!({"command": "echo 1 > a; echo 2 > src/b; echo 3 > c; rm link"}));
    let (said, _) = agent.tool("diff_step", json!({"step": 1}));
    for header in
        ["--- a/a\n+++ b/a\n@@", "--- a/src/b\n+++ b/src/b\n@@", "--- /dev/null\n+++ b/c\n@@"]
    {
        assert!(said.contains(header), "{said}");
    }
    let (said, _) = agent.tool("grep", json!({"pattern": "a("}));
    assert_eq!(
        said,
        "the pattern is wrong: unclosed group (invalid_field)\n\
         Hint: put a backslash before what is meant as it stands, as in `a\\(`"
    );
    let (said, _) = agent.tool("undo", json!({"steps": "two"}));
    assert!(said.starts_with("the parameter `steps` is wrong: invalid type"), "{said}");
    agent.hang_up();
}

#[test]
fn file_tools_plant_nothing_that_git_obeys() {
    let person = Person::with(PROJECT);
    let mut agent = agent(&person);
    for name in ["vendor/.git/config", ".gitmodules", "t/.git", ".git/commondir"] {
        let write = json!({"file_path": name, "content": "[core]\n\tfsmonitor = evil\n"});
        let (said, failed) = agent.tool("write_file", write);
        assert!(failed && said.contains("path_protected"), "{name}: {said}");
        assert!(!person.path(name).exists(), "{name}");
    }
    agent.hang_up();
}

#[test]
fn a_cancelled_command_that_waits_for_its_turn_never_runs() {
    let person = Person::with(PROJECT);
    let mut client = frontend(&person, &[]);
    let first = client.request("agent.execute", json!({"command": "sleep 4719.5"}));
    eventually("it runs", || processes_that_name("sleep\x004719.5").len() == 1);
    let second = client.request("agent.execute", json!({"command": "echo x > never"}));
    client.ask("request.cancel", json!({"request_id": second}));
    let response = client.response(second);
    assert_eq!(response["error"]["code"], "cancelled", "{response}");
    client.ask("request.cancel", json!({"request_id": first}));
    client.response(first);
    assert!(!person.path("never").exists());
    client.hang_up();
}

/// Where the token of a socket is.
fn token_of(socket: &Path) -> PathBuf {
    format!("{}.token", socket.display()).into()
}

#[test]
fn sockets_that_differ_in_their_extension_have_a_token_each() {
    let person = Person::with(PROJECT);
    let sockets = ["a.sock", "a.other"].map(|name| person.root().join(name));
    let servers = sockets.each_ref().map(|socket| {
        let server = frontend(&person, &["--mcp-socket", socket.to_str().unwrap()]);
        assert!(token_of(socket).exists());
        server
    });
    let [one, other] = sockets.each_ref().map(|socket| fs::read(token_of(socket)).unwrap());
    assert_ne!(one, other);
    let [first, second] = servers;
    first.hang_up();
    assert!(!token_of(&sockets[0]).exists() && token_of(&sockets[1]).exists());
    second.hang_up();
    assert!(!token_of(&sockets[1]).exists());
}

#[test]
fn a_socket_takes_the_place_of_nothing_else() {
    let person = Person::with("echo x > file; echo y > file.token; echo z > other.token");
    for name in ["file", "other"] {
        let socket = person.path(name);
        let output = person.output(&["--mcp-socket", socket.to_str().unwrap()]);
        let said = common::text(&output.stderr);
        assert!(!output.status.success() && said.contains("hint: "), "{said}");
    }
    assert_eq!((person.read("file"), person.read("file.token")), ("x\n".into(), "y\n".into()));
    assert_eq!(person.read("other.token"), "z\n");
    assert!(!person.path("other").exists());
}

#[test]
fn exit_codes_are_no_signals_and_edits_made_meanwhile_are_told() {
    let person = Person::with(PROJECT);
    let mut client = frontend(&person, &[]);
    let done = client.ask("agent.execute", json!({"command": "exit 255"}));
    assert_eq!((&done["exit_code"], &done["signal"]), (&json!(255), &Value::Null), "{done}");
    let line = "echo theirs >> a; touch ready; sleep 1.4723";
    let id = client.request("agent.execute", json!({"command": line}));
    eventually("it runs", || processes_that_name("sleep\x001.4723").len() == 1);
    fs::write(person.path("a"), "mine\n").unwrap();
    let done = client.response(id)["payload"].clone();
    assert_eq!(done["changed_meanwhile"], json!(["a"]), "{done}");
    client.ask("undo.rollback", json!({}));
    assert_eq!(person.read("a"), "mine\n");
    client.hang_up();
}
