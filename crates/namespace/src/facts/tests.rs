//! Machines that lack one thing each.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};

use super::judgement::judge;
use super::readings::{Device, Readings, Settings};
use super::trials::{Landlock, Trial, Trials};
use super::{Fact, FactId, FactsRequest, Presence};
use crate::report::Failed;

/// A machine as files, an ordinary user's, which has everything.
fn machine() -> tempfile::TempDir {
    let machine = tempfile::tempdir().unwrap();
    let group = "sys/fs/cgroup/user.slice";
    for (path, content) in [
        ("proc/sys/kernel/osrelease", "6.14.0-27-generic\n"),
        ("proc/sys/user/max_user_namespaces", "63000\n"),
        ("proc/sys/kernel/unprivileged_userns_clone", "1\n"),
        ("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "0\n"),
        ("proc/self/cgroup", "0::/user.slice/terminal.scope\n"),
        ("sys/fs/cgroup/cgroup.controllers", "memory pids\n"),
        (&format!("{group}/cgroup.subtree_control"), "memory pids\n"),
        (&format!("{group}/cgroup.procs"), ""),
        ("dev/fuse", ""),
        ("bin/fusermount3", ""),
        ("etc/os-release", "NAME=\"Ubuntu\"\nID=ubuntu\nVERSION_ID=\"24.04\"\n"),
    ] {
        put(machine.path(), path, content);
    }
    let program = machine.path().join("bin/fusermount3");
    fs::set_permissions(program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    machine
}

fn put(root: &Path, path: &str, content: &str) {
    fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
    fs::write(root.join(path), content).unwrap();
}

/// Everything works on it.
fn readings(root: &Path) -> Readings {
    let mut settings = Settings::read(root, &[root.join("bin")]);
    settings.is_root = false;
    settings.other_groups.clear();
    let works = || Trial::Works;
    Readings {
        settings,
        trials: Trials {
            namespaces: works(),
            capabilities: works(),
            mount_api: works(),
            proc: works(),
            overlay: works(),
            fuse: works(),
            landlock: Landlock::Version(6),
            seccomp: true,
        },
        request: FactsRequest {
            folder: "/home/me/project".into(),
            undo_dir: "/home/me/.undo".into(),
            program: PathBuf::from("/usr/bin/sandbox"),
        },
        undo_is_in_overlay: false,
    }
}

fn fact(readings: &Readings, id: FactId) -> Fact {
    judge(readings).into_iter().find(|fact| fact.id == id).unwrap()
}

fn failed(doing: &str, errno: i32) -> Trial {
    let reason = std::io::Error::from_raw_os_error(errno).to_string();
    Trial::Failed(Failed { errno, ..Failed::new(doing, reason) })
}

/// The fact says what is missing, and how to get it.
fn assert_missing(fact: &Fact, seen: &str, fix: &str) {
    assert_eq!(fact.presence, Presence::Missing, "{fact:?}");
    assert!(fact.seen.contains(seen), "{fact:?}");
    assert!(fact.lost.starts_with("Without ") && fact.lost.ends_with('.'), "{fact:?}");
    assert!(fact.fix.as_ref().is_some_and(|line| line.contains(fix)), "{fact:?}");
    assert!(!fact.fix.as_ref().unwrap().contains('\n'));
}

#[test]
fn a_machine_with_everything_needs_no_fix() {
    let machine = machine();
    for fact in judge(&readings(machine.path())) {
        assert_eq!((fact.presence, &fact.fix), (Presence::Present, &None), "{fact:?}");
    }
}

#[test]
fn ids_are_stable() {
    let machine = machine();
    let ids: Vec<_> = judge(&readings(machine.path())).iter().map(|fact| fact.id).collect();
    let ids = serde_json::to_string(&ids).unwrap();
    let expected = r#"["user_namespaces","namespace_capabilities","mount_api","own_proc","overlay","fuse","fusermount","landlock","seccomp","cgroups","groups"]"#;
    assert_eq!(ids, expected);
}

#[test]
fn groups_that_nobody_can_take_along() {
    let machine = machine();
    let mut readings = readings(machine.path());
    readings.settings.other_groups = vec![27, 999];
    let found = fact(&readings, FactId::Groups);
    assert_eq!((found.presence, &found.fix), (Presence::Partial, &None));
    assert!(found.seen.contains("27, 999"), "{found:?}");
    readings.settings.is_root = true;
    assert_eq!(fact(&readings, FactId::Groups).presence, Presence::Present);
}

#[test]
fn landlock_that_lets_nothing_be_moved_is_not_used() {
    let machine = machine();
    let mut readings = readings(machine.path());
    readings.trials.landlock = Landlock::Version(1);
    let found = fact(&readings, FactId::Landlock);
    assert_eq!(found.presence, Presence::Missing);
    assert!(found.seen.contains("not used"), "{found:?}");
}

#[test]
fn user_namespaces_that_are_switched_off() {
    let machine = machine();
    put(machine.path(), "proc/sys/user/max_user_namespaces", "0\n");
    let mut without = readings(machine.path());
    without.trials.namespaces = failed("making namespaces", libc::ENOSPC);
    without.trials.capabilities = Trial::Untried;
    without.trials.overlay = Trial::Untried;
    let found = fact(&without, FactId::UserNamespaces);
    assert_missing(&found, "max_user_namespaces is 0", "user.max_user_namespaces=15000");
    let next = fact(&without, FactId::Overlay);
    assert_eq!((next.presence, next.fix), (Presence::Untried, None));
}

#[test]
fn user_namespaces_that_debian_reserves_for_root() {
    let machine = machine();
    put(machine.path(), "proc/sys/kernel/unprivileged_userns_clone", "0\n");
    let mut without = readings(machine.path());
    without.trials.namespaces = failed("making namespaces", libc::EPERM);
    let found = fact(&without, FactId::UserNamespaces);
    assert_missing(&found, "unprivileged_userns_clone is 0", "unprivileged_userns_clone=1");
}

#[test]
fn user_namespaces_that_a_container_forbids() {
    let machine = machine();
    put(machine.path(), ".dockerenv", "");
    let mut without = readings(machine.path());
    without.trials.namespaces = failed("making namespaces", libc::EPERM);
    let found = fact(&without, FactId::UserNamespaces);
    assert_missing(&found, "in a container of docker", "seccomp=unconfined");
}

#[test]
fn namespaces_that_apparmor_empties() {
    let machine = machine();
    put(machine.path(), "proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n");
    let mut without = readings(machine.path());
    without.trials.capabilities = failed("detaching the mounts", libc::EACCES);
    let found = fact(&without, FactId::NamespaceCapabilities);
    assert_missing(&found, "AppArmor", "/usr/bin/sandbox");
    without.trials.capabilities = Trial::Works;
    let found = fact(&without, FactId::NamespaceCapabilities);
    assert_eq!(found.presence, Presence::Present, "a profile lets us have them");
}

#[test]
fn an_old_kernel_without_calls_for_mounts() {
    let machine = machine();
    put(machine.path(), "proc/sys/kernel/osrelease", "5.4.0-200-generic\n");
    let mut without = readings(machine.path());
    without.trials.mount_api = failed("making a copy of a mount read-only", libc::ENOSYS);
    let found = fact(&without, FactId::MountApi);
    assert_missing(&found, "older than 5.12", "linux-generic-hwe-24.04");
    put(machine.path(), "etc/os-release", "ID=debian\nVERSION_CODENAME=bookworm\n");
    without.settings = readings(machine.path()).settings;
    assert_missing(&fact(&without, FactId::MountApi), "older", "bookworm-backports");
}

#[test]
fn a_container_that_hides_parts_of_proc() {
    let machine = machine();
    put(machine.path(), "run/.containerenv", "");
    let mut without = readings(machine.path());
    without.trials.proc = failed("mounting /proc", libc::EPERM);
    let found = fact(&without, FactId::OwnProc);
    assert_missing(&found, "Operation not permitted", "systempaths=unconfined");
}

#[test]
fn an_overlay_upon_an_overlay() {
    let machine = machine();
    put(machine.path(), ".dockerenv", "");
    let mut without = readings(machine.path());
    without.trials.overlay = failed("mounting an overlay", libc::EINVAL);
    without.undo_is_in_overlay = true;
    let found = fact(&without, FactId::Overlay);
    assert_missing(&found, "lies in an overlay itself", "--volume /home/me:/home/me");
}

#[test]
fn a_filesystem_without_extended_attributes() {
    let machine = machine();
    let mut without = readings(machine.path());
    without.trials.overlay = failed("replacing a file by a directory", libc::EOPNOTSUPP);
    let found = fact(&without, FactId::Overlay);
    assert_eq!(found.presence, Presence::Missing);
    assert!(found.seen.contains("no extended attributes"), "{found:?}");
}

#[test]
fn a_kernel_without_overlays() {
    let machine = machine();
    let mut without = readings(machine.path());
    without.trials.overlay = failed("mounting an overlay", libc::ENODEV);
    assert_missing(&fact(&without, FactId::Overlay), "mounting", "sudo modprobe overlay");
}

#[test]
fn a_device_for_fuse_that_is_missing_or_closed() {
    let machine = machine();
    let mut without = readings(machine.path());
    without.settings.fuse_device = Device::Unusable("Permission denied".into());
    assert_missing(&fact(&without, FactId::Fuse), "cannot be opened", "chmod 666 /dev/fuse");
    fs::remove_file(machine.path().join("dev/fuse")).unwrap();
    assert_missing(
        &fact(&readings(machine.path()), FactId::Fuse),
        "there is no /dev/fuse",
        "modprobe fuse",
    );
    put(machine.path(), ".dockerenv", "");
    assert_missing(
        &fact(&readings(machine.path()), FactId::Fuse),
        "not in this container",
        "--device /dev/fuse",
    );
}

#[test]
fn fusermount_that_only_ordinary_users_need() {
    let machine = machine();
    fs::remove_file(machine.path().join("bin/fusermount3")).unwrap();
    let mut without = readings(machine.path());
    let found = fact(&without, FactId::Fusermount);
    assert_missing(&found, "not installed", "apt install fuse3");
    without.settings.is_root = true;
    assert_eq!(fact(&without, FactId::Fusermount).presence, Presence::Present);
}

#[test]
fn landlock_that_is_missing_or_old() {
    let machine = machine();
    let mut without = readings(machine.path());
    without.trials.landlock = Landlock::NotEnabled;
    assert_missing(&fact(&without, FactId::Landlock), "does not use it", "lsm=landlock");
    without.trials.landlock = Landlock::NotBuilt;
    assert_missing(&fact(&without, FactId::Landlock), "none", "linux-generic-hwe");
    without.trials.landlock = Landlock::Version(5);
    let old = fact(&without, FactId::Landlock);
    assert_eq!(old.presence, Presence::Partial);
    assert!(old.lost.contains("abstract sockets") && !old.lost.contains("truncating"), "{old:?}");
    without.trials.landlock = Landlock::Version(2);
    assert!(fact(&without, FactId::Landlock).lost.contains("truncating"));
}

#[test]
fn a_kernel_without_filters() {
    let machine = machine();
    let mut without = readings(machine.path());
    without.trials.seccomp = false;
    assert_missing(&fact(&without, FactId::Seccomp), "no filter", "linux-generic");
}

#[test]
fn cgroups_that_are_old_or_not_delegated() {
    let machine = machine();
    put(machine.path(), "sys/fs/cgroup/user.slice/cgroup.subtree_control", "pids\n");
    let found = fact(&readings(machine.path()), FactId::Cgroups);
    assert_missing(&found, "not delegated", "systemd-run --user --scope");
    fs::remove_file(machine.path().join("sys/fs/cgroup/cgroup.controllers")).unwrap();
    let found = fact(&readings(machine.path()), FactId::Cgroups);
    assert_missing(&found, "version 2", "systemd.unified_cgroup_hierarchy=1");
}
