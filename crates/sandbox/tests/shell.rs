//! `sandbox shell`, at a terminal.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::io::Write;
use std::process::{Child, Command, Stdio};

use codeagent_test_support::assert_tree_eq;
use codeagent_test_support::filesystems::skip;
use common::{PROGRAM, Person, eventually, processes_that_name, sh, text};

/// `sandbox` with these arguments at a terminal of its own, if one can be made.
fn at_a_terminal(test: &str, person: &Person, line: &str) -> Option<Child> {
    if Command::new("script").arg("--version").output().is_err() {
        skip(test, "there is no `script` to make a terminal with");
        return None;
    }
    let child = Command::new("script")
        .args(["-qec", line, "/dev/null"])
        .current_dir(person.project())
        .env("HOME", person.home())
        .env("SHELL", "/bin/sh")
        .env_remove("CODEAGENT_HOME")
        .env_remove("XDG_CONFIG_HOME")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    Some(child.unwrap())
}

#[test]
fn a_shell_has_a_terminal_with_job_control_and_is_one_step() {
    let test = "a_shell_has_a_terminal_with_job_control_and_is_one_step";
    let person = Person::with("echo old > file");
    let before = person.snapshot();
    let line = format!("stty rows 31 cols 97; {PROGRAM} shell");
    let Some(mut child) = at_a_terminal(test, &person, &line) else { return };
    let script = b"stty size; tty\nsleep 1 & jobs\nwait\necho new > file\nexit 5\n";
    child.stdin.take().unwrap().write_all(script).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("31 97") && said.contains("/dev/pts/"), "{said}");
    assert!(said.contains("sleep 1") && said.contains("step 1"), "{said}");
    assert_eq!(person.read("file"), "new\n");
    person.ok(&["undo"]);
    assert_tree_eq(&before, &person.snapshot());
}

/// The terminal is the shell's by then, and does nothing by itself.
#[test]
fn what_is_told_at_the_terminal_of_a_shell_begins_at_the_margin() {
    let test = "what_is_told_at_the_terminal_of_a_shell_begins_at_the_margin";
    let person = Person::with("echo old > file");
    let mut other = person.sandbox(["run", "--", "sh", "-c", "read line"]);
    let mut other = other.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the other one has its turn", || {
        text(&person.output(&["status"]).stdout).contains("open       step 1")
    });
    let line = format!("{PROGRAM} shell");
    let Some(mut child) = at_a_terminal(test, &person, &line) else {
        drop(other.stdin.take());
        other.wait().unwrap();
        return;
    };
    let mut said = String::new();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    while !said.contains("waiting for the command of another process in this folder") {
        assert_ne!(std::io::BufRead::read_line(&mut stdout, &mut said).unwrap(), 0, "{said:?}");
    }
    assert!(said.ends_with("\r\n"), "{said:?}");
    drop(other.stdin.take());
    other.wait().unwrap();
    child.stdin.take().unwrap().write_all(b"exit 0\n").unwrap();
    std::io::Read::read_to_string(&mut stdout, &mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
}

/// The window is closed, or its session is told to end: a shell that waits for a program ends with
/// it, and what was done is there.
#[test]
fn when_the_terminal_goes_away_the_shell_ends_and_what_was_done_is_a_step() {
    let test = "when_the_terminal_goes_away_the_shell_ends_and_what_was_done_is_a_step";
    let person = Person::with("echo old > file");
    let line = format!("exec {PROGRAM} shell --working-dir {}", person.project().display());
    for (how, nap) in [("closed", "4724.5"), ("told", "4725.5")] {
        let Some(mut child) = at_a_terminal(test, &person, &line) else { return };
        let naps = || processes_that_name(&format!("sleep\0{nap}"));
        let script = format!("echo {how} > file; sleep {nap}\n");
        // Whoever closes it would be at the end of a script, too.
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(script.as_bytes()).unwrap();
        eventually("it runs", || naps().len() == 1);
        let ours = format!("shell\0--working-dir\0{}\0", person.project().display());
        let shell = processes_that_name(&ours);
        assert_eq!(shell.len(), 1, "{shell:?}");
        match how {
            "closed" => child.kill().unwrap(),
            _ => sh(&format!("kill -HUP {}", shell[0]), &person.project()),
        }
        let ended = child.wait().unwrap();
        eventually("nothing is left", || {
            naps().is_empty() && processes_that_name(&ours).is_empty()
        });
        if how == "told" {
            // It was not killed after a time of grace; the last program in it was told to end.
            assert_eq!(ended.code(), Some(128 + 15));
        }
        assert_eq!(person.read("file"), format!("{how}\n"));
        person.ok(&["undo"]);
        assert_eq!(person.read("file"), "old\n");
    }
}
