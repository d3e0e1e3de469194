//! Tries what a sandbox is made of, in namespaces of its own, and says what happened.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, LandlockStatus, Ruleset, RulesetAttr,
};
use rustix::fs::{AtFlags, Mode, mkdirat, unlinkat};
use rustix::mount::{MountAttrFlags, MountPropagationFlags, mount_change};
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};

use super::mounts::Mount;
use super::{Context, Failed, confine, namespaces, tree, write_maps};
use crate::facts::trials::{Landlock, Trial, TrialRequest, Trials};
use crate::link;
use crate::raw::{self, Forked};
use crate::spec::Network;

/// What only works inside.
type Within = [Trial; 5];

pub(crate) fn try_everything(setup: &UnixStream) -> ExitCode {
    let Ok((request, _)) = link::receive::<TrialRequest>(setup) else { return ExitCode::FAILURE };
    let (namespaces, [capabilities, mount_api, proc, overlay, fuse]) = match within(&request) {
        Ok(within) => (Trial::Works, within),
        Err((namespaces, capabilities)) => {
            let mut within = Within::default();
            within[0] = capabilities;
            (namespaces, within)
        }
    };
    // Last: from then on, this process can do little.
    let landlock = landlock();
    let seccomp = confine::forbid_system_calls(false).is_ok();
    let trials =
        Trials { namespaces, capabilities, mount_api, proc, overlay, fuse, landlock, seccomp };
    match link::send(setup, &trials, &[]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Nothing of the namespaces is left when this returns. The error: what became of making them, and
/// of having capabilities in them.
fn within(request: &TrialRequest) -> Result<Within, (Trial, Trial)> {
    let no_namespaces = |failed: Failed| (Trial::Failed(failed), Trial::Untried);
    let (ours, theirs) = UnixStream::pair().context("making a socket").map_err(no_namespaces)?;
    match raw::fork_into(namespaces(&Network::Disabled))
        .context("making namespaces")
        .map_err(no_namespaces)?
    {
        Forked::Child => {
            drop(ours);
            let _ = inhabit(request, &theirs);
            std::process::exit(0)
        }
        Forked::Parent(child) => {
            drop(theirs);
            let outcome = write_maps(&child)
                .and_then(|()| (&ours).write_all(b"!").context("starting process 1"))
                .and_then(|()| link::receive(&ours).context("hearing of what was tried"));
            end(&child);
            outcome
                .map(|(within, _)| within)
                .map_err(|failed| (Trial::Works, Trial::Failed(failed)))
        }
    }
}

fn end(child: &OwnedFd) {
    let _ = rustix::process::pidfd_send_signal(child, Signal::KILL);
    let wait = || waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED);
    let _ = rustix::io::retry_on_intr(wait);
}

fn inhabit(request: &TrialRequest, mut to_parent: &UnixStream) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    to_parent.read_exact(&mut [0])?;
    let mut within = Within::default();
    within[0] = Trial::from(have_capabilities());
    if within[0].works() {
        within[1] = Trial::from(change_mounts());
        within[2] = Trial::from(mount_proc());
        if let Some(staging) = &request.staging {
            within[3] = Trial::from(use_overlay(request.folder.as_path(), staging.as_path()));
        }
        within[4] = Trial::from(mount_fuse());
    }
    link::send(to_parent, &within, &[])
}

fn have_capabilities() -> Result<(), Failed> {
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    mount_change("/", private).context("detaching the mounts from those of the host")?;
    raw::raise_loopback().context("raising the loopback interface")
}

fn change_mounts() -> Result<(), Failed> {
    Mount::new("tmpfs", &[("size", "4k")]).context("mounting a filesystem by descriptor")?;
    Mount::of("/usr".as_ref())
        .and_then(Mount::read_only)
        .context("making a copy of a mount read-only")
        .map(drop)
}

fn mount_proc() -> Result<(), Failed> {
    Mount::with_attributes("proc", &[], MountAttrFlags::MOUNT_ATTR_NOSUID)
        .context("mounting /proc")
        .map(drop)
}

/// What commands do most, and filesystems support least: a directory in the place of what has been
/// removed needs a whiteout and an extended attribute.
fn use_overlay(folder: &Path, staging: &Path) -> Result<(), Failed> {
    let low = staging.join("low");
    let overlay =
        Mount::overlay(&[&low, folder], staging, "work").context("mounting an overlay")?;
    unlinkat(&overlay, "file", AtFlags::empty()).context("removing a file in an overlay")?;
    mkdirat(&overlay, "file", Mode::RWXU).context("replacing a file in an overlay by a directory")
}

fn mount_fuse() -> Result<(), Failed> {
    let (mount, device) = tree::fuse().context("mounting FUSE")?;
    // In this order nobody waits for an answer.
    drop(device);
    drop(mount);
    Ok(())
}

fn landlock() -> Landlock {
    let restrict = || {
        Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(ABI::V1))?
            .create()?
            .restrict_self()
    };
    match restrict().map(|status| status.landlock) {
        Ok(LandlockStatus::Available { effective_abi, kernel_abi }) => {
            Landlock::Version(kernel_abi.unwrap_or(effective_abi as i32))
        }
        Ok(LandlockStatus::NotEnabled) => Landlock::NotEnabled,
        Ok(LandlockStatus::NotImplemented) | Err(_) => Landlock::NotBuilt,
    }
}
