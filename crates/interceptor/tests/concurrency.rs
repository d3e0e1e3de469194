//! Many threads work in one tree through one engine; afterwards everything is undone, exactly.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the wanted failure")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use codeagent_interceptor::{EngineConfig, RollbackOptions, StepRequest, UndoEngine};
use codeagent_test_support::{Applier, TempWorkspace, TreeSnapshot, assert_tree_eq, fixtures};

const THREADS: u64 = 8;

/// A small generator of its own, so that a failing round can be repeated.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn path(&mut self) -> String {
        let names = ["a", "b", "c", "d"];
        let mut path = String::new();
        for _ in 0..=self.roll(3) {
            if !path.is_empty() {
                path.push('/');
            }
            path.push_str(names[self.roll(4) as usize]);
        }
        path
    }
}

/// Does whatever the dice say; that others were quicker is to be expected.
fn work(engine: &UndoEngine, workspace: &TempWorkspace, seed: u64, operations: u64) {
    let fs = Applier::new(engine, workspace.working());
    let mut dice = Dice(seed | 1);
    for n in 0..operations {
        let (path, other) = (dice.path(), dice.path());
        let _ = match dice.roll(12) {
            0 | 1 => fs.create(&path, format!("{seed} {n}").as_bytes()),
            2 => fs.mkdir(&path),
            3 => fs.unlink(&path),
            4 => fs.remove_all(&path),
            5 | 6 => fs.rename(&path, &other),
            7 => fs.exchange(&path, &other),
            8 => fs.write(&path, dice.roll(100), b"written"),
            9 => fs.append(&path, b"appended"),
            10 => fs.link(&path, &other),
            _ => fs.chmod(&path, 0o600 + dice.roll(64) as u32),
        };
    }
}

fn round(seed: u64) {
    let workspace = TempWorkspace::with_fixture(|root| {
        fixtures::deep_tree(root);
        for name in ["a", "b"] {
            std::fs::create_dir_all(root.join(name).join("c/d")).unwrap();
            std::fs::write(root.join(name).join("c/a"), vec![3; 80_000]).unwrap();
        }
        fixtures::set_distinct_mtimes(root);
    });
    let before = workspace.snapshot();
    let config = EngineConfig::new(workspace.working(), workspace.undo());
    let engine = UndoEngine::open(config).unwrap();
    engine.open_step(StepRequest::command("eight at once")).unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (engine, workspace) = (&engine, &workspace);
            scope.spawn(move || work(engine, workspace, seed * 1000 + thread, 150));
        }
    });
    engine.close_step(Some(0)).unwrap();
    let after = workspace.snapshot();
    engine.rollback(1, RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &workspace.snapshot());
    engine.redo(1, RollbackOptions::default()).unwrap();
    assert_tree_eq(&after, &workspace.snapshot());
    engine.rollback(1, RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &workspace.snapshot());
}

#[test]
fn eight_threads_in_one_tree_are_undone_exactly() {
    let rounds = if std::env::var_os("CODEAGENT_LONG").is_some() { 500 } else { 25 };
    for seed in 1..=rounds {
        round(seed);
    }
}

/// All threads write to the same files, through handles, in blocks that share captures.
#[test]
fn eight_threads_writing_to_the_same_files_are_undone_exactly() {
    let workspace = TempWorkspace::with_fixture(|root| {
        for name in ["x", "y"] {
            std::fs::write(root.join(name), fixtures::varied_bytes(3 << 20)).unwrap();
        }
        fixtures::set_distinct_mtimes(root);
    });
    let before = workspace.snapshot();
    let config = EngineConfig::new(workspace.working(), workspace.undo());
    let engine = UndoEngine::open(config).unwrap();
    engine.open_step(StepRequest::command("writers")).unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (engine, workspace) = (&engine, &workspace);
            scope.spawn(move || {
                let fs = Applier::new(engine, workspace.working());
                let mut dice = Dice(thread + 77);
                let name = if thread % 2 == 0 { "x" } else { "y" };
                let file = fs.open(name).unwrap();
                for _ in 0..400 {
                    let offset = dice.roll(4 << 20);
                    fs.write_open(&file, name, offset, &[thread as u8; 5000]).unwrap();
                }
            });
        }
    });
    engine.close_step(Some(0)).unwrap();
    engine.rollback(1, RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &workspace.snapshot());
}

/// Steps begin, end and are undone while others write: every write belongs to some step, and
/// undoing all of them brings the first tree back.
#[test]
fn steps_change_while_others_write_and_nothing_falls_between() {
    let workspace = TempWorkspace::with_fixture(fixtures::deep_tree);
    let before = workspace.snapshot();
    let mut config = EngineConfig::new(workspace.working(), workspace.undo());
    config.limits.max_steps = usize::MAX; // none of them may be evicted
    let engine = UndoEngine::open(config).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        for thread in 0..4 {
            let (engine, workspace, stop) = (&engine, &workspace, Arc::clone(&stop));
            scope.spawn(move || {
                let mut seed = thread;
                while !stop.load(Ordering::Relaxed) {
                    seed += 10;
                    work(engine, workspace, seed, 5);
                }
            });
        }
        for n in 0..60 {
            engine.open_step(StepRequest::command(format!("step {n}"))).unwrap();
            Applier::new(&engine, workspace.working()).create(format!("step {n}"), b"").unwrap();
            work(&engine, &workspace, 9000 + n, 10);
            engine.close_step(Some(0)).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    engine.open_step(StepRequest::command("last")).unwrap();
    engine.close_step(None).unwrap();
    let steps = engine.steps().len();
    assert!(steps >= 60, "{steps}");
    engine.rollback(steps, RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &TreeSnapshot::capture(workspace.working()));
}
