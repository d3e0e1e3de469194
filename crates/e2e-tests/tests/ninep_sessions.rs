//! Sessions whose guests have the folder over 9P, and what only they can do.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod common;

use codeagent_sandbox::SandboxError;
use codeagent_sandbox::session::CommandRequest;
use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{TempWorkspace, assert_tree_eq, fixtures};
use codeagent_vm::{Backend, GuestImage};
use common::{Ground, Office};

/// Takes the device of the folder from our module, and writes to it what is no message.
const SAY_NONSENSE: &str = "cd /sys/bus/virtio/drivers
    device=$(basename /sys/bus/pci/devices/0000:00:10.0/virtio*)
    echo $device > codeagent_9p/unbind
    echo $device > virtio_console/bind
    n=0; until ls /sys/bus/virtio/devices/$device/virtio-ports/vport*; do
        n=$((n + 1)); [ $n -lt 600 ] || exit 1; sleep 0.1; done >/dev/null 2>&1
    echo 'this is no message' > /dev/$(ls /sys/bus/virtio/devices/$device/virtio-ports)
    sleep 600";

/// What the worker hears makes no sense, so it serves that guest no longer. The guest itself does not
/// know, and whoever runs in it would wait for ever.
#[test]
fn a_guest_that_says_nonsense_is_ended_and_the_next_command_has_another() {
    let test = "a_guest_that_says_nonsense_is_ended_and_the_next_command_has_another";
    let Some(ground) = Ground::find(test) else { return };
    if !GuestImage::open(&ground.image).unwrap().manifest().module_9p {
        return skip(test, "the image has not our module for 9P");
    }
    if !rustix::process::geteuid().is_root() {
        return skip(test, "it takes root in the guest");
    }
    let workspace = TempWorkspace::with_fixture(fixtures::awkward_tree);
    let office = Office::with(&ground, workspace, |options| options.vm.backend = Backend::NineP);
    let before = office.workspace.snapshot();
    let script = format!("echo lost > lost; {SAY_NONSENSE}");
    let ended = office.session.exec(&CommandRequest::shell(script.as_str()), |_, _| {});
    let Err(SandboxError::CommandLost(reason)) = ended else { panic!("{ended:?}") };
    assert!(reason.contains("a folder is not served to it any more"), "{reason}");
    assert_tree_eq(&before, &office.workspace.snapshot());
    assert_eq!(office.output("echo kept > kept; cat kept"), "kept\n");
}
