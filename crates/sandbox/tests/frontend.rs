//! Everything a frontend can ask of the binary: the life of a session, commands, the history, and
//! other people's edits.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::os::unix::fs::symlink;

use codeagent_test_support::assert_tree_eq;
use common::client::{Client, frontend};
use common::{Person, eventually, processes_that_name};
use serde_json::{Value, json};

const PROJECT: &str = "mkdir -p src; echo one > a; echo two > src/b; ln -s a link; chmod 600 a";

fn start(person: &Person) -> Client {
    frontend(person, &[], json!({}))
}

/// Runs a command that has to succeed; what it did comes back.
#[track_caller]
fn execute(client: &mut Client, command: &str) -> Value {
    let done = client.ask("agent.execute", json!({"command": command}));
    assert_eq!(done["exit_code"], 0, "{command}: {done}");
    done
}

#[track_caller]
fn refused(client: &mut Client, operation: &str, payload: Value) -> Value {
    let id = client.request(operation, payload);
    let response = client.response(id);
    assert_eq!(response["status"], "error", "{operation}: {response}");
    assert!(response["error"]["message"].is_string(), "{response}");
    response["error"].clone()
}

fn commands(history: &Value, list: &str) -> Vec<String> {
    let text = |entry: &Value| entry["command"].as_str().unwrap_or("barrier").to_owned();
    history[list].as_array().unwrap().iter().map(text).collect()
}

// The life of a session: SL.

/// SL-01
#[test]
fn a_directory_that_cannot_be_used_is_an_error_that_names_it() {
    let person = Person::with("touch file");
    let mut client = Client::start(&mut person.sandbox([] as [&str; 0]));
    for name in ["missing", "file"] {
        let dirs = json!({"working_directories": [{"path": person.path(name)}]});
        let error = refused(&mut client, "session.start", dirs);
        assert_eq!(error["code"], "working_dir_unusable");
        assert!(error["message"].as_str().unwrap().contains(name), "{error}");
    }
    for none in [json!([]), json!(vec![json!({"path": person.project()}); 9])] {
        let error = refused(&mut client, "session.start", json!({"working_directories": none}));
        assert_eq!(error["field"], "payload.working_directories", "{error}");
    }
    assert_eq!(client.ask("session.status", json!({}))["state"], "idle");
    client.hang_up();
}

/// SL-02
#[test]
fn each_of_several_directories_has_its_own_history_and_access() {
    let person = Person::with(PROJECT);
    let other = person.root().join("other");
    let kept = person.root().join("kept");
    fs::create_dir(&other).unwrap();
    fs::create_dir(&kept).unwrap();
    let dirs = json!([
        {"path": person.project(), "label": "main"},
        {"path": other},
        {"path": kept, "access": "read_only"},
    ]);
    let mut client = frontend(&person, &[], json!({"working_directories": dirs}));
    let status = client.ask("session.status", json!({}));
    let labels: Vec<&str> =
        (0..3).map(|nth| status["directories"][nth]["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["main", "other", "kept"]);
    assert_eq!(status["directories"][2]["access"], "read_only");
    assert!(status["directories"][2]["undo"].is_null(), "{status}");

    let script =
        format!("touch new {0}/x; touch {1}/x 2>/dev/null; true", other.display(), kept.display());
    let done = execute(&mut client, &script);
    assert_eq!(done["steps"].as_array().unwrap().len(), 2, "{done}");
    assert!(!kept.join("x").exists());
    client.ask("undo.rollback", json!({"directory": "other"}));
    assert!(!other.join("x").exists() && person.path("new").exists());
    client.ask("undo.rollback", json!({"directory": 0}));
    assert!(!person.path("new").exists());
    let error = refused(&mut client, "undo.rollback", json!({"directory": "kept"}));
    assert_eq!(error["code"], "read_only", "{error}");
    client.hang_up();
}

/// SL-03, SL-04: what commands leave outside the folder stays for the next session, or goes.
#[test]
fn what_commands_leave_elsewhere_stays_only_in_a_persistent_session() {
    let person = Person::with(PROJECT);
    for (mode, stays) in [("persistent", true), ("ephemeral", false)] {
        let mut client = frontend(&person, &[], json!({"vm_mode": mode}));
        execute(&mut client, &format!("echo x > ~/{mode}; echo x > /tmp/{mode}; touch {mode}"));
        client.ask("session.stop", json!({}));
        assert_eq!(client.ask("session.status", json!({}))["state"], "idle");
        let dirs = json!({"working_directories": [{"path": person.project()}], "vm_mode": mode,
            "isolation": "namespace"});
        client.ask("session.start", dirs);
        let looked =
            client.ask("agent.execute", json!({"command": format!("cat ~/{mode} /tmp/{mode}")}));
        assert_eq!(looked["exit_code"] == 0, stays, "{mode}: {looked}");
        // The folder and its history are not part of that.
        assert!(person.path(mode).exists());
        client.ask("undo.rollback", json!({}));
        assert!(!person.path(mode).exists());
        client.hang_up();
    }
}

/// SL-05
#[test]
fn a_reset_forgets_what_commands_left_elsewhere_and_keeps_the_history() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let mut client = start(&person);
    execute(&mut client, "echo x > ~/left; rm a");
    client.ask("session.reset", json!({}));
    let looked = client.ask("agent.execute", json!({"command": "cat ~/left"}));
    assert_ne!(looked["exit_code"], 0, "{looked}");
    client.ask("undo.rollback", json!({}));
    assert_tree_eq(&before, &person.snapshot());
    client.hang_up();
}

/// SL-06: a mode that cannot be had is an error, never another mode.
#[test]
fn an_isolation_that_is_not_there_is_refused_with_a_hint() {
    let person = Person::with(PROJECT);
    let mut client = Client::start(&mut person.sandbox([] as [&str; 0]));
    let dirs = json!({"working_directories": [{"path": person.project()}], "isolation": "vm"});
    let error = refused(&mut client, "session.start", dirs);
    assert_eq!(error["code"], "isolation_unavailable", "{error}");
    assert!(error["hint"].is_string(), "{error}");
    assert_eq!(client.ask("session.status", json!({}))["state"], "idle");
    client.hang_up();
}

/// SL-07: what the session relies on dies, in the middle of a command and between commands.
#[test]
fn a_worker_that_is_lost_is_told_and_replaced() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let mut client = start(&person);
    execute(&mut client, "rm a");
    let server = client.server.id();
    let workers = || {
        let stat = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = format!(") S {server} ");
        let all = processes_that_name("codeagent-worker");
        all.into_iter().filter(|pid| stat(pid).contains(&parent)).collect::<Vec<_>>()
    };
    let [worker] = workers()[..] else { panic!("{:?}", workers()) };
    common::sh(&format!("kill -9 {worker}"), person.root());
    let told = client.event("event.error");
    assert!(told["message"].as_str().unwrap().contains("project"), "{told}");
    client.ask("undo.rollback", json!({}));
    assert_tree_eq(&before, &person.snapshot());

    let id = client.request("agent.execute", json!({"command": "rm a; sleep 4713.5"}));
    eventually("it runs", || processes_that_name("sleep\x004713.5").len() == 1);
    let [worker] = workers()[..] else { panic!("{:?}", workers()) };
    common::sh(&format!("kill -9 {worker}"), person.root());
    client.event("event.error");
    client.ask("request.cancel", json!({"request_id": id}));
    let response = client.response(id);
    assert_eq!(response["status"], "error", "{response}");
    assert_tree_eq(&before, &person.snapshot());
    execute(&mut client, "touch works");
    client.hang_up();
}

/// SL-08
#[test]
fn nothing_is_left_of_a_session_that_stopped() {
    let person = Person::with(PROJECT);
    let mut client = start(&person);
    client.request("agent.execute", json!({"command": "sleep 4714.5 & sleep 4714.5"}));
    eventually("it runs", || processes_that_name("sleep\x004714.5").len() == 2);
    let needle = person.root().file_name().unwrap().to_str().unwrap().to_owned();
    client.ask("session.stop", json!({}));
    eventually("all are gone", || processes_that_name("sleep\x004714.5").is_empty());
    client.hang_up();
    eventually("nobody is left", || processes_that_name(&needle).is_empty());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&needle), "{mounts}");
}

// What an orchestrator does: AO.

#[test]
fn commands_get_their_directory_input_environment_and_time() {
    let person = Person::with(PROJECT);
    let mut client = start(&person);
    let payload = json!({"command": "pwd; cat; echo $WORD; exit 3", "cwd": "src", "stdin": "in\n",
        "env": {"WORD": "hello"}});
    let id = client.request("agent.execute", payload);
    let done = client.response(id)["payload"].clone();
    assert_eq!(done["exit_code"], 3);
    let mut said = String::new();
    while said.matches('\n').count() < 3 {
        said.push_str(client.event("event.terminal_output")["data"].as_str().unwrap());
    }
    assert_eq!(said, format!("{}\nin\nhello\n", person.path("src").display()));

    let slow = client.ask("agent.execute", json!({"command": "sleep 60", "timeout_ms": 200}));
    assert_eq!(slow["timed_out"], true, "{slow}");
    let killed = client.ask("agent.execute", json!({"command": "kill -9 $$"}));
    assert_eq!(killed["signal"], 9, "{killed}");
    for bad in [json!({"command": " "}), json!({"command": "a\u{0}b"}), json!({})] {
        assert_eq!(refused(&mut client, "agent.execute", bad)["field"], "payload.command");
    }
    let outside = refused(&mut client, "agent.execute", json!({"command": "true", "cwd": "../.."}));
    assert_eq!(outside["code"], "path_outside_root", "{outside}");
    client.hang_up();
}

#[test]
fn a_command_that_changes_nothing_is_no_step() {
    let person = Person::with(PROJECT);
    let mut client = start(&person);
    let done = execute(&mut client, "cat a; ls src");
    assert_eq!(done["steps"], json!([]));
    assert_eq!(client.ask("undo.history", json!({}))["entries"], json!([]));
    assert_eq!(refused(&mut client, "undo.rollback", json!({}))["code"], "nothing_to_undo");
    assert_eq!(refused(&mut client, "undo.redo", json!({}))["code"], "nothing_to_redo");
    client.hang_up();
}

/// SA-10, SA-11.
#[test]
fn files_are_read_and_listed_and_nothing_outside_is() {
    let person = Person::with(PROJECT);
    fs::write(person.root().join("victim"), "secret").unwrap();
    symlink(person.root(), person.path("out")).unwrap();
    let mut client = start(&person);
    assert_eq!(client.ask("fs.read", json!({"path": "src/b"}))["content"], "two\n");
    let listing = client.ask("fs.list", json!({}));
    let names: Vec<&str> = listing["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a", "link", "out", "src"]);
    let outside = person.root().join("victim").display().to_string();
    for path in ["../victim", "../../../../etc/passwd", "/etc/passwd", "out/victim", &outside] {
        let error = refused(&mut client, "fs.read", json!({"path": path}));
        assert!(!error.to_string().contains("secret"), "{path}: {error}");
    }
    for path in ["..", "/", "out", "src/../.."] {
        refused(&mut client, "fs.list", json!({"path": path}));
    }
    client.hang_up();
}

#[test]
fn a_transaction_of_several_commands_is_one_step_or_none() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let mut client = start(&person);
    client.ask("step.begin", json!({"label": "refactor"}));
    execute(&mut client, "rm a");
    execute(&mut client, "echo new > src/b");
    let committed = client.ask("step.commit", json!({}));
    assert_eq!(committed["step"]["command"], "refactor\nrm a\necho new > src/b", "{committed}");
    client.ask("undo.rollback", json!({}));
    assert_tree_eq(&before, &person.snapshot());

    client.ask("step.begin", json!({}));
    execute(&mut client, "rm -rf ./*");
    assert_eq!(refused(&mut client, "undo.rollback", json!({}))["code"], "transaction_open");
    client.ask("step.rollback", json!({}));
    assert_tree_eq(&before, &person.snapshot());
    assert_eq!(refused(&mut client, "step.commit", json!({}))["code"], "no_step_open");
    client.hang_up();
}

// The history: UH.

#[test]
fn the_history_is_newest_first_and_survives_the_server() {
    let person = Person::with(PROJECT);
    let before = person.snapshot();
    let mut client = start(&person);
    for name in ["one", "two", "three"] {
        execute(&mut client, &format!("touch {name}"));
    }
    let history = client.ask("undo.history", json!({"limit": 2}));
    assert_eq!(commands(&history, "entries"), ["touch three", "touch two"]);
    assert_eq!(history["entry_count"], 3);
    client.ask("undo.rollback", json!({}));
    client.hang_up();

    let mut client = start(&person);
    let history = client.ask("undo.history", json!({}));
    assert_eq!(commands(&history, "entries"), ["touch two", "touch one"]);
    assert_eq!(commands(&history, "redoable"), ["touch three"]);
    assert_eq!(history["redoable"][0]["added"], 1);
    let done = client.ask("undo.rollback", json!({"count": 2}));
    assert_eq!(done["step_ids"], json!([2, 1]));
    assert_tree_eq(&before, &person.snapshot());
    client.ask("undo.redo", json!({"count": 3}));
    assert!(["one", "two", "three"].iter().all(|name| person.path(name).exists()));
    assert_eq!(
        refused(&mut client, "undo.rollback", json!({"count": 4}))["code"],
        "nothing_to_undo"
    );
    assert!(["one", "two", "three"].iter().all(|name| person.path(name).exists()));
    client.hang_up();
}

#[test]
fn a_step_can_be_previewed_looked_at_restored_from_and_pinned() {
    let person = Person::with(PROJECT);
    let mut client = start(&person);
    execute(&mut client, "echo changed > a; rm src/b; printf '\\0' > binary");
    let preview = client.ask("undo.preview", json!({}));
    assert_eq!((&preview["step_ids"], &preview["change_count"]), (&json!([1]), &json!(3)));
    let diff = client.ask("undo.diff", json!({"step_id": 1}));
    let of = |path: &str| {
        let files = diff["files"].as_array().unwrap();
        files.iter().find(|file| file["path"] == path).unwrap().clone()
    };
    assert!(of("a")["diff"].as_str().unwrap().contains("-one\n+changed\n"), "{diff}");
    assert!(of("binary")["diff"].is_null() && of("binary")["note"].is_string(), "{diff}");

    let restored = client.ask("undo.restore", json!({"step_id": 1, "paths": ["src/b"]}));
    assert_eq!(restored["restored"], json!(["src/b"]));
    assert_eq!((person.read("src/b"), person.read("a")), ("two\n".into(), "changed\n".into()));
    client.ask("undo.pin", json!({"step_id": 1}));
    let history = client.ask("undo.history", json!({}));
    assert_eq!(history["entries"][1]["pinned"], true, "{history}");
    for operation in ["undo.diff", "undo.pin"] {
        assert_eq!(
            refused(&mut client, operation, json!({"step_id": 99}))["code"],
            "step_not_found"
        );
    }
    client.hang_up();
}

#[test]
fn the_history_is_bounded_and_can_be_thrown_away() {
    let person = Person::with(PROJECT);
    let mut client = start(&person);
    let limits = client.ask("undo.configure", json!({"max_step_count": 2}));
    assert_eq!(limits["max_step_count"], 2);
    for name in ["one", "two", "three"] {
        execute(&mut client, &format!("touch {name}"));
    }
    let history = client.ask("undo.history", json!({}));
    assert_eq!(commands(&history, "entries"), ["touch three", "touch two"]);
    client.ask("undo.discard", json!({}));
    assert_eq!(client.ask("undo.history", json!({}))["entries"], json!([]));
    assert!(person.path("three").exists(), "files stay");
    execute(&mut client, "rm one");
    client.ask("undo.rollback", json!({}));
    assert!(person.path("one").exists());
    client.hang_up();
}

// Other people's edits: EB, FW.

fn edit(person: &Person, name: &str, text: &str) {
    fs::write(person.path(name), text).unwrap();
}

/// EB-01..EB-04: told, refused, forced, and in the history.
#[test]
fn an_edit_by_somebody_else_is_told_and_stops_undo_until_that_is_forced() {
    let person = Person::with(PROJECT);
    let mut client = start(&person);
    execute(&mut client, "echo theirs > a; echo theirs > src/b");
    edit(&person, "a", "mine");
    let told = client.event("event.external_modification");
    assert_eq!(told["paths"], json!(["a"]), "{told}");
    let history = client.ask("undo.history", json!({}));
    assert_eq!(history["entries"][0]["type"], "barrier", "{history}");
    assert_eq!(history["entries"][0]["paths"], json!(["a"]));
    assert_eq!(history["entries"][0]["after_step_id"], 1);
    let error = refused(&mut client, "undo.rollback", json!({}));
    assert_eq!(error["code"], "rollback_blocked");
    assert_eq!(error["data"]["conflicts"][0]["path"], "a", "{error}");
    assert_eq!((person.read("a"), person.read("src/b")), ("mine".into(), "theirs\n".into()));

    let done = client.ask("undo.rollback", json!({"force": true}));
    assert!(done["warning"].is_string(), "{done}");
    assert_eq!((person.read("a"), person.read("src/b")), ("one\n".into(), "two\n".into()));
    client.hang_up();
}

/// EB-06
#[test]
fn each_of_several_edits_is_listed_and_the_nearest_stops_undo() {
    let person = Person::with(PROJECT);
    let mut client = start(&person);
    for nth in 1..=2 {
        execute(&mut client, &format!("echo {nth} >> a; echo {nth} > new{nth}"));
        edit(&person, &format!("new{nth}"), "mine");
        assert_eq!(
            client.event("event.external_modification")["paths"],
            json!([format!("new{nth}")])
        );
    }
    let history = client.ask("undo.history", json!({}));
    let kinds: Vec<&str> =
        (0..4).map(|nth| history["entries"][nth]["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["barrier", "command", "barrier", "command"], "{history}");
    let error = refused(&mut client, "undo.rollback", json!({}));
    assert_eq!(error["data"]["conflicts"][0]["path"], "new2", "{error}");
    client.ask("undo.rollback", json!({"skip_conflicts": true}));
    assert_eq!((person.read("new2"), person.read("a")), ("mine".into(), "one\n1\n".into()));
    client.hang_up();
}

/// EB-05, FW: whatever the sandbox itself does is no edit by somebody else.
#[test]
fn what_the_sandbox_does_is_nobody_elses_edit() {
    let person = Person::with(PROJECT);
    let mut client = start(&person);
    execute(
        &mut client,
        "mkdir -p deep/er; echo x > deep/er/file; rm -rf src; echo y > a; mv link moved",
    );
    execute(&mut client, "echo z > deep/er/file; chmod 700 deep; ln a hard");
    client.ask("undo.rollback", json!({"count": 2}));
    client.ask("undo.redo", json!({"count": 2}));
    client.ask("undo.restore", json!({"step_id": 1, "paths": ["a"]}));
    client.ask("step.begin", json!({}));
    execute(&mut client, "rm -rf deep");
    client.ask("step.rollback", json!({}));
    if common::can_use_fuse() {
        let passing = "for i in 1 2 3; do echo $i > tmp$i; mv tmp$i other$i; rm other$i; done";
        client.ask("agent.execute", json!({"command": passing, "view": "live"}));
    }
    // What comes last is told last.
    edit(&person, "mark", "mine");
    assert_eq!(client.event("event.external_modification")["paths"], json!(["mark"]));
    let history = client.ask("undo.history", json!({}));
    let barriers: Vec<&Value> = history["entries"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["type"] == "barrier")
        .collect();
    assert_eq!(barriers.len(), 1, "{history}");
    client.hang_up();
}

/// EB-08
#[test]
fn with_the_policy_warn_edits_are_told_and_undo_goes_on() {
    let person = Person::with(PROJECT);
    let mut client = frontend(&person, &[], json!({"external_modifications": "warn"}));
    execute(&mut client, "echo theirs > a");
    edit(&person, "a", "mine");
    assert_eq!(client.event("event.external_modification")["paths"], json!(["a"]));
    let done = client.ask("undo.rollback", json!({}));
    assert!(done["warning"].is_string(), "{done}");
    assert_eq!(person.read("a"), "one\n");
    client.hang_up();
}

/// EB-09: nobody can be kept out of a folder of the host, and that is said.
#[test]
fn with_the_policy_lock_it_is_said_that_nobody_is_kept_out() {
    let person = Person::with(PROJECT);
    let mut client = frontend(&person, &[], json!({"external_modifications": "lock"}));
    let warning = client.event("event.warning");
    assert!(
        warning["message"].as_str().unwrap().contains("cannot be kept from writing"),
        "{warning}"
    );
    execute(&mut client, "echo theirs > a");
    edit(&person, "a", "mine");
    client.event("event.external_modification");
    assert_eq!(refused(&mut client, "undo.rollback", json!({}))["code"], "rollback_blocked");
    client.hang_up();
}

/// FW: what is excluded is not told, and still not overwritten; no history, no barrier.
#[test]
fn what_is_excluded_from_watching_is_found_by_undo() {
    let person =
        Person::with("mkdir node_modules quiet; echo a > node_modules/a; echo b > quiet/b");
    person.configure("[watch]\nexclude = ['quiet/']\nquiet_ms = 50\n");
    let mut client = start(&person);
    edit(&person, "before", "mine");
    let told = client.event("event.external_modification");
    assert_eq!(told["paths"], json!(["before"]));
    assert_eq!(client.ask("undo.history", json!({}))["entries"], json!([]));

    execute(&mut client, "echo theirs > quiet/b; echo theirs > node_modules/a");
    edit(&person, "quiet/b", "mine");
    edit(&person, "node_modules/a", "mine");
    let told = client.event("event.external_modification");
    assert_eq!(told["paths"], json!(["node_modules/a"]), "the list replaces the usual one");
    let error = refused(&mut client, "undo.rollback", json!({}));
    let conflicts = error["data"]["conflicts"].as_array().unwrap();
    assert!(conflicts.iter().any(|conflict| conflict["path"] == "quiet/b"), "{error}");
    client.hang_up();
}

/// FW: without a watcher nothing is told, and nothing is lost.
#[test]
fn without_a_watcher_undo_finds_the_edits() {
    let person = Person::with(PROJECT);
    person.configure("[watch]\nenabled = false\n");
    let mut client = start(&person);
    execute(&mut client, "echo theirs > a");
    edit(&person, "a", "mine");
    assert_eq!(refused(&mut client, "undo.rollback", json!({}))["code"], "rollback_blocked");
    assert_eq!(person.read("a"), "mine");
    client.hang_up();
}

/// FW: edits in several folders are told by folder.
#[test]
fn edits_are_told_with_the_folder_they_are_in() {
    let person = Person::with(PROJECT);
    let other = person.root().join("other");
    fs::create_dir(&other).unwrap();
    let dirs = json!([{"path": person.project()}, {"path": other}]);
    let mut client = frontend(&person, &[], json!({"working_directories": dirs}));
    fs::write(other.join("x"), "mine").unwrap();
    edit(&person, "y", "mine");
    let mut told: Vec<(String, Value)> = (0..2)
        .map(|_| client.event("event.external_modification"))
        .map(|event| (event["directory"].as_str().unwrap().to_owned(), event["paths"].clone()))
        .collect();
    told.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(told, [("other".into(), json!(["x"])), ("project".into(), json!(["y"]))]);
    client.hang_up();
}

/// EB-07: what a watcher missed is found by looking.
#[test]
fn edits_that_the_watcher_missed_are_found_and_stop_undo() {
    // More than the kernel keeps for whoever does not read.
    const EVENTS: &str = "i=0; while [ $i -lt 9000 ]; do : > n$i; rm n$i; i=$((i+1)); done";
    let person = Person::with("echo one > a");
    let mut client = start(&person);
    execute(&mut client, "echo two > a");
    let pid = client.server.id();
    let others = format!("kill -STOP {pid}; {EVENTS}; echo three > a; kill -CONT {pid}");
    common::sh(&others, &person.project());
    let told = client.event("event.external_modification");
    assert!(told["paths"].as_array().unwrap().contains(&json!("a")), "{told}");
    let error = refused(&mut client, "undo.rollback", json!({}));
    assert_eq!(error["code"], "rollback_blocked", "{error}");
    assert_eq!(person.read("a"), "three\n");
    client.hang_up();
}

/// SG-05, SG-06
#[test]
fn a_frontend_is_asked_before_much_is_overwritten_or_a_file_renamed_over() {
    for (kind, setting, command) in [
        ("overwrite_large", json!({"overwrite_threshold_bytes": 1000}), "echo > large"),
        ("rename_over", json!({"rename_over_existing": true}), "echo > new; mv new large"),
        ("rename_over", json!({"rename_over_existing": true}), "mv a large"),
    ] {
        let person = Person::with("head -c 5000 /dev/zero > large; echo a > a");
        let before = person.snapshot();
        let mut client = start(&person);
        client.ask("safeguard.configure", setting);
        for (answer, is_kept) in [("deny", false), ("allow", true)] {
            let id = client.request("agent.execute", json!({ "command": command }));
            let question = client.event("event.safeguard_triggered");
            assert_eq!(question["kind"], kind);
            assert_tree_eq(&before, &person.snapshot());
            let answer = json!({"safeguard_id": question["safeguard_id"], "action": answer});
            client.ask("safeguard.confirm", answer);
            assert_eq!(client.response(id)["status"] == "ok", is_kept, "{kind}");
        }
        client.ask("undo.rollback", json!({}));
        assert_tree_eq(&before, &person.snapshot());
        client.hang_up();
    }
}

/// Whoever wants to undo beside it learns what is in the way, and is not sent in a circle.
#[test]
fn beside_a_transaction_it_is_said_who_ends_it() {
    let person = Person::with("echo one > a");
    let mut client = start(&person);
    execute(&mut client, "echo two > a");
    client.ask("step.begin", json!({"label": "both"}));
    for arguments in [&["undo"][..], &["undo", "--preview"], &["step", "end"]] {
        let output = person.output(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = common::text(&output.stderr);
        assert!(
            said.starts_with("sandbox: step 2 is a transaction that is still open\n"),
            "{said}"
        );
        assert!(said.contains("hint: whoever began it commits it or rolls it back"), "{said}");
    }
    assert_eq!(refused(&mut client, "undo.rollback", json!({}))["code"], "transaction_open");
    client.ask("step.rollback", json!({}));
    person.ok(&["undo"]);
    assert_eq!(person.read("a"), "one\n");
    client.hang_up();
}
