//! The system calls that a worker may make. Everything else fails, and a call of a foreign
//! architecture is the end of the process.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Whatever their arguments are.
const ALLOWED: &[c_long] = &[
    // Contents.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_truncate,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_syncfs,
    libc::SYS_flock,
    // Names and descriptors.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    RENAMEAT,
    libc::SYS_renameat2,
    libc::SYS_fchdir,
    libc::SYS_getcwd,
    libc::SYS_umask,
    // Attributes.
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SETXATTRAT,
    GETXATTRAT,
    LISTXATTRAT,
    REMOVEXATTRAT,
    // On whose behalf.
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_capget,
    libc::SYS_capset,
    // Connections that exist.
    libc::SYS_accept4,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    // A guest's queues: each announces its requests through a descriptor.
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_msync,
    libc::SYS_membarrier,
    // Threads, signals, time.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    // Refused all the same, by the other filter.
    libc::SYS_clone3,
];

/// The same on every architecture; `libc` does not know them on all.
const FCHMODAT2: c_long = 452;
const SETXATTRAT: c_long = 463;
const GETXATTRAT: c_long = 464;
const LISTXATTRAT: c_long = 465;
const REMOVEXATTRAT: c_long = 466;

#[cfg(target_arch = "aarch64")]
const RENAMEAT: c_long = 38; // which `libc` does not know there
#[cfg(not(target_arch = "aarch64"))]
const RENAMEAT: c_long = libc::SYS_renameat;

/// Older forms of the above, which the C library still uses where there are any.
#[cfg(target_arch = "x86_64")]
const OLDER_FORMS: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_link,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_symlink,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_dup2,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_FORMS: &[c_long] = &[];

/// Argument 1 of `fcntl`. Nothing that sends signals.
const DESCRIPTOR_COMMANDS: &[i32] =
    &[libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL];

/// Argument 1 of `ioctl`.
const DEVICE_REQUESTS: &[u32] = &[FICLONE, FUSE_CLONE];
const FICLONE: u32 = 0x4004_9409;
const FUSE_CLONE: u32 = 0x8004_e500;

/// Argument 2 of `setsockopt`: how long to wait for the other end, in the old form and the new.
const SOCKET_OPTIONS: &[u32] = &[20, 21, 66, 67];

/// Of these the C library tries the newer form first and takes the older one where there is no
/// newer: `clone3`, whose arguments cannot be judged, and whatever is to come. The numbers are the
/// same on every architecture.
const NEWER_FORMS: std::ops::Range<c_long> = libc::SYS_clone3..512;

/// From here on no thread of this process makes another call.
pub(crate) fn allow_only_what_is_needed() -> bool {
    let applied = || -> Option<()> {
        let absent = NEWER_FORMS.filter(|call| !ALLOWED.contains(call));
        let absent = absent.map(|call| (call, Vec::new())).collect();
        apply(absent, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?;
        apply(rules()?, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)
    };
    applied().is_some()
}

fn apply(rules: Rules, otherwise: SeccompAction, listed: SeccompAction) -> Option<()> {
    let arch = std::env::consts::ARCH.try_into().ok()?;
    let filter = SeccompFilter::new(rules, otherwise, listed, arch).ok()?;
    let program = BpfProgram::try_from(filter).ok()?;
    seccompiler::apply_filter_all_threads(&program).ok()
}

/// To each call, what may be true of its arguments; nothing: anything.
type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

fn rules() -> Option<Rules> {
    let any = |call: &c_long| (*call, Vec::new());
    let mut rules: Rules = ALLOWED.iter().chain(OLDER_FORMS).map(any).collect();

    let one_of = |index, values: &[u32]| {
        values.iter().map(|value| is(index, *value)).collect::<Option<Vec<_>>>()
    };
    let commands: Vec<u32> = DESCRIPTOR_COMMANDS.iter().map(|command| *command as u32).collect();
    rules.insert(libc::SYS_fcntl, one_of(1, &commands)?);
    rules.insert(libc::SYS_ioctl, one_of(1, DEVICE_REQUESTS)?);
    rules.insert(libc::SYS_setsockopt, one_of(2, SOCKET_OPTIONS)?);
    rules.insert(libc::SYS_prctl, one_of(0, &[libc::PR_SET_NAME as u32])?);
    // Its own working directory and umask.
    rules.insert(libc::SYS_unshare, one_of(0, &[libc::CLONE_FS as u32])?);
    // To abort itself.
    rules.insert(libc::SYS_tgkill, one_of(0, &[std::process::id()])?);
    // Its own limits.
    rules.insert(libc::SYS_prlimit64, one_of(0, &[0])?);

    // Threads, no processes, and nothing that lives in other namespaces.
    let namespaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    let thread = libc::CLONE_THREAD as u32;
    rules.insert(libc::SYS_clone, vec![masked(0, namespaces as u32 | thread, thread)?]);
    // No new code.
    let code = libc::PROT_EXEC as u32;
    rules.insert(libc::SYS_mmap, vec![masked(2, code, 0)?]);
    rules.insert(libc::SYS_mprotect, vec![masked(2, code, 0)?]);
    Some(rules)
}

fn is(index: u8, value: u32) -> Option<SeccompRule> {
    rule(index, SeccompCmpOp::Eq, value)
}

fn masked(index: u8, mask: u32, value: u32) -> Option<SeccompRule> {
    rule(index, SeccompCmpOp::MaskedEq(mask.into()), value)
}

fn rule(index: u8, operator: SeccompCmpOp, value: u32) -> Option<SeccompRule> {
    let condition =
        SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value.into()).ok()?;
    SeccompRule::new(vec![condition]).ok()
}
