//! Folders that get another name, and folders that get the name of another.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::path::Path;

use codeagent_test_support::{TreeSnapshot, assert_tree_eq};
use common::{Person, text};
use serde_json::Value;

const FILL: &str = "mkdir dir; echo one > dir/one; echo two > two";

fn steps_of(person: &Person, folder: &Path) -> usize {
    let mut history = person.sandbox(["--json", "history", "--working-dir"]);
    let output = history.arg(folder).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    told["history"].as_array().map_or(0, Vec::len)
}

#[test]
fn a_folder_takes_its_history_along_and_leaves_none_to_its_successor() {
    let person = Person::with(FILL);
    let before = person.snapshot();
    person.run("rm -rf dir; echo more >> two");
    let moved = person.root().join("deeper/moved");
    fs::create_dir(person.root().join("deeper")).unwrap();
    fs::rename(person.project(), &moved).unwrap();
    fs::create_dir(person.project()).unwrap();

    let fresh = person.output(&["history"]);
    assert!(text(&fresh.stderr).contains("nothing has been recorded for"), "{fresh:?}");
    let said = text(&person.run("echo new > new").stderr);
    assert!(said.contains("a new history begins"), "{said}");
    assert_eq!((steps_of(&person, &person.project()), steps_of(&person, &moved)), (1, 1));

    let undone = person.sandbox(["undo"]).current_dir(&moved).output().unwrap();
    assert!(undone.status.success(), "{undone:?}");
    assert_tree_eq(&before, &TreeSnapshot::capture(&moved));
    assert!(person.path("new").exists(), "the other folder is left alone");
    let said = text(&person.run("true").stderr);
    assert!(!said.contains("history begins"), "{said}");
    person.ok(&["undo"]);
    assert!(!person.path("new").exists());
}
