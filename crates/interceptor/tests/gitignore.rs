//! The opt-in filter: what `.gitignore` names is left out of undo.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;

use codeagent_interceptor::{ClosedStep, RollbackOptions};
use codeagent_test_support::{TempWorkspace, assert_tree_eq, assert_tree_eq_with, fixtures};
use common::{Bench, all_but};

/// A small repository: logs and `target/` are ignored, `private` by the exclude file, and
/// everything but one log in `logs/` is kept by a rule file of its own.
fn repository(root: &std::path::Path) {
    for dir in [".git/info", "src", "logs", "target"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for (path, content) in [
        (".gitignore", "*.log\ntarget/\n"),
        (".git/info/exclude", "private\n"),
        ("logs/.gitignore", "!kept.log\n*.tmp\n"),
        ("src/main.rs", "fn main() {}\n"),
        ("src/build.log", "ignored\n"),
        ("src/note.tmp", "not ignored here\n"),
        ("logs/kept.log", "not ignored\n"),
        ("logs/note.tmp", "ignored\n"),
        ("target/output", "ignored\n"),
        ("private", "ignored\n"),
    ] {
        fs::write(root.join(path), content).unwrap();
    }
    fixtures::set_distinct_mtimes(root);
}

fn filtering(gitignore: bool) -> Bench {
    let workspace = TempWorkspace::with_fixture(repository);
    Bench::configured(workspace, |config| config.gitignore = gitignore)
}

fn read(bench: &Bench, path: &str) -> Vec<u8> {
    fs::read(bench.path(path)).unwrap()
}

/// GI-01
#[test]
fn undo_leaves_ignored_files_as_they_are() {
    let bench = filtering(true);
    let before = bench.snapshot();
    let step = bench.step(|fs| {
        fs.overwrite("src/build.log", b"rebuilt\n").unwrap();
        fs.create("src/new.log", b"new\n").unwrap();
        fs.overwrite("src/main.rs", b"changed\n").unwrap();
    });
    bench.undo(1);

    assert_eq!((step.modified, step.added), (1, 0));
    assert_eq!(read(&bench, "src/build.log"), b"rebuilt\n");
    assert_eq!(read(&bench, "src/new.log"), b"new\n");
    let rest = all_but(&["src", "src/build.log", "src/new.log"]);
    assert_tree_eq_with(&before, &bench.snapshot(), &rest);
}

/// GI-02
#[test]
fn nothing_is_ignored_unless_asked_for() {
    let bench = filtering(false);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.overwrite("src/build.log", b"rebuilt\n").unwrap();
        fs.remove_all("target").unwrap();
        fs.unlink("private").unwrap();
    });
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

/// GI-03
#[test]
fn the_exclude_file_of_the_repository_counts() {
    let bench = filtering(true);
    bench.step(|fs| {
        fs.overwrite("private", b"changed\n").unwrap();
        fs.overwrite("src/main.rs", b"changed\n").unwrap();
    });
    bench.undo(1);
    assert_eq!(read(&bench, "private"), b"changed\n");
    assert_eq!(read(&bench, "src/main.rs"), b"fn main() {}\n");
}

/// GI-04
#[test]
fn nested_rules_apply_below_their_directory_and_the_deepest_wins() {
    let bench = filtering(true);
    bench.step(|fs| {
        for path in ["logs/kept.log", "logs/note.tmp", "src/note.tmp", "src/build.log"] {
            fs.overwrite(path, b"changed\n").unwrap();
        }
    });
    bench.undo(1);
    assert_eq!(read(&bench, "logs/kept.log"), b"not ignored\n");
    assert_eq!(read(&bench, "src/note.tmp"), b"not ignored here\n");
    assert_eq!(read(&bench, "logs/note.tmp"), b"changed\n");
    assert_eq!(read(&bench, "src/build.log"), b"changed\n");
}

/// GI-05
#[test]
fn everything_below_an_ignored_directory_is_ignored() {
    let bench = filtering(true);
    let closed = bench.try_step(|fs| {
        fs.mkdir("target/debug").unwrap();
        fs.create("target/debug/app", &[0; 100_000]).unwrap();
        fs.unlink("target/output").unwrap();
        fs.create("src/run.log", b"").unwrap();
    });
    assert!(matches!(closed, ClosedStep::Empty { .. }), "nothing to undo: {closed:?}");
    assert_eq!(bench.engine.steps(), []);
    assert_eq!(read(&bench, "target/debug/app").len(), 100_000);
}

/// GI-05
#[test]
fn a_directory_pattern_does_not_match_a_file() {
    let bench = filtering(true);
    let before = bench.snapshot();
    bench.step(|fs| fs.create("src/target", b"a file of that name").unwrap());
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

/// GI-06: or a command could switch undo off for its successors.
#[test]
fn rules_are_read_when_the_engine_starts_and_not_again() {
    let bench = filtering(true);
    let before = bench.snapshot();
    bench.step(|fs| fs.overwrite(".gitignore", b"*\n").unwrap());
    bench.step(|fs| fs.overwrite("src/main.rs", b"changed\n").unwrap());
    bench.undo(2);
    assert_tree_eq(&before, &bench.snapshot());
}

/// GI-07
#[test]
fn a_removed_directory_comes_back_without_its_ignored_files() {
    let bench = filtering(true);
    let before = bench.snapshot();
    bench.step(|fs| fs.remove_all("src").unwrap());
    bench.undo(1);
    assert!(!bench.path("src/build.log").exists());
    // That the ignored file went changed the time of its directory, unseen.
    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&["src", "src/build.log"]));
}

/// GI-07
#[test]
fn an_ignored_file_in_a_new_directory_outlives_undo_and_is_no_conflict() {
    let bench = filtering(true);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.mkdir("made").unwrap();
        fs.create("made/source.rs", b"").unwrap();
        fs.create("made/run.log", b"worth keeping\n").unwrap();
    });
    bench.undo(1);
    assert_eq!(read(&bench, "made/run.log"), b"worth keeping\n");
    let rest = all_but(&["", "made", "made/run.log"]);
    assert_tree_eq_with(&before, &bench.snapshot(), &rest);
}

/// GI-08
#[test]
fn a_rename_between_ignored_and_kept_names_is_undone() {
    let bench = filtering(true);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.rename("src/main.rs", "src/main.log").unwrap();
        fs.rename("private", "public").unwrap();
    });
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

/// GI-08
#[test]
fn a_kept_file_replaced_by_an_ignored_one_comes_back() {
    let bench = filtering(true);
    let before = bench.snapshot();
    bench.step(|fs| fs.rename("src/build.log", "src/main.rs").unwrap());
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

/// GI-08
#[test]
fn a_rename_between_ignored_names_is_left() {
    let bench = filtering(true);
    let closed = bench.try_step(|fs| fs.rename("src/build.log", "src/built.log").unwrap());
    assert!(matches!(closed, ClosedStep::Empty { .. }), "{closed:?}");
    assert_eq!(read(&bench, "src/built.log"), b"ignored\n");
}

/// GI-08: the directory itself is not ignored, what is in it partly.
#[test]
fn a_renamed_directory_takes_its_ignored_files_along() {
    let bench = filtering(true);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.rename("src", "code").unwrap();
        fs.overwrite("code/build.log", b"rebuilt\n").unwrap();
    });
    bench.undo(1);
    assert_eq!(read(&bench, "src/build.log"), b"rebuilt\n");
    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&["src/build.log"]));
}

fn ignoring_objects() -> Bench {
    let workspace = TempWorkspace::with_fixture(|root| {
        fs::write(root.join(".gitignore"), "*.o\n/target/\n").unwrap();
        fs::write(root.join("important.c"), "precious").unwrap();
        fs::create_dir(root.join("src")).unwrap();
        fs::write(root.join("src/main.rs"), "precious too").unwrap();
    });
    Bench::configured(workspace, |config| config.gitignore = true)
}

#[test]
fn a_kept_file_renamed_to_an_ignored_name_and_removed_comes_back() {
    let bench = ignoring_objects();
    bench.step(|fs| {
        fs.rename("important.c", "important.o").unwrap();
        fs.unlink("important.o").unwrap();
    });
    bench.undo(1);
    assert_eq!(fs::read_to_string(bench.path("important.c")).unwrap(), "precious");
}

#[test]
fn a_kept_directory_renamed_to_an_ignored_name_is_still_protected() {
    let bench = ignoring_objects();
    bench.step(|fs| {
        fs.rename("src", "target").unwrap();
        fs.overwrite("target/main.rs", b"gone").unwrap();
    });
    bench.undo(1);
    assert_eq!(fs::read_to_string(bench.path("src/main.rs")).unwrap(), "precious too");
}

#[test]
fn a_kept_file_written_to_by_an_ignored_link_comes_back() {
    let bench = ignoring_objects();
    bench.try_step(|fs| {
        fs.link("important.c", "x.o").unwrap();
        fs.overwrite("x.o", b"gone").unwrap();
    });
    let _ = bench.engine.rollback(1, RollbackOptions::default());
    assert_eq!(fs::read_to_string(bench.path("important.c")).unwrap(), "precious");
}
