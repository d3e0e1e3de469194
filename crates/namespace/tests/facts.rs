//! What this machine offers is found out, and nothing is left of having looked.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use codeagent_namespace::{Fact, FactId, FactsRequest, Presence, facts};
use codeagent_test_support::filesystems::{SmallDisk, skip};
use codeagent_test_support::{TempWorkspace, as_ordinary_user};
use common::{PROGRAM, mounts_that_name, processes_that_name};

fn look(folder: &Path, undo_dir: &Path) -> Vec<Fact> {
    let request =
        FactsRequest { folder: folder.into(), undo_dir: undo_dir.into(), program: PROGRAM.into() };
    facts(&request).unwrap()
}

fn fact(facts: &[Fact], id: FactId) -> &Fact {
    facts.iter().find(|fact| fact.id == id).unwrap()
}

fn presence(facts: &[Fact], id: FactId) -> Presence {
    fact(facts, id).presence
}

/// The other tests of this crate run commands here, so what those need is there.
fn assert_sandboxes_work(facts: &[Fact]) {
    for id in [
        FactId::UserNamespaces,
        FactId::NamespaceCapabilities,
        FactId::MountApi,
        FactId::OwnProc,
        FactId::Overlay,
        FactId::Seccomp,
    ] {
        assert_eq!(presence(facts, id), Presence::Present, "{facts:#?}");
    }
    for fact in facts {
        let is_fine = fact.presence == Presence::Present;
        assert!(!(is_fine && fact.fix.is_some()), "{fact:?}");
        assert!(!fact.seen.is_empty() && fact.lost.ends_with('.'), "{fact:?}");
    }
}

#[test]
fn what_root_and_everybody_has() {
    let workspace = TempWorkspace::new();
    let found = look(workspace.working(), workspace.undo());
    println!("{found:#?}");
    assert_sandboxes_work(&found);
}

#[test]
fn what_an_ordinary_user_has() {
    as_ordinary_user("what_an_ordinary_user_has", || {
        let workspace = TempWorkspace::new();
        let found = look(workspace.working(), workspace.undo());
        assert_sandboxes_work(&found);
        let openable = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
        let expected = if openable { Presence::Present } else { Presence::Missing };
        assert_eq!(presence(&found, FactId::Fuse), expected, "{found:#?}");
    });
}

#[test]
fn a_filesystem_that_cannot_hold_an_overlay_is_told() {
    let holder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::without_attributes(&holder.path().join("disk")) else {
        return skip("a_filesystem_that_cannot_hold_an_overlay_is_told", "mounting is not allowed");
    };
    let (folder, undo) = (disk.path().join("folder"), disk.path().join("undo"));
    fs::create_dir(&folder).unwrap();
    let found = look(&folder, &undo);
    assert_eq!(presence(&found, FactId::UserNamespaces), Presence::Present);
    assert_eq!(presence(&found, FactId::Overlay), Presence::Missing, "{found:#?}");
    assert!(fact(&found, FactId::Overlay).seen.contains("no extended attributes"), "{found:#?}");
}

#[test]
fn a_folder_in_an_overlay_is_told() {
    let holder = tempfile::tempdir_in("/dev/shm").unwrap();
    for name in ["low", "up", "work", "merged"] {
        fs::create_dir(holder.path().join(name)).unwrap();
    }
    let mounted = Command::new("mount")
        .args(["-t", "overlay", "-o", "lowerdir=low,upperdir=up,workdir=work", "none", "merged"])
        .current_dir(holder.path())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        return skip("a_folder_in_an_overlay_is_told", "mounting is not allowed");
    }
    let merged = holder.path().join("merged");
    fs::create_dir(merged.join("folder")).unwrap();
    let found = look(&merged.join("folder"), &merged.join("undo"));
    assert!(Command::new("umount").arg(&merged).status().unwrap().success());
    let overlay = fact(&found, FactId::Overlay);
    assert_eq!(overlay.presence, Presence::Missing, "{overlay:?}");
    assert!(overlay.seen.contains("lies in an overlay itself"), "{overlay:?}");
}

#[test]
fn nothing_is_left_of_having_looked() {
    let workspace = TempWorkspace::new();
    let holder = workspace.working().parent().unwrap();
    let program = holder.join("program");
    fs::copy(PROGRAM, &program).unwrap();
    let inode = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.mtime(), found.mtime_nsec(), found.mode(), fs::read_dir(path).unwrap().count())
    };
    let before = (inode(holder), inode(workspace.working()), workspace.snapshot());
    let request = FactsRequest {
        folder: workspace.working().into(),
        undo_dir: workspace.undo().into(),
        program: program.clone(),
    };
    for _ in 0..5 {
        facts(&request).unwrap();
        let after = (inode(holder), inode(workspace.working()), workspace.snapshot());
        assert_eq!(before, after);
        assert_eq!(processes_that_name(&program), Vec::<u32>::new());
        assert_eq!(mounts_that_name(holder), Vec::<String>::new());
    }
}

/// Not being able to look is a fact like any other.
#[test]
fn an_undo_directory_that_cannot_be_made_is_told() {
    as_ordinary_user("an_undo_directory_that_cannot_be_made_is_told", || {
        let workspace = TempWorkspace::new();
        let locked = workspace.working().parent().unwrap().join("locked");
        fs::create_dir(&locked).unwrap();
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).unwrap();
        let found = look(workspace.working(), &locked.join("undo"));
        assert_eq!(presence(&found, FactId::Overlay), Presence::Missing, "{found:#?}");
    });
}
