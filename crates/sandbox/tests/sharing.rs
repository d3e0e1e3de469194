//! Several commands, and several processes, in one folder at once.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use codeagent_test_support::assert_tree_eq;
use codeagent_test_support::filesystems::skip;
use serde_json::json;

use common::client::frontend;
use common::{Person, can_use_fuse, eventually, processes_that_name, text};

const FILL: &str = "mkdir dir; echo one > dir/one; echo two > two";

/// A command of a process of its own, that runs until `name` is there.
fn until(person: &Person, arguments: &[&str], script: &str, name: &str) -> Child {
    let line = format!("{script}; until test -e {name}; do sleep 0.05; done");
    let mut all = vec!["run"];
    all.extend(arguments);
    all.extend(["--", "sh", "-c", &line]);
    person.sandbox(all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[track_caller]
fn succeeds(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stderr)
}

#[track_caller]
fn undo_everything(person: &Person, steps: usize) {
    let history = person.json(&["history"]);
    assert_eq!(history["history"].as_array().unwrap().len(), steps, "{history:#}");
    person.ok(&["undo", &steps.to_string()]);
}

#[test]
fn commands_of_several_processes_have_their_steps_one_after_the_other() {
    let person = Person::with(FILL);
    let before = person.snapshot();
    let names = ["a", "b", "c", "d"];
    let scripts = names.map(|name| format!("cat two >> {name}; rm -f dir/one; sleep 0.2"));
    let run = |script: &String| {
        let mut command = person.sandbox(["run", "--", "sh", "-c", script]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let said = scripts.each_ref().map(run).map(succeeds);
    assert!(names.iter().all(|name| person.read(name) == "two\n"), "{said:?}");
    undo_everything(&person, 4);
    assert_tree_eq(&before, &person.snapshot());
}

#[test]
fn who_waits_for_another_process_is_told_so() {
    if !can_use_fuse() {
        return skip("who_waits_for_another_process_is_told_so", "/dev/fuse cannot be used");
    }
    let person = Person::with(FILL);
    let first = until(&person, &["--view", "live"], "touch began", "go");
    eventually("the first one began", || person.path("began").exists());
    let mut second = until(&person, &[], "touch second", "second");
    let mut said = String::new();
    let mut stderr = BufReader::new(second.stderr.take().unwrap());
    while !said.contains("waiting for the command of another process") {
        assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "{said}");
    }
    assert!(!person.path("second").exists());
    // From outside, so that it is nobody's step.
    fs::write(person.path("go"), "").unwrap();
    succeeds(first);
    stderr.read_to_string(&mut said).unwrap();
    assert!(second.wait().unwrap().success());
    assert!(person.path("second").exists());
    // Once is enough, also when the worker of the other one ends.
    assert_eq!(said.matches("another process holds this folder").count(), 1, "{said}");
}

/// A process that holds the folder, and does nothing there.
fn holder(person: &Person) -> Child {
    let mut holder = person.sandbox(["--protocol", "mcp"]);
    let holder = holder.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let holder = holder.spawn().unwrap();
    eventually("the folder is held", || {
        text(&person.output(&["status"]).stdout).contains("held by    process")
    });
    holder
}

/// A command that changes something and does not end, in a process that is killed.
fn killed(person: &Person, view: &str) {
    let line = "echo mine > dir/one; rm two; sleep 4325.5";
    let mut command = person.sandbox(["run", "--view", view, "--", "sh", "-c", line]);
    let mut command = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let project = person.project();
    let sleeps = || {
        let is_here =
            |pid: &u32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == project);
        processes_that_name("sleep\x004325.5").iter().any(is_here)
    };
    eventually("it runs", sleeps);
    command.kill().unwrap();
    command.wait().unwrap();
}

#[test]
fn a_process_that_is_killed_takes_back_its_own_step_and_no_other() {
    let test = "a_process_that_is_killed_takes_back_its_own_step_and_no_other";
    if !can_use_fuse() {
        return skip(test, "/dev/fuse cannot be used");
    }
    for view in ["live", "transactional"] {
        let person = Person::with(FILL);
        let mut holder = holder(&person);
        person.run("echo kept > kept");
        let before = person.snapshot();
        killed(&person, view);
        // The next one has its turn when nothing is left of it.
        person.run("cat dir/one two > next");
        assert_eq!(person.read("next"), "one\ntwo\n", "{view}");
        person.ok(&["undo"]);
        assert_tree_eq(&before, &person.snapshot());
        drop(holder.stdin.take());
        holder.wait().unwrap();
        undo_everything(&person, 1);
    }
}

/// Whoever held the folder last took it back; the next one is told, whatever he asks for.
#[test]
fn whoever_comes_after_one_that_was_killed_hears_of_it_once() {
    let test = "whoever_comes_after_one_that_was_killed_hears_of_it_once";
    if !can_use_fuse() {
        return skip(test, "/dev/fuse cannot be used");
    }
    const TOLD: &str = "took back what an interrupted step had left unfinished";
    for next in [&["history"][..], &["run", "--", "true"]] {
        let person = Person::with(FILL);
        let before = person.snapshot();
        killed(&person, "live");
        let is_told = || text(&person.output(next).stderr).contains(TOLD);
        // The worker may not have noticed yet that it is alone.
        eventually("it is told", is_told);
        assert_tree_eq(&before, &person.snapshot());
        assert!(!is_told());
    }
}

#[test]
fn a_command_goes_on_when_the_process_that_held_the_folder_ends() {
    let test = "a_command_goes_on_when_the_process_that_held_the_folder_ends";
    if !can_use_fuse() {
        return skip(test, "/dev/fuse cannot be used");
    }
    for (view, killed) in
        [("live", false), ("transactional", false), ("live", true), ("transactional", true)]
    {
        let person = Person::with(FILL);
        let before = person.snapshot();
        let mut holder = holder(&person);
        let line = "echo mine > dir/one; cat; rm two";
        let mut command = person.sandbox(["run", "--view", view, "--", "sh", "-c", line]);
        let mut command = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = command.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, b"x").unwrap();
        std::io::Read::read_exact(command.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        if killed {
            holder.kill().unwrap();
        }
        drop(holder.stdin.take());
        holder.wait().unwrap();
        drop(stdin);
        succeeds(command);
        assert_eq!(person.read("dir/one"), "mine\n", "{view} {killed}");
        assert!(!person.path("two").exists());
        undo_everything(&person, 1);
        assert_tree_eq(&before, &person.snapshot());
    }
}

/// With the transaction it would be taken back, and nobody could redo it.
#[test]
fn beside_the_transaction_of_another_process_no_command_runs() {
    let person = Person::with(FILL);
    let before = person.snapshot();
    let mut frontend = frontend(&person, &[], json!({}));
    frontend.ask("step.begin", json!({"label": "a try"}));
    frontend.ask("agent.execute", json!({"command": "touch tried"}));
    let refused = person.output(&["run", "--", "rm", "two"]);
    let said = text(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("another process has a transaction open in this folder"), "{said}");
    assert!(said.contains("hint: wait until it has been committed or rolled back"), "{said}");
    assert!(person.path("two").exists());
    frontend.ask("step.rollback", json!({}));
    assert_tree_eq(&before, &person.snapshot());
    person.run("rm two");
    frontend.hang_up();
    assert!(!person.path("two").exists());
    undo_everything(&person, 1);
    assert_tree_eq(&before, &person.snapshot());
}
