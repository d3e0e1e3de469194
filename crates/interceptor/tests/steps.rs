//! Steps as such: what is one, what redo keeps, transactions, ambient writes, previews.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::time::{Duration, Instant};

use codeagent_common::{Change, ChangeKind, EntryKind, StepId, StepInfo, StepKind};
use codeagent_interceptor::{
    AbortedStep, ClosedStep, RollbackOptions, StagedChange, StepRequest, UndoError,
    WriteInterceptor,
};
use codeagent_test_support::{TempWorkspace, assert_tree_eq, fixtures};
use common::{Bench, ManualClock, assert_errno, rel_buf};
use rustix::io::Errno;

fn change(kind: ChangeKind, path: &str, entry: EntryKind) -> Change {
    Change { path: rel_buf(path), kind, from: None, entry: Some(entry), whole_directory: false }
}

fn renamed(from: &str, to: &str, entry: EntryKind) -> Change {
    Change { from: Some(rel_buf(from)), ..change(ChangeKind::Renamed, to, entry) }
}

fn bench_with_clock() -> (Bench, std::sync::Arc<ManualClock>) {
    let clock = ManualClock::new();
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let bench = Bench::configured(workspace, |config| config.clock = clock.clone());
    (bench, clock)
}

const TIMEOUT: Duration = Duration::from_secs(5);

/// UI-20
#[test]
fn a_write_outside_any_step_belongs_to_an_ambient_step() {
    let (bench, clock) = bench_with_clock();
    let before = bench.snapshot();
    bench.applier().overwrite("small.txt", b"from the background").unwrap();
    let open = bench.engine.current_step();
    clock.advance(TIMEOUT);
    let closed = bench.engine.tick().unwrap();

    let steps = bench.engine.steps();
    assert_eq!(open, Some(StepId(-1)));
    assert!(matches!(closed, Some(ClosedStep::Recorded { .. })), "{closed:?}");
    assert_eq!((steps.len(), steps[0].id, steps[0].kind), (1, StepId(-1), StepKind::Ambient));
    assert_eq!(steps[0].command, "");
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

/// UI-20
#[test]
fn undo_ends_an_ambient_step_that_is_still_open() {
    let (bench, _clock) = bench_with_clock();
    let before = bench.snapshot();
    bench.applier().create("new.txt", b"from the background").unwrap();

    bench.undo(1);

    assert_tree_eq(&before, &bench.snapshot());
    assert_eq!(bench.engine.current_step(), None);
}

/// UI-21
#[test]
fn a_write_after_a_quiet_time_opens_another_ambient_step() {
    let (bench, clock) = bench_with_clock();
    bench.applier().overwrite("small.txt", b"first").unwrap();
    clock.advance(TIMEOUT - Duration::from_millis(1));
    bench.applier().overwrite("small.txt", b"soon after").unwrap();
    let between = bench.snapshot();
    clock.advance(TIMEOUT);
    bench.applier().overwrite("small.txt", b"much later").unwrap();
    clock.advance(TIMEOUT);
    bench.engine.tick().unwrap();

    let ids: Vec<StepId> = bench.engine.steps().iter().map(|step| step.id).collect();
    assert_eq!(ids, [StepId(-1), StepId(-2)]);
    bench.undo(1);
    assert_tree_eq(&between, &bench.snapshot());
}

/// UI-21
#[test]
fn an_ambient_step_stays_open_while_writes_go_on() {
    let (bench, clock) = bench_with_clock();
    for _ in 0..3 {
        bench.applier().append("small.txt", b"more").unwrap();
        clock.advance(TIMEOUT - Duration::from_millis(1));
        assert_eq!(bench.engine.tick().unwrap(), None);
    }
    assert_eq!(bench.engine.current_step(), Some(StepId(-1)));
}

/// UI-20
#[test]
fn a_command_ends_the_ambient_step_before_it() {
    let (bench, _clock) = bench_with_clock();
    bench.applier().create("ambient.txt", b"").unwrap();
    let between = bench.snapshot();
    bench.step(|fs| fs.create("command.txt", b"").unwrap());

    let kinds: Vec<StepKind> = bench.engine.steps().iter().map(|step| step.kind).collect();
    assert_eq!(kinds, [StepKind::Ambient, StepKind::Command]);
    bench.undo(1);
    assert_tree_eq(&between, &bench.snapshot());
}

#[test]
fn a_new_step_drops_what_could_be_redone() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.create("one.txt", b"1").unwrap());
    bench.step(|fs| fs.create("two.txt", b"2").unwrap());
    bench.undo(2);
    assert_eq!(bench.engine.redoable().len(), 2);

    bench.step(|fs| fs.create("three.txt", b"3").unwrap());

    assert_eq!(bench.engine.redoable(), []);
    let error = bench.engine.redo(1, RollbackOptions::default()).unwrap_err();
    assert!(matches!(error, UndoError::NothingToRedo { available: 0 }), "{error}");
}

#[test]
fn an_empty_step_keeps_what_can_be_redone() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.create("one.txt", b"1").unwrap());
    let after = bench.snapshot();
    bench.undo(1);

    let closed = bench.try_step(|fs| drop(std::fs::read(fs.full_path("small.txt")).unwrap()));

    assert!(matches!(closed, ClosedStep::Empty { .. }), "{closed:?}");
    bench.redo(1);
    assert_tree_eq(&after, &bench.snapshot());
}

#[test]
fn a_step_in_which_everything_failed_keeps_what_can_be_redone() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.create("one.txt", b"1").unwrap());
    let after = bench.snapshot();
    bench.undo(1);

    bench.try_step(|fs| assert_errno(fs.unlink("missing"), Errno::NOENT));

    assert_eq!(bench.engine.steps(), []);
    bench.redo(1);
    assert_tree_eq(&after, &bench.snapshot());
}

#[test]
fn undo_and_redo_name_the_steps_in_the_order_they_took_them() {
    let bench = Bench::new(fixtures::small_tree);
    let first = bench.step(|fs| fs.append("small.txt", b"1").unwrap()).id;
    let second = bench.step(|fs| fs.append("small.txt", b"2").unwrap()).id;

    assert_eq!(bench.undo(2).steps, [second, first]);
    assert_eq!(bench.engine.steps(), []);
    assert_eq!(bench.redo(2).steps, [first, second]);
    assert_eq!(bench.engine.redoable(), []);
    let ids: Vec<StepId> = bench.engine.steps().iter().map(|step| step.id).collect();
    assert_eq!(ids, [first, second]);
}

#[test]
fn what_can_be_redone_is_told_as_it_was_done() {
    let bench = Bench::new(fixtures::small_tree);
    let step = bench.step(|fs| {
        fs.create("one.txt", b"1").unwrap();
        fs.create("two.txt", b"2").unwrap();
        fs.unlink("small.txt").unwrap();
    });
    let counts = |step: &StepInfo| (step.added, step.deleted, step.modified);
    assert_eq!(counts(&step), (2, 1, 0));
    bench.undo(1);
    assert_eq!(counts(&bench.engine.redoable()[0]), (2, 1, 0));
    let bench = bench.reopened();
    assert_eq!(counts(&bench.engine.redoable()[0]), (2, 1, 0));
    bench.redo(1);
    assert_eq!(counts(&bench.engine.steps()[0]), (2, 1, 0));
}

#[test]
fn more_than_there_is_cannot_be_undone() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.append("small.txt", b"1").unwrap());
    let after = bench.snapshot();

    let error = bench.engine.rollback(2, RollbackOptions::default()).unwrap_err();

    assert!(matches!(error, UndoError::NothingToUndo { available: 1 }), "{error}");
    assert_tree_eq(&after, &bench.snapshot());
}

#[test]
fn nothing_is_undone_while_a_step_is_open() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.append("small.txt", b"1").unwrap());
    let open = bench.engine.open_step(StepRequest::command("still running")).unwrap();
    let engine = &bench.engine;

    for error in [
        engine.rollback(1, RollbackOptions::default()).unwrap_err(),
        engine.preview(1).unwrap_err(),
        engine.open_step(StepRequest::command("another")).unwrap_err(),
        engine.discard().unwrap_err(),
    ] {
        assert!(matches!(error, UndoError::StepOpen(id) if id == open), "{error}");
    }
}

#[test]
fn a_transaction_is_one_step() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    let id = bench.engine.begin_transaction("refactoring").unwrap();
    for (number, name) in ["one.txt", "two.txt"].iter().enumerate() {
        let command = format!("command {number}");
        assert_eq!(bench.engine.open_step(StepRequest::command(command)).unwrap(), id);
        bench.applier().create(name, b"").unwrap();
        let closed = bench.engine.close_step(Some(0)).unwrap();
        assert_eq!(closed, ClosedStep::joined(id));
    }
    let closed = bench.engine.commit_transaction().unwrap();
    let after = bench.snapshot();

    let ClosedStep::Recorded { step, .. } = closed else { panic!("{closed:?}") };
    assert_eq!((step.id, step.kind, step.added), (id, StepKind::Transaction, 2));
    assert!(step.command.contains("refactoring") && step.command.contains("command 1"));
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(1);
    assert_tree_eq(&after, &bench.snapshot());
}

#[test]
fn a_rolled_back_transaction_never_was() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.append("small.txt", b"kept").unwrap());
    let before = bench.snapshot();
    let id = bench.engine.begin_transaction("an attempt").unwrap();
    bench.engine.open_step(StepRequest::command("inner")).unwrap();
    bench.applier().remove_all("src").unwrap();
    bench.engine.close_step(Some(1)).unwrap();
    bench.applier().overwrite("small.txt", b"gone again").unwrap();

    assert_eq!(bench.engine.rollback_transaction().unwrap(), id);

    assert_tree_eq(&before, &bench.snapshot());
    assert_eq!(bench.engine.steps().len(), 1);
    bench.undo(1);
}

#[test]
fn a_command_aborted_in_a_transaction_leaves_the_rest_of_it() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    let id = bench.engine.begin_transaction("an attempt").unwrap();
    for (name, aborted) in [("one.txt", false), ("two.txt", true)] {
        bench.engine.open_step(StepRequest::command(name)).unwrap();
        bench.applier().create(name, b"").unwrap();
        if aborted {
            assert_eq!(bench.engine.abort_step().unwrap(), AbortedStep::Joined(id));
        } else {
            bench.engine.close_step(Some(0)).unwrap();
        }
    }
    assert!(bench.path("one.txt").exists());
    assert_eq!(bench.engine.current_step(), Some(id));
    assert_eq!(bench.engine.rollback_transaction().unwrap(), id);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn what_nobody_heard_of_is_told_at_the_next_start_once() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    let id = bench.engine.open_step(StepRequest::command("never ends")).unwrap();
    bench.applier().remove_all("src").unwrap();
    assert_eq!(bench.engine.give_up_unfinished(StepId(id.0 + 1)).unwrap(), None);
    let given_up = bench.engine.give_up_unfinished(id).unwrap();
    assert_eq!(given_up, Some(AbortedStep::TakenBack(id)));
    assert_tree_eq(&before, &bench.snapshot());
    let bench = bench.reopened();
    let report = bench.engine.recovery().unwrap();
    assert!(report.rolled_back && report.restored > 0, "{report:?}");
    assert_eq!(report.step, Some(id));
    assert_eq!(bench.reopened().engine.recovery(), None);
}

fn place(bench: &Bench, name: &str) {
    let staging = bench.beside("staging");
    std::fs::write(staging.join(name), b"staged").unwrap();
    let change = StagedChange::Place { path: rel_buf(name), staged: rel_buf(name) };
    bench.engine.adopt(&staging, &[change]).unwrap();
}

#[test]
fn a_step_of_own_changes_takes_nothing_of_others() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    let id = bench.engine.open_step(StepRequest::staged_command("make")).unwrap();
    bench.applier().create("theirs.txt", b"").unwrap();
    assert_eq!(bench.engine.current_step(), Some(StepId(-1)));
    assert_eq!(bench.engine.status().unwrap().open_step, Some(id));
    let refused = bench.engine.rollback(1, RollbackOptions::default()).unwrap_err();
    assert!(matches!(refused, UndoError::StepOpen(open) if open == id), "{refused}");

    place(&bench, "ours.txt");
    let late = std::thread::scope(|scope| {
        let late = scope.spawn(|| bench.applier().create("late.txt", b""));
        let patience = Instant::now() + Duration::from_millis(300);
        while Instant::now() < patience {
            assert!(!late.is_finished(), "it waits until the step has ended");
            std::thread::yield_now();
        }
        bench.engine.close_step(Some(0)).unwrap();
        late.join().unwrap()
    });
    late.unwrap();

    let names = |step: i64| -> Vec<String> {
        let changes = bench.engine.changes(StepId(step)).unwrap();
        changes.iter().map(|change| change.path.to_string()).collect()
    };
    bench.engine.end_ambient_step().unwrap();
    assert_eq!(
        (names(-1), names(id.0), names(-2)),
        (vec!["theirs.txt".to_owned()], vec!["ours.txt".to_owned()], vec!["late.txt".to_owned()],)
    );
    bench.undo(3);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn a_step_of_own_changes_that_is_aborted_takes_back_nothing_of_others() {
    let bench = Bench::new(fixtures::small_tree);
    for nothing_came in [true, false] {
        let id = bench.engine.open_step(StepRequest::staged_command("make")).unwrap();
        bench.applier().create(format!("theirs {nothing_came}"), b"").unwrap();
        if !nothing_came {
            place(&bench, "ours.txt");
        }
        assert_eq!(bench.engine.abort_step().unwrap(), AbortedStep::TakenBack(id));
        assert!(bench.path(format!("theirs {nothing_came}")).exists());
        assert!(!bench.path("ours.txt").exists());
    }
    bench.engine.end_ambient_step().unwrap();
    assert!(bench.engine.steps().iter().all(|step| step.id.is_ambient()));
    let id = bench.engine.open_step(StepRequest::staged_command("empty")).unwrap();
    assert_eq!(bench.engine.close_step(Some(0)).unwrap(), ClosedStep::empty(id));
    let id = bench.engine.open_step(StepRequest::staged_command("deserted")).unwrap();
    let given_up = bench.engine.give_up_unfinished(id).unwrap();
    assert_eq!(given_up, Some(AbortedStep::TakenBack(id)));
    assert_eq!(bench.engine.status().unwrap().open_step, None);
}

#[test]
fn a_step_that_was_undone_is_told_from_one_that_never_was() {
    let bench = Bench::new(fixtures::small_tree);
    let id = bench.step(|fs| fs.append("small.txt", b"1").unwrap()).id;
    bench.undo(1);
    for error in [
        bench.engine.changes(id).unwrap_err(),
        bench.engine.restore(id, &[]).unwrap_err(),
        bench.engine.pin(id, true).unwrap_err(),
    ] {
        assert!(matches!(error, UndoError::StepUndone(undone) if undone == id), "{error}");
        assert_eq!(error.hint().as_deref(), Some("redo brings it back"));
    }
    assert!(matches!(bench.engine.changes(StepId(99)), Err(UndoError::StepNotFound(_))));
}

#[test]
fn transactions_do_not_nest_and_end_only_when_begun() {
    let bench = Bench::new(fixtures::small_tree);
    let error = bench.engine.commit_transaction().unwrap_err();
    assert!(matches!(error, UndoError::NoStepOpen), "{error}");
    let error = bench.engine.rollback_transaction().unwrap_err();
    assert!(matches!(error, UndoError::NoStepOpen), "{error}");

    let id = bench.engine.begin_transaction("outer").unwrap();
    let error = bench.engine.begin_transaction("inner").unwrap_err();
    assert!(matches!(error, UndoError::TransactionOpen(open) if open == id), "{error}");
    let error = bench.engine.close_step(None).unwrap_err();
    assert!(matches!(error, UndoError::TransactionOpen(open) if open == id), "{error}");
    let error = bench.engine.preview(1).unwrap_err();
    assert!(matches!(error, UndoError::TransactionOpen(open) if open == id), "{error}");
    assert_eq!(bench.engine.commit_transaction().unwrap(), ClosedStep::empty(id));
}

#[test]
fn an_aborted_step_never_was() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.append("small.txt", b"kept").unwrap());
    let before = bench.snapshot();
    let id = bench.engine.open_step(StepRequest::command("rm -rf .")).unwrap();
    let fs = bench.applier();
    fs.remove_all("src").unwrap();
    fs.rename("small.txt", "run.sh").unwrap();
    fs.truncate("large.bin", 7).unwrap();

    assert_eq!(bench.engine.abort_step().unwrap(), AbortedStep::TakenBack(id));

    assert_tree_eq(&before, &bench.snapshot());
    assert_eq!(bench.engine.steps().len(), 1);
    assert_eq!(bench.engine.current_step(), None);
    assert!(matches!(bench.engine.abort_step(), Err(UndoError::NoStepOpen)));
    bench.undo(1);
    bench.assert_sound();
}

/// A step that changes something in every way.
fn change_everything(fs: &codeagent_test_support::Applier<'_>) {
    fs.create("new.txt", b"new\n").unwrap();
    fs.mkdir("new-directory").unwrap();
    fs.symlink("new.txt", "new-link").unwrap();
    fs.append("small.txt", b"more\n").unwrap();
    fs.chmod("run.sh", 0o700).unwrap();
    fs.unlink("medium.txt").unwrap();
    fs.rmdir("empty-directory").unwrap();
    fs.rename("src", "code").unwrap();
    fs.rename("empty.txt", "still-empty.txt").unwrap();
}

#[test]
fn changes_lists_the_net_effect_of_a_step() {
    let bench = Bench::new(fixtures::small_tree);
    let step = bench.step(|fs| {
        change_everything(fs);
        fs.create("passing.txt", b"").unwrap();
        fs.unlink("passing.txt").unwrap();
        fs.append("small.txt", b"and more\n").unwrap();
    });

    assert_eq!((step.added, step.modified, step.deleted, step.renamed), (3, 2, 2, 2));
    let expected = [
        renamed("src", "code", EntryKind::Directory),
        change(ChangeKind::Deleted, "empty-directory", EntryKind::Directory),
        change(ChangeKind::Deleted, "medium.txt", EntryKind::File),
        change(ChangeKind::Added, "new-directory", EntryKind::Directory),
        change(ChangeKind::Added, "new-link", EntryKind::Symlink),
        change(ChangeKind::Added, "new.txt", EntryKind::File),
        change(ChangeKind::Modified, "run.sh", EntryKind::File),
        change(ChangeKind::Modified, "small.txt", EntryKind::File),
        renamed("empty.txt", "still-empty.txt", EntryKind::File),
    ];
    assert_eq!(bench.engine.changes(step.id).unwrap(), expected);
    assert!(matches!(bench.engine.changes(StepId(99)), Err(UndoError::StepNotFound(_))));
}

#[test]
fn preview_lists_exactly_what_undo_then_changes_and_changes_nothing() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    let first = bench.step(change_everything).id;
    let second = bench
        .step(|fs| {
            fs.unlink("new.txt").unwrap(); // made by the first step: no net effect
            fs.append("small.txt", b"once more\n").unwrap();
            fs.create("code/added.rs", b"").unwrap();
        })
        .id;
    let after = bench.snapshot();

    let preview = bench.engine.preview(2).unwrap();

    assert_tree_eq(&after, &bench.snapshot());
    assert_eq!(bench.engine.steps().len(), 2);
    assert_eq!(preview.steps, [second, first]);
    assert_eq!(preview.conflicts, []);
    let expected = [
        change(ChangeKind::Deleted, "code/added.rs", EntryKind::File),
        change(ChangeKind::Added, "empty-directory", EntryKind::Directory),
        renamed("still-empty.txt", "empty.txt", EntryKind::File),
        change(ChangeKind::Added, "medium.txt", EntryKind::File),
        change(ChangeKind::Deleted, "new-directory", EntryKind::Directory),
        change(ChangeKind::Deleted, "new-link", EntryKind::Symlink),
        change(ChangeKind::Modified, "run.sh", EntryKind::File),
        change(ChangeKind::Modified, "small.txt", EntryKind::File),
        renamed("code", "src", EntryKind::Directory),
    ];
    assert_eq!(preview.changes, expected);
    bench.undo(2);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn preview_names_the_conflicts_undo_would_meet() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.append("small.txt", b"agent").unwrap());
    std::fs::write(bench.path("small.txt"), b"the user's").unwrap();

    let preview = bench.engine.preview(1).unwrap();

    let paths: Vec<_> = preview.conflicts.iter().map(|conflict| conflict.path.clone()).collect();
    assert_eq!(paths, [rel_buf("small.txt")]);
}

#[test]
fn status_counts_steps_and_bytes() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.unlink("large.bin").unwrap());
    bench.step(|fs| fs.append("small.txt", b"x").unwrap());
    bench.undo(1);
    let open = bench.engine.open_step(StepRequest::command("running")).unwrap();

    let status = bench.engine.status().unwrap();

    assert_eq!((status.steps, status.redoable), (1, 1));
    assert_eq!(status.open_step, Some(open));
    assert!(status.held_bytes >= 1_000_000 && status.stored_bytes > 0, "{status:?}");
    assert!(status.free_bytes > 0);
    assert_eq!(status.unprotected, []);
}

#[test]
fn a_read_only_working_directory_refuses_every_mutation() {
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let bench = Bench::configured(workspace, |config| config.read_only = true);
    let before = bench.snapshot();
    bench.try_step(|fs| {
        assert_errno(fs.create("new.txt", b""), Errno::ROFS);
        assert_errno(fs.write("small.txt", 0, b"x"), Errno::ROFS);
        assert_errno(fs.unlink("small.txt"), Errno::ROFS);
        assert_errno(fs.rename("small.txt", "new.txt"), Errno::ROFS);
    });
    assert_tree_eq(&before, &bench.snapshot());
    assert_eq!(bench.engine.steps(), []);
}

#[test]
fn step_ids_are_never_used_twice() {
    let bench = Bench::new(fixtures::small_tree);
    let first = bench.step(|fs| fs.append("small.txt", b"1").unwrap()).id;
    bench.undo(1);
    let bench = bench.reopened();
    let second = bench.step(|fs| fs.append("small.txt", b"2").unwrap()).id;
    assert!(second > first, "{second} after {first}");
}

#[test]
fn what_arrives_after_the_last_step_is_refused_and_not_lost_later() {
    let bench = Bench::new(fixtures::small_tree);
    bench.applier().write("small.txt", 0, b"ambient").unwrap();
    let closed = bench.engine.retire(None).unwrap();
    assert!(matches!(closed, Some(ClosedStep::Recorded { .. })), "{closed:?}");
    let after = bench.snapshot();
    let refused = bench.applier().write("small.txt", 0, b"too late");
    assert!(refused.is_err());
    let bench = bench.reopened();
    assert!(bench.engine.recovery().is_none());
    assert_tree_eq(&after, &bench.snapshot());
}

/// A session of one command lasts no longer than cleaning up is put off.
#[test]
fn who_goes_away_leaves_no_trash() {
    let bench = Bench::new(fixtures::small_tree);
    let trash = || std::fs::read_dir(bench.workspace.undo().join("trash")).unwrap().count();
    bench.step(|fs| fs.unlink("small.txt").unwrap());
    bench.undo(1);
    bench.engine.retire(None).unwrap();
    assert_eq!(trash(), 0);
}
