//! A restored path, with everything below it, is exactly what it was: whatever changed places,
//! whatever came, and however much of the history is left.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use codeagent_common::{ErrorCode, RelPath, ResourceLimits, StepId};
use codeagent_interceptor::{Fault, FaultInjector, Point, RestoreReport};
use codeagent_test_support::{TempWorkspace, assert_tree_eq, assert_tree_eq_with, fixtures};
use common::{Bench, all_but, assert_helpful, rel, rel_buf, rel_bufs};

#[track_caller]
fn restore(bench: &Bench, step: StepId, paths: &[&str]) -> RestoreReport {
    bench.engine.restore(step, &rel_bufs(paths)).expect("restore")
}

fn text(bench: &Bench, path: &str) -> String {
    fs::read_to_string(bench.path(path)).unwrap_or_else(|error| format!("<{path}: {error}>"))
}

fn inode(bench: &Bench, path: &str) -> u64 {
    fs::symlink_metadata(bench.path(path)).unwrap().ino()
}

/// Two directories with files, a link, and distinct times.
fn tree(root: &Path) {
    fs::create_dir_all(root.join("d/sub")).unwrap();
    fs::create_dir(root.join("e")).unwrap();
    for (path, content) in [("d/1", "one"), ("d/2", "two"), ("d/sub/3", "three"), ("e/4", "four")] {
        fs::write(root.join(path), content).unwrap();
    }
    fs::write(root.join("d/large"), vec![b'l'; 1 << 20]).unwrap();
    fs::hard_link(root.join("d/1"), root.join("d/sub/1 again")).unwrap();
    fixtures::set_distinct_mtimes(root);
}

// ---- changed places --------------------------------------------------------------------------

#[test]
fn files_that_changed_places_are_not_mixed_up() {
    let bench = Bench::new(tree);
    let before = bench.snapshot();
    let step = bench.step(|fs| fs.exchange("d/2", "e/4").unwrap()).id;
    restore(&bench, step, &["d/2", "e/4"]);
    assert_eq!([text(&bench, "d/2"), text(&bench, "e/4")], ["two", "four"]);
    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&["d", "e"]));
}

#[test]
fn directories_that_changed_places_come_back_with_what_is_in_them() {
    let bench = Bench::new(tree);
    let before = bench.snapshot();
    let large = inode(&bench, "d/large");
    let step = bench
        .step(|fs| {
            fs.exchange("d", "e").unwrap();
            fs.rename("d/4", "e/4").unwrap();
            fs.overwrite("e/2", b"changed").unwrap();
        })
        .id;
    restore(&bench, step, &[""]);
    assert_tree_eq(&before, &bench.snapshot());
    assert_eq!(inode(&bench, "d/large"), large, "it was copied, not moved");
}

/// `e` ends up inside what is at its name.
#[test]
fn a_directory_and_one_inside_it_that_changed_places_come_back() {
    let bench = Bench::new(tree);
    let before = bench.snapshot();
    let step = bench
        .step(|fs| {
            fs.rename("d/sub", "t").unwrap();
            fs.rename("d", "t/sub").unwrap();
            fs.rename("t", "d").unwrap();
        })
        .id;
    let after = bench.snapshot();
    restore(&bench, step, &["d"]);
    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&[""]));
    bench.undo(1);
    assert_tree_eq(&after, &bench.snapshot());
    bench.assert_sound();
}

#[test]
fn a_directory_that_was_renamed_and_changed_comes_back_with_its_contents() {
    let bench = Bench::new(tree);
    let before = bench.snapshot();
    let step = bench
        .step(|fs| {
            fs.rename("d", "f").unwrap();
            fs.chmod("f", 0o700).unwrap();
            fs.create("f/new", b"new").unwrap();
        })
        .id;
    restore(&bench, step, &["d"]);
    assert_tree_eq_with(
        &before,
        &bench.snapshot(),
        &all_but(&["", "f", "f/1", "f/2", "f/large", "f/new", "f/sub", "f/sub/3", "f/sub/1 again"]),
    );
    assert_eq!(text(&bench, "f/new"), "new", "the new name stays");
}

#[test]
fn what_moved_within_a_directory_does_not_stay_where_it_was_moved_to() {
    let bench = Bench::new(tree);
    let before = bench.snapshot();
    let step = bench.step(|fs| fs.rename("d/2", "d/sub/2").unwrap()).id;
    let report = restore(&bench, step, &["d"]);
    assert_tree_eq(&before, &bench.snapshot());
    assert_eq!(report.removed, []);
}

#[test]
fn what_moved_into_a_directory_goes_and_comes_back_by_undo() {
    let bench = Bench::new(tree);
    let before = bench.snapshot();
    let step = bench.step(|fs| fs.rename("d/2", "e/2").unwrap()).id;
    let after = bench.snapshot();
    let report = restore(&bench, step, &["e"]);
    assert_eq!(report.removed, rel_bufs(&["e/2"]));
    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&["d", "d/2"]));
    bench.undo(1);
    assert_tree_eq(&after, &bench.snapshot());
}

#[test]
fn a_file_nobody_touched_comes_back_out_of_a_renamed_or_removed_directory() {
    let bench = Bench::new(tree);
    let step = bench.step(|fs| fs.rename("d", "f").unwrap()).id;
    restore(&bench, step, &["d/sub/3"]);
    assert_eq!([text(&bench, "d/sub/3"), text(&bench, "f/sub/3")], ["three", "three"]);
    let target = bench.beside("out").join("none");
    assert!(!bench.engine.extract(step, rel("d/sub/none"), &target).unwrap());
}

#[test]
fn everything_can_be_restored_at_once() {
    let bench = Bench::new(tree);
    let before = bench.snapshot();
    let step = bench
        .step(|fs| {
            fs.remove_all("d/sub").unwrap();
            fs.create("e/new", b"new").unwrap();
            fs.chmod("e", 0o700).unwrap();
        })
        .id;
    bench.step(|fs| fs.rename("d", "e/d").unwrap());
    bench.engine.restore(step, &[RelPath::ROOT.to_buf()]).unwrap();
    assert_tree_eq(&before, &bench.snapshot());
}

// ---- only what the steps touched -------------------------------------------------------------

#[test]
fn a_directory_is_not_copied_for_the_sake_of_one_file() {
    let bench = Bench::new(tree);
    let before = bench.snapshot();
    let large = inode(&bench, "d/large");
    let step = bench.step(|fs| fs.unlink("d/2").unwrap()).id;
    restore(&bench, step, &["d"]);
    assert_eq!(inode(&bench, "d/large"), large, "everything in the directory was copied");
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn a_large_file_is_changed_back_in_place_and_only_where_it_was_changed() {
    let bench = Bench::new(tree);
    let before = bench.snapshot();
    let large = inode(&bench, "d/large");
    let step = bench.step(|fs| fs.write("d/large", 300_000, b"changed").unwrap()).id;
    let report = restore(&bench, step, &["d/large"]);
    assert_tree_eq(&before, &bench.snapshot());
    assert_eq!(inode(&bench, "d/large"), large);
    let stored = report.step.unwrap().stored_bytes;
    assert!(stored < 100 << 10, "{stored} bytes stored for one block");
}

// ---- hard links ------------------------------------------------------------------------------

#[test]
fn a_removed_directory_comes_back_with_its_hard_links() {
    let bench = Bench::new(tree);
    let before = bench.snapshot();
    let step = bench.step(|fs| fs.remove_all("d").unwrap()).id;
    restore(&bench, step, &["d"]);
    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&[""]));
}

#[test]
fn a_removed_name_of_a_file_is_a_name_of_it_again() {
    let bench = Bench::new(tree);
    let before = bench.snapshot();
    let step = bench.step(|fs| fs.unlink("d/1").unwrap()).id;
    let after = bench.snapshot();
    restore(&bench, step, &["d"]);
    assert_tree_eq(&before, &bench.snapshot());
    bench.step(|fs| fs.overwrite("d/1", b"by both names").unwrap());
    bench.undo(2);
    assert_tree_eq(&after, &bench.snapshot());
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn a_file_that_was_changed_by_another_name_comes_back_as_it_was() {
    let bench = Bench::new(tree);
    let before = bench.snapshot();
    let step = bench
        .step(|fs| {
            fs.unlink("d/1").unwrap();
            fs.overwrite("d/sub/1 again", b"changed by its other name").unwrap();
        })
        .id;
    let target = bench.beside("out").join("1");
    assert!(bench.engine.extract(step, rel("d/1"), &target).unwrap());
    assert_eq!(fs::read(&target).unwrap(), b"one");
    restore(&bench, step, &["d/1"]);
    assert_eq!(text(&bench, "d/1"), "one");
    bench.undo(1);
    restore(&bench, step, &["d"]);
    assert_tree_eq(&before, &bench.snapshot());
}

// ---- damage ----------------------------------------------------------------------------------

#[test]
fn what_was_changed_in_the_store_is_neither_restored_nor_extracted() {
    let bench = Bench::new(tree);
    let step = bench.step(|fs| fs.unlink("d/2").unwrap()).id;
    let after = bench.snapshot();
    let objects = bench.workspace.undo().join(format!("steps/{}/objects", step.0));
    let object = fs::read_dir(objects).unwrap().next().unwrap().unwrap().path();
    fs::write(object, "2wo").unwrap();

    let restored = bench.engine.restore(step, &[rel_buf("d/2")]).unwrap_err();
    assert_helpful(&restored, ErrorCode::StepUnprotected);
    let out = bench.beside("out");
    let extracted = bench.engine.extract(step, rel("d/2"), &out.join("2")).unwrap_err();
    assert_helpful(&extracted, ErrorCode::StepUnprotected);
    assert_tree_eq(&after, &bench.snapshot());
    assert_eq!(fs::read_dir(out).unwrap().count(), 0, "nothing was left behind");
}

#[test]
fn extract_replaces_nothing() {
    let bench = Bench::new(tree);
    let step = bench.step(|fs| fs.unlink("d/2").unwrap()).id;
    let target = bench.beside("out").join("2");
    fs::write(&target, "mine").unwrap();
    bench.engine.extract(step, rel("d/2"), &target).unwrap_err();
    assert_eq!(fs::read(&target).unwrap(), b"mine");
}

// ---- other people's edits --------------------------------------------------------------------

/// Taking one block back out of an edited file would give a file that never was.
#[test]
fn a_partly_kept_file_that_somebody_else_edited_is_not_made_up() {
    let bench = Bench::new(tree);
    let step = bench
        .step(|fs| {
            fs.write("d/large", 0, b"agent").unwrap();
            fs.overwrite("d/2", b"agent").unwrap();
        })
        .id;
    for path in ["d/large", "d/2"] {
        let mut content = fs::read(bench.path(path)).unwrap();
        content.extend(b"by the user");
        fs::write(bench.path(path), content).unwrap();
    }
    let edited = bench.snapshot();
    let error = bench.engine.restore(step, &[rel_buf("d/large")]).unwrap_err();
    assert_helpful(&error, ErrorCode::StepUnprotected);
    assert_tree_eq(&edited, &bench.snapshot());

    restore(&bench, step, &["d/2"]);
    assert_eq!(text(&bench, "d/2"), "two", "all of it was kept");
    bench.undo(1);
    assert_tree_eq(&edited, &bench.snapshot());
}

#[test]
fn a_file_that_somebody_else_removed_comes_back_if_all_of_it_was_kept() {
    let bench = Bench::new(tree);
    let before = bench.snapshot();
    let step = bench.step(|fs| fs.overwrite("d/2", b"agent").unwrap()).id;
    fs::remove_file(bench.path("d/2")).unwrap();
    restore(&bench, step, &["d/2"]);
    assert_tree_eq_with(&before, &bench.snapshot(), &all_but(&["d"]));
}

// ---- after eviction --------------------------------------------------------------------------

/// A pinned step and what it did; newer steps have been dropped.
fn pinned(work: impl FnOnce(&codeagent_test_support::Applier<'_>)) -> (Bench, StepId) {
    let workspace = TempWorkspace::with_fixture(tree);
    let bench = Bench::configured(workspace, |config| {
        config.limits = ResourceLimits { max_steps: 2, ..ResourceLimits::default() };
    });
    let pinned = bench.step(work).id;
    bench.engine.pin(pinned, true).unwrap();
    for n in 0..3 {
        bench.step(|fs| fs.create(format!("junk-{n}"), b"x").unwrap());
    }
    assert_eq!(bench.engine.steps().len(), 2);
    (bench, pinned)
}

#[test]
fn a_pinned_step_gives_back_what_it_removed_after_newer_steps_were_evicted() {
    let (bench, step) = pinned(|fs| {
        fs.unlink("d/2").unwrap();
        fs.remove_all("e").unwrap();
    });
    let target = bench.beside("out").join("2");
    assert!(bench.engine.extract(step, rel("d/2"), &target).unwrap());
    assert_eq!(fs::read(target).unwrap(), b"two");
    restore(&bench, step, &["d/2", "e"]);
    assert_eq!([text(&bench, "d/2"), text(&bench, "e/4")], ["two", "four"]);
}

#[test]
fn a_pinned_step_gives_back_what_it_rewrote_and_takes_back_what_it_made() {
    let (bench, step) = pinned(|fs| {
        fs.overwrite("d/2", b"rewritten").unwrap();
        fs.create("d/new", b"new").unwrap();
    });
    let after = bench.snapshot();
    restore(&bench, step, &["d/2", "d/new"]);
    assert_eq!(text(&bench, "d/2"), "two");
    assert!(!bench.path("d/new").exists());
    bench.undo(1);
    assert_tree_eq(&after, &bench.snapshot());
}

#[test]
fn a_pinned_step_says_what_it_cannot_give_back_alone() {
    let (bench, step) = pinned(|fs| {
        fs.write("d/large", 0, b"one block").unwrap();
        fs.rename("d/2", "e/2").unwrap();
    });
    let after = bench.snapshot();
    for path in ["d/large", "d/2", "d"] {
        let error = bench.engine.restore(step, &[rel_buf(path)]).unwrap_err();
        assert_helpful(&error, ErrorCode::StepUnprotected);
        assert!(error.to_string().contains("dropped"), "{error}");
    }
    assert_tree_eq(&after, &bench.snapshot());
}

// ---- faults ----------------------------------------------------------------------------------

/// Fails the next promotion once it is armed.
#[derive(Default)]
struct FailPromotion(AtomicBool);

impl FaultInjector for FailPromotion {
    fn reach(&self, point: Point) -> Fault {
        let fails = point == Point::Promotion && self.0.swap(false, Ordering::SeqCst);
        if fails { Fault::Errno(rustix::io::Errno::IO.raw_os_error()) } else { Fault::None }
    }
}

#[test]
fn a_restore_that_cannot_be_closed_is_taken_back() {
    let bench = Bench::new(tree);
    let step = bench.step(|fs| fs.unlink("d/2").unwrap()).id;
    let after = bench.snapshot();
    let (workspace, _) = bench.close();
    let faults = Arc::new(FailPromotion::default());
    let bench = Bench::configured(workspace, |config| config.faults = Some(faults.clone()));
    faults.0.store(true, Ordering::SeqCst);
    bench.engine.restore(step, &[rel_buf("d/2")]).unwrap_err();
    assert_tree_eq(&after, &bench.snapshot());
    assert_eq!(bench.engine.status().unwrap().open_step, None);
    let bench = bench.reopened();
    assert_eq!(bench.engine.steps().len(), 1);
}
