//! What a worker gives up before it serves anybody. What the kernel cannot do is reported, never
//! passed over in silence.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule};

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
        ruleset.restrict_self()
    };
    let status = rules().map_err(|error: landlock::RulesetError| io::Error::other(error))?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// Gives up every capability that files do not need, for this thread and those it starts.
pub(crate) fn drop_capabilities() -> bool {
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
    dropped().is_ok()
}

/// What no filesystem server does.
const FORBIDDEN: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_quotactl,
    libc::SYS_open_by_handle_at,
];

/// From here on no thread of this process can do what is forbidden; it fails with EPERM.
pub(crate) fn forbid_system_calls() -> bool {
    let Ok(arch) = std::env::consts::ARCH.try_into() else { return false };
    let rules: BTreeMap<i64, Vec<SeccompRule>> =
        FORBIDDEN.iter().map(|call| (*call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)
        .and_then(BpfProgram::try_from);
    filter.is_ok_and(|program| seccompiler::apply_filter_all_threads(&program).is_ok())
}
