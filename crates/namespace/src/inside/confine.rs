//! What commands cannot do, beyond what they cannot see. Without Landlock they are begun all the same,
//! and whoever asked is told; without the rest they are not.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, sock_filter,
};

use crate::report::{Confinement, Landlock};
use crate::spec::{Folder, FolderView, Limits, Spec};

/// The newest rights this program knows; older kernels enforce what they have.
const RIGHTS: ABI = ABI::V6;

/// What root keeps: the files of others, as far as they can be seen, and its own processes.
const OF_ROOT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::NET_BIND_SERVICE);

pub(super) fn confine(spec: &Spec) -> io::Result<Confinement> {
    set_limits(spec.limits)?;
    rustix::thread::set_no_new_privs(true)?;
    let landlock = restrict_files(spec)?;
    drop_capabilities()?;
    // A command of the same user must not read or change the memory of what runs it.
    let behavior = rustix::process::DumpableBehavior::NotDumpable;
    rustix::process::set_dumpable_behavior(behavior)?;
    forbid_system_calls(spec.nested_namespaces)?;
    Ok(Confinement { landlock })
}

/// Of one's own, and of what one starts.
pub(super) fn limit_open_files(limits: &Limits) -> io::Result<()> {
    set(Resource::Nofile, limits.open_files)
}

fn set_limits(limits: Limits) -> io::Result<()> {
    set(Resource::Core, Some(0))?;
    set(Resource::Nproc, limits.processes)?;
    set(Resource::Fsize, limits.file_bytes)?;
    // Of each process; the sum of them is what a cgroup is for.
    set(Resource::Data, limits.memory_bytes)
}

fn set(resource: Resource, limit: Option<u64>) -> io::Result<()> {
    let Some(limit) = limit else { return Ok(()) };
    let hardest = rustix::process::getrlimit(resource).maximum;
    let limit = Some(hardest.map_or(limit, |hardest| hardest.min(limit)));
    Ok(rustix::process::setrlimit(resource, Rlimit { current: limit, maximum: limit })?)
}

/// Whether the kernel's Landlock is of use: its first version lets nobody move a file to another
/// directory.
pub(crate) fn has_second_wall() -> bool {
    let moves = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    moves.handle_access(AccessFs::Refer).is_ok()
}

/// Whether Landlock keeps commands from abstract sockets and processes outside.
pub(crate) fn keeps_sockets_out() -> bool {
    let scopes = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    scopes.scope(Scope::from_all(RIGHTS)).is_ok()
}

/// A second wall behind the mounts: writing only where it is meant to be.
fn restrict_files(spec: &Spec) -> io::Result<Landlock> {
    if !has_second_wall() {
        return Ok(Landlock::Missing);
    }
    let rules = || -> Result<_, landlock::RulesetError> {
        // Everything that is in the tree may be read, and nothing else has a name or is open here. To
        // have that checked at each opening, all the way up to the root, takes longer than the rest.
        let all = AccessFs::from_all(RIGHTS) & !AccessFs::from_read(RIGHTS);
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(all)?
            .scope(Scope::from_all(RIGHTS))?
            .create()?;
        // Files of processes and devices; what belongs to the host there is read-only.
        let using = AccessFs::WriteFile | AccessFs::IoctlDev | AccessFs::Truncate;
        let mut allow: Vec<(&Path, _)> = vec![
            (Path::new("/dev"), using),
            (Path::new("/proc"), using),
            (Path::new("/dev/shm"), all),
            (Path::new("/tmp"), all),
            (spec.home.path.as_path(), all),
        ];
        let can_change = |folder: &&Folder| {
            matches!(folder.view, FolderView::Transactional { .. } | FolderView::Live)
        };
        let folders = spec.folders.iter().filter(can_change);
        allow.extend(folders.map(|folder| (folder.path.as_path(), all)));
        for (path, access) in allow {
            if let Ok(directory) = PathFd::new(path) {
                ruleset = ruleset.add_rule(PathBeneath::new(directory, access))?;
            }
        }
        Ok(match ruleset.restrict_self()?.ruleset {
            RulesetStatus::FullyEnforced => Landlock::Complete,
            RulesetStatus::PartiallyEnforced => Landlock::Partial,
            RulesetStatus::NotEnforced => Landlock::Missing,
        })
    };
    rules().map_err(io::Error::other)
}

fn drop_capabilities() -> io::Result<()> {
    let keep = if rustix::process::getuid().is_root() { OF_ROOT } else { CapabilitySet::empty() };
    for capability in CapabilitySet::all().difference(keep).iter() {
        // Those that this kernel does not know cannot be removed.
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    rustix::thread::clear_ambient_capability_set()?;
    let sets =
        CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Of Linux 6.15; the same number everywhere.
const OPEN_TREE_ATTR: libc::c_long = 467;

/// System calls that no development tool needs, and that reach what namespaces do not hide.
const FORBIDDEN: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_open_by_handle_at,
    libc::SYS_syslog,
    libc::SYS_lookup_dcookie,
    libc::SYS_vhangup,
];

/// Families of sockets that programs use: local, IP, and the kernel's list of interfaces.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// The oldest way to raw packets, which the C library has forgotten.
const SOCK_PACKET: u64 = 10;

/// Puts characters into a terminal as if somebody had typed them there.
const TYPING: [u64; 2] = [libc::TIOCSTI, libc::TIOCLINUX];

pub(super) fn forbid_system_calls(nested_namespaces: bool) -> io::Result<()> {
    let filters = || -> Result<(), seccompiler::Error> {
        let mut programs = vec![without_x32(refuse(forbidden(nested_namespaces)?, libc::EPERM)?)];
        if !nested_namespaces {
            // Its flags are in memory, where a filter cannot look; the C library does without it.
            let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
            programs.push(refuse(clone3, libc::ENOSYS)?);
        }
        programs.iter().try_for_each(|program| seccompiler::apply_filter(program))
    };
    filters().map_err(io::Error::other)
}

/// No socket that could be connected to one of the host. Pairs remain, but for those that can send to
/// others than each other.
pub(super) fn forbid_local_sockets() -> io::Result<()> {
    use SeccompCmpOp::{Eq, MaskedEq};
    let filter = || -> Result<(), seccompiler::Error> {
        let when = |argument, operator, value| {
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
        };
        let local = SeccompRule::new(vec![when(0, Eq, libc::AF_UNIX as u64)?])?;
        let mut rules = Rules::from([(libc::SYS_socket, vec![local])]);
        // A raw one is one for datagrams.
        for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
            let pair = SeccompRule::new(vec![when(1, MaskedEq(0xf), kind as u64)?])?;
            rules.entry(libc::SYS_socketpair).or_default().push(pair);
        }
        seccompiler::apply_filter(&refuse(rules, libc::EPERM)?)
    };
    filter().map_err(io::Error::other)
}

fn refuse(rules: Rules, errno: i32) -> Result<BpfProgram, seccompiler::Error> {
    let arch = std::env::consts::ARCH.try_into()?;
    let action = SeccompAction::Errno(errno as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch)?;
    Ok(filter.try_into()?)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn forbidden(nested_namespaces: bool) -> Result<Rules, seccompiler::Error> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let when = |argument, operator, value| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
    };
    let mut rules: Rules = FORBIDDEN.iter().map(|call| (*call, Vec::new())).collect();
    let mut families = Vec::new();
    for family in FAMILIES {
        families.push(when(0, Ne, family as u64)?);
    }
    let raw = when(1, MaskedEq(0xf), libc::SOCK_RAW as u64)?;
    let packet = when(1, MaskedEq(0xf), SOCK_PACKET)?;
    let no_netlink = || when(0, Ne, libc::AF_NETLINK as u64);
    rules.insert(
        libc::SYS_socket,
        vec![
            SeccompRule::new(families)?,
            // Netlink sockets are raw by name only.
            SeccompRule::new(vec![raw, no_netlink()?])?,
            SeccompRule::new(vec![packet])?,
        ],
    );
    let mut typing = Vec::new();
    for request in TYPING {
        typing.push(SeccompRule::new(vec![when(1, Eq, request)?])?);
    }
    rules.insert(libc::SYS_ioctl, typing);
    if !nested_namespaces {
        let user = libc::CLONE_NEWUSER as u64;
        for call in [libc::SYS_unshare, libc::SYS_clone] {
            rules.insert(call, vec![SeccompRule::new(vec![when(0, MaskedEq(user), user)?])?]);
        }
    }
    Ok(rules)
}

/// The same calls have other numbers in the x32 ABI: none of them is let through.
fn without_x32(program: BpfProgram) -> BpfProgram {
    if !cfg!(target_arch = "x86_64") {
        return program;
    }
    const X32: u32 = 0x4000_0000;
    let statement = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    let load = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0);
    let compare = statement(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32);
    let refuse = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let give_up = statement(libc::BPF_RET | libc::BPF_K, 0, 0, refuse);
    [load, compare, give_up].into_iter().chain(program).collect()
}
