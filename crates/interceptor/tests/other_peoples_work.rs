//! Other people work in the folder, too: nothing of theirs is lost, whatever is taken back.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use codeagent_common::{SafeguardConfig, SafeguardDecision};
use codeagent_interceptor::{
    EngineEvent, Fault, FaultInjector, Mutation, Point, RollbackOptions, StagedChange, StepRequest,
    UndoError, WriteInterceptor,
};
use codeagent_test_support::{Applier, TempWorkspace};
use common::{Bench, rel, rel_buf, wait_until};

fn text(bench: &Bench, path: &str) -> String {
    fs::read_to_string(bench.path(path)).unwrap_or_else(|error| format!("<{path}: {error}>"))
}

/// `skip_conflicts` over two steps: the second renamed the directory of the edited file.
#[test]
fn skip_conflicts_follows_a_renamed_directory_into_older_steps() {
    let bench = Bench::new(|root| {
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/f"), "original").unwrap();
    });
    bench.step(|fs| fs.overwrite("d/f", b"by the agent").unwrap());
    bench.step(|fs| fs.rename("d", "e").unwrap());
    fs::write(bench.path("e/f"), "by the user, an hour of work").unwrap();

    let report = bench.engine.rollback(2, RollbackOptions::skip_conflicts()).unwrap();
    assert_eq!(report.conflicts.len(), 1, "{report:?}");
    assert_eq!(text(&bench, "d/f"), "by the user, an hour of work", "{report:?}");
}

/// The same with an exchange of two directories.
#[test]
fn skip_conflicts_follows_an_exchanged_directory() {
    let bench = Bench::new(|root| {
        for dir in ["a", "b"] {
            fs::create_dir(root.join(dir)).unwrap();
            fs::write(root.join(dir).join("f"), format!("original {dir}")).unwrap();
        }
    });
    bench.step(|fs| {
        fs.overwrite("a/f", b"by the agent").unwrap();
        fs.exchange("a", "b").unwrap();
    });
    fs::write(bench.path("b/f"), "by the user, an hour of work").unwrap();
    let report = bench.engine.rollback(1, RollbackOptions::skip_conflicts()).unwrap();
    let kept = [text(&bench, "a/f"), text(&bench, "b/f")];
    assert!(kept.iter().any(|kept| kept.starts_with("by the user")), "{kept:?} {report:?}");
}

/// An edit below an adopted directory is not seen, and is gone for good after the next step.
#[test]
fn an_edit_below_an_adopted_directory_is_a_conflict() {
    let bench = Bench::new(|_| {});
    let staging = bench.beside("staging");
    fs::create_dir(staging.join("app")).unwrap();
    fs::write(staging.join("app/main.js"), "scaffold").unwrap();
    bench.step(|fs| {
        let place = StagedChange::Place { path: rel_buf("app"), staged: rel_buf("app") };
        fs.engine().adopt(&staging, &[place]).unwrap();
    });
    fs::write(bench.path("app/main.js"), "by the user, an hour of work").unwrap();
    let outcome = bench.engine.rollback(1, RollbackOptions::default());
    assert!(outcome.is_err(), "undone without a word: {outcome:?}");
}

/// After a crash the user makes a file by a name the dead process was about to use.
#[test]
fn recovery_does_not_delete_what_somebody_made_after_the_crash() {
    let bench = Bench::new(|_| {});
    bench.engine.open_step(StepRequest::command("dies")).unwrap();
    bench.applier().create("other", b"x").unwrap();
    let permit = bench
        .engine
        .before(&Mutation::Create {
            path: rel("notes.txt"),
            kind: codeagent_common::EntryKind::File,
        })
        .unwrap();
    drop(permit); // the process dies before the host operation
    let bench = bench.reopened_after(|workspace| {
        fs::write(workspace.path("notes.txt"), "by the user, after the crash").unwrap();
    });
    let report = bench.engine.recovery().cloned().unwrap();
    let undo = bench.workspace.undo().to_path_buf();
    let kept = undo.join("quarantine").exists();
    assert!(
        bench.path("notes.txt").exists() || kept,
        "the user's file is nowhere, and the report says: {report:?}"
    );
}

/// The same for adoption, where the record has the stamp of what was to come.
#[test]
fn recovery_does_not_delete_a_foreign_file_in_place_of_an_adopted_one() {
    let bench = Bench::new(|_| {});
    let staging = bench.beside("staging");
    fs::write(staging.join("f"), "staged").unwrap();
    bench.engine.open_step(StepRequest::command("dies")).unwrap();
    let place = StagedChange::Place { path: rel_buf("f"), staged: rel_buf("f") };
    bench.engine.adopt(&staging, &[place]).unwrap();
    let bench = bench.reopened_after(|workspace| {
        fs::remove_file(workspace.path("f")).unwrap();
        fs::write(workspace.path("f"), "by the user, after the crash").unwrap();
    });
    let report = bench.engine.recovery().cloned().unwrap();
    let kept = bench.workspace.undo().join("quarantine").exists();
    assert!(bench.path("f").exists() || kept, "{report:?}");
}

/// A transaction that is rolled back takes the user's edit with it, unreported and for good.
#[test]
fn abort_does_not_destroy_what_somebody_else_wrote_meanwhile() {
    let bench = Bench::new(|_| {});
    bench.engine.open_step(StepRequest::command("make")).unwrap();
    bench.applier().mkdir("out").unwrap();
    bench.applier().create("out/report", b"draft").unwrap();
    // An editor of the user saves by rename: another inode.
    fs::write(bench.path("out/.tmp"), "by the user, an hour of work").unwrap();
    fs::rename(bench.path("out/.tmp"), bench.path("out/report")).unwrap();
    bench.engine.abort_step().unwrap();
    let kept = bench.workspace.undo().join("quarantine").exists();
    assert!(bench.path("out/report").exists() || kept, "the user's file is nowhere");
}

/// Of a large file only what the step changed is kept; what somebody else changed elsewhere stays.
#[test]
fn a_forced_undo_says_where_it_could_not_bring_back_the_whole_file() {
    let former = vec![b'a'; 1 << 20];
    let bench = Bench::new(|root| fs::write(root.join("f"), &former).unwrap());
    bench.step(|fs| fs.write("f", 0, b"agent").unwrap());
    let mut edited = fs::read(bench.path("f")).unwrap();
    edited[900_000..900_004].copy_from_slice(b"user");
    fs::write(bench.path("f"), &edited).unwrap();
    let report = bench.engine.rollback(1, RollbackOptions::force()).unwrap();
    let now = fs::read(bench.path("f")).unwrap();
    assert!(now.starts_with(&former[..5]), "what the step had changed is changed back");
    assert_eq!(report.left, [rel_buf("f")], "and the report says that this is not all");
}

/// The user renames a directory while a step is open, and makes a new one in its place.
#[test]
fn a_directory_renamed_by_somebody_else_is_not_taken_for_the_one_in_its_place() {
    let bench = Bench::new(|root| {
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/f"), "the user's old file").unwrap();
    });
    bench.step(|fs| {
        fs.create("d/x", b"x").unwrap();
        fs::rename(bench.path("d"), bench.path("old")).unwrap();
        fs::create_dir(bench.path("d")).unwrap();
        fs::write(bench.path("d/f"), "new").unwrap();
        fs.unlink("d/f").unwrap();
    });
    assert_eq!(text(&bench, "old/f"), "the user's old file", "the wrong file was removed");
    assert!(!bench.path("d/f").exists());
}

/// A file that somebody adds below an adopted directory would go with it.
#[test]
fn a_file_added_below_an_adopted_directory_is_a_conflict() {
    let bench = Bench::new(|_| {});
    let staging = bench.beside("staging");
    fs::create_dir(staging.join("app")).unwrap();
    fs::write(staging.join("app/main.js"), "scaffold").unwrap();
    bench.step(|fs| {
        let place = StagedChange::Place { path: rel_buf("app"), staged: rel_buf("app") };
        fs.engine().adopt(&staging, &[place]).unwrap();
    });
    fs::write(bench.path("app/notes.txt"), "by the user").unwrap();
    let outcome = bench.engine.rollback(1, RollbackOptions::default());
    assert!(outcome.is_err(), "undone without a word: {outcome:?}");
    fs::remove_file(bench.path("app/notes.txt")).unwrap();
    bench.undo(1);
    assert!(!bench.path("app").exists());
}

/// The user, who saves `file` once, in the moment in which the engine reaches some point.
struct SavesMeanwhile {
    file: PathBuf,
    point: Point,
    /// He does so when this gets to 0.
    before: AtomicUsize,
}

impl SavesMeanwhile {
    const NEVER: usize = 0;

    /// When the engine gets to the point for this time, from now on.
    fn save_at(&self, time: usize) {
        self.before.store(time, Ordering::SeqCst);
    }
}

impl FaultInjector for SavesMeanwhile {
    fn reach(&self, point: Point) -> Fault {
        if point == self.point && self.before.load(Ordering::SeqCst) != Self::NEVER {
            let before = self.before.fetch_sub(1, Ordering::SeqCst);
            if before == 1 {
                let new = self.file.with_extension("new");
                fs::write(&new, "by the user").unwrap();
                fs::rename(new, &self.file).unwrap();
            }
        }
        Fault::None
    }
}

fn what_is_saved_meanwhile_comes_back(
    (point, time): (Point, usize),
    work: impl FnOnce(&Applier<'_>, &Path),
) {
    let workspace = TempWorkspace::with_fixture(|root| {
        fs::write(root.join("saved"), "original").unwrap();
        fs::write(root.join("other"), "other").unwrap();
    });
    let file = workspace.path("saved");
    let before = AtomicUsize::new(SavesMeanwhile::NEVER);
    let user = Arc::new(SavesMeanwhile { file, point, before });
    let bench = Bench::configured(workspace, |config| config.faults = Some(user.clone()));
    let staging = bench.beside("staging");
    fs::write(staging.join("saved"), "staged").unwrap();
    fs::create_dir(staging.join("dir")).unwrap();
    bench.step(|fs| {
        fs.mkdir("so that the directory has been touched").unwrap();
        user.save_at(time);
        work(fs, &staging);
        assert_eq!(user.before.load(Ordering::SeqCst), SavesMeanwhile::NEVER, "he did");
    });
    let by_the_step = text(&bench, "saved");
    assert_ne!(by_the_step, "by the user");
    bench.assert_sound();
    let undone = bench.undo(1);
    assert_eq!((undone.conflicts, undone.left), (vec![], vec![]));
    assert_eq!(text(&bench, "saved"), "by the user");
    assert_eq!(text(&bench, "other"), "other");
    bench.redo(1);
    assert_eq!(text(&bench, "saved"), by_the_step);
    bench.undo(1);
    assert_eq!(text(&bench, "saved"), "by the user");
}

/// When a record is written, the engine has looked at the file, and has not moved it yet.
const BETWEEN_LOOK_AND_MOVE: (Point, usize) = (Point::StoreWrite, 1);

#[test]
fn what_is_saved_between_the_look_and_a_removal_comes_back() {
    what_is_saved_meanwhile_comes_back(BETWEEN_LOOK_AND_MOVE, |fs, _| {
        fs.unlink("saved").unwrap();
    });
}

#[test]
fn what_is_saved_between_the_look_and_a_rename_over_it_comes_back() {
    what_is_saved_meanwhile_comes_back(BETWEEN_LOOK_AND_MOVE, |fs, _| {
        fs.rename("other", "saved").unwrap();
    });
}

fn adopt(fs: &Applier<'_>, staging: &Path, staged: &str) {
    let place = StagedChange::Place { path: rel_buf("saved"), staged: rel_buf(staged) };
    fs.engine().adopt(staging, &[place]).unwrap();
}

#[test]
fn what_is_saved_between_the_look_and_a_commit_comes_back() {
    what_is_saved_meanwhile_comes_back(BETWEEN_LOOK_AND_MOVE, |fs, staging| {
        adopt(fs, staging, "saved");
    });
}

/// The second time something is moved, the files change places.
const BETWEEN_MOVES: (Point, usize) = (Point::HostMutation, 2);

#[test]
fn what_is_saved_between_the_two_moves_of_a_commit_comes_back() {
    what_is_saved_meanwhile_comes_back(BETWEEN_MOVES, |fs, staging| adopt(fs, staging, "saved"));
}

/// A directory does not change places with a file: that is moved first, and for a moment there is
/// nothing.
#[test]
fn what_is_saved_where_a_directory_is_about_to_be_comes_back() {
    what_is_saved_meanwhile_comes_back(BETWEEN_MOVES, |fs, staging| adopt(fs, staging, "dir"));
}

/// Looks at a name whenever the engine is about to change something.
struct Looks {
    path: PathBuf,
    missing: AtomicUsize,
    looked: AtomicUsize,
}

impl FaultInjector for Looks {
    fn reach(&self, _point: Point) -> Fault {
        self.looked.fetch_add(1, Ordering::SeqCst);
        if self.path.symlink_metadata().is_err() {
            self.missing.fetch_add(1, Ordering::SeqCst);
        }
        Fault::None
    }
}

#[test]
fn what_is_replaced_is_there_at_any_time() {
    for staged in ["saved", "dir"] {
        let workspace =
            TempWorkspace::with_fixture(|root| fs::write(root.join("saved"), "original").unwrap());
        let looks = Arc::new(Looks {
            path: workspace.path("saved"),
            missing: AtomicUsize::new(0),
            looked: AtomicUsize::new(0),
        });
        let bench = Bench::configured(workspace, |config| config.faults = Some(looks.clone()));
        let staging = bench.beside("staging");
        fs::write(staging.join("saved"), "staged").unwrap();
        fs::create_dir(staging.join("dir")).unwrap();
        bench.step(|fs| adopt(fs, &staging, staged));
        bench.undo(1);
        bench.redo(1);
        assert!(looks.looked.load(Ordering::SeqCst) > 10);
        assert_eq!(looks.missing.load(Ordering::SeqCst), 0, "{staged}");
    }
}

#[test]
fn what_somebody_puts_in_the_place_of_a_changed_file_is_a_conflict() {
    type Change = fn(&Applier<'_>, &Path);
    // Of what was only added to, nothing but the length is kept.
    let append: Change = |fs, _| fs.append("saved", b"by the step").unwrap();
    let replace: Change = |fs, staging| adopt(fs, staging, "saved");
    for (change, forced) in [(append, "by the user"), (replace, "original")] {
        let bench = Bench::new(|root| fs::write(root.join("saved"), "original").unwrap());
        let staging = bench.beside("staging");
        fs::write(staging.join("saved"), "staged").unwrap();
        bench.step(|fs| {
            change(fs, &staging);
            fs::write(bench.path("new"), "by the user").unwrap();
            fs::rename(bench.path("new"), bench.path("saved")).unwrap();
        });
        let refused = bench.engine.rollback(1, RollbackOptions::default());
        assert!(
            matches!(&refused, Err(UndoError::RollbackBlocked(conflicts))
            if conflicts.len() == 1 && conflicts[0].path == rel_buf("saved")),
            "{refused:?}"
        );
        assert_eq!(text(&bench, "saved"), "by the user");
        let report = bench.engine.rollback(1, RollbackOptions::force()).unwrap();
        assert_eq!(text(&bench, "saved"), forced);
        assert_eq!(report.left.contains(&rel_buf("saved")), forced == "by the user");
        bench.redo(1);
        assert_eq!(text(&bench, "saved"), "by the user");
    }
}

/// A question about what a commit overwrites can wait for minutes.
#[test]
fn what_somebody_saves_while_a_question_waits_is_told() {
    let bench = Bench::new(|root| fs::write(root.join("saved"), "original").unwrap());
    bench.engine.set_safeguards(SafeguardConfig {
        overwrite_threshold_bytes: Some(1),
        timeout: Duration::from_secs(60),
        ..SafeguardConfig::default()
    });
    let staging = bench.engine.stage().unwrap();
    fs::write(staging.path.join("up/saved"), "by the command").unwrap();
    bench.engine.open_step(StepRequest::command("overwrites")).unwrap();
    let report = std::thread::scope(|scope| {
        let adopting = scope.spawn(|| bench.engine.adopt_overlay(staging.number));
        let asked = || {
            let events = bench.events.all();
            events.into_iter().find_map(|event| match event {
                EngineEvent::SafeguardTriggered(question) => Some(question.id),
                _ => None,
            })
        };
        wait_until("a question", || asked().is_some());
        fs::write(bench.path("saved"), "by the user").unwrap();
        bench.engine.confirm(asked().unwrap(), SafeguardDecision::Allow).unwrap();
        adopting.join().unwrap().unwrap()
    });
    bench.engine.close_step(Some(0)).unwrap();
    assert_eq!(report.changed_meanwhile, [rel_buf("saved")]);
    assert_eq!(text(&bench, "saved"), "by the command");
    bench.undo(1);
    assert_eq!(text(&bench, "saved"), "by the user");
}
