//! Whole conversations: the host's state machine, a fake shim on the other end of a real byte
//! stream, and the undo engine on a real working directory. Time stands still unless told.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use codeagent_common::{StepId, StepKind};
use codeagent_control::{
    Activity, Event, HostMessage, MessageReader, MessageWriter, PROTOCOL_VERSION, ShimMessage,
    StepSink,
};
use codeagent_interceptor::{
    Clock, ClosedStep, EngineConfig, RollbackOptions, StepRequest, UndoEngine, UndoError,
};
use codeagent_test_support::{Applier, TempWorkspace, assert_tree_eq, fixtures};
use common::{Desk, completed, exited, hello, output, started};

const QUIET: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(2);
const AMBIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The undo engine as a session plugs it in.
#[derive(Debug)]
struct Engine {
    engine: Arc<UndoEngine>,
    activity: Activity,
}

impl StepSink for Engine {
    type Closed = ClosedStep;
    type Error = UndoError;

    fn open_step(&mut self, command: &str) -> Result<StepId, UndoError> {
        self.engine.open_step(StepRequest::command(command))
    }

    fn close_step(&mut self, _: StepId, exit_code: Option<i32>) -> Result<ClosedStep, UndoError> {
        self.engine.close_step(exit_code)
    }

    fn close_quiet_ambient_step(&mut self) -> Result<Option<ClosedStep>, UndoError> {
        self.engine.tick()
    }

    fn activity(&self) -> Activity {
        self.activity
    }
}

/// A clock that stands still until it is told to go on.
#[derive(Default)]
struct ManualClock(AtomicU64);

impl Clock for ManualClock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}

/// The shim's end of the channel, played by the test.
struct FakeShim {
    from_host: MessageReader<UnixStream, HostMessage>,
    to_host: MessageWriter<UnixStream, ShimMessage>,
}

/// Host, channel, fake shim, engine, working directory.
struct Stage {
    desk: Desk<Engine>,
    from_shim: MessageReader<UnixStream, ShimMessage>,
    to_shim: MessageWriter<UnixStream, HostMessage>,
    shim: FakeShim,
    engine: Arc<UndoEngine>,
    clock: Arc<ManualClock>,
    workspace: TempWorkspace,
}

impl Stage {
    /// Everything connected, and hello said on both sides.
    fn new() -> Self {
        let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
        let clock = Arc::new(ManualClock::default());
        let mut config = EngineConfig::new(workspace.working(), workspace.undo());
        config.clock = clock.clone();
        config.ambient_timeout = AMBIENT_TIMEOUT;
        let engine = Arc::new(UndoEngine::open(config).unwrap());
        let (host_end, shim_end) = UnixStream::pair().unwrap();
        let mut stage = Self {
            desk: Desk::new(Engine { engine: engine.clone(), activity: Activity::default() }),
            from_shim: MessageReader::new(host_end.try_clone().unwrap()),
            to_shim: MessageWriter::new(host_end),
            shim: FakeShim {
                from_host: MessageReader::new(shim_end.try_clone().unwrap()),
                to_host: MessageWriter::new(shim_end),
            },
            engine,
            clock,
            workspace,
        };
        let greeting = stage.shim_reads();
        assert_eq!(greeting, HostMessage::Hello { version: PROTOCOL_VERSION });
        stage.shim_says(hello(PROTOCOL_VERSION, 1));
        assert!(matches!(stage.desk.events()[..], [Event::Ready]));
        stage
    }

    /// What arrives at the shim next.
    fn shim_reads(&mut self) -> HostMessage {
        for message in self.desk.sent() {
            self.to_shim.write(&message).unwrap();
        }
        self.shim.from_host.read().unwrap().unwrap().unwrap()
    }

    fn shim_says(&mut self, message: ShimMessage) {
        self.shim.to_host.write(&message).unwrap();
        let received = self.from_shim.read().unwrap().unwrap();
        self.desk.host.receive(received, self.desk.now);
    }

    /// Runs a command up to the point where the shim reports its end.
    fn run_command(&mut self, writes: impl FnOnce(&Applier<'_>)) {
        let id = self.desk.exec("build");
        assert!(matches!(self.shim_reads(), HostMessage::Exec(_)));
        self.shim_says(started(id));
        writes(&self.applier());
        self.shim_says(completed(id, 0));
    }

    fn applier(&self) -> Applier<'_> {
        Applier::new(&self.engine, self.workspace.working())
    }

    /// Operations that the filesystem front end has under way.
    fn set_in_flight(&mut self, in_flight: u64) {
        let activity = &mut self.desk.host.sink_mut().activity;
        activity.begun += in_flight.saturating_sub(activity.in_flight);
        activity.in_flight = in_flight;
    }

    fn let_pass(&mut self, duration: Duration) {
        self.clock.0.fetch_add(duration.as_millis().try_into().unwrap(), Ordering::SeqCst);
        self.desk.let_pass(duration);
    }

    fn is_step_open(&self) -> bool {
        self.desk.host.open_step_id().is_some()
    }

    fn undo(&self, count: usize) {
        self.engine.rollback(count, RollbackOptions::default()).unwrap();
    }
}

/// CC-08
#[test]
fn a_command_runs_through_the_channel_and_is_one_step() {
    let mut stage = Stage::new();
    let before = stage.workspace.snapshot();
    let id = stage.desk.exec("echo hi > new.txt");
    let request = stage.shim_reads();
    stage.shim_says(started(id));
    stage.applier().create("new.txt", b"hi\n").unwrap();
    stage.shim_says(output(id, b"\xffhi\n"));
    stage.shim_says(completed(id, 0));
    stage.let_pass(QUIET);

    assert!(matches!(request, HostMessage::Exec(exec) if exec.id == id));
    match &stage.desk.events()[..] {
        [
            Event::Started { .. },
            Event::Output { data, .. },
            Event::Ended { outcome, .. },
            Event::StepClosed { closed: ClosedStep::Recorded { step, .. }, .. },
        ] => {
            assert_eq!(data.as_bytes(), b"\xffhi\n");
            assert_eq!(*outcome, exited(0));
            assert_eq!((step.added, step.exit_code), (1, Some(0)));
            assert_eq!(step.command, "echo hi > new.txt");
        }
        other => panic!("{other:?}"),
    }
    stage.undo(1);
    assert_tree_eq(&before, &stage.workspace.snapshot());
}

/// CC-01
#[test]
fn writes_belong_to_the_command_that_ran_at_the_time() {
    let mut stage = Stage::new();
    stage.run_command(|fs| fs.create("one.txt", b"1").unwrap());
    stage.let_pass(QUIET);
    let between = stage.workspace.snapshot();
    stage.run_command(|fs| fs.create("two.txt", b"2").unwrap());
    stage.let_pass(QUIET);

    stage.undo(1);
    assert_tree_eq(&between, &stage.workspace.snapshot());
}

/// CC-09
#[test]
fn a_step_closes_after_the_quiet_time_and_not_before() {
    let mut stage = Stage::new();
    stage.run_command(|fs| fs.create("new.txt", b"").unwrap());
    stage.let_pass(QUIET - Duration::from_millis(1));
    assert!(stage.is_step_open());
    stage.let_pass(Duration::from_millis(1));
    assert!(!stage.is_step_open());
}

/// CC-10
#[test]
fn a_late_write_holds_the_step_open_and_belongs_to_it() {
    let mut stage = Stage::new();
    let before = stage.workspace.snapshot();
    stage.run_command(|_| {});
    stage.let_pass(Duration::from_millis(60));
    stage.set_in_flight(1);
    stage.let_pass(Duration::from_millis(500));
    assert!(stage.is_step_open());

    stage.applier().create("late.txt", b"flushed late").unwrap();
    stage.set_in_flight(0);
    stage.let_pass(QUIET - Duration::from_millis(1));
    assert!(stage.is_step_open());
    stage.let_pass(Duration::from_millis(20));
    assert!(!stage.is_step_open());
    let ids: Vec<StepId> = stage.engine.steps().iter().map(|step| step.id).collect();
    assert_eq!(ids, [StepId(1)]);
    stage.undo(1);
    assert_tree_eq(&before, &stage.workspace.snapshot());
}

/// CC-10
#[test]
fn a_write_that_came_and_went_between_two_looks_restarts_the_quiet_time() {
    let mut stage = Stage::new();
    stage.run_command(|_| {});
    stage.let_pass(Duration::from_millis(60));
    stage.set_in_flight(1);
    stage.set_in_flight(0);
    stage.let_pass(Duration::from_millis(60));
    assert!(stage.is_step_open());
    stage.let_pass(QUIET);
    assert!(!stage.is_step_open());
}

/// CC-11
#[test]
fn writes_that_never_end_hold_the_step_no_longer_than_the_limit() {
    let mut stage = Stage::new();
    stage.set_in_flight(1);
    stage.run_command(|fs| fs.create("new.txt", b"").unwrap());
    stage.let_pass(LIMIT - Duration::from_millis(1));
    assert!(stage.is_step_open());
    stage.let_pass(Duration::from_millis(1));
    assert!(!stage.is_step_open());
    assert_eq!(stage.engine.steps().len(), 1);
}

/// CC-12
#[test]
fn a_write_after_the_step_is_closed_belongs_to_an_ambient_step() {
    let mut stage = Stage::new();
    stage.run_command(|fs| fs.create("command.txt", b"").unwrap());
    stage.let_pass(QUIET);
    let closed = stage.workspace.snapshot();
    stage.desk.events();
    stage.applier().create("ambient.txt", b"from a daemon").unwrap();
    stage.let_pass(AMBIENT_TIMEOUT + Duration::from_secs(1));

    assert!(matches!(
        stage.desk.events()[..],
        [Event::AmbientStepClosed { closed: ClosedStep::Recorded { .. } }]
    ));
    let steps: Vec<_> = stage.engine.steps().iter().map(|step| (step.id, step.kind)).collect();
    assert_eq!(steps, [(StepId(1), StepKind::Command), (StepId(-1), StepKind::Ambient)]);
    stage.undo(1);
    assert_tree_eq(&closed, &stage.workspace.snapshot());
}

/// CC-12
#[test]
fn the_next_command_ends_the_ambient_step() {
    let mut stage = Stage::new();
    stage.applier().create("ambient.txt", b"").unwrap();
    stage.run_command(|fs| fs.create("command.txt", b"").unwrap());
    stage.let_pass(QUIET);
    let ids: Vec<StepId> = stage.engine.steps().iter().map(|step| step.id).collect();
    assert_eq!(ids, [StepId(-1), StepId(1)]);
}

/// CC-07
#[test]
fn what_a_cancelled_command_did_is_a_step_that_can_be_undone() {
    let mut stage = Stage::new();
    let before = stage.workspace.snapshot();
    let id = stage.desk.exec("rm -rf .");
    stage.shim_reads();
    stage.shim_says(started(id));
    stage.applier().unlink("small.txt").unwrap();
    stage.desk.host.cancel(id, stage.desk.now).unwrap();
    assert_eq!(stage.shim_reads(), HostMessage::Cancel { id });
    stage.shim_says(completed(id, 143));
    stage.let_pass(QUIET);
    stage.undo(1);
    assert_tree_eq(&before, &stage.workspace.snapshot());
}

#[test]
fn what_a_command_did_before_the_shim_died_is_a_step() {
    let mut stage = Stage::new();
    let before = stage.workspace.snapshot();
    let id = stage.desk.exec("make");
    stage.shim_reads();
    stage.shim_says(started(id));
    stage.applier().create("half.txt", b"half").unwrap();
    stage.desk.host.channel_closed(stage.desk.now);
    stage.let_pass(QUIET);

    assert_eq!(stage.engine.steps()[0].exit_code, None);
    stage.undo(1);
    assert_tree_eq(&before, &stage.workspace.snapshot());
}
