//! Commands on the machine itself: nothing contains them, and yet what they do to the folder is
//! recorded, through a mount of the folder over itself.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::process::Stdio;

use codeagent_test_support::assert_tree_eq;
use codeagent_test_support::filesystems::skip;
use common::client::{Client, frontend};
use common::{Person, can_use_fuse, eventually, processes_that_name, text};
use serde_json::json;

const PROJECT: &str = "mkdir -p src; echo one > a; echo two > src/b; ln -s a link; chmod 600 a";
const HOST: [&str; 2] = ["--isolation", "host"];

/// Somebody with a project, if the folder can be mounted.
fn person(test: &str) -> Option<Person> {
    let possible = can_use_fuse() && rustix::process::geteuid().is_root();
    if !possible {
        skip(test, "nothing can be mounted here");
    }
    possible.then(|| Person::with(PROJECT))
}

#[track_caller]
fn assert_nothing_is_mounted(person: &Person) {
    let name = person.root().file_name().unwrap().to_str().unwrap();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(name), "{mounts}");
}

#[test]
fn what_a_command_on_the_host_destroys_comes_back() {
    let test = "what_a_command_on_the_host_destroys_comes_back";
    let Some(person) = person(test) else { return };
    let before = person.snapshot();
    let script = "pwd; echo x > new; mv src moved; printf more >> a; rm link; echo $HOME >&2";
    let output = person.run_with(&HOST, script);
    assert_eq!(text(&output.stdout), format!("{}\n", person.project().display()));
    let said = text(&output.stderr);
    // It is the person's own home.
    assert!(said.contains(person.home().to_str().unwrap()), "{said}");
    assert!(said.contains("NO ISOLATION") && said.contains("undo it with: sandbox undo"), "{said}");
    let after = person.snapshot();
    person.ok(&["undo"]);
    assert_tree_eq(&before, &person.snapshot());
    person.ok(&["redo"]);
    assert_tree_eq(&after, &person.snapshot());
    person.ok(&["undo"]);
    person.run_with(&HOST, "rm -rf ./* .[!.]* 2>/dev/null; true");
    assert_eq!(fs::read_dir(person.project()).unwrap().count(), 0);
    person.ok(&["undo"]);
    assert_tree_eq(&before, &person.snapshot());
    assert_nothing_is_mounted(&person);
}

#[test]
fn killed_on_the_host_the_folder_is_as_before_and_the_next_session_works() {
    let test = "killed_on_the_host_the_folder_is_as_before_and_the_next_session_works";
    let Some(person) = person(test) else { return };
    let before = person.snapshot();
    for nap in ["4715.5", "4716.5"] {
        let script = format!("rm -rf src a; sleep {nap}");
        let mut run = person.sandbox(["run", "--isolation", "host", "--", "sh", "-c", &script]);
        let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let naps = || processes_that_name(&format!("sleep\0{nap}"));
        eventually("it runs", || naps().len() == 1);
        run.kill().unwrap();
        run.wait().unwrap();
        eventually("it is gone", || naps().is_empty());
        match nap {
            "4715.5" => drop(person.run_with(&HOST, "true")),
            // Also without isolation being asked for at all.
            _ => drop(person.run("true")),
        }
        assert_tree_eq(&before, &person.snapshot());
        assert_nothing_is_mounted(&person);
    }
}

#[test]
fn commands_on_the_host_share_the_mount_and_a_stop_takes_it_away() {
    let test = "commands_on_the_host_share_the_mount_and_a_stop_takes_it_away";
    let Some(person) = person(test) else { return };
    let before = person.snapshot();
    let mut client = frontend(&person, &[], json!({"isolation": "host"}));
    let status = client.ask("session.status", json!({}));
    assert!(status["warnings"].to_string().contains("nothing contains them"), "{status}");
    let done = client.ask("agent.execute", json!({"command": "rm a"}));
    assert_eq!(done["steps"][0]["deleted"], 1, "{done}");
    assert!(done["not_undoable"].is_null(), "{done}");
    // Somebody works in the folder while it is mounted, and does not leave.
    let id = client.request("agent.execute", json!({"command": "rm link; sleep 4717.5"}));
    eventually("it runs", || processes_that_name("sleep\x004717.5").len() == 1);
    let guest = std::process::Command::new("sleep").arg("60").current_dir(person.project()).spawn();
    let mut guest = guest.unwrap();
    client.ask("request.cancel", json!({"request_id": id}));
    client.response(id);
    let done = client.ask("agent.execute", json!({"command": "echo new > src/b"}));
    assert_eq!(done["steps"][0]["modified"], 1, "{done}");
    client.ask("undo.rollback", json!({"count": 3}));
    assert_tree_eq(&before, &person.snapshot());
    client.hang_up();
    assert_nothing_is_mounted(&person);
    guest.kill().unwrap();
    guest.wait().unwrap();
}

/// Somebody stands in the folder when the process dies that serves it.
#[test]
fn a_session_on_the_host_outlives_the_worker_of_its_mount() {
    let test = "a_session_on_the_host_outlives_the_worker_of_its_mount";
    let Some(person) = person(test) else { return };
    let undo = person.root().join("history");
    let folders = json!([{"path": person.project(), "undo_directory": undo}]);
    let mut client =
        frontend(&person, &[], json!({"isolation": "host", "working_directories": folders}));
    let id = client.request("agent.execute", json!({"command": "rm link; sleep 4719.5"}));
    eventually("it runs", || processes_that_name("sleep\x004719.5").len() == 1);
    let stays = std::process::Command::new("sleep").arg("60").current_dir(person.project()).spawn();
    let mut stays = stays.unwrap();
    client.ask("request.cancel", json!({"request_id": id}));
    client.response(id);
    let worker = codeagent_worker::Client::connect(&undo).unwrap().hello().unwrap().pid;
    let worker = i32::try_from(worker).ok().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(worker, rustix::process::Signal::KILL).unwrap();
    let done = client.ask("agent.execute", json!({"command": "rm a"}));
    assert_eq!(done["steps"][0]["deleted"], 1, "{done}");
    assert!(done["not_undoable"].is_null(), "{done}");
    client.ask("undo.rollback", json!({}));
    assert_eq!(person.read("a"), "one\n");
    client.hang_up();
    assert_nothing_is_mounted(&person);
    stays.kill().unwrap();
    stays.wait().unwrap();
}

/// Whoever may not mount works unrecorded, and is told so each time.
#[test]
fn where_nothing_can_be_mounted_it_is_said_that_nothing_can_be_undone() {
    let test = "where_nothing_can_be_mounted_it_is_said_that_nothing_can_be_undone";
    let Some(person) = person(test) else { return };
    // The device is not there in a mount namespace of its own.
    let script = "mount --bind /dev/null /dev/fuse && exec \"$@\"";
    let output = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh", common::PROGRAM, "run", "--isolation", "host"])
        .args(["--", "sh", "-c", "rm a; echo ran; echo it runs now >&2"])
        .current_dir(person.project())
        .env("HOME", person.home())
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!(text(&output.stdout), "ran\n", "{said}");
    // Once, and before it begins.
    let (before, after) = said.split_once("it runs now\n").unwrap();
    let warning = "what this command does CANNOT be undone: the folder cannot be mounted";
    assert!(before.contains("NO ISOLATION") && before.contains(warning), "{said}");
    assert!(!after.contains("CANNOT be undone"), "{said}");
    assert!(!person.path("a").exists());
    assert!(!person.output(&["undo"]).status.success());
}

#[test]
fn a_frontend_is_warned_before_a_command_that_cannot_be_undone_begins() {
    let test = "a_frontend_is_warned_before_a_command_that_cannot_be_undone_begins";
    let Some(person) = person(test) else { return };
    let script = "mount --bind /dev/null /dev/fuse && exec \"$@\"";
    let mut server = std::process::Command::new("unshare");
    server
        .args(["--mount", "sh", "-c", script, "sh", common::PROGRAM])
        .current_dir(person.project())
        .env("HOME", person.home());
    let mut client = Client::start(&mut server);
    let folders = json!([{"path": person.project()}]);
    client.ask("session.start", json!({"working_directories": folders, "isolation": "host"}));
    let id = client.request("agent.execute", json!({"command": "sleep 4718.5"}));
    let warning = client.wait_for(|line| line.to_string().contains("CANNOT be undone"));
    assert_eq!(warning["type"], "event.warning", "{warning}");
    client.ask("request.cancel", json!({"request_id": id}));
    client.hang_up();
}

#[test]
fn what_is_done_after_the_mount_was_taken_away_is_not_called_undoable() {
    let test = "what_is_done_after_the_mount_was_taken_away_is_not_called_undoable";
    let Some(person) = person(test) else { return };
    let mut client = frontend(&person, &[], json!({"isolation": "host"}));
    let project = person.project().display().to_string();
    let line = format!("echo x > early; cd /; umount -l {project}; echo y > {project}/late");
    let done = client.ask("agent.execute", json!({"command": line}));
    assert!(done["not_undoable"].as_str().unwrap().contains("unmounted meanwhile"), "{done}");
    assert!(person.path("late").exists());
    fs::remove_file(person.path("late")).unwrap();
    client.ask("undo.rollback", json!({}));
    // The next one is recorded again.
    let done = client.ask("agent.execute", json!({"command": "rm a"}));
    assert!(done["not_undoable"].is_null(), "{done}");
    client.ask("undo.rollback", json!({}));
    client.hang_up();
    assert!(!person.path("early").exists());
    assert_eq!(person.read("a"), "one\n");
    assert_nothing_is_mounted(&person);
}
