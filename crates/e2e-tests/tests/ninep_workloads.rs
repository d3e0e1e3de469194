//! Real programs at work in a guest whose folder is served over 9P, each as one step that is undone
//! and redone. Needs `cargo xtask build-guest --flavour dev`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]
#![allow(clippy::print_stdout, reason = "shown when a test fails")]

mod common;

use std::fs;
use std::path::Path;

use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{TempWorkspace, assert_tree_eq, for_each_workload, workloads};
use codeagent_vm::Backend;
use common::{Ground, Office};

struct Workload {
    name: &'static str,
    fixture: fn(&Path),
    tools: &'static [&'static str],
    script: &'static str,
}

/// They take long where processors are emulated, and do little that others here do not:
/// `CODEAGENT_LONG` does them, too, each in a test of its own.
const SLOW_AND_SIMILAR: [&str; 5] =
    ["git_gc", "git_merge", "git_stash_and_clean", "mappings_of_several_processes", "npm_install"];

/// They need programs that the image has not, and that nothing else in it is there for. SQLite is
/// done by `sqlite_with_a_log`, with one writer; what vim does by the `editors`.
const NOT_IN_THE_IMAGE: [(&str, &str); 4] = [
    ("sqlite_with_several_writers", "sqlite3"),
    ("vim_in_place", "vim"),
    ("vim_with_backup_undo_and_swap_files", "vim"),
    ("vim_with_rename", "vim"),
];

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

/// Those that are done in any case.
fn usual() -> Vec<Workload> {
    let is_named = |name| {
        SLOW_AND_SIMILAR.contains(&name) || NOT_IN_THE_IMAGE.iter().any(|(other, _)| *other == name)
    };
    all().into_iter().filter(|workload| !is_named(workload.name)).collect()
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
const PARTS: usize = 4;

#[test]
fn what_real_programs_do_over_9p_is_undone_and_redone_exactly_first_part() {
    usual_part(0);
}

#[test]
fn what_real_programs_do_over_9p_is_undone_and_redone_exactly_second_part() {
    usual_part(1);
}

#[test]
fn what_real_programs_do_over_9p_is_undone_and_redone_exactly_third_part() {
    usual_part(2);
}

#[test]
fn what_real_programs_do_over_9p_is_undone_and_redone_exactly_fourth_part() {
    usual_part(3);
}

fn usual_part(part: usize) {
    let usual = usual();
    let wanted = usual.iter().skip(part).step_by(PARTS);
    what_they_do_is_undone_and_redone_exactly(
        "what_real_programs_do_over_9p_is_undone_and_redone_exactly",
        wanted,
    );
}

/// Each in the same folder, which somebody outside clears and fills in between.
fn what_they_do_is_undone_and_redone_exactly<'a>(
    test: &str,
    workloads: impl Iterator<Item = &'a Workload>,
) {
    let Some(ground) = Ground::dev(test) else { return };
    let office =
        Office::with(&ground, TempWorkspace::new(), |options| options.vm.backend = Backend::NineP);
    for workload in workloads {
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

/// Those that the tests above leave out, so that each of them is counted.
macro_rules! left_out {
    ($($name:ident)*) => {
        const LEFT_OUT: &[&str] = &[$(stringify!($name)),*];
        mod left_out {
            $(#[test]
            fn $name() {
                super::left_out(stringify!($name));
            })*
        }
    };
}

left_out! {
    git_gc
    git_merge
    git_stash_and_clean
    mappings_of_several_processes
    npm_install
    sqlite_with_several_writers
    vim_in_place
    vim_with_backup_undo_and_swap_files
    vim_with_rename
}

fn left_out(name: &str) {
    let test = format!("ninep_workloads::left_out::{name}");
    if let Some((_, program)) = NOT_IN_THE_IMAGE.iter().find(|(other, _)| *other == name) {
        return skip(&test, &format!("the image has no {program}"));
    }
    if std::env::var_os("CODEAGENT_LONG").is_none() {
        return skip(&test, "takes long where processors are emulated; `--long` does it");
    }
    let all = all();
    let wanted = all.iter().filter(|workload| workload.name == name);
    what_they_do_is_undone_and_redone_exactly(&test, wanted);
}

#[test]
fn every_workload_is_done_or_named_as_left_out() {
    let names: Vec<&str> = all().iter().map(|workload| workload.name).collect();
    assert!(LEFT_OUT.iter().all(|name| names.contains(name)));
    assert_eq!(usual().len() + LEFT_OUT.len(), names.len());
    let tools = |name| all().into_iter().find(|other| other.name == name).unwrap().tools;
    assert!(NOT_IN_THE_IMAGE.iter().all(|(name, program)| tools(*name).contains(program)));
}
