//! Other people's edits: found by comparison, never overwritten unless somebody says so.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use codeagent_common::{ErrorCode, ExternalModificationPolicy};
use codeagent_interceptor::{
    Conflict, ConflictKind, EngineEvent, HistoryEntry, OnConflict, RollbackOptions, StepRequest,
    UndoError,
};
use codeagent_test_support::{
    TempWorkspace, assert_tree_eq, assert_tree_eq_with, filesystems, fixtures,
};
use common::{Bench, all_but, assert_helpful, only, rel_bufs};

fn bench_with(policy: ExternalModificationPolicy) -> Bench {
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    Bench::configured(workspace, |config| config.external_modifications = policy)
}

/// The conflicts that keep the newest `count` steps from being undone.
#[track_caller]
fn blocked(bench: &Bench, count: usize) -> Vec<Conflict> {
    let before = bench.snapshot();
    let error = bench.engine.rollback(count, RollbackOptions::default()).unwrap_err();
    assert_helpful(&error, ErrorCode::RollbackBlocked);
    assert_tree_eq(&before, &bench.snapshot());
    match error {
        UndoError::RollbackBlocked(conflicts) => conflicts,
        other => panic!("{other}"),
    }
}

#[track_caller]
fn assert_blocked_by(bench: &Bench, count: usize, expected: &[(&str, ConflictKind)]) {
    let found = blocked(bench, count);
    let found: Vec<_> =
        found.iter().map(|conflict| (conflict.path.to_string(), conflict.kind)).collect();
    let expected: Vec<_> =
        expected.iter().map(|(path, kind)| ((*path).to_owned(), *kind)).collect();
    assert_eq!(found, expected);
}

fn force(bench: &Bench, count: usize) -> codeagent_interceptor::RollbackReport {
    bench.engine.rollback(count, RollbackOptions::force()).expect("forced undo")
}

fn skip(bench: &Bench, count: usize) -> codeagent_interceptor::RollbackReport {
    bench.engine.rollback(count, RollbackOptions::skip_conflicts()).expect("undo of the rest")
}

fn write(bench: &Bench, path: &str, content: &[u8]) {
    fs::write(bench.path(path), content).unwrap();
}

fn read(bench: &Bench, path: &str) -> Vec<u8> {
    fs::read(bench.path(path)).unwrap()
}

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

#[test]
fn an_edit_is_found_although_nothing_of_ours_ran() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.append("small.txt", b"agent").unwrap());
    let bench = bench.reopened_after(|workspace| {
        fs::write(workspace.path("small.txt"), b"the user's").unwrap();
    });
    assert_blocked_by(&bench, 1, &[("small.txt", ConflictKind::Changed)]);
}

type Edit = fn(&Bench);

#[test]
fn every_kind_of_edit_is_found() {
    let edits: [(&str, Edit); 5] = [
        ("content", |bench| write(bench, "small.txt", b"the user's")),
        ("mode", |bench| {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(bench.path("small.txt"), mode).unwrap();
        }),
        ("mtime", |bench| fixtures::set_mtime(&bench.path("small.txt"), 5, 5)),
        ("replaced by a copy", |bench| {
            fs::copy(bench.path("small.txt"), bench.path("copy")).unwrap();
            fs::rename(bench.path("copy"), bench.path("small.txt")).unwrap();
        }),
        ("type", |bench| {
            fs::remove_file(bench.path("small.txt")).unwrap();
            fs::create_dir(bench.path("small.txt")).unwrap();
        }),
    ];
    for (what, edit) in edits {
        let bench = Bench::new(fixtures::small_tree);
        bench.step(|fs| fs.append("small.txt", b"agent").unwrap());
        edit(&bench);
        let found = blocked(&bench, 1);
        assert!(matches!(&found[..], [c] if c.kind == ConflictKind::Changed), "{what}: {found:?}");
    }
}

#[test]
fn an_edit_that_puts_size_and_mtime_back_is_found_by_its_ctime() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.overwrite("small.txt", b"agent").unwrap());
    let path = bench.path("small.txt");
    let left = fs::metadata(&path).unwrap();
    let ctime = |metadata: &fs::Metadata| {
        use std::os::unix::fs::MetadataExt;
        (metadata.ctime(), metadata.ctime_nsec())
    };
    // The kernel's clock for times of files ticks a few hundred times a second.
    let deadline = Instant::now() + Duration::from_secs(10);
    while ctime(&fs::metadata(&path).unwrap()) == ctime(&left) {
        assert!(Instant::now() < deadline, "the clock stands still");
        fs::write(&path, b"users").unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_modified(left.modified().unwrap()).unwrap();
    }
    assert_blocked_by(&bench, 1, &[("small.txt", ConflictKind::Changed)]);
}

#[test]
fn a_deleted_file_is_found() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| fs.append("small.txt", b"agent").unwrap());
    fs::remove_file(bench.path("small.txt")).unwrap();
    assert_blocked_by(&bench, 1, &[("small.txt", ConflictKind::Disappeared)]);

    skip(&bench, 1);
    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&["small.txt", ""]));
    assert!(!bench.path("small.txt").exists());
}

#[test]
fn a_file_the_step_made_and_the_user_deleted_is_no_conflict() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.create("new.txt", b"agent").unwrap();
        fs.append("small.txt", b"agent").unwrap();
    });
    fs::remove_file(bench.path("new.txt")).unwrap();
    bench.undo(1);
    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&[""]));
}

#[test]
fn skipping_conflicts_undoes_the_rest_and_leaves_the_edited_file() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.append("small.txt", b"agent").unwrap();
        fs.append("medium.txt", b"agent").unwrap();
        fs.unlink("large.bin").unwrap();
        fs.create("new.txt", b"agent").unwrap();
    });
    write(&bench, "small.txt", b"the user's");
    let edited = bench.snapshot();

    let report = skip(&bench, 1);

    let now = bench.snapshot();
    assert_tree_eq_with(&before, &now, &all_but(&["small.txt"]));
    assert_tree_eq_with(&edited, &now, &only(&["small.txt"]));
    assert_eq!(report.conflicts.len(), 1);
    assert_eq!(bench.engine.steps(), []);
}

#[test]
fn what_was_skipped_stays_through_redo() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| {
        fs.append("small.txt", b"agent").unwrap();
        fs.append("medium.txt", b"agent").unwrap();
    });
    write(&bench, "small.txt", b"the user's");
    let edited = bench.snapshot();
    skip(&bench, 1);
    bench.redo(1);
    assert_tree_eq(&edited, &bench.snapshot());
}

#[test]
fn force_overwrites_and_redo_brings_the_users_version_back() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.overwrite("small.txt", b"agent").unwrap();
        fs.create("new.txt", b"agent").unwrap();
    });
    write(&bench, "small.txt", b"the user's, and a good deal longer than the agent's");
    write(&bench, "new.txt", b"the user's");
    let edited = bench.snapshot();

    force(&bench, 1);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(1);
    assert_tree_eq(&edited, &bench.snapshot());
}

#[test]
fn a_users_file_in_a_directory_the_step_made_is_foreign() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.mkdir("made").unwrap();
        fs.create("made/agents.txt", b"agent").unwrap();
    });
    write(&bench, "made/users.txt", b"the user's");
    assert_blocked_by(&bench, 1, &[("made/users.txt", ConflictKind::Foreign)]);

    skip(&bench, 1);

    assert_eq!(read(&bench, "made/users.txt"), b"the user's");
    assert!(!bench.path("made/agents.txt").exists());
    let rest = all_but(&["", "made", "made/users.txt"]);
    assert_tree_eq_with(&before, &bench.snapshot(), &rest);
}

#[test]
fn force_removes_a_foreign_file_and_redo_brings_it_back() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.mkdir("made").unwrap();
        fs.mkdir("made/deeper").unwrap();
    });
    fs::create_dir(bench.path("made/deeper/users")).unwrap();
    write(&bench, "made/deeper/users/file.txt", b"the user's");
    let edited = bench.snapshot();

    force(&bench, 1);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(1);
    assert_tree_eq(&edited, &bench.snapshot());
}

#[test]
fn a_deleted_path_the_user_made_again_has_appeared() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| fs.unlink("small.txt").unwrap());
    write(&bench, "small.txt", b"the user's");
    let edited = bench.snapshot();
    assert_blocked_by(&bench, 1, &[("small.txt", ConflictKind::Appeared)]);

    force(&bench, 1);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(1);
    assert_tree_eq(&edited, &bench.snapshot());
}

#[test]
fn skipping_a_path_that_appeared_keeps_the_users_file() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.unlink("small.txt").unwrap();
        fs.rename("medium.txt", "moved.txt").unwrap();
    });
    write(&bench, "small.txt", b"the user's");
    write(&bench, "medium.txt", b"the user's, too");

    skip(&bench, 1);

    assert_eq!(read(&bench, "small.txt"), b"the user's");
    assert_eq!(read(&bench, "medium.txt"), b"the user's, too");
    assert_eq!(read(&bench, "moved.txt"), [b'm'; 4096], "what could not go back is not lost");
    let rest = all_but(&["", "small.txt", "medium.txt", "moved.txt"]);
    assert_tree_eq_with(&before, &bench.snapshot(), &rest);
}

#[test]
fn an_edit_between_two_steps_is_found_when_both_are_undone() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| fs.overwrite("small.txt", b"agent, first").unwrap());
    write(&bench, "small.txt", b"the user's");
    let edited = bench.snapshot();
    bench.step(|fs| fs.append("small.txt", b"agent, second").unwrap());

    assert_blocked_by(&bench, 2, &[("small.txt", ConflictKind::ChangedBetweenSteps)]);
    bench.undo(1);
    assert_tree_eq(&edited, &bench.snapshot());
    assert_blocked_by(&bench, 1, &[("small.txt", ConflictKind::Changed)]);
    force(&bench, 1);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn an_edit_of_an_unrelated_file_blocks_nothing() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| fs.append("small.txt", b"agent").unwrap());
    write(&bench, "medium.txt", b"the user's");
    fs::create_dir(bench.path("users")).unwrap();
    let seen = rel_bufs(&["medium.txt", "users"]);
    bench.engine.external_modification(&seen).unwrap();

    bench.undo(1);

    let rest = all_but(&["", "medium.txt", "users"]);
    assert_tree_eq_with(&before, &bench.snapshot(), &rest);
    assert_eq!(read(&bench, "medium.txt"), b"the user's");
}

#[test]
fn a_new_file_beside_the_agents_blocks_nothing() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.create("src/agent.rs", b"agent").unwrap());
    write(&bench, "src/users.rs", b"the user's");
    bench.undo(1);
    assert_eq!(read(&bench, "src/users.rs"), b"the user's");
    assert!(!bench.path("src/agent.rs").exists());
}

#[test]
fn an_edit_below_a_directory_that_is_renamed_back_goes_with_it() {
    let bench = Bench::new(fixtures::rename_tree);
    bench.step(|fs| fs.rename("full", "moved").unwrap());
    write(&bench, "moved/inner.txt", b"the user's");
    write(&bench, "moved/users.txt", b"the user's");
    bench.undo(1);
    assert_eq!(read(&bench, "full/inner.txt"), b"the user's");
    assert_eq!(read(&bench, "full/users.txt"), b"the user's");
}

#[test]
fn redo_does_not_overwrite_edits_either() {
    let bench = Bench::new(fixtures::small_tree);
    bench.step(|fs| fs.append("small.txt", b"agent").unwrap());
    let after = bench.snapshot();
    bench.undo(1);
    write(&bench, "small.txt", b"the user's");
    let edited = bench.snapshot();

    let error = bench.engine.redo(1, RollbackOptions::default()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::RollbackBlocked);
    assert_tree_eq(&edited, &bench.snapshot());
    bench.engine.redo(1, RollbackOptions::force()).unwrap();
    assert_tree_eq_with(&after, &bench.snapshot(), &only(&["small.txt"]));
}

/// Undo and redo of everything, back and forth, with restarts: no conflict, ever.
fn assert_never_in_its_own_way(bench: Bench) {
    let mut trees = vec![bench.snapshot()];
    let works: [fn(&codeagent_test_support::Applier<'_>); 6] = [
        |fs| {
            fs.append("pair-1", b"agent").unwrap();
            fs.unlink("left/trio-1").unwrap();
            fs.mkdir("made").unwrap();
        },
        |fs| {
            fs.rename("pair-1", "made/pair-1").unwrap();
            fs.write("pair-2", 0, b"AGENT").unwrap();
            fs.link("right/trio-3", "made/trio-4").unwrap();
        },
        |fs| {
            fs.rename("made", "renamed").unwrap();
            fs.save_by_rename("equal-1", b"saved").unwrap();
        },
        |fs| {
            fs.append("renamed/trio-4", b"by a late name").unwrap();
            fs.remove_all("left").unwrap();
            fs.create("left", b"a file now").unwrap();
        },
        |fs| {
            fs.exchange("renamed", "right").unwrap();
            fs.chmod("equal-2", 0o600).unwrap();
        },
        |fs| {
            fs.remove_all("renamed").unwrap();
            fs.truncate("right/pair-1", 3).unwrap();
        },
    ];
    let mut bench = bench;
    for work in works {
        bench.step(work);
        trees.push(bench.snapshot());
    }
    let last = trees.len() - 1;
    for (undone, restart) in [(1, false), (3, true), (last, false), (2, true), (last, true)] {
        let report = bench.undo(undone);
        assert_eq!(report.conflicts, []);
        assert_tree_eq(&trees[last - undone], &bench.snapshot());
        bench = if restart { bench.reopened() } else { bench };
        (0..undone).for_each(|_| drop(bench.redo(1)));
        assert_tree_eq(&trees[last], &bench.snapshot());
    }
    (0..last).for_each(|_| drop(bench.undo(1)));
    assert_tree_eq(&trees[0], &bench.snapshot());
    bench.assert_sound();
}

#[test]
fn our_own_undo_and_redo_are_never_conflicts() {
    assert_never_in_its_own_way(Bench::new(fixtures::hardlink_tree));
}

#[test]
fn our_own_undo_and_redo_are_never_conflicts_across_filesystems() {
    let Some(disk) = filesystems::disk_dir() else {
        return filesystems::skip("no_conflicts_across_filesystems", "no disk filesystem");
    };
    let workspace = TempWorkspace::across(std::path::Path::new("/dev/shm"), &disk);
    let workspace = workspace.filled(fixtures::hardlink_tree);
    assert_never_in_its_own_way(Bench::configured(workspace, |_| {}));
}

#[test]
fn steps_after_an_undo_meet_no_conflicts() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| fs.append("small.txt", b"1").unwrap());
    bench.step(|fs| fs.unlink("small.txt").unwrap());
    bench.undo(1);
    bench.step(|fs| fs.append("small.txt", b"2").unwrap());
    let options = RollbackOptions { on_conflict: OnConflict::Refuse };
    bench.engine.rollback(2, options).unwrap();
    assert_tree_eq(&before, &bench.snapshot());
}

/// Two directories with a file of the same name in each.
fn twin_directories(root: &std::path::Path) {
    for dir in ["one", "two"] {
        fs::create_dir(root.join(dir)).unwrap();
        fs::write(root.join(dir).join("file"), dir).unwrap();
    }
    fixtures::set_distinct_mtimes(root);
}

#[test]
fn a_name_that_came_with_another_directory_has_not_appeared() {
    let bench = Bench::new(twin_directories);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.exchange("one", "two").unwrap();
        fs.unlink("one/file").unwrap();
    });
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());

    bench.step(|fs| {
        fs.rename("one", "three").unwrap();
        fs.rename("two", "one").unwrap();
        fs.unlink("three/file").unwrap();
    });
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn a_name_in_a_new_directory_in_place_of_a_renamed_one_has_not_appeared() {
    let bench = Bench::new(twin_directories);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.rename("one", "two/one").unwrap();
        fs.mkdir("one").unwrap();
    });
    bench.step(|fs| fs.mkdir("one/file").unwrap());
    let after = bench.snapshot();
    bench.undo(2);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(2);
    assert_tree_eq(&after, &bench.snapshot());
}

#[test]
fn another_name_of_a_file_in_a_renamed_directory_has_not_changed() {
    let bench = Bench::new(|root| {
        twin_directories(root);
        fs::hard_link(root.join("one/file"), root.join("link")).unwrap();
    });
    bench.step(|fs| fs.append("link", b"more").unwrap());
    bench.step(|fs| fs.rename("one", "renamed").unwrap());
    bench.step(|fs| fs.unlink("renamed/file").unwrap());
    let after = bench.snapshot();
    bench.undo(3);
    (0..3).for_each(|_| drop(bench.redo(1)));
    assert_tree_eq(&after, &bench.snapshot());
}

/// Undoes all steps at once, redoes them at once, and undoes them again.
#[track_caller]
fn assert_undone_together(bench: &Bench, before: &codeagent_test_support::TreeSnapshot) {
    let (count, after) = (bench.engine.steps().len(), bench.snapshot());
    bench.undo(count);
    assert_tree_eq(before, &bench.snapshot());
    bench.redo(count);
    assert_tree_eq(&after, &bench.snapshot());
    bench.undo(count);
    assert_tree_eq(before, &bench.snapshot());
}

#[test]
fn a_link_whose_other_name_was_written_and_deleted_has_not_changed() {
    let bench = Bench::new(fixtures::small_tree);
    let before = bench.snapshot();
    bench.step(|fs| fs.link("small.txt", "link").unwrap());
    bench.step(|fs| {
        fs.write("small.txt", 0, b"agent").unwrap();
        fs.unlink("small.txt").unwrap();
    });
    assert_undone_together(&bench, &before);
}

#[test]
fn a_link_that_is_written_by_a_handle_of_a_deleted_name_has_not_changed() {
    let bench = Bench::new(fixtures::hardlink_tree);
    let before = bench.snapshot();
    let file = bench.applier().open("pair-1").unwrap();
    bench.step(|fs| fs.write_open(&file, "pair-1", 0, b"first").unwrap());
    bench.step(|fs| {
        fs.write_open(&file, "pair-1", 0, b"second").unwrap();
        fs.unlink("pair-1").unwrap();
    });
    bench.step(|fs| fs.write_open(&file, "pair-1", 0, b"third").unwrap());
    assert_undone_together(&bench, &before);
}

#[test]
fn linked_files_exchanged_there_and_back_have_not_changed() {
    let bench = Bench::new(fixtures::hardlink_tree);
    let before = bench.snapshot();
    bench.step(|fs| fs.exchange("pair-1", "equal-1").unwrap());
    bench.step(|fs| {
        fs.exchange("pair-1", "equal-1").unwrap();
        fs.exchange("pair-1", "equal-1").unwrap();
    });
    assert_undone_together(&bench, &before);
}

#[test]
fn a_link_in_an_exchanged_directory_has_not_changed() {
    let bench = Bench::new(twin_directories);
    let before = bench.snapshot();
    bench.step(|fs| {
        fs.link("two/file", "link").unwrap();
        fs.write("link", 0, b"agent").unwrap();
    });
    bench.step(|fs| {
        fs.write("one/file", 0, b"agent").unwrap();
        fs.exchange("one", "two").unwrap();
    });
    assert_undone_together(&bench, &before);
}
