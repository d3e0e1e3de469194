//! What comes after the point of no return may fail: it is told, it is made good later, and it
//! never makes what was done undone.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use codeagent_common::ResourceLimits;
use codeagent_interceptor::{
    ClosedStep, EngineConfig, EngineEvent, Fault, FaultInjector, Point, RollbackOptions,
    StepRequest, UndoError,
};
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use common::{Bench, rel_buf};
use rustix::io::Errno;

/// Lets some operations of a kind pass, and fails some after them.
#[derive(Default)]
struct Failing {
    passing: AtomicU64,
    failing: AtomicU64,
}

/// Promotions, and the writes to files beside the steps that come after them.
#[derive(Default)]
struct Faults {
    promotions: Failing,
    writes: Failing,
}

impl Failing {
    fn fail(&self, failing: u64, passing: u64) {
        self.passing.store(passing, Ordering::SeqCst);
        self.failing.store(failing, Ordering::SeqCst);
    }

    fn reach(&self) -> Fault {
        let take = |count: &AtomicU64| {
            count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
        };
        if !take(&self.passing) && take(&self.failing) {
            return Fault::Errno(Errno::IO.raw_os_error());
        }
        Fault::None
    }
}

impl FaultInjector for Faults {
    fn reach(&self, point: Point) -> Fault {
        match point {
            Point::Promotion => self.promotions.reach(),
            Point::StoreWrite => self.writes.reach(),
            _ => Fault::None,
        }
    }
}

fn bench(configure: impl FnOnce(&mut EngineConfig)) -> (Bench, Arc<Faults>) {
    let faults = Arc::new(Faults::default());
    let bench = Bench::configured(TempWorkspace::new(), |config| {
        config.faults = Some(faults.clone());
        configure(config);
    });
    (bench, faults)
}

fn warnings(bench: &Bench) -> usize {
    let is_warning = |event: &EngineEvent| matches!(event, EngineEvent::Warning(_));
    bench.events.all().iter().filter(|event| is_warning(event)).count()
}

#[test]
fn an_undone_step_stays_undone_although_it_could_not_be_dropped() {
    let (bench, faults) = bench(|_| {});
    bench.step(|fs| fs.create("undone", b"x").unwrap());
    faults.promotions.fail(1, 1); // the promotion to redo succeeds
    bench.undo(1);
    assert_eq!(warnings(&bench), 1);
    let new = bench.step(|fs| fs.create("new", b"x").unwrap()).id;
    let ids = |bench: &Bench| bench.engine.steps().iter().map(|step| step.id).collect::<Vec<_>>();
    assert_eq!(ids(&bench), [new]);
    let bench = bench.reopened();
    assert_eq!(ids(&bench), [new], "the undone step is in the history again");
}

/// Nothing can be dropped, not even later: what says that the step was undone stays, too.
#[test]
fn an_undone_step_stays_undone_although_nothing_can_be_dropped() {
    let (bench, faults) = bench(|_| {});
    bench.step(|fs| fs.create("undone", b"x").unwrap());
    faults.promotions.fail(1, 1);
    bench.undo(1);
    faults.promotions.fail(10, 1);
    bench.step(|fs| fs.create("new", b"x").unwrap());
    faults.promotions.fail(0, 0);
    assert_eq!(bench.engine.redoable(), [], "a new step ends what can be redone");
    let bench = bench.reopened();
    assert_eq!(bench.engine.steps().len(), 1, "the undone step is in the history again");
    assert_eq!(bench.engine.redoable(), []);
}

#[test]
fn a_redone_step_that_is_evicted_cannot_be_redone_again() {
    let (bench, faults) = bench(|config| config.limits.max_steps = 2);
    bench.step(|fs| fs.create("redone", b"x").unwrap());
    bench.undo(1);
    faults.promotions.fail(1, 1);
    bench.redo(1);
    faults.promotions.fail(0, 0);
    for n in 0..2 {
        bench.step(|fs| fs.create(format!("new-{n}"), b"x").unwrap());
    }
    let bench = bench.reopened();
    assert_eq!((bench.engine.steps().len(), bench.engine.redoable().len()), (2, 0));
}

#[test]
fn an_undo_succeeds_although_its_barriers_could_not_be_lifted() {
    let (bench, faults) = bench(|_| {});
    bench.step(|fs| fs.create("f", b"x").unwrap());
    std::fs::write(bench.path("other"), "by somebody else").unwrap();
    bench.engine.external_modification(&[rel_buf("other")]).unwrap();
    // The last write of an undo is the one to the barriers.
    let writes = (1..40).find(|passing| {
        faults.writes.fail(1, *passing);
        bench.engine.rollback(1, RollbackOptions::default()).is_ok()
    });
    assert!(writes.is_some() && warnings(&bench) == 1, "{writes:?} {:?}", bench.events.all());
    assert_eq!((bench.engine.steps().len(), bench.engine.redoable().len()), (0, 1));
    let bench = bench.reopened();
    assert_eq!((bench.engine.steps().len(), bench.engine.redoable().len()), (0, 1));
    assert_eq!(bench.engine.barriers(), []);
    assert!(!bench.path("f").exists() && bench.path("other").exists());
}

#[test]
fn a_step_that_is_closed_does_not_say_that_closing_failed() {
    let limits = ResourceLimits { max_steps: 1, ..ResourceLimits::default() };
    let (bench, faults) = bench(|config| config.limits = limits);
    bench.step(|fs| fs.create("a", b"x").unwrap());
    bench.engine.open_step(StepRequest::command("second")).unwrap();
    bench.applier().create("b", b"x").unwrap();
    faults.promotions.fail(1, 1); // the step's own promotion succeeds

    let closed = bench.engine.close_step(Some(0)).unwrap();

    assert!(matches!(&closed, ClosedStep::Recorded { evicted, .. } if evicted.is_empty()));
    assert_eq!((warnings(&bench), bench.engine.steps().len()), (1, 2));
    bench.step(|fs| fs.create("c", b"x").unwrap());
    assert_eq!(bench.engine.steps().len(), 1, "what was too many goes later");
}

/// A step that could not be evicted is still there to be undone.
#[test]
fn a_failed_eviction_leaves_no_gap() {
    let limits = ResourceLimits { max_steps: 1, ..ResourceLimits::default() };
    let (bench, faults) = bench(|config| config.limits = limits);
    let before = bench.snapshot();
    bench.step(|fs| fs.create("a", b"x").unwrap());
    faults.promotions.fail(1, 1);
    bench.step(|fs| fs.create("b", b"x").unwrap());
    bench.undo(2);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn an_undo_of_several_steps_that_fails_says_which_were_undone() {
    let (bench, faults) = bench(|_| {});
    bench.step(|fs| fs.create("first", b"x").unwrap());
    let between = bench.snapshot();
    let second = bench.step(|fs| fs.create("second", b"x").unwrap()).id;
    faults.promotions.fail(1, 2); // the second step's promotion and removal succeed
    let error = bench.engine.rollback(2, RollbackOptions::default()).unwrap_err();
    assert!(matches!(&error, UndoError::Partly { done, .. } if *done == [second]), "{error}");
    assert_eq!(error.errno(), Errno::IO.raw_os_error());
    assert_tree_eq(&between, &bench.snapshot());
    assert_eq!(bench.engine.steps().len(), 1);
}
