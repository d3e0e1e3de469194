//! Calls that no filesystem server makes, as they are: what would make them for us looks first.

#![allow(unsafe_code)]

use std::io;

use libc::c_long;

type Attempt = (&'static str, c_long, [c_long; 3]);

/// Each would succeed, or fail with something else than EPERM, if the kernel let it through.
const FORBIDDEN: &[Attempt] = &[
    ("make a process", libc::SYS_clone, [libc::SIGCHLD as c_long, 0, 0]),
    ("leave its namespaces", libc::SYS_unshare, [libc::CLONE_NEWUSER as c_long, 0, 0]),
    ("enter a namespace", libc::SYS_setns, [-1, 0, 0]),
    ("trace", libc::SYS_ptrace, [libc::PTRACE_TRACEME as c_long, 0, 0]),
    ("signal a process", libc::SYS_kill, [0, 0, 0]),
    ("signal a thread of another", libc::SYS_tgkill, [1, 1, 0]),
    ("limit another process", libc::SYS_prlimit64, [1, 0, 0]),
    ("mount", libc::SYS_mount, [0, 0, 0]),
    ("open by handle", libc::SYS_open_by_handle_at, [-1, 0, 0]),
    ("map code", libc::SYS_mmap, [0, 4096, libc::PROT_EXEC as c_long]),
    ("turn memory into code", libc::SYS_mprotect, [0, 0, libc::PROT_EXEC as c_long]),
    ("push into a terminal", libc::SYS_ioctl, [0, libc::TIOCSTI as c_long, 0]),
    ("ask for signals", libc::SYS_fcntl, [0, libc::F_SETOWN as c_long, 0]),
    ("queue calls", libc::SYS_io_uring_setup, [0, 0, 0]),
    ("load a program", libc::SYS_bpf, [-1, 0, 0]),
    ("use keys", libc::SYS_keyctl, [-1, 0, 0]),
    ("become another kind", libc::SYS_personality, [0xffff_ffff, 0, 0]),
    ("call by another number", ANOTHER_NUMBER, [0, 0, 0]),
];

/// What this machine has besides its own numbers.
#[cfg(target_arch = "x86_64")]
const ANOTHER_NUMBER: c_long = 0x4000_0000 | libc::SYS_getpid;
#[cfg(not(target_arch = "x86_64"))]
const ANOTHER_NUMBER: c_long = 0x4000_0000;

pub(crate) fn try_forbidden_ones() -> Vec<(&'static str, io::Result<()>)> {
    FORBIDDEN.iter().map(|(what, call, arguments)| (*what, attempt(*call, arguments))).collect()
}

fn attempt(call: c_long, [first, second, third]: &[c_long; 3]) -> io::Result<()> {
    // SAFETY: no argument points to memory, and none of the calls would change what this
    // process has mapped. The one that could return twice ends its copy at once.
    let returned = unsafe { libc::syscall(call, *first, *second, *third, 0, -1, 0) };
    match returned {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: it ends here.
        0 if call == libc::SYS_clone => unsafe { libc::_exit(0) },
        _ => Ok(()),
    }
}
