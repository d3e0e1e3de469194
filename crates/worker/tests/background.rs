//! Commands in the background, as the worker of their folder counts them.
#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use codeagent_common::{ErrorCode, RelPathBuf, SafeguardConfig, SafeguardDecision, StepId};
use codeagent_interceptor::{AbortedStep, ClosedStep, EngineEvent, OnConflict, StepRequest};
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use codeagent_worker::{
    Backgrounds, Client, Event, FileChange, Request, Settings, WorkerError, WorkerProcess,
    WorkerSpec,
};

fn workspace() -> TempWorkspace {
    TempWorkspace::with_fixture(|root| {
        for name in ["one", "two", "three"] {
            fs::write(root.join(name), name).unwrap();
        }
    })
}

fn start(workspace: &TempWorkspace) -> (WorkerProcess, Receiver<Event>) {
    let mut settings = Settings::new(workspace.working(), workspace.undo());
    settings.safeguards = SafeguardConfig { delete_threshold: Some(2), ..Default::default() };
    let mut spec = WorkerSpec::new(settings).unwrap();
    spec.program = PathBuf::from(env!("CARGO_BIN_EXE_worker-probe"));
    let (sender, events) = channel();
    let worker = WorkerProcess::start(&spec, move |event| {
        let _ = sender.send(event); // the test has ended
    });
    let worker = worker.unwrap().unwrap();
    worker.client().subscribe().unwrap();
    (worker, events)
}

fn path(name: &str) -> RelPathBuf {
    RelPathBuf::new(name.as_bytes().to_vec()).unwrap()
}

fn write(client: &Client, name: &str) {
    let content = b"written".to_vec().into();
    client.change(FileChange::Write { path: path(name), content }).unwrap();
}

fn remove(client: &Client, name: &str) -> Result<(), WorkerError> {
    client.change(FileChange::Remove { path: path(name), recursive: false })
}

/// Opens a step, writes a file, and gives the step up.
fn given_up(client: &Client, name: &str) -> AbortedStep {
    client.open_step(StepRequest::command("work")).unwrap();
    write(client, name);
    client.abort_step().unwrap()
}

#[track_caller]
fn assert_code<T: std::fmt::Debug>(outcome: Result<T, WorkerError>, code: ErrorCode) {
    match outcome {
        Err(WorkerError::Failed(failure)) => assert_eq!(failure.code, code, "{failure}"),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up_at = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < give_up_at, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_step_is_shared_while_anybody_has_a_background_command_through_whichever_connection() {
    let workspace = workspace();
    let (worker, _) = start(&workspace);
    let owner = worker.client();
    let others = [(); 2].map(|()| Client::connect(workspace.undo()).unwrap());
    assert!(matches!(given_up(owner, "new"), AbortedStep::TakenBack(_)));
    for other in &others {
        other.begin_background().unwrap();
    }
    others[0].begin_background().unwrap();
    assert_eq!(owner.backgrounds().unwrap(), Backgrounds { own: 0, others: 3 });
    assert_eq!(others[0].backgrounds().unwrap(), Backgrounds { own: 2, others: 1 });
    for left in [2, 1] {
        assert!(matches!(given_up(owner, "new"), AbortedStep::Kept(_)));
        owner.undo(1, OnConflict::Refuse).unwrap();
        others[0].end_background().unwrap();
        assert_eq!(owner.backgrounds().unwrap().others, left);
    }
    // Nobody ends what is not his.
    assert_code(others[0].end_background(), ErrorCode::BadRequest);
    assert_code(owner.end_background(), ErrorCode::BadRequest);
    assert!(matches!(given_up(owner, "new"), AbortedStep::Kept(_)));
    others[1].end_background().unwrap();
    assert!(matches!(given_up(owner, "newer"), AbortedStep::TakenBack(_)));
    worker.end(Duration::ZERO).unwrap();
}

/// As whoever takes back what he has just done, while somebody writes in the background.
#[test]
fn a_step_that_is_to_be_undone_by_name_is_the_newest_or_nothing_is_undone() {
    let workspace = workspace();
    let (worker, _) = start(&workspace);
    let (owner, other) = (worker.client(), Client::connect(workspace.undo()).unwrap());
    other.begin_background().unwrap();
    let step = owner.open_step(StepRequest::command("mine")).unwrap();
    write(owner, "mine");
    owner.close_step(Some(0)).unwrap();
    write(&other, "of-the-background");
    let before = workspace.snapshot();
    let refused = owner.undo_newest(step, OnConflict::Refuse);
    assert_code(refused, ErrorCode::RollbackBlocked);
    assert_tree_eq(&before, &workspace.snapshot());
    assert_eq!(owner.history().unwrap().len(), 2);
    assert!(owner.redoable().unwrap().is_empty());
    owner.undo(1, OnConflict::Refuse).unwrap();
    assert_eq!(owner.undo_newest(step, OnConflict::Refuse).unwrap().steps, [step]);
    assert_code(owner.undo_newest(step, OnConflict::Refuse), ErrorCode::StepUndone);
    assert!(!workspace.path("mine").exists());
    other.end_background().unwrap();
    worker.end(Duration::ZERO).unwrap();
}

#[test]
fn a_connection_that_breaks_ends_its_own_background_commands_and_no_others() {
    let workspace = workspace();
    let (worker, _) = start(&workspace);
    let owner = worker.client();
    let [breaks, stays] = [(); 2].map(|()| Client::connect(workspace.undo()).unwrap());
    for client in [&breaks, &breaks, &stays] {
        client.begin_background().unwrap();
    }
    owner.open_step(StepRequest::command("work")).unwrap();
    drop(breaks);
    eventually("its commands are forgotten", || owner.backgrounds().unwrap().others == 1);
    write(owner, "new");
    assert!(matches!(owner.abort_step().unwrap(), AbortedStep::Kept(_)));
    drop(stays);
    eventually("its command is forgotten", || owner.backgrounds().unwrap().others == 0);
    assert!(matches!(given_up(owner, "newer"), AbortedStep::TakenBack(_)));
    worker.end(Duration::ZERO).unwrap();
}

/// The worker lives, because somebody else works in the folder.
#[test]
fn the_step_of_a_session_that_dies_beside_a_background_command_is_kept() {
    for is_beside in [true, false] {
        let workspace = workspace();
        let before = workspace.snapshot();
        let (worker, events) = start(&workspace);
        let owner = worker.client();
        let dies = Client::connect(workspace.undo()).unwrap();
        assert!(dies.take_turn().unwrap());
        dies.open_step(StepRequest::command("work")).unwrap();
        write(&dies, "new");
        if is_beside {
            owner.begin_background().unwrap();
        }
        drop(dies);
        eventually("it is given up", || owner.whose_turn().unwrap().is_none());
        assert_eq!(workspace.path("new").exists(), is_beside);
        assert_eq!(owner.history().unwrap().len(), usize::from(is_beside));
        let told = events.try_iter().find_map(|event| match event {
            Event::Engine(EngineEvent::Warning(message)) => Some(message),
            _ => None,
        });
        let expected = if is_beside { "was ended and kept" } else { "was taken back" };
        assert!(told.as_ref().is_some_and(|told| told.contains(expected)), "{told:?}");
        if is_beside {
            owner.undo(1, OnConflict::Refuse).unwrap();
        }
        assert_tree_eq(&before, &workspace.snapshot());
        worker.end(Duration::ZERO).unwrap();
    }
}

/// Nobody knows the end of the transaction; whether a command has run in it makes no difference.
#[test]
fn the_transaction_of_an_owner_that_dies_beside_its_background_command_is_kept() {
    for has_run_a_command in [true, false] {
        let workspace = workspace();
        let before = workspace.snapshot();
        let (mut worker, _) = start(&workspace);
        let owner = worker.client();
        assert!(owner.take_turn().unwrap());
        owner.call::<StepId>(Request::BeginTransaction { label: "all".into() }).unwrap();
        if has_run_a_command {
            owner.open_step(StepRequest::command("make")).unwrap();
            owner.close_step(Some(0)).unwrap();
        }
        owner.begin_background().unwrap();
        write(owner, "of-the-background");
        owner.hang_up();
        assert!(worker.wait().unwrap().success());
        assert!(workspace.path("of-the-background").exists());
        let (worker, _) = start(&workspace);
        worker.client().undo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&before, &workspace.snapshot());
        worker.end(Duration::ZERO).unwrap();
    }
}

#[test]
fn a_denial_beside_a_background_command_refuses_and_the_end_of_the_step_says_so() {
    let workspace = workspace();
    let (worker, events) = start(&workspace);
    let owner = worker.client();
    let other = Client::connect(workspace.undo()).unwrap();
    other.begin_background().unwrap();
    owner.open_step(StepRequest::command("rm")).unwrap();
    remove(owner, "one").unwrap();
    std::thread::scope(|scope| {
        let removing = scope.spawn(|| remove(owner, "two"));
        let Event::Engine(EngineEvent::SafeguardTriggered(request)) = events.recv().unwrap() else {
            panic!("another event");
        };
        assert!(request.shared);
        let deny = Request::Answer { question: request.id, decision: SafeguardDecision::Deny };
        owner.call::<()>(deny).unwrap();
        removing.join().unwrap().unwrap_err();
    });
    // Everybody hears of it, whoever has answered.
    let decided = events.recv_timeout(Duration::from_secs(20)).unwrap();
    let Event::Engine(EngineEvent::SafeguardDecided { refused: Some(_), .. }) = decided else {
        panic!("{decided:?}")
    };
    remove(owner, "three").unwrap_err();
    write(owner, "new");
    let closed = owner.close_step(Some(1)).unwrap();
    let ClosedStep::Recorded { shared: true, denied, .. } = closed else { panic!("{closed:?}") };
    assert_eq!(denied[0].count, 2);
    assert!(workspace.path("two").exists() && !workspace.path("one").exists());
    worker.end(Duration::ZERO).unwrap();
}

#[test]
fn beside_the_transaction_of_another_connection_no_background_command_begins() {
    let workspace = workspace();
    let (worker, _) = start(&workspace);
    let owner = worker.client();
    let other = Client::connect(workspace.undo()).unwrap();
    assert!(owner.take_turn().unwrap());
    owner.call::<StepId>(Request::BeginTransaction { label: "all".into() }).unwrap();
    assert_code(other.begin_background(), ErrorCode::TransactionOpen);
    owner.begin_background().unwrap();
    owner.call::<StepId>(Request::RollbackTransaction).unwrap();
    owner.end_turn().unwrap();
    other.begin_background().unwrap();
    // Whoever has one is at work, and the worker stays for him.
    assert!(!owner.call::<bool>(Request::Shutdown { patience: Duration::ZERO }).unwrap());
    drop(other);
    worker.end(Duration::ZERO).unwrap();
}
