//! Many threads of a front end in one tree at once: whatever they did, undo is exact.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs::File;
use std::thread;

use codeagent_common::{ResourceLimits, StepKind};
use codeagent_interceptor::{ClosedStep, StepRequest};
use codeagent_test_support::{Applier, TempWorkspace, assert_tree_eq, fixtures};
use common::Bench;

const THREADS: u64 = 8;

/// A small generator: the same seed, the same operations.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// One of few paths, so that threads meet.
    fn path(&mut self) -> String {
        let names = ["a", "b", "c", "d"];
        let depth = 1 + self.below(3);
        let name = |random: &mut Self| names[random.below(4) as usize];
        (0..depth).map(|_| name(self)).collect::<Vec<_>>().join("/")
    }
}

fn start(root: &std::path::Path) {
    for dir in ["a/b", "b/a", "c", "d/d"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    for (number, path) in ["a/a", "a/b/c", "b/b", "b/a/d", "c/a", "d/a", "d/d/a"].iter().enumerate()
    {
        let content = fixtures::varied_bytes(1000 + number * 40_000);
        std::fs::write(root.join(path), content).unwrap();
    }
    std::fs::hard_link(root.join("a/a"), root.join("d/b")).unwrap();
    fixtures::set_distinct_mtimes(root);
}

fn bench() -> Bench {
    let workspace = TempWorkspace::with_fixture(start);
    Bench::configured(workspace, |config| {
        config.limits = ResourceLimits { max_steps: 100_000, ..ResourceLimits::default() };
    })
}

/// One random operation, by handle wherever a path could meanwhile lead elsewhere. That the
/// system refuses it is as good an outcome as any.
fn operate(fs: &Applier<'_>, random: &mut Random, held: &mut Vec<(String, File)>) {
    let (path, other) = (random.path(), random.path());
    let (offset, byte) = (random.below(100_000), random.below(256) as u8);
    let content = vec![byte; 1 + random.below(20_000) as usize];
    let outcome = match random.below(14) {
        0 | 1 => fs.create_open(&path).map(|file| held.push((path, file))),
        2 => fs.mkdir(&path),
        3 => fs.rmdir(&path),
        4 | 5 => fs.unlink(&path),
        6 | 7 => fs.rename(&path, &other),
        8 => fs.exchange(&path, &other),
        9 => fs.link(&path, &other),
        10 => fs.truncate(&path, offset),
        11 if fs.full_path(&path).is_file() => fs.open(&path).map(|file| held.push((path, file))),
        _ => match held.get(random.below(1 + held.len() as u64) as usize) {
            Some((path, file)) => fs.write_open(file, path, offset, &content),
            None => fs.write(&path, offset, &content),
        },
    };
    drop(outcome);
    if held.len() > 6 {
        held.remove(0);
    }
}

fn all_threads_operate(bench: &Bench, seed: u64, operations: usize) {
    thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || {
                let mut random =
                    Random((seed * THREADS + number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let (fs, mut held) = (bench.applier(), Vec::new());
                (0..operations).for_each(|_| operate(&fs, &mut random, &mut held));
            });
        }
    });
}

#[test]
fn steps_of_many_threads_are_undone_and_redone_exactly() {
    for seed in 0..6 {
        let bench = bench();
        let mut trees = vec![bench.snapshot()];
        for step in 0..3 {
            bench.step(|_| all_threads_operate(&bench, seed * 10 + step, 60));
            trees.push(bench.snapshot());
        }
        bench.assert_sound();
        for tree in trees.iter().rev().skip(1) {
            bench.undo(1);
            assert_tree_eq(tree, &bench.snapshot());
        }
        bench.redo(3);
        assert_tree_eq(&trees[3], &bench.snapshot());
        bench.undo(3);
        assert_tree_eq(&trees[0], &bench.snapshot());
    }
}

#[test]
fn a_step_of_many_threads_is_aborted_exactly() {
    for seed in 100..106 {
        let bench = bench();
        let before = bench.snapshot();
        bench.engine.open_step(StepRequest::command("aborted")).unwrap();
        all_threads_operate(&bench, seed, 60);
        bench.engine.abort_step().unwrap();
        assert_tree_eq(&before, &bench.snapshot());
    }
}

#[test]
fn steps_may_come_and_go_while_others_write() {
    for seed in 200..203 {
        let bench = bench();
        let before = bench.snapshot();
        thread::scope(|scope| {
            let writing = scope.spawn(|| all_threads_operate(&bench, seed, 120));
            while !writing.is_finished() {
                bench.engine.open_step(StepRequest::command("meanwhile")).unwrap();
                thread::yield_now();
                let closed = bench.engine.close_step(Some(0)).unwrap();
                assert!(matches!(closed, ClosedStep::Recorded { .. } | ClosedStep::Empty { .. }));
                thread::yield_now();
            }
        });
        bench.step(|fs| fs.create("last", b"ends an ambient step that may be open").unwrap());
        let after = bench.snapshot();
        let steps = bench.engine.steps();

        bench.undo(steps.len());
        assert_tree_eq(&before, &bench.snapshot());
        bench.redo(steps.len());
        assert_tree_eq(&after, &bench.snapshot());
        let kinds = [StepKind::Command, StepKind::Ambient];
        assert!(steps.iter().all(|step| kinds.contains(&step.kind)));
    }
}

#[test]
fn many_writers_of_one_file_are_undone_exactly() {
    let bench = bench();
    let before = bench.snapshot();
    bench.step(|_| {
        thread::scope(|scope| {
            for number in 0..THREADS {
                let fs = bench.applier();
                scope.spawn(move || {
                    let mut random = Random(number + 77);
                    let file = fs.open("d/d/a").unwrap();
                    for _ in 0..100 {
                        let offset = random.below(400_000);
                        fs.write_open(&file, "d/d/a", offset, &[number as u8; 3000]).unwrap();
                    }
                });
            }
        });
    });
    let after = bench.snapshot();
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(1);
    assert_tree_eq(&after, &bench.snapshot());
}

#[test]
fn writers_and_renames_of_their_directory_do_not_lose_each_other() {
    let bench = bench();
    let before = bench.snapshot();
    bench.step(|_| {
        thread::scope(|scope| {
            scope.spawn(|| {
                let fs = bench.applier();
                for _ in 0..200 {
                    fs.rename("a", "moved").unwrap();
                    fs.rename("moved", "a").unwrap();
                }
            });
            for number in 0..THREADS {
                let fs = bench.applier();
                scope.spawn(move || {
                    for round in 0..100 {
                        let name = format!("new-{number}-{round}");
                        let _ = fs.create(format!("a/{name}"), b"in one or the other");
                        let _ = fs.create(format!("moved/{name}"), b"in one or the other");
                        let _ = fs.write("a/b/c", round * 100, &[number as u8; 500]);
                        let _ = fs.unlink(format!("a/{name}"));
                    }
                });
            }
        });
    });
    let after = bench.snapshot();
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(1);
    assert_tree_eq(&after, &bench.snapshot());
}
