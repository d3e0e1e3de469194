//! The engine for somebody whom permissions bind: an ordinary user who owns everything here, and
//! has taken permissions away from himself.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use codeagent_interceptor::{OnConflict, RollbackOptions, StagedChange, StepRequest};
use codeagent_test_support::{as_ordinary_user, assert_tree_eq};
use common::{Bench, assert_errno, rel_buf};
use rustix::io::Errno;

fn chmod(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: impl AsRef<Path>) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// `chmod u+w d; rm d/f; chmod u-w d`
#[test]
fn a_removal_from_a_directory_that_is_read_only_again_is_undone() {
    as_ordinary_user("a_removal_from_a_directory_that_is_read_only_again_is_undone", || {
        let bench = Bench::new(|root| {
            fs::create_dir(root.join("d")).unwrap();
            fs::write(root.join("d/f"), "x").unwrap();
            chmod(root.join("d"), 0o555);
        });
        let before = bench.snapshot();
        bench.step(|fs| {
            fs.chmod("d", 0o755).unwrap();
            fs.unlink("d/f").unwrap();
            fs.chmod("d", 0o555).unwrap();
        });
        bench.undo(1);
        assert_tree_eq(&before, &bench.snapshot());
    });
}

/// `setfattr f; chmod a-w f`
#[test]
fn an_attribute_of_a_file_that_is_read_only_now_is_undone() {
    as_ordinary_user("an_attribute_of_a_file_that_is_read_only_now_is_undone", || {
        let bench = Bench::new(|root| fs::write(root.join("f"), "x").unwrap());
        let before = bench.snapshot();
        bench.step(|fs| {
            fs.set_xattr("f", "user.a", b"1").unwrap();
            fs.chmod("f", 0o444).unwrap();
        });
        bench.undo(1);
        assert_tree_eq(&before, &bench.snapshot());
    });
}

/// A file with attributes that its owner cannot read can still be given its permissions back.
#[test]
fn an_unreadable_file_with_attributes_can_be_made_readable() {
    as_ordinary_user("an_unreadable_file_with_attributes_can_be_made_readable", || {
        let bench = Bench::new(|root| {
            fs::write(root.join("f"), "x").unwrap();
            rustix::fs::setxattr(root.join("f"), "user.a", b"1", rustix::fs::XattrFlags::empty())
                .unwrap();
            chmod(root.join("f"), 0o000);
        });
        bench.step(|fs| fs.chmod("f", 0o644).unwrap());
    });
}

#[test]
fn a_directory_without_permissions_can_be_removed_and_comes_back() {
    as_ordinary_user("a_directory_without_permissions_can_be_removed_and_comes_back", || {
        let bench = Bench::new(|root| {
            fs::create_dir(root.join("d")).unwrap();
            chmod(root.join("d"), 0o000);
        });
        bench.step(|fs| fs.rmdir("d").unwrap());
        bench.undo(1);
        assert_eq!(fs::metadata(bench.path("d")).unwrap().permissions().mode() & 0o7777, 0);
    });
}

/// A staged directory without write permission, as in Go's module cache.
#[test]
fn a_read_only_directory_is_adopted() {
    as_ordinary_user("a_read_only_directory_is_adopted", || {
        let bench = Bench::new(|_| {});
        let staging = bench.beside("staging");
        fs::create_dir(staging.join("module")).unwrap();
        fs::write(staging.join("module/f"), "x").unwrap();
        chmod(staging.join("module"), 0o555);
        bench.engine.open_step(StepRequest::command("go get")).unwrap();
        let place = StagedChange::Place { path: rel_buf("module"), staged: rel_buf("module") };
        let adopted = bench.engine.adopt(&staging, &[place]);
        chmod(staging.parent().unwrap(), 0o755);
        assert!(adopted.is_ok(), "{adopted:?}");
    });
}

/// And one that the working directory has.
#[test]
fn a_commit_removes_a_read_only_directory() {
    as_ordinary_user("a_commit_removes_a_read_only_directory", || {
        let bench = Bench::new(|root| {
            fs::create_dir(root.join("module")).unwrap();
            fs::write(root.join("module/f"), "x").unwrap();
            chmod(root.join("module"), 0o555);
        });
        let staging = bench.beside("staging");
        bench.engine.open_step(StepRequest::command("rm")).unwrap();
        let adopted =
            bench.engine.adopt(&staging, &[StagedChange::Remove { path: rel_buf("module") }]);
        assert!(adopted.is_ok(), "{adopted:?}");
    });
}

/// `mkdir d; touch d/f; chmod 0 d`: the step must end all the same.
#[test]
fn a_step_that_locks_itself_out_of_a_directory_is_closed_and_undone() {
    as_ordinary_user("a_step_that_locks_itself_out_of_a_directory_is_closed_and_undone", || {
        let bench = Bench::new(|_| {});
        let before = bench.snapshot();
        bench.engine.open_step(StepRequest::command("chmod 0")).unwrap();
        bench.applier().mkdir("d").unwrap();
        bench.applier().create("d/f", b"x").unwrap();
        bench.applier().chmod("d", 0o000).unwrap();
        let closed = bench.engine.close_step(Some(0));
        assert!(closed.is_ok(), "{closed:?}");
        bench.undo(1);
        assert_tree_eq(&before, &bench.snapshot());
    });
}

/// The same in an ambient step, which nobody can abort: nothing works from then on.
#[test]
fn an_ambient_step_that_locks_itself_out_does_not_stop_the_engine() {
    as_ordinary_user("an_ambient_step_that_locks_itself_out_does_not_stop_the_engine", || {
        let bench = Bench::new(|_| {});
        bench.applier().mkdir("d").unwrap();
        bench.applier().create("d/f", b"x").unwrap();
        bench.applier().chmod("d", 0o000).unwrap();
        let opened = bench.engine.open_step(StepRequest::command("next"));
        assert!(opened.is_ok(), "{opened:?}");
    });
}

/// What the engine does in somebody's stead is refused as the host would refuse it.
#[test]
fn nobody_may_do_more_because_the_engine_could() {
    as_ordinary_user("nobody_may_do_more_because_the_engine_could", || {
        let bench = Bench::new(|root| {
            for dir in ["read-only", "unsearchable", "shut", "shut/below"] {
                fs::create_dir(root.join(dir)).unwrap();
                fs::write(root.join(dir).join("f"), "x").unwrap();
            }
            chmod(root.join("read-only"), 0o555);
            chmod(root.join("unsearchable"), 0o600);
            chmod(root.join("shut"), 0o000);
        });
        let before = bench.snapshot();
        bench.try_step(|fs| {
            for path in ["read-only/f", "unsearchable/f", "shut/f", "shut/below/f"] {
                assert_errno(fs.unlink(path), Errno::ACCESS);
                assert_errno(fs.rename(path, "elsewhere"), Errno::ACCESS);
            }
            assert_errno(fs.create("read-only/new", b""), Errno::ACCESS);
            assert_errno(fs.rmdir("shut/below"), Errno::ACCESS);
        });
        assert_tree_eq(&before, &bench.snapshot());
    });
}

/// A process goes on writing to a file that nobody can open any more.
#[test]
fn a_write_through_an_open_handle_below_a_locked_directory_is_undone() {
    as_ordinary_user("a_write_through_an_open_handle_below_a_locked_directory_is_undone", || {
        let bench = Bench::new(|root| {
            fs::create_dir(root.join("d")).unwrap();
            fs::write(root.join("d/f"), "before").unwrap();
        });
        let before = bench.snapshot();
        let file = bench.applier().open("d/f").unwrap();
        bench.step(|fs| fs.chmod("d", 0o000).unwrap());
        bench.step(|fs| fs.write_open(&file, "d/f", 0, b"after!").unwrap());
        bench.undo(2);
        assert_tree_eq(&before, &bench.snapshot());
        bench.redo(2);
        assert_eq!(mode(bench.path("d")), 0);
        bench.undo(2);
        assert_tree_eq(&before, &bench.snapshot());
    });
}

/// The file itself is unreadable: reading it for the record is no edit.
#[test]
fn a_write_through_an_open_handle_to_an_unreadable_file_is_undone() {
    as_ordinary_user("a_write_through_an_open_handle_to_an_unreadable_file_is_undone", || {
        let bench = Bench::new(|root| fs::write(root.join("f"), "before").unwrap());
        let before = bench.snapshot();
        let file = bench.applier().open("f").unwrap();
        bench.step(|fs| fs.chmod("f", 0o000).unwrap());
        bench.step(|fs| fs.write_open(&file, "f", 0, b"after!").unwrap());
        bench.undo(1);
        assert_eq!(mode(bench.path("f")), 0);
        bench.undo(1);
        assert_tree_eq(&before, &bench.snapshot());
    });
}

/// The working directory itself, locked by the step.
#[test]
fn a_step_that_locks_the_working_directory_is_closed_and_undone() {
    as_ordinary_user("a_step_that_locks_the_working_directory_is_closed_and_undone", || {
        let bench = Bench::new(|root| fs::write(root.join("f"), "x").unwrap());
        let before = bench.snapshot();
        bench.step(|fs| {
            fs.unlink("f").unwrap();
            fs.chmod("", 0o000).unwrap();
        });
        bench.undo(1);
        assert_tree_eq(&before, &bench.snapshot());
        bench.redo(1);
        assert_eq!(mode(bench.path("")), 0);
        bench.undo(1);
        assert_tree_eq(&before, &bench.snapshot());
    });
}

/// Two directories that swap places across parents, both read-only.
#[test]
fn read_only_directories_that_changed_places_change_back() {
    as_ordinary_user("read_only_directories_that_changed_places_change_back", || {
        let bench = Bench::new(|root| {
            for dir in ["a", "a/x", "b", "b/y"] {
                fs::create_dir(root.join(dir)).unwrap();
            }
        });
        let before = bench.snapshot();
        bench.step(|fs| {
            fs.exchange("a/x", "b/y").unwrap();
            fs.rename("b/y", "b/z").unwrap();
        });
        for dir in ["a/x", "b/z", "a", "b"] {
            chmod(bench.path(dir), 0o555);
        }
        let options = RollbackOptions { on_conflict: OnConflict::Force };
        bench.engine.rollback(1, options).unwrap();
        for dir in ["a/x", "b/y", "a", "b"] {
            assert_eq!(mode(bench.path(dir)), 0o555, "{dir}");
            chmod(bench.path(dir), 0o755);
        }
        assert_tree_eq(&before, &bench.snapshot());
    });
}
