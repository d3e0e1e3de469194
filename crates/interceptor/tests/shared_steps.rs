//! Steps beside commands in the background: nobody can tell whose doing a change was, so nothing is
//! taken back that an undo does not.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use codeagent_common::{Refusal, SafeguardConfig, SafeguardDecision, SafeguardKind, StepId};
use codeagent_interceptor::{
    AbortedStep, ClosedStep, EngineEvent, EventSink, StagedChange, StepRequest, UndoError,
};
use codeagent_test_support::{Applier, TempWorkspace, assert_tree_eq, fixtures};
use common::{Bench, assert_errno, rel_buf};
use rustix::io::Errno;

use SafeguardDecision::{Allow, Deny};

/// Passes on what is asked and decided.
struct Events(Mutex<Sender<EngineEvent>>);

impl EventSink for Events {
    fn event(&self, event: EngineEvent) {
        let _ = self.0.lock().unwrap().send(event); // the test has failed meanwhile
    }
}

fn bench(config: SafeguardConfig) -> (Bench, Receiver<EngineEvent>) {
    let (sender, events) = mpsc::channel();
    let workspace = TempWorkspace::with_fixture(|root| {
        fixtures::small_tree(root);
        fixtures::large_flat(root, 8, 100);
    });
    let bench = Bench::configured(workspace, |engine| {
        engine.safeguards = config;
        engine.events = Arc::new(Events(Mutex::new(sender)));
    });
    (bench, events)
}

fn everything() -> SafeguardConfig {
    SafeguardConfig {
        delete_threshold: Some(3),
        overwrite_threshold_bytes: Some(50),
        rename_over_existing: true,
        ..SafeguardConfig::default()
    }
}

fn deletes() -> SafeguardConfig {
    SafeguardConfig { delete_threshold: Some(3), ..SafeguardConfig::default() }
}

fn delete(fs: &Applier<'_>, index: usize) -> std::io::Result<()> {
    fs.unlink(format!("file-{index:07}"))
}

/// Answers the questions that `work` raises, while a front end does it; each with whether the step
/// was said to be shared.
fn answering<T: Send>(
    bench: &Bench,
    events: &Receiver<EngineEvent>,
    decision: SafeguardDecision,
    work: impl FnOnce(&Applier<'_>) -> T + Send,
) -> (T, Vec<bool>) {
    let mut asked = Vec::new();
    let done = thread::scope(|scope| {
        let working = scope.spawn(|| work(&bench.applier()));
        while !working.is_finished() {
            if let Ok(EngineEvent::SafeguardTriggered(request)) =
                events.recv_timeout(Duration::from_millis(10))
            {
                asked.push(request.shared);
                bench.engine.confirm(request.id, decision).unwrap();
            }
        }
        working.join().unwrap()
    });
    (done, asked)
}

#[track_caller]
fn recorded(closed: ClosedStep) -> (bool, Vec<Refusal>) {
    match closed {
        ClosedStep::Recorded { shared, denied, .. } => (shared, denied),
        other => panic!("the step was not recorded: {other:?}"),
    }
}

#[test]
fn denied_beside_a_background_command_the_operation_is_refused_and_nothing_is_taken_back() {
    let (bench, events) = bench(deletes());
    let before = bench.snapshot();
    bench.engine.open_step(StepRequest::command("rm")).unwrap();
    bench.engine.begin_background();
    let (refused, asked) = answering(&bench, &events, Deny, |fs| {
        fs.create("of the background", b"kept").unwrap();
        delete(fs, 0).unwrap();
        delete(fs, 1).unwrap();
        [delete(fs, 2), delete(fs, 3), delete(fs, 2)]
    });
    assert_eq!(asked, [true], "asked once, about a shared step");
    refused.into_iter().for_each(|refused| assert_errno(refused, Errno::PERM));
    // Whatever is of another kind goes on.
    bench.applier().create("later", b"kept").unwrap();
    bench.applier().unlink("later").unwrap();
    bench.applier().create("later still", b"kept").unwrap();
    bench.engine.end_background();
    let after = bench.snapshot();
    assert!(bench.path("of the background").exists() && bench.path("file-0000002").exists());
    assert!(!bench.path("file-0000001").exists());

    let (shared, denied) = recorded(bench.engine.close_step(Some(1)).unwrap());
    assert!(shared);
    assert_eq!(denied.len(), 1, "{denied:?}");
    assert_eq!((denied[0].kind, denied[0].count), (SafeguardKind::DeleteCount, 3));
    assert_eq!(denied[0].sample_paths, [rel_buf("file-0000002"), rel_buf("file-0000003")]);
    assert!(denied[0].asked.contains("is about to delete"), "{denied:?}");
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(1);
    assert_tree_eq(&after, &bench.snapshot());
    bench.assert_sound();
}

#[test]
fn every_kind_is_asked_about_and_refused_by_itself() {
    let (bench, events) = bench(everything());
    bench.engine.begin_background();
    bench.engine.open_step(StepRequest::command("all")).unwrap();
    let ((), asked) = answering(&bench, &events, Deny, |fs| {
        for _ in 0..2 {
            assert_errno(fs.overwrite("file-0000000", b"x"), Errno::PERM);
            assert_errno(fs.rename("file-0000001", "file-0000002"), Errno::PERM);
        }
        fs.append("file-0000003", b"only adds").unwrap();
        fs.rename("file-0000004", "free").unwrap();
        delete(fs, 5).unwrap();
    });
    assert_eq!(asked, [true, true]);
    let (_, denied) = recorded(bench.engine.close_step(Some(1)).unwrap());
    let kinds: Vec<_> = denied.iter().map(|refusal| (refusal.kind, refusal.count)).collect();
    assert_eq!(kinds, [(SafeguardKind::OverwriteLarge, 2), (SafeguardKind::RenameOver, 2)]);
    // The next step is asked about anew.
    bench.engine.open_step(StepRequest::command("next")).unwrap();
    let (renamed, asked) =
        answering(&bench, &events, Allow, |fs| fs.rename("file-0000001", "file-0000002"));
    assert!(renamed.is_ok() && asked == [true]);
    assert_eq!(recorded(bench.engine.close_step(Some(0)).unwrap()).1, []);
}

#[test]
fn a_step_that_outlives_the_background_command_is_shared_and_the_next_one_is_not() {
    let (bench, events) = bench(deletes());
    bench.engine.open_step(StepRequest::command("rm")).unwrap();
    bench.engine.begin_background();
    bench.applier().create("of the background", b"kept").unwrap();
    bench.engine.end_background();
    let (deleted, _) =
        answering(&bench, &events, Deny, |fs| (0..5).try_for_each(|n| delete(fs, n)));
    assert_errno(deleted, Errno::PERM);
    let (shared, denied) = recorded(bench.engine.close_step(Some(1)).unwrap());
    assert!(shared && denied.len() == 1);
    assert!(bench.path("of the background").exists());

    let before = bench.snapshot();
    bench.engine.open_step(StepRequest::command("rm")).unwrap();
    let (_, asked) = answering(&bench, &events, Deny, |fs| (2..7).try_for_each(|n| delete(fs, n)));
    assert_eq!(asked, [false]);
    assert!(matches!(bench.engine.close_step(Some(1)).unwrap(), ClosedStep::Denied { .. }));
    assert_tree_eq(&before, &bench.snapshot());
}

/// Between the question and the answer: by then the background command may have written.
#[test]
fn a_background_command_that_begins_while_a_question_is_open_makes_the_step_shared() {
    let (bench, events) = bench(deletes());
    bench.engine.open_step(StepRequest::command("rm")).unwrap();
    thread::scope(|scope| {
        let deleting = scope.spawn(|| {
            let fs = bench.applier();
            fs.create("early", b"kept").unwrap();
            (0..5).try_for_each(|n| delete(&fs, n))
        });
        let Ok(EngineEvent::SafeguardTriggered(question)) =
            events.recv_timeout(Duration::from_secs(20))
        else {
            panic!("no question")
        };
        assert!(!question.shared, "it cannot be of a command that has not begun");
        bench.engine.begin_background();
        bench.engine.confirm(question.id, Deny).unwrap();
        assert_errno(deleting.join().unwrap(), Errno::PERM);
    });
    assert!(bench.path("early").exists());
    let decided = events.recv_timeout(Duration::from_secs(20)).unwrap();
    let EngineEvent::SafeguardDecided { decision: Deny, in_time: true, refused, .. } = decided
    else {
        panic!("{decided:?}")
    };
    assert_eq!(refused.unwrap().kind, SafeguardKind::DeleteCount);
    assert!(recorded(bench.engine.close_step(Some(1)).unwrap()).0);
}

#[test]
fn a_step_in_which_everything_was_refused_says_so_though_it_is_empty() {
    let (bench, events) =
        bench(SafeguardConfig { rename_over_existing: true, ..SafeguardConfig::default() });
    bench.engine.begin_background();
    let id = bench.engine.open_step(StepRequest::command("mv")).unwrap();
    let (moved, _) =
        answering(&bench, &events, Deny, |fs| fs.rename("file-0000001", "file-0000002"));
    assert_errno(moved, Errno::PERM);
    let closed = bench.engine.close_step(Some(1)).unwrap();
    let ClosedStep::Empty { step, denied } = closed else { panic!("{closed:?}") };
    assert_eq!((step, denied.len()), (id, 1));
}

#[test]
fn a_shared_step_that_is_given_up_is_kept_and_can_be_undone_and_redone() {
    let (bench, _events) = bench(SafeguardConfig::default());
    let before = bench.snapshot();
    type GiveUp = fn(&Bench, StepId) -> AbortedStep;
    let abort: GiveUp = |bench, _| bench.engine.abort_step().unwrap();
    let unfinished: GiveUp = |bench, id| bench.engine.give_up_unfinished(id).unwrap().unwrap();
    for give_up in [abort, unfinished] {
        let id = bench.engine.open_step(StepRequest::command("make")).unwrap();
        bench.applier().create("of the command", b"").unwrap();
        bench.engine.begin_background();
        bench.applier().create("of the background", b"").unwrap();
        delete(&bench.applier(), 1).unwrap();
        bench.engine.end_background();
        let after = bench.snapshot();
        let given_up = give_up(&bench, id);
        assert!(matches!(&given_up, AbortedStep::Kept(step) if step.id == id), "{given_up:?}");
        assert_tree_eq(&after, &bench.snapshot());
        bench.undo(1);
        assert_tree_eq(&before, &bench.snapshot());
        bench.redo(1);
        assert_tree_eq(&after, &bench.snapshot());
        bench.undo(1);
    }
    // One that changed nothing leaves nothing.
    bench.engine.begin_background();
    let id = bench.engine.open_step(StepRequest::command("true")).unwrap();
    assert_eq!(bench.engine.abort_step().unwrap(), AbortedStep::TakenBack(id));
    // Nobody was there: as ever.
    bench.engine.end_background();
    let id = bench.engine.open_step(StepRequest::command("make")).unwrap();
    bench.applier().create("of the command", b"").unwrap();
    assert_eq!(bench.engine.abort_step().unwrap(), AbortedStep::TakenBack(id));
    assert_tree_eq(&before, &bench.snapshot());
}

/// What was denied before the other came has been taken back; nothing of it comes again.
#[test]
fn a_step_that_was_denied_before_it_was_shared_stays_denied() {
    let (bench, events) = bench(deletes());
    let before = bench.snapshot();
    bench.engine.open_step(StepRequest::command("rm")).unwrap();
    answering(&bench, &events, Deny, |fs| (0..5).try_for_each(|n| delete(fs, n))).0.unwrap_err();
    bench.engine.begin_background();
    assert!(matches!(bench.engine.close_step(Some(1)).unwrap(), ClosedStep::Denied { .. }));
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn a_step_of_own_changes_is_never_shared() {
    let (bench, events) = bench(deletes());
    bench.engine.begin_background();
    let staging = bench.beside("staging");
    let removals: Vec<_> =
        (0..4).map(|n| StagedChange::Remove { path: rel_buf(format!("file-{n:07}")) }).collect();
    let before = bench.snapshot();
    bench.engine.open_step(StepRequest::staged_command("rm")).unwrap();
    let (adopted, asked) =
        answering(&bench, &events, Deny, |_| bench.engine.adopt(&staging, &removals));
    assert!(matches!(adopted, Err(UndoError::SafeguardDenied { .. })), "{adopted:?}");
    assert_eq!(asked, [false]);
    assert!(matches!(bench.engine.close_step(Some(0)).unwrap(), ClosedStep::Denied { .. }));
    assert_tree_eq(&before, &bench.snapshot());

    let id = bench.engine.open_step(StepRequest::staged_command("rm")).unwrap();
    bench.engine.adopt(&staging, &removals[..2]).unwrap();
    bench.engine.begin_background();
    assert_eq!(bench.engine.abort_step().unwrap(), AbortedStep::TakenBack(id));
    assert_tree_eq(&before, &bench.snapshot());
}

/// Somebody wants it, and redo brings back what was not the transaction's.
#[test]
fn a_shared_transaction_is_rolled_back_when_somebody_wants_that_and_can_be_redone() {
    let (bench, _events) = bench(SafeguardConfig::default());
    let before = bench.snapshot();
    let id = bench.engine.begin_transaction("an attempt").unwrap();
    bench.engine.open_step(StepRequest::command("make")).unwrap();
    delete(&bench.applier(), 1).unwrap();
    bench.engine.close_step(Some(0)).unwrap();
    bench.engine.begin_background();
    bench.applier().create("of the background", b"").unwrap();
    let after = bench.snapshot();
    assert_eq!(bench.engine.rollback_transaction().unwrap(), id);
    assert_tree_eq(&before, &bench.snapshot());
    assert!(bench.engine.steps().is_empty());
    bench.redo(1);
    assert_tree_eq(&after, &bench.snapshot());
}

/// A no to one command of a transaction is no answer to what the next one asks.
#[test]
fn each_command_of_a_shared_transaction_is_asked_about_anew() {
    let (bench, events) = bench(deletes());
    bench.engine.begin_transaction("an attempt").unwrap();
    bench.engine.begin_background();
    bench.engine.open_step(StepRequest::command("rm")).unwrap();
    let (refused, asked) = answering(&bench, &events, Deny, |fs| {
        delete(fs, 0).unwrap();
        delete(fs, 1).unwrap();
        [delete(fs, 2), delete(fs, 3)]
    });
    refused.into_iter().for_each(|refused| assert_errno(refused, Errno::PERM));
    assert_eq!(asked, [true], "once for the whole command");
    let closed = bench.engine.close_step(Some(1)).unwrap();
    assert!(matches!(&closed, ClosedStep::Joined { denied, .. } if denied[0].count == 2));
    bench.engine.open_step(StepRequest::command("rm, and this time really")).unwrap();
    let (removed, asked) = answering(&bench, &events, Allow, |fs| delete(fs, 2));
    removed.unwrap();
    assert_eq!(asked, [true]);
    let closed = bench.engine.close_step(Some(0)).unwrap();
    assert!(matches!(&closed, ClosedStep::Joined { denied, .. } if denied.is_empty()));
}

/// Its session has died: nobody has decided anything.
#[test]
fn a_shared_transaction_that_nobody_ends_is_kept() {
    let (bench, _events) = bench(SafeguardConfig::default());
    let before = bench.snapshot();
    let id = bench.engine.begin_transaction("an attempt").unwrap();
    bench.engine.begin_background();
    bench.applier().create("of the background", b"").unwrap();
    let kept = bench.engine.give_up_unfinished(id).unwrap();
    assert!(matches!(kept, Some(AbortedStep::Kept(_))), "{kept:?}");
    assert!(bench.path("of the background").exists());
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

/// A crash is another matter: what was not finished is taken back, as ever.
#[test]
fn recovery_takes_back_a_shared_step_that_was_not_finished() {
    let (bench, _events) = bench(SafeguardConfig::default());
    let before = bench.snapshot();
    bench.engine.begin_background();
    bench.engine.open_step(StepRequest::command("make")).unwrap();
    bench.applier().create("of the background", b"").unwrap();
    let bench = bench.reopened();
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn discarding_the_history_forgets_no_background_command() {
    let (bench, _events) = bench(SafeguardConfig::default());
    bench.engine.begin_background();
    bench.engine.discard().unwrap();
    bench.engine.open_step(StepRequest::command("make")).unwrap();
    bench.applier().create("made", b"").unwrap();
    assert!(matches!(bench.engine.abort_step().unwrap(), AbortedStep::Kept(_)));
}

/// The command ended while the background command's question was open: its step is closed by then.
#[test]
fn a_question_that_outlives_its_step_refuses_what_it_was_about_and_nothing_else() {
    let (bench, events) = bench(deletes());
    bench.engine.begin_background();
    bench.engine.open_step(StepRequest::command("make")).unwrap();
    thread::scope(|scope| {
        let deleting = scope.spawn(|| (0..5).try_for_each(|n| delete(&bench.applier(), n)));
        let Ok(EngineEvent::SafeguardTriggered(question)) =
            events.recv_timeout(Duration::from_secs(20))
        else {
            panic!("no question")
        };
        let closed = recorded(bench.engine.close_step(Some(0)).unwrap());
        assert_eq!(closed, (true, vec![]));
        bench.engine.confirm(question.id, Deny).unwrap();
        assert_errno(deleting.join().unwrap(), Errno::PERM);
    });
    let decided = events.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(
        matches!(&decided, EngineEvent::SafeguardDecided { refused: Some(refused), .. } if refused.count == 1),
        "{decided:?}"
    );
    assert_eq!(bench.engine.steps()[0].deleted, 2);
    assert!(bench.path("file-0000002").exists());
}

/// Of an ambient step, as of any other; and what is refused does not keep it open for ever.
#[test]
fn an_ambient_step_beside_background_commands_is_shared_and_ends() {
    let (bench, events) = {
        let (sender, events) = mpsc::channel();
        let workspace = TempWorkspace::with_fixture(|root| fixtures::large_flat(root, 8, 100));
        let bench = Bench::configured(workspace, |engine| {
            engine.safeguards = deletes();
            engine.ambient_timeout = Duration::from_millis(50);
            engine.events = Arc::new(Events(Mutex::new(sender)));
        });
        (bench, events)
    };
    bench.engine.begin_background();
    let (refused, asked) = answering(&bench, &events, Deny, |fs| {
        fs.create("kept", b"").unwrap();
        (0..3).try_for_each(|n| delete(fs, n))
    });
    assert_errno(refused, Errno::PERM);
    assert_eq!(asked, [true]);
    assert!(bench.path("kept").exists() && !bench.path("file-0000001").exists());
    // Whoever tries again and again is asked about again, in another step.
    let (deleted, asked) = answering(&bench, &events, Allow, |fs| {
        let give_up_at = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            match (2..7).try_for_each(|n| delete(fs, n)) {
                Err(_) if std::time::Instant::now() < give_up_at => thread::yield_now(),
                outcome => break outcome,
            }
        }
    });
    deleted.unwrap();
    assert_eq!(asked, [true]);
}

/// Between the look at which step it is and the end of it, it was closed, and another began.
#[test]
fn whoever_gives_up_a_step_gives_up_no_other() {
    let (bench, _events) = bench(SafeguardConfig::default());
    let id = bench.engine.open_step(StepRequest::command("make")).unwrap();
    bench.engine.close_step(Some(0)).unwrap();
    bench.applier().create("ambient", b"").unwrap();
    assert_eq!(bench.engine.give_up_unfinished(id).unwrap(), None);
    assert!(bench.path("ambient").exists());
}
