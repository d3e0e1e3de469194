//! Questions asked before something destructive happens, and what the answers do.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use codeagent_common::{
    ErrorCode, SafeguardConfig, SafeguardDecision, SafeguardId, SafeguardKind, SafeguardRequest,
};
use codeagent_interceptor::{
    ClosedStep, EngineEvent, EventSink, StagedChange, StepRequest, UndoError,
};
use codeagent_test_support::{Applier, TempWorkspace, assert_tree_eq, fixtures};
use common::{Bench, assert_errno, rel_buf};
use rustix::io::Errno;

use SafeguardDecision::{Allow, Deny};

/// Passes questions on to whoever answers them.
struct Questions(Mutex<Sender<SafeguardRequest>>);

impl EventSink for Questions {
    fn event(&self, event: EngineEvent) {
        if let EngineEvent::SafeguardTriggered(request) = event {
            self.0.lock().unwrap().send(request).unwrap();
        }
    }
}

/// Five files to delete among others, and the questions the engine asks.
fn bench_asking(config: SafeguardConfig) -> (Bench, Receiver<SafeguardRequest>) {
    let (sender, questions) = mpsc::channel();
    let workspace = TempWorkspace::with_fixture(|root| {
        fixtures::small_tree(root);
        fixtures::large_flat(root, 5, 100);
    });
    let bench = Bench::configured(workspace, |engine| {
        engine.safeguards = config;
        engine.events = Arc::new(Questions(Mutex::new(sender)));
    });
    (bench, questions)
}

fn deletes(threshold: u64) -> SafeguardConfig {
    SafeguardConfig { delete_threshold: Some(threshold), ..SafeguardConfig::default() }
}

fn delete(fs: &Applier<'_>, index: usize) -> std::io::Result<()> {
    fs.unlink(format!("file-{index:07}"))
}

fn next(questions: &Receiver<SafeguardRequest>) -> SafeguardRequest {
    questions.recv_timeout(Duration::from_secs(20)).expect("a question")
}

fn open(bench: &Bench) {
    bench.engine.open_step(StepRequest::command("rm")).unwrap();
}

/// Runs `work` in another thread, as a filesystem front end does.
fn front_end<'s, 'e: 's, T: Send + 's>(
    scope: &'s thread::Scope<'s, '_>,
    bench: &'e Bench,
    work: impl FnOnce(&Applier<'_>) -> T + Send + 's,
) -> ScopedJoinHandle<'s, T> {
    scope.spawn(move || work(&bench.applier()))
}

/// SG-01
#[test]
fn reaching_the_delete_threshold_asks_and_holds_everything() {
    let (bench, questions) = bench_asking(deletes(3));
    open(&bench);
    thread::scope(|scope| {
        let deleting = front_end(scope, &bench, |fs| (0..5).try_for_each(|n| delete(fs, n)));
        let question = next(&questions);
        let paused = bench.snapshot();
        let other = front_end(scope, &bench, |fs| fs.create("other.txt", b"waits too"));

        assert_eq!((question.kind, question.count), (SafeguardKind::DeleteCount, 3));
        assert!(question.sample_paths.contains(&rel_buf("file-0000002")), "{question:?}");
        assert!(question.message.contains(' '));
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            assert_tree_eq(&paused, &bench.snapshot());
        }
        assert!(!deleting.is_finished() && !other.is_finished());

        bench.engine.confirm(question.id, Allow).unwrap();
        deleting.join().unwrap().unwrap();
        other.join().unwrap().unwrap();
    });
    assert!(bench.path("other.txt").exists());
    assert!(!bench.path("file-0000004").exists());
}

/// SG-02
#[test]
fn allowed_the_command_completes_and_can_be_undone() {
    let (bench, questions) = bench_asking(deletes(2));
    let before = bench.snapshot();
    open(&bench);
    thread::scope(|scope| {
        let deleting = front_end(scope, &bench, |fs| (0..5).try_for_each(|n| delete(fs, n)));
        bench.engine.confirm(next(&questions).id, Allow).unwrap();
        deleting.join().unwrap().unwrap();
    });
    let closed = bench.engine.close_step(Some(0)).unwrap();
    let after = bench.snapshot();

    assert!(
        matches!(&closed, ClosedStep::Recorded { step, .. } if step.deleted == 5),
        "{closed:?}"
    );
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(1);
    assert_tree_eq(&after, &bench.snapshot());
}

/// SG-03
#[test]
fn denied_the_whole_step_is_taken_back() {
    let (bench, questions) = bench_asking(deletes(3));
    bench.engine.open_step(StepRequest::command("an earlier step")).unwrap();
    bench.applier().append("small.txt", b"kept").unwrap();
    bench.engine.close_step(Some(0)).unwrap();
    let before = bench.snapshot();
    open(&bench);
    thread::scope(|scope| {
        let deleting = front_end(scope, &bench, |fs| {
            fs.create("new.txt", b"new").unwrap();
            fs.overwrite("small.txt", b"changed").unwrap();
            (0..5).try_for_each(|n| delete(fs, n))
        });
        bench.engine.confirm(next(&questions).id, Deny).unwrap();
        assert_errno(deleting.join().unwrap(), Errno::PERM);
    });

    assert_tree_eq(&before, &bench.snapshot());
    assert!(matches!(bench.engine.close_step(Some(1)), Ok(ClosedStep::Denied { .. })));
    assert_eq!(bench.engine.steps().len(), 1);
    bench.undo(1);
    bench.assert_sound();
}

#[test]
fn after_a_denial_the_step_takes_no_more_mutations_until_it_is_closed() {
    let (bench, questions) = bench_asking(deletes(1));
    let before = bench.snapshot();
    open(&bench);
    let id = thread::scope(|scope| {
        let deleting = front_end(scope, &bench, |fs| delete(fs, 0));
        let question = next(&questions);
        bench.engine.confirm(question.id, Deny).unwrap();
        assert_errno(deleting.join().unwrap(), Errno::PERM);
        question.id
    });
    let fs = bench.applier();
    assert_errno(fs.create("new.txt", b""), Errno::PERM);
    assert_errno(fs.append("small.txt", b"x"), Errno::PERM);
    assert_errno(fs.chmod("run.sh", 0), Errno::PERM);
    assert_tree_eq(&before, &bench.snapshot());

    let closed = bench.engine.close_step(Some(1)).unwrap();
    assert!(
        matches!(closed, ClosedStep::Denied { safeguard, .. } if safeguard == id),
        "{closed:?}"
    );
    bench.step(|fs| fs.create("new.txt", b"a new step works").unwrap());
}

/// SG-04
#[test]
fn no_answer_in_time_means_deny() {
    let timeout = Duration::from_millis(50);
    let (bench, questions) = bench_asking(SafeguardConfig { timeout, ..deletes(2) });
    let before = bench.snapshot();
    open(&bench);
    let fs = bench.applier();
    delete(&fs, 0).unwrap();

    assert_errno(delete(&fs, 1), Errno::PERM);

    assert_tree_eq(&before, &bench.snapshot());
    assert!(matches!(bench.engine.close_step(None), Ok(ClosedStep::Denied { .. })));
    let late = bench.engine.confirm(next(&questions).id, Allow).unwrap_err();
    assert_eq!(late.code(), ErrorCode::SafeguardUnknown);
}

/// SG-05
#[test]
fn overwriting_a_large_file_asks_first() {
    let overwrites: [fn(&Applier<'_>) -> std::io::Result<()>; 4] = [
        |fs| fs.write("large.bin", 10, b"x"),
        |fs| fs.truncate("large.bin", 999_999),
        |fs| fs.overwrite("large.bin", b"new"),
        |fs| fs.copy_range("medium.txt", "large.bin", 0, 100),
    ];
    for overwrite in overwrites {
        let config = SafeguardConfig {
            overwrite_threshold_bytes: Some(1_000_000),
            ..SafeguardConfig::default()
        };
        let (bench, questions) = bench_asking(config);
        let before = bench.snapshot();
        open(&bench);
        thread::scope(|scope| {
            let writing = front_end(scope, &bench, overwrite);
            let question = next(&questions);
            assert_eq!((question.kind, question.count), (SafeguardKind::OverwriteLarge, 1_000_000));
            assert_eq!(question.sample_paths, [rel_buf("large.bin")]);
            assert_tree_eq(&before, &bench.snapshot());
            bench.engine.confirm(question.id, Deny).unwrap();
            assert_errno(writing.join().unwrap(), Errno::PERM);
        });
        assert_tree_eq(&before, &bench.snapshot());
    }
}

/// SG-05
#[test]
fn smaller_files_appends_and_new_files_are_not_asked_about() {
    let config = SafeguardConfig {
        overwrite_threshold_bytes: Some(1_000_000),
        ..SafeguardConfig::default()
    };
    let (bench, questions) = bench_asking(config);
    bench.step(|fs| {
        fs.overwrite("medium.txt", b"small").unwrap();
        fs.append("large.bin", b"more").unwrap();
        fs.chmod("large.bin", 0o600).unwrap();
        fs.create("new.bin", &[1; 2_000_000]).unwrap();
        fs.overwrite("new.bin", b"its own").unwrap();
    });
    assert!(questions.try_recv().is_err());
}

/// SG-06
#[test]
fn renaming_over_something_asks_first() {
    let config = SafeguardConfig { rename_over_existing: true, ..SafeguardConfig::default() };
    let (bench, questions) = bench_asking(config);
    let before = bench.snapshot();
    open(&bench);
    thread::scope(|scope| {
        let renaming = front_end(scope, &bench, |fs| {
            fs.rename("medium.txt", "free-name.txt").unwrap();
            fs.rename("run.sh", "small.txt")
        });
        let question = next(&questions);
        assert_eq!(question.kind, SafeguardKind::RenameOver);
        assert_eq!(question.sample_paths, [rel_buf("small.txt")]);
        bench.engine.confirm(question.id, Deny).unwrap();
        assert_errno(renaming.join().unwrap(), Errno::PERM);
    });
    assert_tree_eq(&before, &bench.snapshot());
    assert!(questions.try_recv().is_err(), "a free name needs no question");
}

/// Notes whether a file is there at the moment of the question.
struct Looking {
    at: PathBuf,
    seen: Mutex<Vec<bool>>,
}

impl EventSink for Looking {
    fn event(&self, event: EngineEvent) {
        if let EngineEvent::SafeguardTriggered(_) = event {
            self.seen.lock().unwrap().push(self.at.exists());
        }
    }
}

/// SG-09
#[test]
fn the_question_comes_before_the_deletion_that_reaches_the_threshold() {
    let workspace = TempWorkspace::with_fixture(|root| fixtures::large_flat(root, 5, 10));
    let looking = Arc::new(Looking { at: workspace.path("file-0000002"), seen: Mutex::default() });
    let bench = Bench::configured(workspace, |config| {
        config.safeguards = SafeguardConfig { timeout: Duration::ZERO, ..deletes(3) };
        config.events = looking.clone();
    });
    open(&bench);
    let fs = bench.applier();
    delete(&fs, 0).unwrap();
    delete(&fs, 1).unwrap();
    assert_errno(delete(&fs, 2), Errno::PERM);
    assert_eq!(*looking.seen.lock().unwrap(), [true]);
}

#[test]
fn what_was_allowed_once_is_not_asked_again_in_the_same_step() {
    let (bench, questions) = bench_asking(deletes(2));
    open(&bench);
    thread::scope(|scope| {
        let deleting = front_end(scope, &bench, |fs| (0..4).try_for_each(|n| delete(fs, n)));
        bench.engine.confirm(next(&questions).id, Allow).unwrap();
        deleting.join().unwrap().unwrap();
    });
    assert!(questions.try_recv().is_err());
    bench.engine.close_step(Some(0)).unwrap();

    open(&bench);
    thread::scope(|scope| {
        let deleting = front_end(scope, &bench, |fs| {
            delete(fs, 4).unwrap();
            fs.unlink("small.txt")
        });
        bench.engine.confirm(next(&questions).id, Allow).unwrap();
        deleting.join().unwrap().unwrap();
    });
}

#[test]
fn one_kind_allowed_does_not_allow_another() {
    let config = SafeguardConfig { rename_over_existing: true, ..deletes(1) };
    let (bench, questions) = bench_asking(config);
    open(&bench);
    thread::scope(|scope| {
        let working = front_end(scope, &bench, |fs| {
            delete(fs, 0).unwrap();
            fs.rename("run.sh", "small.txt")
        });
        let first = next(&questions);
        bench.engine.confirm(first.id, Allow).unwrap();
        let second = next(&questions);
        assert_eq!(
            (first.kind, second.kind),
            (SafeguardKind::DeleteCount, SafeguardKind::RenameOver)
        );
        bench.engine.confirm(second.id, Allow).unwrap();
        working.join().unwrap().unwrap();
    });
}

#[test]
fn deleting_what_the_step_itself_made_does_not_count() {
    let (bench, questions) = bench_asking(deletes(2));
    bench.try_step(|fs| {
        for round in 0..5 {
            fs.create("scratch", b"").unwrap();
            fs.unlink("scratch").unwrap();
            fs.mkdir(format!("dir-{round}")).unwrap();
            fs.rmdir(format!("dir-{round}")).unwrap();
        }
        delete(fs, 0).unwrap();
    });
    assert!(questions.try_recv().is_err());
}

#[test]
fn removed_directories_count() {
    let (bench, questions) = bench_asking(deletes(2));
    open(&bench);
    thread::scope(|scope| {
        let deleting = front_end(scope, &bench, |fs| {
            delete(fs, 0).unwrap();
            fs.rmdir("empty-directory")
        });
        bench.engine.confirm(next(&questions).id, Allow).unwrap();
        deleting.join().unwrap().unwrap();
    });
}

#[test]
fn deletions_that_fail_do_not_count() {
    let (bench, questions) = bench_asking(deletes(2));
    bench.step(|fs| {
        for _ in 0..3 {
            assert_errno(fs.unlink("missing"), Errno::NOENT);
            assert_errno(fs.rmdir("src"), Errno::NOTEMPTY);
        }
        delete(fs, 0).unwrap();
    });
    assert!(questions.try_recv().is_err());
}

/// SG-07
#[test]
fn held_operations_are_bounded() {
    let config = SafeguardConfig { max_held_operations: 2, ..deletes(1) };
    let (bench, questions) = bench_asking(config);
    open(&bench);
    let (sender, outcomes) = mpsc::channel();
    thread::scope(|scope| {
        let deleting = front_end(scope, &bench, |fs| delete(fs, 0));
        let question = next(&questions);
        for number in 0..5 {
            let sender = sender.clone();
            front_end(scope, &bench, move |fs| {
                sender.send(fs.create(format!("new-{number}"), b"")).unwrap();
            });
        }
        for _ in 0..3 {
            let refused = outcomes.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_errno(refused, Errno::NOSPC);
        }
        bench.engine.confirm(question.id, Allow).unwrap();
        deleting.join().unwrap().unwrap();
    });
    let held: Vec<_> = outcomes.try_iter().collect();
    assert!(matches!(&held[..], [Ok(()), Ok(())]), "{held:?}");
}

/// SG-07
#[test]
fn the_refusal_of_a_full_queue_has_its_own_code() {
    let config = SafeguardConfig { max_held_operations: 0, ..deletes(1) };
    let (bench, questions) = bench_asking(config);
    open(&bench);
    thread::scope(|scope| {
        let deleting = front_end(scope, &bench, |fs| delete(fs, 0));
        let question = next(&questions);
        let mkdir = codeagent_interceptor::Mutation::Mkdir { path: common::rel("new") };
        let refused =
            codeagent_interceptor::WriteInterceptor::before(&bench.engine, &mkdir).unwrap_err();
        assert!(matches!(refused, UndoError::HeldQueueFull), "{refused}");
        bench.engine.confirm(question.id, Allow).unwrap();
        deleting.join().unwrap().unwrap();
    });
}

#[test]
fn only_an_open_question_can_be_answered_and_only_once() {
    let (bench, questions) = bench_asking(deletes(1));
    let unknown = bench.engine.confirm(SafeguardId(77), Allow).unwrap_err();
    assert!(matches!(unknown, UndoError::SafeguardUnknown(SafeguardId(77))), "{unknown}");
    open(&bench);
    thread::scope(|scope| {
        let deleting = front_end(scope, &bench, |fs| delete(fs, 0));
        let id = next(&questions).id;
        bench.engine.confirm(id, Allow).unwrap();
        let again = bench.engine.confirm(id, Deny).unwrap_err();
        assert!(matches!(again, UndoError::SafeguardUnknown(_)), "{again}");
        deleting.join().unwrap().unwrap();
    });
    assert!(!bench.path("file-0000000").exists());
}

#[test]
fn nothing_is_asked_unless_configured() {
    let (bench, questions) = bench_asking(SafeguardConfig::default());
    bench.step(|fs| {
        (0..5).for_each(|n| delete(fs, n).unwrap());
        fs.rename("run.sh", "small.txt").unwrap();
        fs.overwrite("large.bin", b"").unwrap();
    });
    assert!(questions.try_recv().is_err());
}

fn removals(count: usize) -> Vec<StagedChange> {
    (0..count).map(|n| StagedChange::Remove { path: rel_buf(format!("file-{n:07}")) }).collect()
}

#[test]
fn a_commit_of_staged_changes_asks_before_any_of_them_happens() {
    for (answer, expected_left) in [(Deny, 5), (Allow, 0)] {
        let (bench, questions) = bench_asking(deletes(3));
        let before = bench.snapshot();
        let staging = bench.beside("staging");
        open(&bench);
        thread::scope(|scope| {
            let adopting = scope.spawn(|| bench.engine.adopt(&staging, &removals(5)));
            let question = next(&questions);
            assert_eq!(question.kind, SafeguardKind::DeleteCount);
            assert_tree_eq(&before, &bench.snapshot());
            bench.engine.confirm(question.id, answer).unwrap();
            assert_eq!(adopting.join().unwrap().is_ok(), answer == Allow);
        });
        let left = (0..5).filter(|n| bench.path(format!("file-{n:07}")).exists()).count();
        assert_eq!(left, expected_left);
    }
}
