//! Real programs at work in a guest whose folder is served over 9P, each as one step that is undone
//! and redone. Needs `cargo xtask build-guest --flavour dev`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]
#![allow(clippy::print_stdout, reason = "shown when a test fails")]

mod common;

use std::fs;
use std::path::Path;

use codeagent_test_support::{TempWorkspace, assert_tree_eq, for_each_workload, workloads};
use codeagent_vm::Backend;
use common::{Ground, Office};

struct Workload {
    name: &'static str,
    fixture: fn(&Path),
    tools: &'static [&'static str],
    script: &'static str,
}

/// They take long where processors are emulated, and do nothing that others here do not:
/// `CODEAGENT_LONG` does them, too.
const SLOW_AND_SIMILAR: [&str; 8] = [
    "git_checkout",
    "git_clone",
    "git_commits",
    "git_gc",
    "git_merge",
    "git_stash_and_clean",
    "mappings_of_several_processes",
    "npm_install",
];

/// The image has neither.
const NOT_IN_THE_IMAGE: [&str; 2] = ["sqlite3", "vim"];

fn all() -> Vec<Workload> {
    let mut all = Vec::new();
    macro_rules! workload {
        ($name:ident, $($tool:literal)*, $script:expr) => {
            workload!($name, project, $($tool)*, $script);
        };
        ($name:ident, $fixture:ident, $($tool:literal)*, $script:expr) => {
            all.push(Workload {
                name: stringify!($name),
                fixture: workloads::$fixture,
                tools: &[$($tool),*],
                script: $script,
            });
        };
    }
    for_each_workload!(workload);
    all
}

fn is_for_now(workload: &Workload) -> bool {
    let is_long = std::env::var_os("CODEAGENT_LONG").is_some();
    workload.tools.iter().all(|tool| !NOT_IN_THE_IMAGE.contains(tool))
        && (is_long || !SLOW_AND_SIMILAR.contains(&workload.name))
}

/// One step, undone and redone; the tree is exact each time.
fn there_and_back(office: &Office, workload: &Workload) {
    println!("{}", workload.name);
    let exported = workloads::ENVIRONMENT.into_iter().chain([("CARGO", "/usr/bin/cargo")]);
    let exports: String =
        exported.map(|(name, value)| format!("export {name}='{value}'\n")).collect();
    let before = office.workspace.snapshot();
    office.output(&format!("set -eu\n{exports}{}", workload.script));
    let after = office.workspace.snapshot();
    assert_ne!(before, after, "{}", workload.name);
    office.undo();
    assert_tree_eq(&before, &office.workspace.snapshot());
    office.redo();
    assert_tree_eq(&after, &office.workspace.snapshot());
    office.undo();
    assert_tree_eq(&before, &office.workspace.snapshot());
}

/// Several tests, each with a guest of its own: together they would take longer than a test may.
const PARTS: usize = 3;

#[test]
fn what_real_programs_do_over_9p_is_undone_and_redone_exactly_first_part() {
    what_real_programs_do_is_undone_and_redone_exactly(0);
}

#[test]
fn what_real_programs_do_over_9p_is_undone_and_redone_exactly_second_part() {
    what_real_programs_do_is_undone_and_redone_exactly(1);
}

#[test]
fn what_real_programs_do_over_9p_is_undone_and_redone_exactly_third_part() {
    what_real_programs_do_is_undone_and_redone_exactly(2);
}

/// Each in the same folder, which somebody outside clears and fills in between.
fn what_real_programs_do_is_undone_and_redone_exactly(part: usize) {
    let test = "what_real_programs_do_over_9p_is_undone_and_redone_exactly";
    let Some(ground) = Ground::dev(test) else { return };
    let office =
        Office::with(&ground, TempWorkspace::new(), |options| options.vm.backend = Backend::NineP);
    let all = all();
    let wanted = all.iter().filter(|workload| is_for_now(workload));
    for workload in wanted.skip(part).step_by(PARTS) {
        for entry in fs::read_dir(office.workspace.working()).unwrap() {
            let path = entry.unwrap().path();
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
        }
        (workload.fixture)(office.workspace.working());
        there_and_back(&office, workload);
    }
}
