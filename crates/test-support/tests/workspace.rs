//! Workspaces are where they should be, and leave nothing behind.

#![allow(clippy::unwrap_used)] // A test that cannot set up its tree has failed.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use codeagent_test_support::{TempWorkspace, fixtures, remove_tree};

#[test]
fn the_undo_directory_is_a_neighbour_that_does_not_exist_yet() {
    let workspace = TempWorkspace::new();
    assert_eq!(workspace.working().parent(), workspace.undo().parent());
    assert!(workspace.working().is_dir());
    assert!(!workspace.undo().exists());
}

#[test]
fn working_and_undo_can_be_on_different_filesystems() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let workspace = TempWorkspace::across(one.path(), two.path());
    assert!(workspace.working().starts_with(one.path()));
    assert!(workspace.undo().starts_with(two.path()));
    drop(workspace);
    for dir in [one, two] {
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn nothing_is_left_behind_whatever_the_modes() {
    let dir = tempfile::tempdir().unwrap();
    let workspace = TempWorkspace::on(dir.path()).filled(fixtures::awkward_tree);
    fs::create_dir_all(workspace.path("closed/inner/innermost")).unwrap();
    fs::write(workspace.path("closed/inner/file"), "x").unwrap();
    for path in ["closed/inner/innermost", "closed/inner", "closed", ""] {
        fs::set_permissions(workspace.path(path), Permissions::from_mode(0o000)).unwrap();
    }
    drop(workspace);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn removing_a_tree_spares_what_its_links_point_at() {
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    fs::write(&victim, "keep me").unwrap();
    let workspace = TempWorkspace::new();
    let tree = workspace.path("tree");
    fs::create_dir(&tree).unwrap();
    symlink(outside.path(), tree.join("to-directory")).unwrap();
    symlink(&victim, tree.join("to-file")).unwrap();
    remove_tree(&tree).unwrap();
    assert!(!tree.exists());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "keep me");
}
