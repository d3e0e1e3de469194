//! Random steps, and a random path restored from before one of them: it is exactly what it was,
//! everything else is as it is, and undo takes the restore back.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::path::Path;

use codeagent_common::{RelPathBuf, StepId};
use codeagent_interceptor::{ClosedStep, UndoError};
use codeagent_test_support::{Applier, CompareOptions, TempWorkspace, TreeSnapshot, filesystems};
use common::{Bench, rel_buf};

const PATHS: [&str; 13] =
    ["a", "b", "c", "a/x", "a/y", "b/x", "b/y", "c/x", "a/x/1", "b/x/1", "a/x/2", "c/x/1", "d"];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn path(&mut self) -> &'static str {
        PATHS[self.below(PATHS.len() as u64) as usize]
    }
}

fn fixture(root: &Path) {
    for dir in ["a", "b", "a/x"] {
        fs::create_dir(root.join(dir)).unwrap();
    }
    for file in ["c", "a/y", "b/x", "b/y", "a/x/1", "a/x/2"] {
        fs::write(root.join(file), format!("original {file}")).unwrap();
    }
    fs::write(root.join("b/y"), vec![b'y'; 200_000]).unwrap();
    codeagent_test_support::fixtures::set_distinct_mtimes(root);
}

fn mutate(fs: &Applier<'_>, random: &mut Random, links: bool, log: &mut Vec<String>) {
    let (path, other) = (random.path(), random.path());
    let content = format!("agent {}", random.below(1 << 30));
    let (what, outcome) = match random.below(if links { 15 } else { 12 }) {
        0 => ("create", fs.create(path, content.as_bytes())),
        1 => ("overwrite", fs.overwrite(path, content.as_bytes())),
        2 => ("write", fs.write(path, random.below(150_000), content.as_bytes())),
        3 => ("unlink", fs.unlink(path)),
        4 => ("mkdir", fs.mkdir(path)),
        5 => ("remove_all", fs.remove_all(path)),
        6 | 7 => ("rename", fs.rename(path, other)),
        8 => ("exchange", fs.exchange(path, other)),
        9 => ("chmod", fs.chmod(path, 0o700 + random.below(8) as u32)),
        10 => ("save", fs.save_by_rename(path, content.as_bytes())),
        11 => ("truncate", fs.truncate(path, random.below(100_000))),
        _ => ("link", fs.link(path, other)),
    };
    if outcome.is_ok() {
        log.push(format!("{what} {path} {other}"));
    }
}

/// The trees before the steps, and the steps.
fn run_steps(
    bench: &Bench,
    random: &mut Random,
    links: bool,
    log: &mut Vec<String>,
) -> Vec<(TreeSnapshot, StepId)> {
    let mut steps = Vec::new();
    for _ in 0..3 {
        let before = bench.snapshot();
        log.push("step".into());
        let closed = bench.try_step(|fs| {
            for _ in 0..=random.below(4) {
                mutate(fs, random, links, log);
            }
        });
        if let ClosedStep::Recorded { step, .. } = closed {
            steps.push((before, step.id));
        }
    }
    steps
}

fn within(path: &[u8], above: &str) -> bool {
    above.is_empty()
        || path
            .strip_prefix(above.as_bytes())
            .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// How the restored tree differs from what it should be.
fn differences(
    before: &TreeSnapshot,
    after: &TreeSnapshot,
    now: &TreeSnapshot,
    restored: &'static str,
) -> Vec<String> {
    let inside = CompareOptions::default().ignoring(move |path| !within(path, restored));
    // What has a name that must be a directory again, and the directories above, may change.
    let outside = CompareOptions::default().ignoring(move |path| {
        let above = |path: &[u8]| path.is_empty() || restored.as_bytes().starts_with(path);
        within(path, restored) || above(path)
    });
    let mut found = before.diff_with(now, &inside);
    found.extend(after.diff_with(now, &outside));
    found
}

/// How what is extracted differs from what it should be.
fn extracted_differences(
    bench: &Bench,
    step: StepId,
    before: &TreeSnapshot,
    path: &str,
) -> Vec<String> {
    let target = bench.beside("extracted").join("it");
    let existed = bench.engine.extract(step, common::rel(path), &target).unwrap();
    let mut wanted = before.clone();
    wanted.entries.retain(|entry, _| within(entry, path));
    if !existed {
        return wanted.entries.into_keys().map(|path| format!("missing: {path:?}")).collect();
    }
    let mut found = TreeSnapshot::capture(target.parent().unwrap());
    let renamed = |entry: &[u8]| [path.as_bytes(), &entry[2..]].concat();
    found.entries.remove(&b""[..]);
    found.entries = found.entries.into_iter().map(|(path, it)| (renamed(&path), it)).collect();
    for entry in wanted.entries.values_mut().chain(found.entries.values_mut()) {
        entry.hard_link_group = None; // with names outside
    }
    wanted.diff(&found)
}

fn random_restores(
    seeds: u64,
    links: bool,
    choose: impl Fn(&mut Random) -> &'static str,
    make: impl Fn() -> TempWorkspace,
) {
    let mut failures = Vec::new();
    let mut restored = 0;
    for seed in 0..seeds {
        let mut random = Random(seed * 7919 + 13);
        let bench = Bench::configured(make().filled(fixture), |_| {});
        let mut log = Vec::new();
        let steps = run_steps(&bench, &mut random, links, &mut log);
        if steps.is_empty() {
            continue;
        }
        let (before, step) = &steps[random.below(steps.len() as u64) as usize];
        let path = choose(&mut random);
        log.push(format!("restore {path:?} from before step {step}"));
        let after = bench.snapshot();
        let mut fail = |what: &str, found: &dyn std::fmt::Debug| {
            failures.push(format!("seed {seed}: {log:?}: {what}: {found:?}"));
        };
        let paths = [if path.is_empty() { RelPathBuf::default() } else { rel_buf(path) }];
        let report = match bench.engine.restore(*step, &paths) {
            Ok(report) => report,
            Err(UndoError::PathNotInStep { .. }) => continue,
            Err(error) => {
                fail("refused", &error);
                continue;
            }
        };
        restored += 1;
        let mut found = differences(before, &after, &bench.snapshot(), path);
        if !path.is_empty() {
            found.extend(extracted_differences(&bench, *step, before, path));
        }
        if !found.is_empty() {
            fail("wrong", &(found, &report));
        }
        let findings = bench.verify().findings;
        if !findings.is_empty() {
            fail("unsound", &findings);
        }
        if report.step.is_some() {
            match bench.engine.rollback(1, codeagent_interceptor::RollbackOptions::default()) {
                Ok(_) if after.diff(&bench.snapshot()).is_empty() => {}
                Ok(_) => fail("not undone", &after.diff(&bench.snapshot())),
                Err(error) => fail("cannot be undone", &error),
            }
        }
    }
    failures.sort_by_key(String::len);
    let shown: Vec<_> = failures.iter().take(6).cloned().collect();
    assert!(failures.is_empty(), "{} failures, e.g.\n{}", failures.len(), shown.join("\n"));
    assert!(restored > seeds / 4, "only {restored} restores");
}

#[test]
fn a_random_path_is_restored_exactly() {
    random_restores(400, false, Random::path, TempWorkspace::new);
}

#[test]
fn everything_is_restored_exactly_hard_links_included() {
    random_restores(300, true, |_| "", TempWorkspace::new);
}

#[test]
fn a_random_path_is_restored_exactly_across_filesystems() {
    let Some(disk) = filesystems::disk_dir() else {
        filesystems::skip("random restores across filesystems", "no disk filesystem");
        return;
    };
    let across = || TempWorkspace::across(Path::new("/dev/shm"), &disk);
    random_restores(150, false, Random::path, across);
}
