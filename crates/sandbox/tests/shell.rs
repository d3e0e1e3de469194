//! `sandbox shell`, at a terminal.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::io::Write;
use std::process::{Command, Stdio};

use codeagent_test_support::assert_tree_eq;
use codeagent_test_support::filesystems::skip;
use common::{PROGRAM, Person, text};

#[test]
fn a_shell_has_a_terminal_with_job_control_and_is_one_step() {
    let test = "a_shell_has_a_terminal_with_job_control_and_is_one_step";
    if Command::new("script").arg("--version").output().is_err() {
        return skip(test, "there is no `script` to make a terminal with");
    }
    let person = Person::with("echo old > file");
    let before = person.snapshot();
    let line = format!("stty rows 31 cols 97; {PROGRAM} shell");
    let mut child = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .current_dir(person.project())
        .env("HOME", person.home())
        .env("SHELL", "/bin/sh")
        .env_remove("CODEAGENT_HOME")
        .env_remove("XDG_CONFIG_HOME")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
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
