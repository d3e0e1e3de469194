//! Other people's edits: found by comparison, never overwritten unless somebody says so.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use codeagent_common::ErrorCode;
use codeagent_interceptor::{ConflictKind, EngineEvent, RollbackOptions};
use codeagent_test_support::{TreeSnapshot, assert_tree_eq, assert_tree_eq_with, fixtures};
use common::edits::{assert_blocked_by, blocked, force, read, skip, write};
use common::{Bench, all_but, assert_helpful, has_file_of, only, rel_bufs};

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

/// The user's server goes on writing to its log, which a command removes.
struct OpenLog {
    bench: Bench,
    log: fs::File,
    before: TreeSnapshot,
    former: Vec<u8>,
}

impl OpenLog {
    fn removed_and_written_to() -> Self {
        let bench = Bench::new(fixtures::small_tree);
        let (before, former) = (bench.snapshot(), read(&bench, "small.txt"));
        let mut log = fs::OpenOptions::new().append(true).open(bench.path("small.txt")).unwrap();
        bench.step(|fs| {
            fs.unlink("small.txt").unwrap();
            fs.append("medium.txt", b"agent").unwrap();
        });
        log.write_all(b"the user's").unwrap();
        Self { bench, log, before, former }
    }
}

#[test]
fn what_was_removed_and_has_been_written_to_since_is_a_conflict() {
    let OpenLog { bench, .. } = OpenLog::removed_and_written_to();
    let preview = bench.engine.preview(1).unwrap();
    assert!(
        matches!(&preview.conflicts[..], [c] if c.kind == ConflictKind::WrittenSince),
        "{preview:?}"
    );
    assert_blocked_by(&bench, 1, &[("small.txt", ConflictKind::WrittenSince)]);
}

#[test]
fn what_has_been_written_to_since_it_was_removed_comes_back_if_that_is_wanted() {
    let OpenLog { bench, mut log, before, .. } = OpenLog::removed_and_written_to();
    let without = bench.snapshot();
    let report = force(&bench, 1);
    assert_eq!(report.conflicts.len(), 1, "{report:?}");
    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&["small.txt"]));
    assert!(read(&bench, "small.txt").ends_with(b"the user's"));
    // It is the file that he has open.
    log.write_all(b", and more").unwrap();
    assert!(read(&bench, "small.txt").ends_with(b"the user's, and more"));
    bench.engine.redo(1, RollbackOptions::force()).unwrap();
    assert_tree_eq(&without, &bench.snapshot());
    force(&bench, 1);
    assert!(read(&bench, "small.txt").ends_with(b"the user's, and more"));
}

#[test]
fn what_has_been_written_to_since_it_was_removed_is_not_lost_when_it_is_skipped() {
    let OpenLog { bench, before, former, .. } = OpenLog::removed_and_written_to();
    skip(&bench, 1);
    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&["small.txt", ""]));
    assert!(!bench.path("small.txt").exists());
    let quarantine = bench.workspace.undo().join("quarantine");
    assert!(has_file_of(&quarantine, &[&former[..], b"the user's"].concat()));
}

/// Restoring one path promises what it was, not what it has become.
#[test]
fn what_has_been_written_to_since_it_was_removed_is_not_what_it_was() {
    let OpenLog { bench, .. } = OpenLog::removed_and_written_to();
    let step = bench.engine.steps()[0].id;
    let error = bench.engine.restore(step, &rel_bufs(&["small.txt"])).unwrap_err();
    assert_helpful(&error, ErrorCode::StepUnprotected);
}

/// The step is gone from the history, and with it what it had kept.
#[test]
fn what_would_have_been_brought_back_in_place_of_an_edit_is_kept() {
    let bench = Bench::new(fixtures::small_tree);
    let former = read(&bench, "small.txt");
    let whole = read(&bench, "src/main.rs");
    bench.step(|fs| {
        fs.append("small.txt", b"agent").unwrap();
        fs.unlink("src/main.rs").unwrap();
        fs.create("new.txt", b"agent").unwrap();
    });
    bench.step(|fs| fs.overwrite("small.txt", b"again").unwrap());
    for name in ["small.txt", "src/main.rs", "new.txt"] {
        write(&bench, name, b"the user's");
    }
    let report = skip(&bench, 2);
    let kept = report.kept.expect("something is kept");
    let kept = std::path::Path::new(std::str::from_utf8(kept.as_bytes()).unwrap());
    assert!(kept.starts_with(bench.workspace.undo()), "{kept:?}");
    assert_eq!(fs::read(kept.join("small.txt")).unwrap(), former);
    assert_eq!(fs::read(kept.join("src/main.rs")).unwrap(), whole);
    assert!(!kept.join("new.txt").exists());
    assert_eq!(read(&bench, "small.txt"), b"the user's");
}

/// Of a large file only the changed part is kept, and the rest of it is not what it was.
#[test]
fn what_cannot_be_told_from_an_edit_any_more_is_kept_as_it_was_recorded() {
    let bench = Bench::new(fixtures::small_tree);
    let former = std::fs::read(bench.workspace.path("large.bin")).unwrap();
    bench.step(|fs| fs.write("large.bin", 8192, b"agent").unwrap());
    write(&bench, "large.bin", b"the user's");
    let report = skip(&bench, 1);
    let told = |event: &EngineEvent| match event {
        EngineEvent::Warning(message) => message.contains("is kept in"),
        _ => false,
    };
    let quarantine = bench.workspace.undo().join("quarantine");
    let entries: Vec<_> = quarantine.read_dir().unwrap().flatten().collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    let kept = entries[0].path();
    match report.kept {
        // Where files share their blocks, all of it is there.
        Some(_) => assert_eq!(std::fs::read(kept.join("large.bin")).unwrap(), former),
        // Elsewhere the step has the bytes that it has changed, and no more.
        None => {
            assert!(bench.events.all().iter().any(told));
            assert!(kept.join("journal").is_file());
            let pack = std::fs::read(kept.join("pack")).unwrap();
            let changed = &former[8192..8192 + 4096];
            assert!(pack.windows(changed.len()).any(|bytes| bytes == changed));
        }
    }
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
