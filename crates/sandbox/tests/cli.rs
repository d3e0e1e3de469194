//! `sandbox` as people, scripts and agent clients call it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use codeagent_interceptor::{EngineConfig, StepRequest, UndoEngine};
use codeagent_mount::{Report, Signal, Supervised, Unmounted};
use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{Applier, TempWorkspace, TreeSnapshot, assert_tree_eq};
use codeagent_worker::{Settings, WorkerSpec};
use serde_json::Value;

fn sandbox(arguments: &[&str], undo: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandbox"));
    command.args(arguments).arg("--undo-dir").arg(undo).stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

/// A folder with a mount, served by a worker of the `sandbox` binary.
struct Mounted {
    workspace: TempWorkspace,
    point: tempfile::TempDir,
    stop: Sender<Signal>,
    mount: Option<JoinHandle<Unmounted>>,
}

impl Mounted {
    fn start(test: &str) -> Option<Self> {
        if let Err(error) = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            skip(test, &format!("/dev/fuse cannot be used: {error}"));
            return None;
        }
        let workspace = TempWorkspace::with_fixture(|root| {
            fs::write(root.join("kept"), "kept").unwrap();
            fs::write(root.join("changed"), "old").unwrap();
        });
        let point = tempfile::tempdir().unwrap();
        let settings = Settings::new(workspace.working(), workspace.undo());
        let mut spec = WorkerSpec::new(settings).unwrap();
        spec.program = PathBuf::from(env!("CARGO_BIN_EXE_sandbox"));
        let (stop, signals) = channel();
        let supervised = Supervised::new(spec, point.path(), 4, stop.clone());
        let (mounted, wait) = channel();
        let mount = std::thread::spawn(move || {
            let mut report = |report: Report<'_>| {
                if matches!(report, Report::Mounted(_)) {
                    let _ = mounted.send(()); // only the first time does somebody wait
                }
            };
            supervised.run(&signals, &mut report).unwrap()
        });
        wait.recv().unwrap();
        Some(Self { workspace, point, stop, mount: Some(mount) })
    }

    fn run(&self, arguments: &[&str]) -> Output {
        sandbox(arguments, self.workspace.undo()).output().unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        text(&output.stdout)
    }

    fn hook(&self, message: &str, arguments: &[&str]) -> Output {
        let mut command = sandbox(&["hook"], self.workspace.undo());
        command.args(arguments).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(message.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.point.path().join(name)
    }

    fn unmount(&mut self) {
        let Some(mount) = self.mount.take() else { return };
        self.stop.send(Signal::Stop).unwrap();
        assert_eq!(mount.join().unwrap(), Unmounted::Cleanly);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.unmount();
        } else if let Some(mount) = self.mount.take() {
            let _ = self.stop.send(Signal::Stop);
            let _ = mount.join();
        }
    }
}

#[test]
fn steps_begin_and_end_by_command_and_are_undone_and_redone_through_the_mount() {
    let test = "steps_begin_and_end_by_command_and_are_undone_and_redone_through_the_mount";
    let Some(mut mounted) = Mounted::start(test) else { return };
    let before = mounted.workspace.snapshot();
    assert_eq!(mounted.ok(&["step", "begin", "--label", "make things"]), "step 1 has begun\n");
    fs::write(mounted.path("new"), "new").unwrap();
    fs::write(mounted.path("changed"), "new").unwrap();
    assert!(mounted.ok(&["history"]).contains("1  is open"));
    assert_eq!(mounted.ok(&["step", "end"]), "step 1 ended: 1 added, 1 modified\n");
    let after = mounted.workspace.snapshot();
    let history = mounted.ok(&["history"]);
    assert!(history.contains("make things  [1 added, 1 modified]"), "{history}");

    let preview = mounted.ok(&["undo", "--preview"]);
    assert_eq!(preview, "undoing step 1 would change:\n  ~ changed\n  - new\n");
    assert_tree_eq(&after, &mounted.workspace.snapshot());
    assert!(mounted.ok(&["undo"]).starts_with("undone: step 1"));
    assert_tree_eq(&before, &mounted.workspace.snapshot());
    assert_tree_eq(&before, &TreeSnapshot::capture(mounted.point.path()));
    assert!(mounted.ok(&["history"]).contains("(undone)"));
    assert!(mounted.ok(&["redo"]).starts_with("redone: step 1"));
    assert_tree_eq(&after, &TreeSnapshot::capture(mounted.point.path()));

    // And without a mount, too.
    mounted.unmount();
    assert!(mounted.ok(&["undo"]).starts_with("undone: step 1"));
    assert_tree_eq(&before, &mounted.workspace.snapshot());
}

#[test]
fn a_step_that_nobody_ended_ends_when_the_next_begins() {
    let test = "a_step_that_nobody_ended_ends_when_the_next_begins";
    let Some(mounted) = Mounted::start(test) else { return };
    mounted.ok(&["step", "begin", "--label", "one"]);
    fs::write(mounted.path("one"), "").unwrap();
    let said = mounted.ok(&["step", "begin", "--label", "two"]);
    assert_eq!(said, "step 1 ended: 1 added\nstep 2 has begun\n");
    fs::write(mounted.path("two"), "").unwrap();
    let ended = json(&mounted.run(&["step", "end", "--exit-code", "3", "--json"]));
    assert_eq!(ended["closed"]["recorded"]["step"]["exit_code"], 3);
    let history = json(&mounted.run(&["history", "--json"]));
    let labels: Vec<&str> = history["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["command"].as_str().unwrap())
        .collect();
    assert_eq!(labels, ["two", "one"]);
    assert!(mounted.ok(&["undo", "2"]).starts_with("undone: steps 2, 1"));
    let nothing = mounted.run(&["step", "end"]);
    assert_eq!(nothing.status.code(), Some(1));
    let said = text(&nothing.stderr);
    assert_eq!(said, "sandbox: no step is open\nhint: begin one with `sandbox step begin`\n");
}

#[test]
fn hooks_of_agent_clients_make_one_step_of_each_call() {
    let test = "hooks_of_agent_clients_make_one_step_of_each_call";
    let Some(mut mounted) = Mounted::start(test) else { return };
    let before =
        r#"{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{"command":"touch x"}}"#;
    let after = r#"{"hook_event_name":"PostToolUse","tool_name":"Bash","tool_response":"ok"}"#;
    for name in ["x", "y"] {
        let said = mounted.hook(before, &[]);
        assert!(said.status.success() && said.stdout.is_empty(), "{said:?}");
        fs::write(mounted.path(name), "").unwrap();
        assert!(mounted.hook(after, &[]).status.success());
    }
    // Nothing is open any more; a client that stops says so all the same.
    assert!(mounted.hook(r#"{"hook_event_name":"Stop"}"#, &[]).status.success());
    assert!(mounted.hook(r#"{"hook_event_name":"Notification"}"#, &[]).status.success());
    let history = json(&mounted.run(&["history", "--json"]));
    let entries = history["history"].as_array().unwrap();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0]["command"], "Bash: touch x");

    assert!(!mounted.hook("not a message", &[]).status.success());
    mounted.unmount();
    assert_eq!(mounted.hook(before, &[]).status.code(), Some(1));
    assert_eq!(mounted.hook(before, &["--require"]).status.code(), Some(2));
}

/// An undo log with one step, which nobody holds.
fn one_step() -> TempWorkspace {
    let workspace =
        TempWorkspace::with_fixture(|root| fs::write(root.join("file"), "old").unwrap());
    let engine =
        UndoEngine::open(EngineConfig::new(workspace.working(), workspace.undo())).unwrap();
    let applier = Applier::new(&engine, workspace.working());
    engine.open_step(StepRequest::command("edit")).unwrap();
    applier.write("file", 0, b"new").unwrap();
    engine.close_step(Some(0)).unwrap();
    workspace
}

#[test]
fn what_others_changed_is_not_overwritten_unasked() {
    let workspace = one_step();
    fs::write(workspace.path("file"), "mine").unwrap();
    let output = sandbox(&["undo"], workspace.undo()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("changes made outside the sandbox would be overwritten: file"), "{said}");
    assert!(said.contains("hint: ") && said.contains("--skip-conflicts"), "{said}");
    assert_eq!(fs::read_to_string(workspace.path("file")).unwrap(), "mine");

    let error = json(&sandbox(&["undo", "--json"], workspace.undo()).output().unwrap());
    assert_eq!(error["error"]["code"], "rollback_blocked");
    assert_eq!(error["error"]["conflicts"][0]["path"], "file");

    let preview = sandbox(&["undo", "--preview"], workspace.undo()).output().unwrap();
    assert!(text(&preview.stdout).contains("it would be refused"));
    assert!(sandbox(&["undo", "--force"], workspace.undo()).status().unwrap().success());
    assert_eq!(fs::read_to_string(workspace.path("file")).unwrap(), "old");
    assert!(sandbox(&["redo"], workspace.undo()).status().unwrap().success());
    assert_eq!(fs::read_to_string(workspace.path("file")).unwrap(), "mine");
}

#[test]
fn a_log_that_somebody_else_holds_without_listening_is_left_alone() {
    let workspace = one_step();
    let _engine =
        UndoEngine::open(EngineConfig::new(workspace.working(), workspace.undo())).unwrap();
    let output = sandbox(&["undo", "--json"], workspace.undo()).output().unwrap();
    assert_eq!(json(&output)["error"]["code"], "undo_locked");
}

#[test]
fn wrong_directories_are_named_and_nothing_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    for (arguments, undo) in
        [(&["history"][..], &missing), (&["undo"], &missing), (&["step", "begin"], &missing)]
    {
        let output = sandbox(arguments, undo).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("there is no undo log in"), "{output:?}");
        assert!(text(&output.stderr).contains("hint: "));
    }
    assert!(!missing.exists());
    let workspace = one_step();
    let output = sandbox(&["step", "begin"], workspace.undo()).output().unwrap();
    assert!(text(&output.stderr).contains("nothing is being recorded"), "{output:?}");
    for nonsense in
        [&["undo", "0"][..], &["undo", "-1"], &["frobnicate"], &["undo", "--preview", "--force"]]
    {
        assert_eq!(sandbox(nonsense, workspace.undo()).output().unwrap().status.code(), Some(2));
    }
    assert_eq!(fs::read_to_string(workspace.path("file")).unwrap(), "new");
}

#[test]
fn only_a_call_that_begins_is_refused() {
    let workspace = TempWorkspace::new();
    drop(UndoEngine::open(EngineConfig::new(workspace.working(), workspace.undo())).unwrap());
    for (event, expected) in [("PreToolUse", 2), ("PostToolUse", 1), ("Stop", 1), ("Other", 0)] {
        let mut hook = sandbox(&["hook", "--require"], workspace.undo());
        hook.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = hook.spawn().unwrap();
        let message = format!(r#"{{"hook_event_name":"{event}"}}"#);
        child.stdin.take().unwrap().write_all(message.as_bytes()).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(expected), "{event}");
    }
}

#[test]
fn a_name_in_an_error_cannot_command_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let output = sandbox(&["history"], &folder.path().join("a\u{1b}[2Jb")).output().unwrap();
    assert!(!output.status.success());
    assert!(!output.stderr.contains(&0x1b), "{output:?}");
}

#[test]
fn a_process_that_does_not_answer_is_not_waited_for() {
    let workspace = one_step();
    let socket = workspace.undo().join(codeagent_interceptor::SOCKET);
    let _silent = std::os::unix::net::UnixListener::bind(socket).unwrap();
    let output = sandbox(&["undo", "--json"], workspace.undo()).output().unwrap();
    assert_eq!(json(&output)["error"]["code"], "not_served");
    assert_eq!(fs::read_to_string(workspace.path("file")).unwrap(), "new");
}
