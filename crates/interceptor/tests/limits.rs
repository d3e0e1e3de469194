//! Bounds of the store: what a step may cost, what goes when it is full, and what never goes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use codeagent_common::{ErrorCode, OverLimitPolicy, Protection, ResourceLimits, StepId};
use codeagent_interceptor::{
    ClosedStep, EngineEvent, HistoryEntry, RollbackOptions, StagedChange, StepRequest, UndoError,
};
use codeagent_test_support::{Applier, TempWorkspace, assert_tree_eq, fixtures};
use common::{Bench, assert_errno, assert_helpful, rel, rel_buf};
use rustix::io::Errno;

use codeagent_interceptor::{FileRef, Mutation, WriteInterceptor};

fn bench_limited(limits: ResourceLimits) -> Bench {
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    Bench::configured(workspace, |config| config.limits = limits)
}

fn step_limit(max_step_bytes: u64, over_step_limit: OverLimitPolicy) -> ResourceLimits {
    ResourceLimits { max_step_bytes, over_step_limit, ..ResourceLimits::default() }
}

/// Overwrites a megabyte that does not compress.
fn overwrite_large(fs: &Applier<'_>) -> std::io::Result<()> {
    fs.write("large.bin", 0, &[0; 1_000_000])
}

fn ids(bench: &Bench) -> Vec<StepId> {
    bench.engine.steps().iter().map(|step| step.id).collect()
}

/// UI-17
#[test]
fn a_step_over_the_limit_goes_on_unprotected_and_says_so_everywhere() {
    let bench = bench_limited(step_limit(64 << 10, OverLimitPolicy::Unprotect));
    let step = bench.step(|fs| {
        overwrite_large(fs).unwrap();
        fs.unlink("small.txt").unwrap();
        fs.create("new.txt", b"the step goes on").unwrap();
    });
    let after = bench.snapshot();

    assert!(matches!(step.protection, Protection::Unprotected(_)), "{:?}", step.protection);
    let told: Vec<_> = bench
        .events
        .all()
        .into_iter()
        .filter(|event| matches!(event, EngineEvent::StepUnprotected { .. }))
        .collect();
    assert!(
        matches!(&told[..], [EngineEvent::StepUnprotected { step: id, reason }]
            if *id == step.id && !reason.is_empty()),
        "{told:?}"
    );
    assert_eq!(bench.engine.status().unwrap().unprotected, [step.id]);
    assert_eq!(bench.engine.history(), [HistoryEntry::Step(step.clone())]);
    let error = bench.engine.rollback(1, RollbackOptions::force()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::StepUnprotected);
    assert!(error.to_string().contains(&step.id.to_string()), "{error}");
    assert_tree_eq(&after, &bench.snapshot());
}

/// UI-17
#[test]
fn an_unprotected_step_is_still_reported_after_a_restart() {
    let bench = bench_limited(step_limit(64 << 10, OverLimitPolicy::Unprotect));
    let id = bench.step(|fs| overwrite_large(fs).unwrap()).id;
    let bench = bench.reopened();
    assert_eq!(bench.engine.status().unwrap().unprotected, [id]);
    let error = bench.engine.rollback(1, RollbackOptions::default()).unwrap_err();
    assert!(matches!(error, UndoError::StepUnprotected { step, .. } if step == id), "{error}");
}

/// UI-17
#[test]
fn an_unprotected_step_blocks_older_ones_but_not_newer_ones() {
    let bench = bench_limited(step_limit(64 << 10, OverLimitPolicy::Unprotect));
    bench.step(|fs| fs.append("small.txt", b"older").unwrap());
    bench.step(|fs| overwrite_large(fs).unwrap());
    let between = bench.snapshot();
    bench.step(|fs| fs.append("small.txt", b"newer").unwrap());
    let after = bench.snapshot();

    let error = bench.engine.rollback(2, RollbackOptions::default()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::StepUnprotected);
    assert_tree_eq(&after, &bench.snapshot());
    bench.undo(1);
    assert_tree_eq(&between, &bench.snapshot());
}

/// UI-17
#[test]
fn an_unprotected_step_cannot_be_aborted_and_says_so() {
    let bench = bench_limited(step_limit(64 << 10, OverLimitPolicy::Unprotect));
    bench.engine.open_step(StepRequest::command("large")).unwrap();
    overwrite_large(&bench.applier()).unwrap();
    let after = bench.snapshot();
    let error = bench.engine.abort_step().unwrap_err();
    assert_eq!(error.code(), ErrorCode::StepUnprotected);
    assert_tree_eq(&after, &bench.snapshot());
}

#[test]
fn a_write_past_the_step_limit_can_be_refused_instead() {
    let bench = bench_limited(step_limit(64 << 10, OverLimitPolicy::Refuse));
    let before = bench.snapshot();
    bench.engine.open_step(StepRequest::command("large")).unwrap();
    let fs = bench.applier();
    fs.write("small.txt", 0, b"fits").unwrap();
    let between = bench.snapshot();

    assert_errno(overwrite_large(&fs), Errno::NOSPC);

    assert_tree_eq(&between, &bench.snapshot());
    let file = FileRef::at(rel("large.bin"));
    let error = bench.engine.before(&Mutation::Truncate { file, length: 0 }).unwrap_err();
    assert_helpful(&error, ErrorCode::LimitExceeded);
    fs.append("medium.txt", b"and the step goes on").unwrap();
    let closed = bench.engine.close_step(Some(1)).unwrap();
    assert!(
        matches!(&closed, ClosedStep::Recorded { step, .. } if step.protection.is_protected()),
        "{closed:?}"
    );
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn low_disk_space_refuses_writes_before_it_loses_history() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| fs.append("small.txt", b"kept").unwrap());
    let after = bench.snapshot();
    let nothing_is_enough =
        ResourceLimits { min_free_bytes: u64::MAX, ..ResourceLimits::default() };
    bench.engine.set_limits(nothing_is_enough);

    bench.try_step(|fs| {
        assert_errno(overwrite_large(fs), Errno::NOSPC);
        let file = FileRef::at(rel("large.bin"));
        let error = fs.engine().before(&Mutation::Truncate { file, length: 0 }).unwrap_err();
        assert_helpful(&error, ErrorCode::LowDiskSpace);
    });

    assert_tree_eq(&after, &bench.snapshot());
    bench.engine.set_limits(ResourceLimits::default());
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

/// UI-18
#[test]
fn the_oldest_steps_go_when_there_are_too_many() {
    let bench = bench_limited(ResourceLimits { max_steps: 3, ..ResourceLimits::default() });
    let append = |fs: &Applier<'_>| fs.append("small.txt", b"line\n").unwrap();
    let first = bench.step(append).id;
    let oldest_kept_from = bench.snapshot();
    bench.step(append);
    bench.step(append);
    let closed = bench.try_step(append);

    assert!(
        matches!(&closed, ClosedStep::Recorded { evicted, .. } if *evicted == [first]),
        "{closed:?}"
    );
    assert_eq!(bench.events.all(), [EngineEvent::Evicted { steps: vec![first] }]);
    assert_eq!(ids(&bench), [StepId(2), StepId(3), StepId(4)]);
    bench.undo(3);
    assert_tree_eq(&oldest_kept_from, &bench.snapshot());
    let error = bench.engine.rollback(1, RollbackOptions::default()).unwrap_err();
    assert!(matches!(error, UndoError::NothingToUndo { available: 0 }), "{error}");
}

/// UI-19
#[test]
fn the_oldest_steps_go_until_the_log_fits() {
    let max_log_bytes = 2_500_000;
    let bench = bench_limited(ResourceLimits { max_log_bytes, ..ResourceLimits::default() });
    for round in 0..4_u8 {
        bench.step(|fs| {
            fs.unlink("large.bin").unwrap();
            fs.create("large.bin", &[round; 1_000_000]).unwrap();
        });
    }

    let status = bench.engine.status().unwrap();
    assert!(status.stored_bytes + status.held_bytes <= max_log_bytes, "{status:?}");
    assert_eq!(ids(&bench), [StepId(3), StepId(4)]);
    bench.undo(2);
    assert_eq!(std::fs::read(bench.path("large.bin")).unwrap(), [1; 1_000_000]);
}

/// UI-18: the space of an evicted step is given back.
#[test]
fn an_evicted_step_leaves_the_disk() {
    let bench = bench_limited(ResourceLimits { max_steps: 1, ..ResourceLimits::default() });
    bench.step(|fs| fs.unlink("large.bin").unwrap());
    bench.step(|fs| fs.append("small.txt", b"x").unwrap());

    let undo = bench.workspace.undo();
    assert!(!undo.join("steps/1").exists());
    common::wait_until("the trash is emptied", || {
        std::fs::read_dir(undo.join("trash")).unwrap().count() == 0
    });
}

#[test]
fn a_pinned_step_stays_and_undo_does_not_go_past_the_gap_behind_it() {
    let bench = bench_limited(ResourceLimits { max_steps: 2, ..ResourceLimits::default() });
    let append = |fs: &Applier<'_>| fs.append("small.txt", b"line\n").unwrap();
    let pinned = bench.step(append).id;
    bench.engine.pin(pinned, true).unwrap();
    bench.step(append);
    let third = bench.step(append).id;
    let after = bench.snapshot();

    assert_eq!(ids(&bench), [pinned, third]);
    assert!(bench.engine.steps()[0].pinned);
    let error = bench.engine.rollback(2, RollbackOptions::force()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::StepUnprotected, "{error}");
    assert_tree_eq(&after, &bench.snapshot());
    bench.undo(1);
    let bench = bench.reopened();
    let error = bench.engine.rollback(1, RollbackOptions::force()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::StepUnprotected, "also after a restart: {error}");
}

#[test]
fn a_step_that_is_no_longer_pinned_may_go() {
    let bench = bench_limited(ResourceLimits { max_steps: 2, ..ResourceLimits::default() });
    let append = |fs: &Applier<'_>| fs.append("small.txt", b"line\n").unwrap();
    let first = bench.step(append).id;
    bench.engine.pin(first, true).unwrap();
    let bench = bench.reopened();
    assert!(bench.engine.steps()[0].pinned, "a pin survives a restart");
    bench.engine.pin(first, false).unwrap();
    bench.step(append);
    bench.step(append);
    assert_eq!(ids(&bench), [StepId(2), StepId(3)]);
    let error = bench.engine.pin(first, true).unwrap_err();
    assert!(matches!(error, UndoError::StepNotFound(id) if id == first), "{error}");
}

#[test]
fn the_newest_step_is_never_evicted() {
    let limits = ResourceLimits { max_log_bytes: 1, max_steps: 0, ..ResourceLimits::default() };
    let bench = bench_limited(limits);
    bench.step(|fs| fs.append("small.txt", b"older").unwrap());
    let between = bench.snapshot();
    let newest = bench.step(|fs| fs.unlink("large.bin").unwrap()).id;
    assert_eq!(ids(&bench), [newest]);
    bench.undo(1);
    assert_tree_eq(&between, &bench.snapshot());
}

#[test]
fn moved_bytes_do_not_count_against_the_step_limit() {
    let bench = bench_limited(step_limit(64 << 10, OverLimitPolicy::Refuse));
    let before = bench.snapshot();
    let step = bench.step(|fs| {
        fs.unlink("large.bin").unwrap();
        fs.create("large.bin", &fixtures::varied_bytes(500_000)).unwrap();
        fs.rename("run.sh", "medium.txt").unwrap();
    });
    assert!(step.protection.is_protected());
    assert!(step.held_bytes >= 1_000_000 && step.stored_bytes < 64 << 10, "{step:?}");
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn undo_is_not_bound_by_the_step_limit() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| overwrite_large(fs).unwrap());
    let after = bench.snapshot();
    bench.engine.set_limits(step_limit(1024, OverLimitPolicy::Refuse));
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(1);
    assert_tree_eq(&after, &bench.snapshot());
}

/// UI-19: a removed directory holds disk space, however it went.
#[test]
fn the_log_limit_counts_what_is_below_a_moved_directory() {
    let workspace = TempWorkspace::with_fixture(|root| {
        for n in 0..4 {
            std::fs::create_dir_all(root.join(format!("d{n}/deep"))).unwrap();
            let noise = fixtures::varied_bytes(1 << 20);
            std::fs::write(root.join(format!("d{n}/deep/large")), noise).unwrap();
        }
    });
    let bench = Bench::configured(workspace, |config| {
        config.limits = ResourceLimits { max_log_bytes: 5 << 19, ..ResourceLimits::default() };
    });
    let staging = bench.beside("staging");
    for n in 0..4 {
        bench.step(|fs| {
            let remove = StagedChange::Remove { path: rel_buf(format!("d{n}")) };
            fs.engine().adopt(&staging, &[remove]).unwrap();
        });
    }
    common::wait_until("the directories are counted, and the oldest go", || {
        bench.engine.tick().unwrap();
        ids(&bench) == [StepId(3), StepId(4)]
    });
    let held = |bench: &Bench| bench.engine.status().unwrap().held_bytes;
    assert!(held(&bench) >= 2 << 20 && held(&bench) < 3 << 20, "{}", held(&bench));
    let bench = bench.reopened();
    assert!(held(&bench) >= 2 << 20 && held(&bench) < 3 << 20, "{}", held(&bench));
    bench.undo(2);
    assert!(bench.path("d2/deep/large").exists() && bench.path("d3/deep/large").exists());
}

/// What had not been counted when the process ended is counted by the next one.
#[test]
fn a_moved_directory_is_counted_after_a_restart() {
    let bench = Bench::new(|root| {
        std::fs::create_dir(root.join("d")).unwrap();
        std::fs::write(root.join("d/large"), fixtures::varied_bytes(1 << 20)).unwrap();
    });
    let staging = bench.beside("staging");
    bench.step(|fs| {
        fs.engine().adopt(&staging, &[StagedChange::Remove { path: rel_buf("d") }]).unwrap();
    });
    let bench = bench.reopened_after(|workspace| {
        let _ = std::fs::remove_file(workspace.undo().join("steps/1/held"));
    });
    common::wait_until("the directory is counted", || {
        bench.engine.status().unwrap().held_bytes >= 1 << 20
    });
}

#[test]
fn a_pin_survives_undo_restart_and_redo() {
    let bench = Bench::new(|_| {});
    let step = bench.step(|fs| fs.create("f", b"x").unwrap()).id;
    bench.engine.pin(step, true).unwrap();
    bench.undo(1);
    let bench = bench.reopened();
    bench.redo(1);
    assert!(bench.engine.steps()[0].pinned, "the pin is gone");
    let bench = bench.reopened();
    assert!(bench.engine.steps()[0].pinned, "the pin is gone after a restart");
}
