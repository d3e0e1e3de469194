//! What a worker gives up before it serves anybody. What the kernel cannot do is reported, never
//! passed over in silence.

use std::io;
use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The newest rights this program knows; older kernels enforce what they have.
const RIGHTS: ABI = ABI::V6;

/// What files need when they belong to others: a mount that root serves acts for everybody.
const FOR_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);

/// From here on this thread, and those it starts, open nothing but these directories and the FUSE
/// device, and reach no network. Whether the kernel could do that.
pub(crate) fn to_directories(directories: &[BorrowedFd<'_>]) -> io::Result<bool> {
    let rules = || {
        let all = AccessFs::from_all(RIGHTS);
        // The first version of Landlock lets nobody move a file to another directory.
        let moves = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        if moves.handle_access(AccessFs::Refer).is_err() {
            return Ok(false);
        }
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(all)?
            .handle_access(AccessNet::from_all(RIGHTS))?
            .scope(Scope::from_all(RIGHTS))?
            .create()?;
        for directory in directories {
            ruleset = ruleset.add_rule(PathBeneath::new(directory, all))?;
        }
        // Each thread that serves a mount opens it once.
        if let Ok(device) = PathFd::new("/dev/fuse") {
            let access = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
            ruleset = ruleset.add_rule(PathBeneath::new(device, access))?;
        }
        Ok(ruleset.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
    };
    rules().map_err(|error: landlock::RulesetError| io::Error::other(error))
}

/// Gives up the groups that whoever started us is in. What root does for others is judged by the
/// thread that does it: with our groups, a file could keep a set-group-id bit that it has to lose.
/// An ordinary user serves only himself, and keeps his.
pub(crate) fn drop_groups() {
    if rustix::process::geteuid().is_root() {
        // Not allowed in some user namespaces, where nobody else is served either.
        let _ = rustix::thread::set_thread_groups(&[]);
    }
}

/// Gives up every capability that files do not need, for this thread and those it starts. Whether
/// that went well, and whether any are left.
pub(crate) fn drop_capabilities() -> (bool, bool) {
    let dropped = || {
        let have = rustix::thread::capabilities(None)?;
        for capability in CapabilitySet::all().difference(FOR_FILES).iter() {
            // Not allowed without CAP_SETPCAP; then a program that we run could not get it either,
            // because we have no new privileges and run none.
            let _ = rustix::thread::remove_capability_from_bounding_set(capability);
        }
        rustix::thread::clear_ambient_capability_set()?;
        rustix::thread::set_capabilities(
            None,
            CapabilitySets {
                effective: have.effective & FOR_FILES,
                permitted: have.permitted & FOR_FILES,
                inheritable: CapabilitySet::empty(),
            },
        )
    };
    let dropped = dropped().is_ok();
    let left = rustix::thread::capabilities(None).map_or(true, |left| !left.permitted.is_empty());
    (dropped, left)
}
