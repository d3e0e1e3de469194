//! A process is killed at every point where something is written, moved or removed; whatever it
//! leaves behind, the next one finds its way back to a step boundary.
//!
//! The crash model: SIGKILL between any two system calls of the engine or of the front end. The
//! kernel survives, so everything that was written is there.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the wanted failure")]

mod scenarios;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use codeagent_common::ResourceLimits;
use codeagent_interceptor::{Fault, FaultInjector, Point, RollbackOptions, UndoEngine, verify};
use codeagent_test_support::{
    Applier, TempWorkspace, TreeSnapshot, as_ordinary_user, assert_tree_eq, filesystems,
};
use scenarios::{Act, Scenario};

/// A history that is shortened as the scenario ends.
fn evicting() -> Scenario {
    Scenario {
        name: "evict",
        history: &[
            scenarios::BEFORE,
            &[|fs| fs.create("second", b"2")],
            &[|fs| fs.unlink("second")],
        ],
        undone: 0,
        act: Act::Step(scenarios::MIXED),
        configure: |config| {
            config.limits = ResourceLimits { max_steps: 3, ..ResourceLimits::default() };
        },
    }
}

/// Kills the process when a given number of points has been reached.
struct KillAt {
    left: AtomicU64,
}

impl KillAt {
    fn count(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
            loop {
                std::thread::park();
            }
        }
    }
}

impl FaultInjector for KillAt {
    fn reach(&self, _point: Point) -> Fault {
        self.count();
        Fault::None
    }
}

/// Not a test of its own: what the killed processes run.
#[test]
fn crash_child() {
    let Some(role) = std::env::var_os("CODEAGENT_CRASH_ROLE") else { return };
    let path = |name: &str| PathBuf::from(std::env::var_os(name).unwrap());
    let number = |name: &str| std::env::var(name).unwrap().parse().unwrap();
    let (working, undo) = (path("CODEAGENT_CRASH_WORKING"), path("CODEAGENT_CRASH_UNDO"));
    let index = number("CODEAGENT_CRASH_SCENARIO") as usize;
    let mut all = scenarios::all();
    all.push(evicting());
    all.extend(scenarios::locked());
    let scenario = &all[index];
    let kill = Arc::new(KillAt { left: AtomicU64::new(number("CODEAGENT_CRASH_AT")) });
    let mut config = scenario.config(&working, &undo);
    config.faults = Some(Arc::clone(&kill) as Arc<dyn FaultInjector>);
    let engine = UndoEngine::open(config).unwrap();
    if role == "run" {
        let fs = Applier::new(&engine, &working).with_host_hook(Arc::new(move || kill.count()));
        scenario.run(&engine, &working, &fs).unwrap();
    }
}

/// Runs a child; `true` if it was killed at that point, `false` if it came to its end before.
fn killed(role: &str, workspace: &TempWorkspace, scenario: usize, at: u64) -> bool {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash_child", "--nocapture", "--test-threads", "1"])
        .env("CODEAGENT_CRASH_ROLE", role)
        .env("CODEAGENT_CRASH_WORKING", workspace.working())
        .env("CODEAGENT_CRASH_UNDO", workspace.undo())
        .env("CODEAGENT_CRASH_SCENARIO", scenario.to_string())
        .env("CODEAGENT_CRASH_AT", at.to_string())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::inherit())
        .status()
        .unwrap();
    let by_signal = std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
    assert!(by_signal || status.success(), "the child failed: {status}");
    by_signal
}

/// Kills the scenario at its `at`-th point and checks what recovery makes of it.
/// `false`: it has fewer points.
fn crash_once(workspace: TempWorkspace, index: usize, scenario: &Scenario, at: u64) -> bool {
    let (working, undo) = (workspace.working().to_path_buf(), workspace.undo().to_path_buf());
    let mut boundaries: Vec<TreeSnapshot> = Vec::new();
    {
        let engine = UndoEngine::open(scenario.config(&working, &undo)).unwrap();
        scenario.prepare(&engine, &working, || boundaries.push(TreeSnapshot::capture(&working)));
    }
    let was_killed = killed("run", &workspace, index, at);
    // Every second time, recovery is killed as well, a little later each time.
    if was_killed && at % 2 == 1 {
        let mut recovery_at = 1;
        while killed("recover", &workspace, index, recovery_at) {
            recovery_at += 1 + recovery_at / 3;
        }
    }
    check(scenario, &working, &undo, &boundaries, at);
    was_killed
}

fn check(scenario: &Scenario, working: &Path, undo: &Path, boundaries: &[TreeSnapshot], at: u64) {
    let context = format!("{} killed at point {at}", scenario.name);
    let engine = UndoEngine::open(scenario.config(working, undo)).unwrap();
    if let Some(report) = engine.recovery() {
        assert!(report.rolled_back && report.left.is_empty(), "{context}: {report:?}");
    }
    let report = verify(undo).unwrap();
    assert!(report.is_sound(), "{context}: {:?}", report.findings);
    let kept = engine.steps().len();
    let last = boundaries.len() - 1;
    if kept > last {
        engine.rollback(kept - last, RollbackOptions::default()).unwrap();
        compare(boundaries.last().unwrap(), working, &format!("{context}, undone"));
    } else {
        compare(&boundaries[kept], working, &context);
    }
    // What was undone comes back, and everything can still be undone.
    let redoable = engine.redoable().len().min(last.saturating_sub(kept));
    if redoable > 0 {
        engine.redo(redoable, RollbackOptions::default()).unwrap();
        compare(&boundaries[kept + redoable], working, &format!("{context}, redone"));
    }
    engine.rollback(engine.steps().len(), RollbackOptions::default()).unwrap();
    compare(&boundaries[0], working, &format!("{context}, all undone"));
}

fn compare(expected: &TreeSnapshot, working: &Path, context: &str) {
    let difference = expected.diff(&TreeSnapshot::capture(working));
    assert!(difference.is_empty(), "{context}:\n{}", difference.join("\n"));
}

fn crash_everywhere(make: impl Fn() -> TempWorkspace, from: usize, step: usize) {
    let all = scenarios::all();
    for (index, scenario) in all.iter().enumerate().skip(from).step_by(step) {
        let mut at = 1;
        while crash_once(make().filled(scenarios::fixture), index, scenario, at) {
            at += 1;
        }
        assert!(at > 5, "{} has only {at} points", scenario.name);
    }
}

/// INV-3. Two halves, so that two cores have something to do.
#[test]
fn every_even_scenario_killed_at_every_point_recovers_to_a_boundary() {
    crash_everywhere(TempWorkspace::new, 0, 2);
}

#[test]
fn every_odd_scenario_killed_at_every_point_recovers_to_a_boundary() {
    crash_everywhere(TempWorkspace::new, 1, 2);
}

/// The store on another filesystem: nothing is moved, everything is written anew.
#[test]
fn scenarios_across_filesystems_killed_at_every_point_recover_to_a_boundary() {
    let Some(disk) = filesystems::disk_dir() else {
        filesystems::skip("crash across filesystems", "no disk filesystem");
        return;
    };
    crash_everywhere(|| TempWorkspace::across(Path::new("/dev/shm"), &disk), 11, 6);
}

/// A mode that is lent at that moment is given back, too.
#[test]
fn work_in_locked_directories_killed_at_every_point_recovers_to_a_boundary() {
    let name = "work_in_locked_directories_killed_at_every_point_recovers_to_a_boundary";
    as_ordinary_user(name, || {
        let first = scenarios::all().len() + 1;
        for (index, scenario) in scenarios::locked().iter().enumerate() {
            let make = || TempWorkspace::with_fixture(scenarios::fixture);
            let mut at = 1;
            while crash_once(make(), first + index, scenario, at) {
                at += 1;
            }
            assert!(at > 20, "{} has only {at} points", scenario.name);
        }
    });
}

/// Eviction at the end of a step loses the oldest step or keeps it, and never the tree.
#[test]
fn a_crash_during_eviction_loses_at_most_the_evicted_step() {
    let scenario = evicting();
    let index = scenarios::all().len();
    let mut at = 1;
    loop {
        let workspace = TempWorkspace::new().filled(scenarios::fixture);
        let (working, undo) = (workspace.working(), workspace.undo());
        let mut boundaries = Vec::new();
        {
            let engine = UndoEngine::open(scenario.config(working, undo)).unwrap();
            scenario.prepare(&engine, working, || boundaries.push(TreeSnapshot::capture(working)));
        }
        let was_killed = killed("run", &workspace, index, at);
        let engine = UndoEngine::open(scenario.config(working, undo)).unwrap();
        let committed = engine.steps().iter().any(|step| step.command == scenario.name);
        if committed {
            engine.rollback(1, RollbackOptions::default()).unwrap();
        }
        assert_tree_eq(boundaries.last().unwrap(), &TreeSnapshot::capture(working));
        engine.rollback(1, RollbackOptions::default()).unwrap();
        assert_tree_eq(&boundaries[2], &TreeSnapshot::capture(working));
        if !was_killed {
            break;
        }
        at += 1;
    }
}
