//! Which folder is meant, which is refused, and that what is refused leaves nothing behind.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{TreeSnapshot, assert_tree_eq};
use common::{Person, sh, text};
use serde_json::json;

const NEAREST: &str = "the nearest one upwards with a history";

/// In a directory below the project.
fn below(person: &Person, dir: &str, arguments: &[&str]) -> Output {
    person.sandbox(arguments).current_dir(person.path(dir)).output().unwrap()
}

/// One sentence and one hint.
#[track_caller]
fn complaint(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    let said = text(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        matches!(lines[..], [sentence, hint]
            if sentence.starts_with("sandbox: ") && hint.starts_with("hint: ")),
        "{said}"
    );
    said
}

#[test]
fn a_folder_that_nobody_named_and_that_is_not_the_current_one_is_named() {
    let person = Person::with("mkdir -p a/b");
    person.run("echo y > y");
    let project = person.project().canonicalize().unwrap();
    let sentence = format!("sandbox: the folder is {}, {NEAREST}\n", project.display());
    for arguments in [&["run", "--", "touch", "x"][..], &["history"], &["undo"], &["redo"]] {
        let output = below(&person, "a/b", arguments);
        assert!(output.status.success(), "{output:?}");
        assert!(text(&output.stderr).starts_with(&sentence), "{arguments:?}: {output:?}");
        assert!(!text(&output.stdout).contains(NEAREST), "{output:?}");
    }
    assert!(!text(&person.output(&["history"]).stderr).contains(NEAREST));
    let named = below(&person, "a/b", &["history", "--working-dir", "../.."]);
    assert!(!text(&named.stderr).contains(NEAREST), "{named:?}");
    // Programs learn it, too.
    assert_eq!(person.json(&["history"])["working_dir"], json!(project));
    assert_eq!(person.json(&["run", "true"])["working_dirs"], json!([project]));
}

#[test]
fn a_folder_above_in_which_nothing_was_ever_changed_is_not_meant() {
    let person = Person::with("mkdir sub");
    person.run("true");
    assert_eq!(text(&person.output(&["history"]).stdout), "nothing has been recorded yet\n");
    let output = below(&person, "sub", &["run", "--", "touch", "x"]);
    assert!(!text(&output.stderr).contains(NEAREST), "{output:?}");
    let own = below(&person, "sub", &["--json", "history"]);
    let own: serde_json::Value = serde_json::from_slice(&own.stdout).unwrap();
    assert_eq!(own["history"].as_array().unwrap().len(), 1);
    assert_eq!(person.json(&["history"])["history"], json!([]));
    // As soon as something was, it is; also if that was undone.
    fs::create_dir(person.path("other")).unwrap();
    person.run("touch y");
    person.ok(&["undo"]);
    let output = below(&person, "other", &["run", "--", "true"]);
    assert!(text(&output.stderr).contains(NEAREST), "{output:?}");
}

/// What is there of a person.
fn everything(person: &Person) -> TreeSnapshot {
    TreeSnapshot::capture(person.root())
}

#[test]
fn the_current_folder_can_be_one_that_is_only_looked_at() {
    let person = Person::with("echo x > file");
    let before = person.snapshot();
    let script = "cat file; touch new 2>/dev/null || echo refused";
    let output = person.run_with(&["--read-only", "."], script);
    assert_eq!(text(&output.stdout), "x\nrefused\n", "{output:?}");
    assert!(!text(&output.stderr).contains(NEAREST), "{output:?}");
    assert_tree_eq(&before, &person.snapshot());
}

#[test]
fn histories_are_no_folder_to_work_in() {
    let person = Person::with("echo x > file");
    let undo_dir = person.root().join("undo");
    person.run_with(&["--undo-dir", undo_dir.to_str().unwrap()], "echo y > file");
    person.run("echo z > file");
    let own = person.home().join(".codeagent");
    let of_project = PathBuf::from(person.json(&["status"])["undo_dir"].as_str().unwrap());
    let before = everything(&person);
    for dir in [&own, &own.join("undo"), &of_project, &of_project.join("steps/1"), &undo_dir] {
        for arguments in [&["run", "--working-dir"][..], &["run", "--read-only"]] {
            let output = person.sandbox(arguments).arg(dir).args(["--", "true"]).output().unwrap();
            let said = complaint(&output);
            assert!(said.contains("lies where histories are kept"), "{said}");
        }
    }
    assert_tree_eq(&before, &everything(&person));
    person.ok(&["undo"]);
    assert_eq!(person.read("file"), "y\n");
}

#[test]
fn what_is_refused_leaves_nothing_behind() {
    let person = Person::with("echo x > file; mkdir inside; ln -s inside link");
    fs::write(person.root().join("bad.toml"), "[sandbox\n").unwrap();
    fs::create_dir(person.root().join("foreign")).unwrap();
    fs::write(person.root().join("foreign/file"), "mine").unwrap();
    // What is found out about the machine is remembered.
    fs::create_dir(person.root().join("other")).unwrap();
    person.run_with(&["--working-dir", "../other"], "true");
    let before = everything(&person);
    for arguments in [
        "--undo-dir inside/undo",
        "--undo-dir inside/a/b/undo",
        "--undo-dir link/undo",
        "--undo-dir ../project",
        "--undo-dir ..",
        "--undo-dir ../foreign",
        "--undo-dir ../foreign/file",
        "--undo-dir /proc/undo",
        "--working-dir missing",
        "--working-dir file",
        "--working-dir /",
        "--working-dir . --working-dir inside",
        "--working-dir . --working-dir same=inside/..",
        "--isolation vm",
        "--allow-path ../x",
        "--allow-host ://",
        "--config ../bad.toml",
        "--config missing.toml",
        "--view sideways",
    ] {
        let words = ["run"].into_iter().chain(arguments.split(' ')).chain(["--", "true"]);
        let output = person.sandbox(words).output().unwrap();
        complaint(&output);
        assert_tree_eq(&before, &everything(&person));
    }
}

#[test]
fn a_history_of_another_format_is_told_from_one_that_is_empty() {
    let person = Person::with("echo x > file");
    person.run("echo y > file");
    let undo_dir = PathBuf::from(person.json(&["status"])["undo_dir"].as_str().unwrap());
    fs::write(undo_dir.join("version"), "codeagent-undo 99\n").unwrap();
    let said = complaint(&person.output(&["history"]));
    assert!(said.contains("format 99") && said.contains("move the undo directory away"), "{said}");
    for arguments in [
        &["show"][..],
        &["show", "1"],
        &["undo"],
        &["undo", "--preview"],
        &["redo"],
        &["restore", "--step", "1", "file"],
        &["pin", "1"],
    ] {
        let said = complaint(&person.output(arguments));
        assert!(said.contains("format"), "{arguments:?}: {said}");
    }
    let status = person.ok(&["status"]);
    assert!(status.contains("NOTHING IS RECORDED: the history has format 99"), "{status}");
    let json = person.json(&["history"]);
    assert_eq!(json["error"]["code"], "undo_version_mismatch");
    // A folder above with such a history is not passed over either.
    fs::create_dir(person.path("sub")).unwrap();
    let output = below(&person, "sub", &["history"]);
    assert!(text(&output.stderr).contains("format 99"), "{output:?}");
}

#[test]
fn a_step_that_was_undone_is_not_called_unknown() {
    let person = Person::with("echo x > file");
    person.run("echo y > file");
    person.ok(&["undo"]);
    for arguments in
        [&["show", "1"][..], &["show"], &["restore", "--step", "1", "file"], &["pin", "1"]]
    {
        let said = complaint(&person.output(arguments));
        assert!(said.contains("step 1 was undone"), "{said}");
        assert!(said.ends_with("hint: `sandbox redo` brings it back\n"), "{said}");
    }
}

/// The program where things are missing, in namespaces of its own.
fn without(person: &Person, preparation: &str, arguments: &[&str]) -> Output {
    let script = format!("set -e; {preparation}; cd {}; exec \"$@\"", person.project().display());
    Command::new("unshare")
        .args(["--mount", "sh", "-c", &script, "sh", common::PROGRAM])
        .args(arguments)
        .env("HOME", person.home())
        .output()
        .unwrap()
}

const NO_FUSE: &str = "mount --bind /dev/null /dev/fuse";

/// The kernel takes no layer that changes on top of another.
fn no_overlay(person: &Person, layers: &Path) -> String {
    sh("mkdir upper work", layers);
    let (root, layers) = (person.root().display(), layers.display());
    format!(
        "mount -t overlay overlay \
         -o lowerdir={root},upperdir={layers}/upper,workdir={layers}/work {root}"
    )
}

#[test]
fn a_view_that_cannot_be_had_is_told_before_the_command_and_both_if_neither_can() {
    let test = "a_view_that_cannot_be_had_is_told_before_the_command_and_both_if_neither_can";
    if !rustix::process::geteuid().is_root() || !common::can_use_fuse() {
        return skip(test, "it takes root and /dev/fuse");
    }
    let speak = ["--", "sh", "-c", "echo it runs >&2"];

    let person = Person::new();
    let live = [&["run", "--view", "live"], &speak[..]].concat();
    let said = text(&without(&person, NO_FUSE, &live).stderr);
    let (before, _) = said.split_once("it runs").expect(&said);
    assert!(before.contains("seen only when the command has ended"), "{said}");
    assert!(before.contains("the live view cannot be had: "), "{said}");

    let person = Person::new();
    let layers = tempfile::tempdir().unwrap();
    let overlay = no_overlay(&person, layers.path());
    let transactional = [&["run", "--view", "transactional"], &speak[..]].concat();
    let said = text(&without(&person, &overlay, &transactional).stderr);
    let (before, _) = said.split_once("it runs").expect(&said);
    assert!(before.contains("seen as they happen"), "{said}");
    assert!(before.contains("the transactional view cannot be had: "), "{said}");

    let person = Person::new();
    let layers = tempfile::tempdir().unwrap();
    let neither = format!("{}; {NO_FUSE}", no_overlay(&person, layers.path()));
    for view in ["transactional", "live"] {
        let arguments = [&["run", "--isolation", "namespace", "--view", view], &speak[..]].concat();
        let said = complaint(&without(&person, &neither, &arguments));
        assert!(said.contains("an overlay over") && said.contains("FUSE over"), "{said}");
    }
}
