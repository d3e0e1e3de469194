//! Edits that a watcher tells of: barriers that undo does not cross unless somebody says so.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use codeagent_common::ExternalModificationPolicy;
use codeagent_interceptor::{EngineEvent, HistoryEntry, StepRequest};
use codeagent_test_support::{Applier, assert_tree_eq};
use common::edits::{bench_with, blocked, force, read, write};
use common::rel_bufs;

/// EB-01
#[test]
fn an_external_write_is_told_with_its_paths() {
    let bench = bench_with(ExternalModificationPolicy::Barrier);
    bench.step(|fs| fs.append("small.txt", b"agent").unwrap());
    write(&bench, "small.txt", b"the user's");

    let found = bench.engine.external_modification(&rel_bufs(&["small.txt"])).unwrap();

    assert_eq!(found, rel_bufs(&["small.txt"]));
    let barriers = bench.engine.barriers();
    assert_eq!(barriers.len(), 1);
    let expected = EngineEvent::ExternalModification {
        paths: rel_bufs(&["small.txt"]),
        barrier: Some(barriers[0].clone()),
    };
    assert_eq!(bench.events.all(), [expected]);
}

/// EB-02
#[test]
fn undo_across_a_barrier_is_refused_and_names_it() {
    let bench = bench_with(ExternalModificationPolicy::Barrier);
    bench.step(|fs| fs.append("small.txt", b"agent").unwrap());
    write(&bench, "small.txt", b"the user's");
    bench.engine.external_modification(&rel_bufs(&["small.txt"])).unwrap();

    let conflicts = blocked(&bench, 1);

    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].path.to_string(), "small.txt");
    assert_eq!(bench.engine.steps().len(), 1);
}

/// EB-03
#[test]
fn undo_across_a_barrier_can_be_forced_and_reports_what_it_crossed() {
    let bench = bench_with(ExternalModificationPolicy::Barrier);
    let before = bench.snapshot();
    bench.step(|fs| fs.overwrite("small.txt", b"agent").unwrap());
    write(&bench, "small.txt", b"the user's");
    bench.engine.external_modification(&rel_bufs(&["small.txt"])).unwrap();
    let barriers = bench.engine.barriers();

    let report = force(&bench, 1);

    assert_tree_eq(&before, &bench.snapshot());
    assert_eq!(report.crossed, barriers);
    assert_eq!(report.conflicts.len(), 1);
    assert_eq!(bench.engine.barriers(), []);
}

/// EB-04
#[test]
fn a_barrier_stands_in_the_history_behind_its_step() {
    let bench = bench_with(ExternalModificationPolicy::Barrier);
    let step = bench.step(|fs| fs.append("small.txt", b"agent").unwrap());
    write(&bench, "small.txt", b"the user's");
    bench.engine.external_modification(&rel_bufs(&["small.txt"])).unwrap();
    let bench = bench.reopened();

    let history = bench.engine.history();

    assert_eq!(history.len(), 2);
    let HistoryEntry::Barrier(barrier) = &history[1] else { panic!("{history:?}") };
    assert_eq!(barrier.after_step, step.id);
    assert_eq!(barrier.paths, rel_bufs(&["small.txt"]));
    assert!(barrier.at >= step.finished_at, "it has a time");
}

/// EB-05
#[test]
fn our_own_writes_are_no_external_modifications() {
    let bench = bench_with(ExternalModificationPolicy::Barrier);
    let ours = rel_bufs(&["small.txt", "new.txt", "medium.txt", "code", "src", "large.bin"]);
    bench.engine.open_step(StepRequest::command("agent")).unwrap();
    let fs = bench.applier();
    fs.append("small.txt", b"agent").unwrap();
    fs.create("new.txt", b"new").unwrap();
    fs.unlink("medium.txt").unwrap();
    fs.rename("src", "code").unwrap();
    fs.write("large.bin", 0, b"agent").unwrap();

    assert_eq!(bench.engine.external_modification(&ours).unwrap(), []);
    bench.engine.close_step(Some(0)).unwrap();
    assert_eq!(bench.engine.external_modification(&ours).unwrap(), []);
    bench.undo(1);
    assert_eq!(bench.engine.external_modification(&ours).unwrap(), []);
    bench.redo(1);
    assert_eq!(bench.engine.external_modification(&ours).unwrap(), []);
    assert_eq!(bench.engine.barriers(), []);
    assert_eq!(bench.events.all(), []);
}

/// The file itself is not touched by that.
#[test]
fn a_file_that_the_open_step_gave_another_name_is_no_external_modification() {
    let bench = bench_with(ExternalModificationPolicy::Barrier);
    bench.step(|fs| {
        for name in ["new.txt", "linked.txt", "replaced.txt"] {
            fs.create(name, b"agent").unwrap();
        }
    });
    bench.engine.open_step(StepRequest::command("mv")).unwrap();
    bench.applier().rename("new.txt", "replaced.txt").unwrap();
    bench.applier().link("linked.txt", "link.txt").unwrap();
    let ours = rel_bufs(&["new.txt", "replaced.txt", "linked.txt", "link.txt"]);
    assert_eq!(bench.engine.external_modification(&ours).unwrap(), []);
    write(&bench, "theirs.txt", b"theirs");
    write(&bench, "replaced.txt", b"theirs, too");
    let theirs = rel_bufs(&["replaced.txt", "theirs.txt"]);
    assert_eq!(bench.engine.external_modification(&theirs).unwrap(), theirs);
}

#[test]
fn what_went_with_a_directory_that_the_open_step_renamed_is_no_external_modification() {
    let bench = bench_with(ExternalModificationPolicy::Barrier);
    bench.step(|fs| {
        fs.mkdir("made").unwrap();
        fs.mkdir("made/in").unwrap();
        fs.create("made/in/new.txt", b"agent").unwrap();
    });
    bench.engine.open_step(StepRequest::command("mv")).unwrap();
    bench.applier().rename("made", "moved").unwrap();
    let ours = rel_bufs(&["made", "made/in/new.txt", "moved", "moved/in/new.txt"]);
    assert_eq!(bench.engine.external_modification(&ours).unwrap(), []);
    write(&bench, "moved/in/new.txt", b"theirs");
    assert_eq!(bench.engine.external_modification(&ours).unwrap(), ours[3..]);
    bench.engine.close_step(Some(0)).unwrap();
    assert_eq!(bench.engine.watcher_overflowed().unwrap(), []);
}

#[test]
fn what_somebody_moves_or_removes_beside_an_open_step_is_an_external_modification() {
    let bench = bench_with(ExternalModificationPolicy::Barrier);
    bench.step(|fs| {
        for dir in ["made", "made/in", "kept", "kept/in"] {
            fs.mkdir(dir).unwrap();
        }
        fs.create("made/in/new.txt", b"agent").unwrap();
        fs.create("kept/in/new.txt", b"agent").unwrap();
    });
    // It has worked in the root, and has nothing to do with what is in there.
    bench.engine.open_step(StepRequest::command("log")).unwrap();
    bench.applier().create("log.txt", b"agent").unwrap();
    let root = bench.workspace.working();
    std::fs::rename(root.join("made/in"), root.join("kept/moved")).unwrap();
    std::fs::remove_dir_all(root.join("kept/in")).unwrap();
    let theirs = rel_bufs(&["kept/in/new.txt", "kept/moved/new.txt", "made/in/new.txt"]);
    assert_eq!(bench.engine.external_modification(&theirs).unwrap(), theirs);
}

/// EB-05: a watcher is late.
#[test]
fn what_was_taken_back_or_undone_for_good_is_no_external_modification() {
    let bench = bench_with(ExternalModificationPolicy::Barrier);
    bench.step(|fs| fs.create("first.txt", b"").unwrap());
    let ours = rel_bufs(&["small.txt", "medium.txt", "src", "src/main.rs"]);
    let work = |fs: &Applier<'_>| {
        fs.append("small.txt", b"agent").unwrap();
        fs.unlink("medium.txt").unwrap();
        fs.append("src/main.rs", b"agent").unwrap();
    };
    bench.engine.open_step(StepRequest::command("agent")).unwrap();
    work(&bench.applier());
    bench.engine.abort_step().unwrap();
    assert_eq!(bench.engine.external_modification(&ours).unwrap(), []);

    bench.step(|fs| work(fs));
    bench.undo(1);
    bench.step(|fs| fs.create("next.txt", b"").unwrap());
    assert_eq!(bench.engine.external_modification(&ours).unwrap(), []);
    assert_eq!(bench.engine.barriers(), []);

    write(&bench, "small.txt", b"the user's");
    let found = bench.engine.external_modification(&ours).unwrap();
    assert_eq!(found, rel_bufs(&["small.txt"]));
}

/// EB-05
#[test]
fn what_went_with_a_directory_of_ours_is_no_external_modification() {
    let bench = bench_with(ExternalModificationPolicy::Barrier);
    bench.step(|fs| fs.append("src/main.rs", b"agent").unwrap());
    bench.step(|fs| {
        fs.rename("src", "gone").unwrap();
        fs.create("src", b"a file now").unwrap();
    });
    let ours = rel_bufs(&["src", "src/main.rs", "src/components"]);
    assert_eq!(bench.engine.external_modification(&ours).unwrap(), []);
    bench.undo(1);
    assert_eq!(bench.engine.external_modification(&ours[..2]).unwrap(), []);
}

/// EB-05
#[test]
fn our_own_writes_are_told_from_others_that_are_reported_with_them() {
    let bench = bench_with(ExternalModificationPolicy::Barrier);
    bench.step(|fs| fs.append("small.txt", b"agent").unwrap());
    write(&bench, "medium.txt", b"the user's");
    let seen = rel_bufs(&["small.txt", "medium.txt"]);
    let found = bench.engine.external_modification(&seen).unwrap();
    assert_eq!(found, rel_bufs(&["medium.txt"]));
}

/// EB-06
#[test]
fn each_of_several_barriers_is_listed_and_the_nearest_blocks() {
    let bench = bench_with(ExternalModificationPolicy::Barrier);
    bench.step(|fs| fs.append("small.txt", b"agent").unwrap());
    write(&bench, "small.txt", b"the user's");
    bench.engine.external_modification(&rel_bufs(&["small.txt"])).unwrap();
    bench.step(|fs| fs.append("medium.txt", b"agent").unwrap());
    write(&bench, "medium.txt", b"the user's, too");
    bench.engine.external_modification(&rel_bufs(&["medium.txt"])).unwrap();

    let kinds: Vec<bool> = bench
        .engine
        .history()
        .iter()
        .map(|entry| matches!(entry, HistoryEntry::Barrier(_)))
        .collect();
    assert_eq!(kinds, [false, true, false, true]);
    let nearest = blocked(&bench, 1);
    assert_eq!(nearest.iter().map(|c| c.path.to_string()).collect::<Vec<_>>(), ["medium.txt"]);
    let both = blocked(&bench, 2);
    let both: Vec<_> = both.iter().map(|c| c.path.to_string()).collect();
    assert_eq!(both, ["medium.txt", "small.txt"]);

    assert_eq!(force(&bench, 1).crossed.len(), 1);
    let next = blocked(&bench, 1);
    assert_eq!(next.iter().map(|c| c.path.to_string()).collect::<Vec<_>>(), ["small.txt"]);
}

/// EB-06
#[test]
fn several_barriers_behind_one_step_are_all_listed() {
    let bench = bench_with(ExternalModificationPolicy::Barrier);
    bench.step(|fs| {
        fs.append("small.txt", b"agent").unwrap();
        fs.append("medium.txt", b"agent").unwrap();
    });
    for path in ["small.txt", "medium.txt"] {
        write(&bench, path, b"the user's");
        bench.engine.external_modification(&rel_bufs(&[path])).unwrap();
    }
    assert_eq!(bench.engine.barriers().len(), 2);
    assert_eq!(bench.engine.history().len(), 3);
    assert_eq!(force(&bench, 1).crossed.len(), 2);
}

/// EB-07
#[test]
fn when_the_watcher_lost_events_everything_is_compared() {
    let bench = bench_with(ExternalModificationPolicy::Barrier);
    bench.step(|fs| {
        fs.append("small.txt", b"agent").unwrap();
        fs.append("medium.txt", b"agent").unwrap();
        fs.unlink("large.bin").unwrap();
    });
    write(&bench, "medium.txt", b"the user's");
    write(&bench, "large.bin", b"the user's");

    let found = bench.engine.watcher_overflowed().unwrap();

    assert_eq!(found, rel_bufs(&["large.bin", "medium.txt"]));
    let events = bench.events.all();
    assert!(matches!(events[0], EngineEvent::Warning(_)), "{events:?}");
    assert!(matches!(events[1], EngineEvent::ExternalModification { .. }), "{events:?}");
    assert_eq!(blocked(&bench, 1).len(), 2);
}

/// EB-07
#[test]
fn a_lost_event_about_our_own_writes_is_no_barrier() {
    let bench = bench_with(ExternalModificationPolicy::Barrier);
    bench.step(|fs| fs.rename("src", "code").unwrap());
    bench.step(|fs| fs.append("code/main.rs", b"more").unwrap());
    bench.undo(1);
    assert_eq!(bench.engine.watcher_overflowed().unwrap(), []);
    assert_eq!(bench.engine.barriers(), []);
}

/// EB-08
#[test]
fn with_policy_warn_an_edit_is_told_and_undo_goes_on() {
    let bench = bench_with(ExternalModificationPolicy::Warn);
    let before = bench.snapshot();
    bench.step(|fs| fs.overwrite("small.txt", b"agent").unwrap());
    write(&bench, "small.txt", b"the user's");
    bench.engine.external_modification(&rel_bufs(&["small.txt"])).unwrap();

    let told = bench.events.all();
    let paths = rel_bufs(&["small.txt"]);
    assert_eq!(told, [EngineEvent::ExternalModification { paths, barrier: None }]);
    assert_eq!(bench.engine.barriers(), []);
    let report = bench.undo(1);
    assert_eq!(report.conflicts.len(), 1, "it is named all the same");
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(1);
    assert_eq!(read(&bench, "small.txt"), b"the user's");
}

/// EB-09: other processes are kept out by the front end, where it can.
#[test]
fn policy_lock_is_a_barrier_to_the_engine() {
    let bench = bench_with(ExternalModificationPolicy::Lock);
    bench.step(|fs| fs.append("small.txt", b"agent").unwrap());
    write(&bench, "small.txt", b"the user's");
    bench.engine.external_modification(&rel_bufs(&["small.txt"])).unwrap();
    assert_eq!(bench.engine.barriers().len(), 1);
    assert_eq!(blocked(&bench, 1).len(), 1);
}
