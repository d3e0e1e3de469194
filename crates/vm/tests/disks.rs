//! Guests with a disk: what they change is kept, or is gone. Needs an image with a root file system,
//! `cargo xtask build-guest --flavour dev`.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::path::{Path, PathBuf};

use codeagent_control::{Exec, ExitStatus, User};
use codeagent_vm::{
    Disk, Ending, GuestImage, Machine, MachineConfig, Progress, VmError, discard_disk,
};
use common::{PATIENCE, Talk, config, start};

fn dev_image(test: &str) -> Option<GuestImage> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guest/dev-x86_64");
    let dir = std::env::var_os("CODEAGENT_TEST_GUEST_DEV").map_or(built, PathBuf::from);
    match GuestImage::open(dir) {
        Ok(image) => Some(image),
        Err(_) => {
            let why = "there is no image with a root file system; build one with: cargo xtask build-guest --flavour dev";
            codeagent_test_support::filesystems::skip(test, why);
            None
        }
    }
}

fn with_disk(image: &GuestImage, state: &Path, disk: Disk) -> MachineConfig {
    let mut config = config(image.clone());
    config.state_dir = state.to_owned();
    config.memory_mib = 1024;
    config.disk = disk;
    config
}

fn as_root(line: &str) -> Exec {
    Exec { user: Some(User { uid: 0, gid: 0 }), ..Exec::shell(line) }
}

fn stop(machine: Machine) {
    assert_eq!(machine.shutdown(PATIENCE), Ending::Clean);
}

/// What is installed or changed on a disk that is kept is there again, until it is discarded. One
/// machine at a time has it; a second has one whose file has no name, and what it changes is gone.
#[test]
fn what_a_guest_changes_on_its_disk_is_kept_or_gone() {
    let Some(image) = dev_image("what_a_guest_changes_on_its_disk_is_kept_or_gone") else { return };
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("disks/project.qcow2");
    let persistent = || with_disk(&image, state.path(), Disk::Persistent(path.clone()));

    let machine = start(persistent());
    let mut talk = Talk::with(&machine);
    talk.output("touch ~/kept");
    assert_eq!(talk.run(as_root("touch /usr/local/kept")).status, ExitStatus::ExitCode(0));
    stop(machine);

    let machine = start(persistent());
    let mut talk = Talk::with(&machine);
    talk.output("test -e ~/kept && test -e /usr/local/kept");
    let mut warnings = Vec::new();
    let second = Machine::start(persistent(), &mut |progress| {
        if let Progress::Warning(text) = progress {
            warnings.push(text);
        }
    })
    .unwrap();
    let is_told = |text: &String| text.contains("another machine has the disk");
    assert!(warnings.iter().any(is_told), "{warnings:?}");
    Talk::with(&second).output("test ! -e /usr/local/kept && touch ~/gone && sync");
    let names: Vec<_> =
        std::fs::read_dir(state.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| name == "disks" || name == "accelerators.json"), "{names:?}");
    stop(second);
    talk.output("test ! -e ~/gone && test -e ~/kept");
    let refused = discard_disk(&path).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ResourceBusy, "a guest has it");
    stop(machine);

    discard_disk(&path).unwrap();
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
}

#[test]
fn a_disk_of_another_image_is_refused() {
    let Some(image) = dev_image("a_disk_of_another_image_is_refused") else { return };
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("disk.qcow2");
    std::fs::write(&path, "").unwrap();
    std::fs::write(state.path().join("disk.qcow2.image"), "another").unwrap();
    let config = with_disk(&image, state.path(), Disk::Persistent(path));
    let error = Machine::start(config, &mut |_| {}).unwrap_err();
    assert!(matches!(error, VmError::DiskOfOtherImage { .. }), "{error}");
}
