//! Random steps against properties the model test does not look at: restore of single paths, and
//! other people's edits.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use codeagent_interceptor::{RollbackOptions, StagedChange};
use codeagent_test_support::{Applier, CompareOptions, TreeSnapshot};
use common::{Bench, rel_buf};

struct Random(u64);

/// A tenth of the seeds by default, all with `CODEAGENT_LONG`, one with `CODEAGENT_SEED`.
fn seeds(all: u64) -> std::ops::Range<u64> {
    let variable = |name| std::env::var(name).ok();
    match (variable("CODEAGENT_SEED"), variable("CODEAGENT_LONG")) {
        (Some(seed), _) => {
            let seed = seed.parse().unwrap();
            seed..seed + 1
        }
        (None, Some(_)) => 0..all,
        (None, None) => 0..all / 10,
    }
}

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn path(&mut self) -> &'static str {
        const PATHS: [&str; 12] =
            ["a", "b", "c", "a/x", "a/y", "b/x", "b/y", "c/x", "a/x/1", "b/x/1", "a/x/2", "c/x/1"];
        PATHS[self.below(12) as usize]
    }
}

fn fixture(root: &Path) {
    for dir in ["a", "b", "a/x"] {
        fs::create_dir(root.join(dir)).unwrap();
    }
    for file in ["c", "a/y", "b/x", "b/y", "a/x/1", "a/x/2"] {
        fs::write(root.join(file), format!("original {file}")).unwrap();
    }
    codeagent_test_support::fixtures::set_distinct_mtimes(root);
}

fn mutate(fs: &Applier<'_>, random: &mut Random, links: bool, log: &mut Vec<String>) {
    let (path, other) = (random.path(), random.path());
    let content = format!("agent {}", random.below(1 << 30));
    let (what, outcome) = match random.below(if links { 12 } else { 10 }) {
        0 => ("create", fs.create(path, content.as_bytes())),
        1 | 2 => ("overwrite", fs.overwrite(path, content.as_bytes())),
        3 => ("unlink", fs.unlink(path)),
        4 => ("mkdir", fs.mkdir(path)),
        5 => ("remove_all", fs.remove_all(path)),
        6 | 7 => ("rename", fs.rename(path, other)),
        8 => ("exchange", fs.exchange(path, other)),
        9 => ("chmod", fs.chmod(path, 0o700 + random.below(8) as u32)),
        _ => ("link", fs.link(path, other)),
    };
    if outcome.is_ok() {
        log.push(format!("{what} {path} {other}"));
    }
}

fn run_steps(
    bench: &Bench,
    random: &mut Random,
    steps: u64,
    links: bool,
    log: &mut Vec<String>,
) -> (Vec<TreeSnapshot>, Vec<codeagent_common::StepId>) {
    let mut before = Vec::new();
    let mut ids = Vec::new();
    for _ in 0..steps {
        let snapshot = bench.snapshot();
        log.push("step".into());
        let closed = bench.try_step(|fs| {
            for _ in 0..=random.below(4) {
                mutate(fs, random, links, log);
            }
        });
        if let codeagent_interceptor::ClosedStep::Recorded { step, .. } = closed {
            before.push(snapshot);
            ids.push(step.id);
        }
    }
    (before, ids)
}

/// A restored path, with everything below it, is what it was before the step.
#[test]
fn random_restore_gives_what_was_there() {
    let mut failures = Vec::new();
    for seed in seeds(1500) {
        let mut random = Random(seed * 7919 + 13);
        let bench = Bench::new(fixture);
        let mut log = Vec::new();
        let (before, ids) = run_steps(&bench, &mut random, 3, false, &mut log);
        if ids.is_empty() {
            continue;
        }
        let nth = random.below(ids.len() as u64) as usize;
        let path = random.path();
        let after = bench.snapshot();
        match bench.engine.restore(ids[nth], &[rel_buf(path)]) {
            Ok(report) => {
                let below = format!("{path}/");
                let options = CompareOptions::default().ignoring(move |p: &[u8]| {
                    !(p == path.as_bytes() || p.starts_with(below.as_bytes()))
                });
                let mut difference = before[nth].diff_with(&bench.snapshot(), &options);
                // That the times of directories do not come back is a finding of its own.
                let now = bench.snapshot();
                difference.retain(|line| {
                    let path = line.trim_start_matches("changed: ").split(':').next().unwrap();
                    let is_dir = now.get(path).is_some_and(|e| e.kind.name() == "directory");
                    !(is_dir && line.matches(" → ").count() == 1 && line.contains(": mtime "))
                });
                if !difference.is_empty() {
                    failures.push(format!("seed {seed}: {log:?}; restore {path} from before recorded step {nth}: {difference:?} {report:?}"));
                }
                if report.step.is_some() {
                    match bench.engine.rollback(1, RollbackOptions::default()) {
                        Ok(_) => {
                            let difference = after.diff(&bench.snapshot());
                            if !difference.is_empty() {
                                failures.push(format!("seed {seed}: {log:?}; undo of restore {path} {nth}: {difference:?}"));
                            }
                        }
                        Err(error) => failures.push(format!(
                            "seed {seed}: {log:?}; undo of restore {path} {nth}: {error}"
                        )),
                    }
                }
            }
            Err(codeagent_interceptor::UndoError::PathNotInStep { .. }) => {}
            Err(error) => {
                failures.push(format!("seed {seed}: {log:?}; restore {path} {nth}: {error}"));
            }
        }
    }
    failures.sort_by_key(String::len);
    assert!(
        failures.is_empty(),
        "{} failures, e.g.\n{}",
        failures.len(),
        failures.iter().take(6).cloned().collect::<Vec<_>>().join("\n")
    );
}

fn files(root: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            files(&entry.path(), found);
        } else {
            found.push(entry.path());
        }
    }
}

fn holds(root: &Path, token: &str) -> bool {
    let mut all = Vec::new();
    files(root, &mut all);
    all.iter().any(|file| fs::read(file).is_ok_and(|bytes| bytes == token.as_bytes()))
}

fn random_edits(options: RollbackOptions, adopting: bool, links: bool) -> Vec<String> {
    let mut failures = Vec::new();
    for seed in seeds(1500) {
        let mut random = Random(seed * 104_729 + 7);
        let bench = Bench::new(fixture);
        let mut log = Vec::new();
        if adopting {
            let staging = bench.beside("staging");
            fs::create_dir(staging.join("new")).unwrap();
            fs::write(staging.join("new/1"), "staged").unwrap();
            let path = random.path();
            log.push(format!("adopt {path}"));
            bench.try_step(|fs| {
                let place = StagedChange::Place { path: rel_buf(path), staged: rel_buf("new") };
                let _ = fs.engine().adopt(&staging, &[place]);
            });
        }
        run_steps(&bench, &mut random, 2, links, &mut log);
        let mut all = Vec::new();
        files(bench.workspace.working(), &mut all);
        if all.is_empty() {
            continue;
        }
        let edited = &all[random.below(all.len() as u64) as usize];
        let token = "by the user, an hour of work";
        let how = random.below(2);
        if how == 0 {
            fs::write(edited, token).unwrap();
        } else {
            let temporary = bench.beside("elsewhere").join("tmp");
            fs::write(&temporary, token).unwrap();
            fs::rename(&temporary, edited).unwrap();
        }
        log.push(format!(
            "user edits {} ({how})",
            edited.strip_prefix(bench.workspace.working()).unwrap().display()
        ));
        let count = bench.engine.steps().len();
        if count == 0 {
            continue;
        }
        match bench.engine.rollback(count, options) {
            Ok(report) if !holds(bench.workspace.working(), token) => {
                failures.push(format!("seed {seed}: {log:?}: {report:?}"));
            }
            Err(error) if options != RollbackOptions::default() => {
                failures.push(format!("seed {seed}: {log:?}: {error}"));
            }
            _ => {}
        }
    }
    failures.sort_by_key(String::len);
    failures
}

#[track_caller]
fn assert_none(failures: &[String]) {
    assert!(
        failures.is_empty(),
        "{} failures, e.g.\n{}",
        failures.len(),
        failures.iter().take(6).cloned().collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn random_edit_is_reported_or_kept() {
    assert_none(&random_edits(RollbackOptions::default(), false, false));
}

#[test]
fn random_edit_is_reported_or_kept_with_links() {
    assert_none(&random_edits(RollbackOptions::default(), false, true));
}

#[test]
fn random_edit_is_kept_by_skip_conflicts() {
    assert_none(&random_edits(RollbackOptions::skip_conflicts(), false, false));
}

#[test]
fn random_edit_is_kept_by_skip_conflicts_with_links() {
    assert_none(&random_edits(RollbackOptions::skip_conflicts(), false, true));
}

fn random_adoption(make: impl Fn() -> codeagent_test_support::TempWorkspace) -> Vec<String> {
    let mut failures = Vec::new();
    for seed in seeds(700) {
        let mut random = Random(seed * 15_485_863 + 3);
        let bench = Bench::configured(make().filled(fixture), |_| {});
        let mut log = Vec::new();
        let mut boundaries = vec![bench.snapshot()];
        let mut number = 0;
        let mut work = |fs: &Applier<'_>, log: &mut Vec<String>| {
            for _ in 0..=random.below(4) {
                if random.below(3) > 0 {
                    mutate(fs, &mut random, true, log);
                    continue;
                }
                number += 1;
                let staging = bench.beside(&format!("staging-{number}"));
                fs::create_dir(staging.join("new")).unwrap();
                fs::create_dir(staging.join("new/x")).unwrap();
                fs::write(staging.join("new/x/1"), format!("staged {number}")).unwrap();
                fs::hard_link(staging.join("new/x/1"), staging.join("new/y")).unwrap();
                fs::write(staging.join("file"), format!("staged file {number}")).unwrap();
                let path = random.path();
                let change = match random.below(4) {
                    0 => StagedChange::Remove { path: rel_buf(path) },
                    1 => StagedChange::Place { path: rel_buf(path), staged: rel_buf("file") },
                    2 => StagedChange::Attributes { path: rel_buf(path), staged: rel_buf("new/x") },
                    _ => StagedChange::Place { path: rel_buf(path), staged: rel_buf("new") },
                };
                let outcome = fs.engine().adopt(&staging, std::slice::from_ref(&change));
                log.push(format!("adopt {change:?} {}", outcome.is_ok()));
            }
        };
        for _ in 0..3 {
            log.push("step".into());
            let closed = bench.try_step(|fs| work(fs, &mut log));
            if matches!(closed, codeagent_interceptor::ClosedStep::Recorded { .. }) {
                boundaries.push(bench.snapshot());
            }
        }
        // One more that is aborted, or dies.
        bench.engine.open_step(codeagent_interceptor::StepRequest::command("x")).unwrap();
        log.push("unfinished step".into());
        work(&bench.applier(), &mut log);
        let count = boundaries.len() - 1;
        let mut check = |bench: &Bench, nth: usize, when: &str| {
            let difference = boundaries[nth].diff(&bench.snapshot());
            if !difference.is_empty() {
                failures.push(format!("seed {seed} {when}: {log:?}: {difference:?}"));
            }
            difference.is_empty()
        };
        let bench = if seed % 2 == 0 {
            bench.engine.abort_step().unwrap();
            bench
        } else {
            bench.reopened()
        };
        if !check(&bench, count, "after the unfinished step") || count == 0 {
            continue;
        }
        let mut go =
            |what: &str, nth: usize, outcome: Result<_, codeagent_interceptor::UndoError>| {
                match outcome {
                    Ok(codeagent_interceptor::RollbackReport { .. }) => check(&bench, nth, what),
                    Err(error) => {
                        check(&bench, nth, &format!("{what}: {error} {error:?}"));
                        false
                    }
                }
            };
        let none = RollbackOptions::default;
        let _ = go("undo", 0, bench.engine.rollback(count, none()))
            && go("redo", count, bench.engine.redo(count, none()))
            && go("undo again", 0, bench.engine.rollback(count, none()));
    }
    failures.sort_by_key(String::len);
    failures
}

#[test]
fn random_adoption_is_undone_and_redone_exactly() {
    assert_none(&random_adoption(codeagent_test_support::TempWorkspace::new));
}

#[test]
fn random_adoption_across_filesystems_is_undone_and_redone_exactly() {
    let Some(disk) = codeagent_test_support::filesystems::disk_dir() else { return };
    assert_none(&random_adoption(|| {
        codeagent_test_support::TempWorkspace::across(Path::new("/dev/shm"), &disk)
    }));
}
