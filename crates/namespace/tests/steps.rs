//! From the end of a command to the end of its step, where somebody may still be writing: as in a
//! guest. The worker is real; what writes late is played.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use codeagent_common::{RelPathBuf, SafeguardConfig, SafeguardDecision, SafeguardId, StepKind};
use codeagent_control::{Cause, ExitStatus, Outcome};
use codeagent_interceptor::{ClosedStep, HistoryEntry, OnConflict};
use codeagent_namespace::{Steps, View, WorkFolder};
use codeagent_test_support::{TempWorkspace, assert_tree_eq, fixtures};
use codeagent_worker::{Client, FileChange, Request, WorkerProcess};
use common::start_worker;

const QUIET: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(2);
/// What a busy machine may add.
const SLACK: Duration = Duration::from_secs(2);

struct Stage {
    worker: WorkerProcess,
    workspace: TempWorkspace,
}

impl Stage {
    fn new() -> Self {
        let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
        Self { worker: start_worker(workspace.working(), workspace.undo()), workspace }
    }

    fn client(&self) -> &Client {
        self.worker.client()
    }

    fn folders(&self) -> [WorkFolder<'_>; 1] {
        [WorkFolder { path: self.workspace.working(), worker: Some(self.client()) }]
    }

    fn open(&self) -> Steps<'_> {
        Steps::open(&self.folders(), "build", View::Live).unwrap()
    }

    /// How long it takes from the end of the command.
    fn close(&self, steps: Steps<'_>) -> Duration {
        let ended = Instant::now();
        let outcome = Outcome::Completed { status: ExitStatus::ExitCode(3), cause: Cause::Exited };
        let closed = steps.close(&self.folders(), &outcome).unwrap();
        let took = ended.elapsed();
        match &closed[0].as_ref().unwrap().closed {
            ClosedStep::Recorded { step, .. } => assert_eq!(step.exit_code, Some(3)),
            other => panic!("{other:?}"),
        }
        took
    }

    fn write(&self, name: &str) {
        let (path, content) = (rel(name), b"written".to_vec().into());
        self.client().change(FileChange::Write { path, content }).unwrap();
    }

    fn kinds(&self) -> Vec<StepKind> {
        let kind = |entry| match entry {
            HistoryEntry::Step(step) => Some(step.kind),
            _ => None,
        };
        self.client().history().unwrap().into_iter().filter_map(kind).collect()
    }

    fn undo(&self) {
        self.client().undo(1, OnConflict::Refuse).unwrap();
    }
}

fn rel(name: &str) -> RelPathBuf {
    RelPathBuf::new(name.as_bytes()).unwrap()
}

/// CC-08, CC-09
#[test]
fn a_step_closes_after_the_quiet_time_and_not_before() {
    let stage = Stage::new();
    let before = stage.workspace.snapshot();
    let steps = stage.open();
    stage.write("new.txt");
    let took = stage.close(steps);
    assert!((QUIET..QUIET + SLACK).contains(&took), "{took:?}");
    stage.undo();
    assert_tree_eq(&before, &stage.workspace.snapshot());
}

/// CC-10
#[test]
fn late_writes_hold_the_step_open_and_belong_to_it() {
    let stage = Stage::new();
    let before = stage.workspace.snapshot();
    let steps = stage.open();
    stage.write("new.txt");
    let took = std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            for number in 0..20 {
                std::thread::sleep(QUIET / 4);
                stage.write(&format!("late{number}.txt"));
            }
        });
        let took = stage.close(steps);
        late.join().unwrap();
        took
    });
    assert!((5 * QUIET..LIMIT + SLACK).contains(&took), "{took:?}");
    assert_eq!(stage.kinds(), [StepKind::Command]);
    stage.undo();
    assert_tree_eq(&before, &stage.workspace.snapshot());
}

/// As what a guest had handed over when it died.
#[test]
fn what_is_on_its_way_when_a_command_is_given_up_is_taken_back_with_it() {
    let stage = Stage::new();
    let before = stage.workspace.snapshot();
    let steps = stage.open();
    stage.write("new.txt");
    std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            for number in 0..20 {
                std::thread::sleep(QUIET / 4);
                stage.write(&format!("late{number}.txt"));
            }
        });
        assert!(steps.abort(&stage.folders()).is_empty());
        assert!(late.is_finished());
    });
    assert_tree_eq(&before, &stage.workspace.snapshot());
    assert_eq!(stage.kinds(), []);
}

/// CC-10: one that is on its way, for as long as that takes.
#[test]
fn an_operation_under_way_holds_the_step_open_and_belongs_to_it() {
    let stage = Stage::new();
    let before = stage.workspace.snapshot();
    let config = SafeguardConfig { delete_threshold: Some(1), ..SafeguardConfig::default() };
    stage.client().call::<()>(Request::SetSafeguards(config)).unwrap();
    let steps = stage.open();
    stage.write("new.txt");
    let removal = FileChange::Remove { path: rel("small.txt"), recursive: false };
    let took = std::thread::scope(|scope| {
        let removing = scope.spawn(|| stage.client().change(removal).unwrap());
        let allowing = scope.spawn(|| {
            // As long as nobody answers, it is under way.
            std::thread::sleep(5 * QUIET);
            let (question, decision) = (SafeguardId(1), SafeguardDecision::Allow);
            stage.client().call::<()>(Request::Answer { question, decision }).unwrap();
        });
        std::thread::sleep(QUIET);
        let took = stage.close(steps);
        allowing.join().unwrap();
        removing.join().unwrap();
        took
    });
    assert!((4 * QUIET..LIMIT + SLACK).contains(&took), "{took:?}");
    assert!(!stage.workspace.working().join("small.txt").exists());
    assert_eq!(stage.kinds(), [StepKind::Command]);
    stage.undo();
    assert_tree_eq(&before, &stage.workspace.snapshot());
}

/// CC-11, CC-12
#[test]
fn writes_that_never_end_hold_the_step_no_longer_than_the_limit_and_are_ambient_then() {
    let stage = Stage::new();
    let steps = stage.open();
    let (is_over, written) = (AtomicBool::new(false), AtomicUsize::new(0));
    let took = std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let number = written.fetch_add(1, Ordering::SeqCst);
                stage.write(&format!("late{number}.txt"));
                std::thread::sleep(QUIET / 20);
            }
        });
        let took = stage.close(steps);
        let by_then = written.load(Ordering::SeqCst);
        while written.load(Ordering::SeqCst) < by_then + 3 {
            std::thread::yield_now();
        }
        is_over.store(true, Ordering::SeqCst);
        writing.join().unwrap();
        took
    });
    assert!((LIMIT..LIMIT + SLACK).contains(&took), "{took:?}");
    // The next command ends the ambient step.
    let steps = stage.open();
    stage.write("next.txt");
    stage.close(steps);
    assert_eq!(stage.kinds(), [StepKind::Command, StepKind::Ambient, StepKind::Command]);
}
