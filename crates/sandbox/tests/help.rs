//! What `--help` says, and what people get to read when something is wrong.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;

use codeagent_test_support::filesystems::skip;
use common::{Person, text};

#[test]
fn help() {
    let person = Person::new();
    let mut all = person.ok(&["--help"]);
    for command in [
        "run",
        "shell",
        "history",
        "show",
        "undo",
        "redo",
        "restore",
        "pin",
        "status",
        "doctor",
        "guest build",
        "guest reset",
        "setup",
        "undo-log dump",
        "undo-log verify",
        "step begin",
        "step end",
        "hook",
        "completions",
    ] {
        let mut words: Vec<&str> = command.split(' ').collect();
        words.push("--help");
        all.push_str(&format!("\n=== sandbox {command} ===\n{}", person.ok(&words)));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn completions_are_made_for_every_shell() {
    let person = Person::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(person.ok(&["completions", shell]).contains("restore"), "{shell}");
    }
}

/// What a command says when it fails, without names that differ each time.
fn complaint(person: &Person, arguments: &[&str]) -> String {
    let output = person.output(arguments);
    assert!(!output.status.success(), "{arguments:?}: {output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let said = text(&output.stderr).replace(person.root().to_str().unwrap(), "/ROOT");
    format!(
        "$ sandbox {}\n{said}[exit code {}]\n",
        arguments.join(" ").replace(person.root().to_str().unwrap(), "/ROOT"),
        output.status.code().unwrap()
    )
}

#[test]
fn errors_that_a_person_can_cause() {
    let person = Person::with("echo x > file; mkdir inside");
    let mut all = String::new();
    let mut fails = |arguments: &[&str]| {
        let said = complaint(&person, arguments);
        assert_eq!(said.lines().filter(|line| line.starts_with("hint: ")).count(), 1, "{said}");
        all.push_str(&said);
        all.push('\n');
    };
    fails(&["undo"]);
    fails(&["run", "--working-dir", "missing", "--", "true"]);
    fails(&["run", "--working-dir", "file", "--", "true"]);
    fails(&["run", "--undo-dir", "inside/undo", "--", "true"]);
    fails(&["run", "--undo-dir", "/proc", "--", "true"]);
    fails(&["run", "--isolation", "vm", "--", "true"]);
    fails(&["run", "--working-dir", ".", "--working-dir", "inside", "--", "true"]);
    fails(&["run", "--allow-path", "../x", "--", "true"]);
    fails(&["run", "--", "no-such-program"]);
    fails(&["run"]);
    fails(&["run", "--isolaton", "vm", "--", "true"]);
    fails(&["frobnicate"]);
    fails(&["show"]);
    fails(&["restore", "--step", "1", "../outside"]);
    fails(&["setup", "codex", "--remove"]);
    person.run("echo y > file");
    let step = person.json(&["history"])["history"][0]["id"].to_string();
    for wrong in [
        &["undo", "99"][..],
        &["redo"],
        &["show", "77"],
        &["restore", "--step", "88", "file"],
        &["restore", "--step", &step, "inside"],
        &["pin", "99"],
        &["undo-log", "dump", "steps/99"],
        &["undo-log", "dump", "../../x"],
        &["step", "begin"],
        &["run", "--working-dir", "/", "--", "true"],
    ] {
        fails(wrong);
    }
    person.ok(&["undo"]);
    fails(&["undo"]);
    fails(&["redo", "5"]);
    fs::write(person.path("file"), "mine").unwrap();
    fails(&["redo"]);
    fails(&["shell"]);
    fails(&["run", "--config", "missing.toml", "--", "true"]);
    person.configure("[sandbox]\nisolation = 'virtual'\n");
    fails(&["run", "--", "true"]);
    person.configure("[sandbox\n");
    fails(&["run", "--", "true"]);
    person.configure("");
    fs::write(person.path("codeagent.toml"), "[undo]\nmax_step = 3\n").unwrap();
    fails(&["run", "--", "true"]);
    insta::assert_snapshot!(all);
}

#[test]
fn a_folder_that_another_session_has_is_named() {
    let person = Person::with("echo x > file");
    person.run("echo y > file");
    let undo_dir = person.json(&["status"])["undo_dir"].as_str().unwrap().to_owned();
    let config = codeagent_interceptor::EngineConfig::new(person.project(), &undo_dir);
    let _engine = codeagent_interceptor::UndoEngine::open(config).unwrap();
    let said =
        complaint(&person, &["run", "--", "true"]).replace(&std::process::id().to_string(), "PID");
    insta::assert_snapshot!(said);
}

#[test]
fn without_user_namespaces_it_is_said_and_nothing_falls_back_unasked() {
    let test = "without_user_namespaces_it_is_said_and_nothing_falls_back_unasked";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "it takes root to take namespaces away");
    }
    let person = Person::with("echo x > file");
    let without = |isolation: &str| {
        let script = "unshare --user --map-root-user --mount sh -c '
            echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"' sh \"$@\"";
        std::process::Command::new("sh")
            .args([
                "-c",
                script,
                "sh",
                common::PROGRAM,
                "run",
                "--isolation",
                isolation,
                "--",
                "sh",
                "-c",
                "echo ran",
            ])
            .current_dir(person.project())
            .env("HOME", person.home())
            .output()
            .unwrap()
    };
    let named = without("namespace");
    assert_eq!(named.status.code(), Some(125), "{named:?}");
    assert!(named.stdout.is_empty(), "{named:?}");
    let said = text(&named.stderr);
    assert!(
        said.contains("namespace isolation cannot be had") && said.contains("sandbox doctor"),
        "{said}"
    );
    let auto = without("auto");
    assert_eq!(text(&auto.stdout), "ran\n", "{auto:?}");
    assert!(text(&auto.stderr).contains("NO ISOLATION"), "{auto:?}");
}
