//! POSIX ACLs through the mount: kept, obeyed, inherited, undone.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use codeagent_test_support::TempWorkspace;
use codeagent_test_support::filesystems::{SmallDisk, disk_dir, skip, supports_acls};
use common::{Mounted, can_mount, has, sh};

/// Somebody who is neither root nor in any group that counts here.
const STRANGER: u32 = 54_321;

fn with_acls(test: &str, fixture: impl Fn(&Path)) -> Option<Mounted> {
    if !can_mount(test) {
        return None;
    }
    let workspace = TempWorkspace::new();
    if !supports_acls(workspace.working()) || !has("setfacl") {
        skip(test, "there are no ACLs here, or no setfacl");
        return None;
    }
    if !rustix::process::geteuid().is_root() {
        skip(test, "acting as somebody else needs root");
        return None;
    }
    Some(open_to_everybody(workspace.filled(fixture)))
}

fn open_to_everybody(workspace: TempWorkspace) -> Mounted {
    let mounted = Mounted::on(workspace, |_| {});
    for dir in [mounted.point.path(), mounted.workspace.working().parent().unwrap()] {
        fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    }
    mounted
}

fn files(root: &Path) {
    for name in ["plain", "shared"] {
        fs::write(root.join(name), name).unwrap();
        fs::set_permissions(root.join(name), Permissions::from_mode(0o640)).unwrap();
    }
    fs::create_dir(root.join("dir")).unwrap();
    sh("setfacl -m u:12345:rw shared; setfacl -d -m u:12345:rwx,o::- dir", root);
}

/// Whether somebody (with this user and group) can run a command in the folder.
fn can(folder: &Path, (uid, gid): (u32, u32), command: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(folder).uid(uid).gid(gid);
    shell.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
}

const CHANGES: &str = "
    setfacl -m u:12345:r,g:23456:rwx plain; setfacl -b shared; setfacl -k dir
    mkdir made; setfacl -d -m u:12345:rwx made; echo new > made/file; mkdir made/below
    cp -a shared copy; cp -a plain kept; chmod 600 plain; setfacl -x u:12345 plain
    mv shared made; rm -r dir; mkdir dir; setfacl -m u:12345:- dir
    getfacl -cn plain | grep -qx group:23456:rwx.*
    getfacl -cn made/file | grep -qx user:12345:rwx.*";

#[test]
fn acls_that_are_set_changed_and_removed_are_undone() {
    let test = "acls_that_are_set_changed_and_removed_are_undone";
    let Some(mounted) = with_acls(test, files) else { return };
    mounted.there_and_back(CHANGES);
}

/// What is brought back from there is made anew, in directories that give it ACLs of their own.
#[test]
fn acls_are_undone_from_another_disk() {
    let test = "acls_are_undone_from_another_disk";
    if with_acls(test, files).is_none() {
        return;
    }
    let Some(disk) = disk_dir() else { return skip(test, "there is no directory on a disk") };
    let workspace = TempWorkspace::across(Path::new("/dev/shm"), &disk).filled(|root| {
        files(root);
        sh("echo a > dir/plain; echo b > dir/shared; setfacl -b dir/plain", root);
        sh(
            "setfacl -m u:23456:r dir/shared; mkdir dir/sub; ln -s x dir/link; mkfifo dir/pipe",
            root,
        );
    });
    let mounted = Mounted::on(workspace, |_| {});
    mounted.there_and_back(&format!("{CHANGES}; echo x >> plain"));
}

#[test]
fn what_an_acl_says_is_obeyed() {
    let Some(mounted) = with_acls("what_an_acl_says_is_obeyed", files) else { return };
    mounted
        .sh("setfacl -m u:54321:rw plain; chown 0:34567 shared; setfacl -m g::-,u:54321:r shared");
    let stranger = (STRANGER, STRANGER);
    let member = (STRANGER + 1, 34_567);
    for folder in [mounted.workspace.working(), mounted.mount.mount_point()] {
        let can = |who, command| can(folder, who, command);
        assert!(can(stranger, "echo x >> plain"), "he has been named");
        assert!(can(stranger, "cat shared"));
        assert!(!can(stranger, "echo x >> shared"), "named for reading only");
        assert!(!can(member, "cat shared"), "the mode would let the group in, the ACL does not");
        assert!(!can(member, "cat plain"));
    }
}

#[test]
fn a_default_acl_counts_instead_of_the_umask() {
    let Some(mounted) = with_acls("a_default_acl_counts_instead_of_the_umask", files) else {
        return;
    };
    let make = "umask 077; echo x > dir/file; mkdir dir/sub; mkfifo dir/pipe; echo x > outside";
    mounted.sh(make);
    let through = ["dir/file", "dir/sub", "dir/pipe", "outside"]
        .map(|name| fs::metadata(mounted.path(name)).unwrap().mode() & 0o7777);
    fs::remove_file(mounted.workspace.path("outside")).unwrap();
    sh("rm -r dir/file dir/sub dir/pipe", mounted.workspace.working());
    sh(make, mounted.workspace.working());
    let below = ["dir/file", "dir/sub", "dir/pipe", "outside"]
        .map(|name| fs::metadata(mounted.workspace.path(name)).unwrap().mode() & 0o7777);
    assert_eq!(through, below);
    assert_eq!(below, [0o660, 0o770, 0o660, 0o600]);
}

#[test]
fn an_acl_set_by_a_stranger_to_the_group_costs_the_set_group_id_bit() {
    let test = "an_acl_set_by_a_stranger_to_the_group_costs_the_set_group_id_bit";
    let make = |root: &Path| {
        for name in ["below", "through", "member"] {
            fs::write(root.join(name), "").unwrap();
            std::os::unix::fs::chown(root.join(name), Some(STRANGER), Some(34_567)).unwrap();
            fs::set_permissions(root.join(name), Permissions::from_mode(0o2775)).unwrap();
        }
    };
    let Some(mounted) = with_acls(test, make) else { return };
    let mode = |name| fs::metadata(mounted.workspace.path(name)).unwrap().mode() & 0o7777;
    let (point, working) = (mounted.mount.mount_point(), mounted.workspace.working());
    let stranger = (STRANGER, STRANGER);
    assert!(can(working, stranger, "setfacl -m u:12345:r below"));
    assert!(can(point, stranger, "setfacl -m u:12345:r through"));
    assert_eq!((mode("below"), mode("through")), (0o775, 0o775));
    assert!(can(point, (STRANGER, 34_567), "setfacl -m u:12345:r member"));
    assert_eq!(mode("member"), 0o2775);
}

#[test]
fn where_there_are_no_acls_permissions_are_those_of_the_mode() {
    let test = "where_there_are_no_acls_permissions_are_those_of_the_mode";
    if !can_mount(test) {
        return;
    }
    let holder = tempfile::tempdir().unwrap();
    fs::set_permissions(holder.path(), Permissions::from_mode(0o755)).unwrap();
    let Some(disk) = SmallDisk::without_attributes(&holder.path().join("disk")) else {
        return skip(test, "mounting a filesystem in memory needs root");
    };
    let mounted = open_to_everybody(TempWorkspace::on(disk.path()).filled(|root| {
        for (name, mode) in [("open", 0o664), ("closed", 0o660)] {
            fs::write(root.join(name), name).unwrap();
            fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
        }
    }));
    let point = mounted.mount.mount_point();
    assert!(can(point, (STRANGER, STRANGER), "cat open"));
    assert!(!can(point, (STRANGER, STRANGER), "cat closed"));
    assert!(!can(point, (0, 0), "setfacl -m u:12345:r open"));
}
