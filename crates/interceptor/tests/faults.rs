//! The store fails once, at each of its operations in turn. No record, no write: the mutation
//! fails with that error, the host is as it was, and what was recorded before can still be undone.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the wanted failure")]

mod scenarios;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use codeagent_interceptor::{
    Fault, FaultInjector, Point, RollbackOptions, StepRequest, UndoEngine, UndoError, verify,
};
use codeagent_test_support::{Applier, TempWorkspace, TreeSnapshot, filesystems};
use rustix::io::Errno;
use scenarios::{Act, Scenario};

/// Fails the n-th store operation after it is armed; counts what the engine does to the host.
struct FailAt {
    fault: Fault,
    armed: AtomicBool,
    left: AtomicU64,
    host_mutations: AtomicU64,
}

impl FaultInjector for FailAt {
    fn reach(&self, point: Point) -> Fault {
        match point {
            Point::HostMutation => {
                self.host_mutations.fetch_add(1, Ordering::SeqCst);
                Fault::None
            }
            Point::Recovery => Fault::None,
            _ if !self.armed.load(Ordering::SeqCst) => Fault::None,
            _ if self.left.fetch_sub(1, Ordering::SeqCst) == 1 => self.fault,
            _ => Fault::None,
        }
    }
}

fn errno(fault: Fault) -> i32 {
    match fault {
        Fault::Errno(errno) | Fault::ShortWrite(errno) => errno,
        Fault::None => 0,
    }
}

const FAULTS: [Fault; 5] = [
    Fault::Errno(Errno::IO.raw_os_error()),
    Fault::Errno(Errno::NOSPC.raw_os_error()),
    Fault::Errno(Errno::DQUOT.raw_os_error()),
    Fault::Errno(Errno::MFILE.raw_os_error()),
    Fault::ShortWrite(Errno::NOSPC.raw_os_error()),
];

struct Trial<'s> {
    scenario: &'s Scenario,
    workspace: TempWorkspace,
    engine: UndoEngine,
    injector: Arc<FailAt>,
    boundaries: Vec<TreeSnapshot>,
    context: String,
}

impl<'s> Trial<'s> {
    fn new(scenario: &'s Scenario, workspace: TempWorkspace, fault: Fault, at: u64) -> Self {
        let workspace = workspace.filled(scenarios::fixture);
        let (working, undo) = (workspace.working(), workspace.undo());
        let injector = Arc::new(FailAt {
            fault,
            armed: AtomicBool::new(false),
            left: AtomicU64::new(at),
            host_mutations: AtomicU64::new(0),
        });
        let mut config = scenario.config(working, undo);
        config.faults = Some(Arc::clone(&injector) as Arc<dyn FaultInjector>);
        let engine = UndoEngine::open(config).unwrap();
        let mut boundaries = Vec::new();
        scenario.prepare(&engine, working, || boundaries.push(TreeSnapshot::capture(working)));
        injector.armed.store(true, Ordering::SeqCst);
        let context = format!("{}, {fault:?} at store operation {at}", scenario.name);
        Self { scenario, workspace, engine, injector, boundaries, context }
    }

    fn compare(&self, expected: &TreeSnapshot, when: &str) {
        let difference = expected.diff(&self.workspace.snapshot());
        assert!(difference.is_empty(), "{} {when}:\n{}", self.context, difference.join("\n"));
    }

    /// Runs the operations one by one; the first that fails must have changed nothing.
    fn run_ops(&self, ops: &[fn(&Applier<'_>) -> std::io::Result<()>]) -> Result<(), UndoError> {
        let counter = Arc::clone(&self.injector);
        let fs = Applier::new(&self.engine, self.workspace.working()).with_host_hook(Arc::new(
            move || {
                counter.host_mutations.fetch_add(1, Ordering::SeqCst);
            },
        ));
        for op in ops {
            let before = self.workspace.snapshot();
            let mutations = self.injector.host_mutations.load(Ordering::SeqCst);
            if let Err(error) = op(&fs) {
                assert_eq!(
                    error.raw_os_error(),
                    Some(errno(self.injector.fault)),
                    "{}: {error}",
                    self.context
                );
                if self.injector.host_mutations.load(Ordering::SeqCst) == mutations {
                    self.compare(&before, "must leave the host as it was");
                }
                self.engine.abort_step().unwrap();
                return Ok(());
            }
        }
        self.engine.close_step(Some(0)).map(drop)
    }

    fn run(&self) {
        let working = self.workspace.working();
        let outcome = match self.scenario.act {
            Act::Step(ops) => self
                .engine
                .open_step(StepRequest::command(self.scenario.name))
                .and_then(|_| self.run_ops(ops)),
            _ => {
                let fs = Applier::new(&self.engine, working);
                self.scenario.run(&self.engine, working, &fs)
            }
        };
        self.injector.armed.store(false, Ordering::SeqCst);
        if let Err(error) = outcome {
            assert_eq!(error.errno(), errno(self.injector.fault), "{}: {error}", self.context);
        }
        // A step that could not be closed is still there to be aborted, and so is a transaction.
        let aborted = self.engine.rollback_transaction().map(drop);
        let aborted = aborted.or_else(|_| self.engine.abort_step().map(drop));
        match aborted {
            Ok(_) | Err(UndoError::NoStepOpen) => {}
            Err(error) => panic!("{}: {error}", self.context),
        }
        let (kept, last) = (self.engine.steps().len(), self.boundaries.len() - 1);
        if kept > last {
            self.engine.rollback(kept - last, RollbackOptions::default()).unwrap();
        }
        self.compare(&self.boundaries[kept.min(last)], "afterwards");
        let left = self.engine.steps().len();
        if left > 0 {
            self.engine.rollback(left, RollbackOptions::default()).unwrap_or_else(|error| {
                panic!("{}: earlier steps must still be undone: {error}", self.context)
            });
        }
        self.compare(&self.boundaries[0], "after undoing everything");
        let report = verify(self.workspace.undo()).unwrap();
        assert!(report.is_sound(), "{}: {:?}", self.context, report.findings);
    }

    fn reached(&self) -> bool {
        // Counts down past zero once the fault has been handed out.
        self.injector.left.load(Ordering::SeqCst) > u64::MAX / 2
            || self.injector.left.load(Ordering::SeqCst) == 0
    }
}

fn fail_everywhere(scenarios: &[Scenario], make: impl Fn() -> TempWorkspace) {
    for scenario in scenarios {
        for fault in FAULTS {
            let mut at = 1;
            loop {
                let trial = Trial::new(scenario, make(), fault, at);
                trial.run();
                if !trial.reached() {
                    break;
                }
                at += 1;
            }
        }
    }
}

#[test]
fn a_store_that_fails_once_fails_one_mutation_and_nothing_else() {
    fail_everywhere(&scenarios::all(), TempWorkspace::new);
}

#[test]
fn a_store_on_another_filesystem_that_fails_once_fails_one_mutation_and_nothing_else() {
    let Some(disk) = filesystems::disk_dir() else {
        filesystems::skip("faults across filesystems", "no disk filesystem");
        return;
    };
    let some: Vec<Scenario> = scenarios::all().into_iter().step_by(4).collect();
    fail_everywhere(&some, || TempWorkspace::across(Path::new("/dev/shm"), &disk));
}
