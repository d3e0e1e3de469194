//! What undo does about symlinks, and that it follows none whatever it does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::path::Path;

use codeagent_common::{ChangeKind, EntryKind, SymlinkPolicy};
use codeagent_interceptor::ClosedStep;
use codeagent_test_support::{TempWorkspace, TreeSnapshot, assert_tree_eq, fixtures};
use common::Bench;

fn bench_with(policy: SymlinkPolicy) -> Bench {
    let workspace = TempWorkspace::with_fixture(fixtures::symlink_tree);
    Bench::configured(workspace, |config| config.symlinks = policy)
}

fn target(bench: &Bench, path: &str) -> Option<String> {
    let target = fs::read_link(bench.path(path)).ok()?;
    Some(target.to_str().unwrap().to_owned())
}

fn change_links_and_files(fs: &codeagent_test_support::Applier<'_>) {
    fs.symlink("file.txt", "new-link").unwrap();
    fs.unlink("to-file").unwrap();
    fs.unlink("dangling").unwrap();
    fs.symlink("elsewhere", "dangling").unwrap();
    fs.overwrite("file.txt", b"changed\n").unwrap();
    fs.create("new.txt", b"new\n").unwrap();
}

/// Files are as before the step; what became of the links is the policy's affair.
#[track_caller]
fn assert_files_undone(bench: &Bench) {
    assert_eq!(fs::read(bench.path("file.txt")).unwrap(), b"pointed at\n");
    assert!(!bench.path("new.txt").exists());
}

/// SY-01
#[test]
fn by_default_symlinks_are_undone_like_everything_else() {
    assert_eq!(SymlinkPolicy::default(), SymlinkPolicy::ReadWrite);
    let bench = bench_with(SymlinkPolicy::ReadWrite);
    let before = bench.snapshot();
    bench.step(change_links_and_files);
    let after = bench.snapshot();
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(1);
    assert_tree_eq(&after, &bench.snapshot());
}

/// SY-02
#[test]
fn ignored_symlinks_stay_as_the_step_left_them() {
    let bench = bench_with(SymlinkPolicy::Ignore);
    bench.step(change_links_and_files);
    bench.undo(1);
    assert_files_undone(&bench);
    assert_eq!(target(&bench, "new-link").as_deref(), Some("file.txt"));
    assert_eq!(target(&bench, "dangling").as_deref(), Some("elsewhere"));
    assert_eq!(target(&bench, "to-file"), None);
}

/// SY-03
#[test]
fn ignored_symlinks_are_not_recorded() {
    let bench = bench_with(SymlinkPolicy::Ignore);
    let step = bench.step(change_links_and_files);
    let changes = bench.engine.changes(step.id).unwrap();
    let paths: Vec<_> = changes.iter().map(|change| change.path.to_string()).collect();
    assert_eq!(paths, ["file.txt", "new.txt"]);
}

/// SY-03
#[test]
fn a_step_that_made_only_ignored_symlinks_is_empty() {
    let bench = bench_with(SymlinkPolicy::Ignore);
    let closed = bench.try_step(|fs| fs.symlink("file.txt", "new-link").unwrap());
    assert!(matches!(closed, ClosedStep::Empty { .. }), "{closed:?}");
}

/// SY-04
#[test]
fn read_only_symlinks_are_recorded() {
    let bench = bench_with(SymlinkPolicy::ReadOnly);
    let step = bench.step(change_links_and_files);
    let changes = bench.engine.changes(step.id).unwrap();
    let find = |path: &str| changes.iter().find(|change| change.path.to_string() == path);
    let added = find("new-link").expect("the new link");
    assert_eq!((added.kind, added.entry), (ChangeKind::Added, Some(EntryKind::Symlink)));
    let deleted = find("to-file").expect("the deleted link");
    assert_eq!(deleted.kind, ChangeKind::Deleted);
}

/// SY-05
#[test]
fn read_only_symlinks_are_left_by_undo() {
    let bench = bench_with(SymlinkPolicy::ReadOnly);
    bench.step(change_links_and_files);
    bench.undo(1);
    assert_files_undone(&bench);
    assert_eq!(target(&bench, "new-link").as_deref(), Some("file.txt"));
    assert_eq!(target(&bench, "dangling").as_deref(), Some("elsewhere"));
    assert_eq!(target(&bench, "to-file"), None);
}

/// SY-06: the files around ignored links are undone exactly, whatever happened to the links.
#[test]
fn a_file_that_replaced_a_symlink_goes_and_one_that_was_replaced_comes_back() {
    for policy in [SymlinkPolicy::Ignore, SymlinkPolicy::ReadOnly] {
        let bench = bench_with(policy);
        bench.step(|fs| {
            fs.unlink("to-link").unwrap();
            fs.create("to-link", b"a file now\n").unwrap();
            fs.unlink("file.txt").unwrap();
            fs.symlink("directory", "moving").unwrap();
        });
        bench.undo(1);
        assert!(bench.path("to-link").symlink_metadata().is_err(), "{policy:?}");
        assert_eq!(fs::read(bench.path("file.txt")).unwrap(), b"pointed at\n", "{policy:?}");
    }
}

/// SY-07
#[test]
fn renamed_symlinks_go_back_with_the_directory_they_are_in() {
    for policy in [SymlinkPolicy::Ignore, SymlinkPolicy::ReadOnly, SymlinkPolicy::ReadWrite] {
        let bench = bench_with(policy);
        let before = bench.snapshot();
        bench.step(|fs| fs.rename("directory", "renamed").unwrap());
        bench.undo(1);
        assert_tree_eq(&before, &bench.snapshot());
    }
}

/// SY-08
#[test]
fn what_a_symlink_leads_to_is_never_touched() {
    for policy in [SymlinkPolicy::Ignore, SymlinkPolicy::ReadOnly, SymlinkPolicy::ReadWrite] {
        let bench = bench_with(policy);
        let outside = bench.beside("outside");
        fs::write(outside.join("canary"), b"alive").unwrap();
        fixtures::set_distinct_mtimes(&outside);
        let before = TreeSnapshot::capture(&outside);
        bench.step(|fs| {
            fs.symlink("../outside/canary", "link-to-canary").unwrap();
            fs.symlink("../outside", "link-to-outside").unwrap();
            fs.set_mtime("link-to-canary", 1, 2).unwrap();
            fs.unlink("to-outside").unwrap();
            fs.create("new.txt", b"so that there is something to undo").unwrap();
        });
        bench.undo(1);
        bench.redo(1);
        bench.undo(1);
        assert_tree_eq(&before, &TreeSnapshot::capture(&outside));
        assert!(Path::new(&outside).join("canary").exists(), "{policy:?}");
    }
}
