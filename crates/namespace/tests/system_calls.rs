//! What the filter of system calls keeps commands from. A call that is not permitted says so before
//! the kernel looks at its arguments, so with arguments that make no sense the filter can be told from
//! everything else that is in the way.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::process::Command;

use codeagent_namespace::View;
use codeagent_test_support::TempWorkspace;
use common::{Session, as_ordinary_user_with_fuse};

/// A call, its name, and arguments with which the kernel would refuse it for another reason than a
/// lack of permission, or do it: `BAD` is an address that nothing is at.
type Call = (libc::c_long, &'static str, &'static str);

/// Calls that whoever has a user namespace of his own may make.
const CALLS: &[Call] = &[
    (libc::SYS_ptrace, "ptrace", "0"), // to be traced by one's parent
    (libc::SYS_process_vm_readv, "process_vm_readv", "os.getpid(), 0, 0, 0, 0, 0"),
    (libc::SYS_process_vm_writev, "process_vm_writev", "os.getpid(), 0, 0, 0, 0, 0"),
    (libc::SYS_pidfd_getfd, "pidfd_getfd", "-1, 0, -1"),
    (libc::SYS_kcmp, "kcmp", "os.getpid(), os.getpid(), 0, 0, 0"),
    (libc::SYS_mount, "mount", "BAD, BAD, BAD, 0, BAD"),
    (libc::SYS_umount2, "umount2", "BAD, -1"),
    (libc::SYS_pivot_root, "pivot_root", "BAD, BAD"),
    (libc::SYS_fsopen, "fsopen", "BAD, 0"),
    (libc::SYS_fspick, "fspick", "-1, BAD, 0"),
    (libc::SYS_fsconfig, "fsconfig", "-1, 0, 0, 0, 0"),
    (libc::SYS_fsmount, "fsmount", "-1, 0, 0"),
    (libc::SYS_open_tree, "open_tree", "-1, BAD, 0"),
    (467, "open_tree_attr", "-1, BAD, 0, 0, 0"),
    (libc::SYS_move_mount, "move_mount", "-1, BAD, -1, BAD, 0"),
    (libc::SYS_mount_setattr, "mount_setattr", "-1, BAD, -1, 0, 0"),
    (libc::SYS_setns, "setns", "-1, 0"),
    (libc::SYS_bpf, "bpf", "0, BAD, 100000"),
    (libc::SYS_perf_event_open, "perf_event_open", "BAD, 0, -1, -1, -1"),
    (libc::SYS_userfaultfd, "userfaultfd", "1"), // of one's own pages
    (libc::SYS_io_uring_setup, "io_uring_setup", "1, BAD"),
    (libc::SYS_io_uring_enter, "io_uring_enter", "-1, 0, 0, 0, 0, 0"),
    (libc::SYS_io_uring_register, "io_uring_register", "-1, 0, 0, 0"),
    (libc::SYS_keyctl, "keyctl", "-1"),
    (libc::SYS_add_key, "add_key", "BAD, BAD, BAD, 1, -3"),
    (libc::SYS_request_key, "request_key", "BAD, BAD, BAD, -3"),
    (libc::SYS_reboot, "reboot", "0, 0, 0, 0"),
    (libc::SYS_swapon, "swapon", "BAD, -1"),
    (libc::SYS_settimeofday, "settimeofday", "BAD, 0"),
    (libc::SYS_clock_settime, "clock_settime", "99, BAD"),
    (libc::SYS_clock_adjtime, "clock_adjtime", "99, BAD"),
    (libc::SYS_adjtimex, "adjtimex", "BAD"),
    (libc::SYS_sethostname, "sethostname", "BAD, -1"),
    (libc::SYS_setdomainname, "setdomainname", "BAD, -1"),
    (libc::SYS_quotactl, "quotactl", "-1, 0, 0, 0"),
    (libc::SYS_quotactl_fd, "quotactl_fd", "-1, 0, 0, 0"),
];

/// Calls that the kernel permits to nobody but the root of the host, whatever their arguments: on
/// some kernels, or on all. The filter is a second wall before them.
const CALLS_OF_ROOT: &[Call] = &[
    (libc::SYS_init_module, "init_module", "BAD, 0, BAD"),
    (libc::SYS_finit_module, "finit_module", "-1, BAD, 0"),
    (libc::SYS_delete_module, "delete_module", "BAD, 0"),
    (libc::SYS_kexec_load, "kexec_load", "0, 0, BAD, -1"),
    (libc::SYS_kexec_file_load, "kexec_file_load", "-1, -1, 0, BAD, -1"),
    (libc::SYS_swapoff, "swapoff", "BAD"),
    (libc::SYS_acct, "acct", "BAD"),
    (libc::SYS_open_by_handle_at, "open_by_handle_at", "-1, BAD, 0"),
    (libc::SYS_syslog, "syslog", "10, 0, 0"), // the size of the kernel's log
    (libc::SYS_lookup_dcookie, "lookup_dcookie", "0, BAD, 0"),
    (libc::SYS_vhangup, "vhangup", ""),
];

/// Those with which a command makes a user namespace, in which it would be root.
const NESTING: &[Call] = &[
    (libc::SYS_unshare, "unshare", "CLONE_NEWUSER"),
    (libc::SYS_unshare, "unshare, with mounts", "CLONE_NEWUSER | CLONE_NEWNS"),
    (libc::SYS_clone, "clone", "CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0"),
];

/// Each call is made by a process of its own, as some of them would change what the next one finds.
const PROLOGUE: &str = r#"
import ctypes, errno, os
CLONE_NEWUSER, CLONE_NEWNS, SIGCHLD, BAD = 0x10000000, 0x20000, 17, 1
libc = ctypes.CDLL(None, use_errno=True)
def outcome_of(number, arguments):
    child = os.fork()
    if child == 0:
        result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments()))
        os._exit(ctypes.get_errno() if result < 0 else 0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return errno.errorcode[code] if code else "done"
def become_root_of_a_namespace():
    every_kind = 0x10000000 | 0x20000 | 0x20000000 | 0x4000000 | 0x8000000 | 0x40000000
    if libc.unshare(every_kind) < 0: raise OSError(ctypes.get_errno(), "unshare")
    # A new namespace for processes has its first one in the next that is started.
    first = os.fork()
    if first: os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))
"#;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    AsItIs,
    /// Of a user namespace, and of all other kinds, so that the kernel lets it do much.
    RootOfItsOwn,
}

/// What becomes of the calls, as a script that prints a line for each.
fn script(caller: Caller, calls: &[Call]) -> String {
    let mut script = PROLOGUE.to_owned();
    if caller == Caller::RootOfItsOwn {
        script.push_str("become_root_of_a_namespace()\n");
    }
    for (number, name, arguments) in calls {
        let arguments = if arguments.is_empty() { "()".into() } else { format!("({arguments},)") };
        script.push_str(&format!("print('{name}:', outcome_of({number}, lambda: {arguments}))\n"));
    }
    script
}

fn all_are(calls: &[Call], outcome: &str) -> String {
    calls.iter().map(|(_, name, _)| format!("{name}: {outcome}\n")).collect()
}

fn in_a_sandbox(session: &Session, script: &str) -> String {
    let ran = session.run(&format!("python3 - <<'EOF'\n{script}\nEOF"));
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    ran.stdout
}

fn with_nested_namespaces(view: View) -> Session {
    let workspace = TempWorkspace::new();
    Session::with(workspace, |policy| policy.nested_namespaces = true).seen(view)
}

/// The filter is all that is in the way here, so each line of it counts.
#[test]
fn who_may_make_namespaces_may_not_make_the_calls_that_nobody_needs() {
    forbid_to_the_root_of_a_namespace();
}

#[test]
fn nor_may_an_ordinary_user() {
    as_ordinary_user_with_fuse("nor_may_an_ordinary_user", forbid_to_the_root_of_a_namespace);
}

fn forbid_to_the_root_of_a_namespace() {
    let script = script(Caller::RootOfItsOwn, CALLS);
    for view in [View::Transactional, View::Live, View::ReadOnly] {
        let outcomes = in_a_sandbox(&with_nested_namespaces(view), &script);
        assert_eq!(outcomes, all_are(CALLS, "EPERM"), "{view:?}");
    }
}

/// That the test before this one shows something.
#[test]
fn without_a_filter_those_calls_fail_for_other_reasons() {
    let script = script(Caller::RootOfItsOwn, CALLS);
    let output = Command::new("python3").args(["-c", &script]).output().unwrap();
    let outcomes = String::from_utf8(output.stdout).unwrap();
    assert_eq!(outcomes.lines().count(), CALLS.len(), "{outcomes} {:?}", output.stderr);
    assert!(!outcomes.contains("EPERM"), "{outcomes}");
}

#[test]
fn system_calls_that_nobody_needs_are_not_permitted() {
    let session = Session::new(|_| {});
    for calls in [CALLS, CALLS_OF_ROOT, NESTING] {
        let outcomes = in_a_sandbox(&session, &script(Caller::AsItIs, calls));
        assert_eq!(outcomes, all_are(calls, "EPERM"));
    }
    // Its flags are in memory. A C library that hears of no such call uses the older one.
    let clone3 = [(libc::SYS_clone3, "clone3", "BAD, 0")];
    let outcomes = in_a_sandbox(&session, &script(Caller::AsItIs, &clone3));
    assert_eq!(outcomes, "clone3: ENOSYS\n");
    // The same calls of another ABI.
    #[cfg(target_arch = "x86_64")]
    {
        let x32 = [(libc::SYS_getpid | 0x4000_0000, "getpid", "")];
        assert_eq!(in_a_sandbox(&session, &script(Caller::AsItIs, &x32)), "getpid: ENOSYS\n");
    }
}

/// In its own terminal and network, where only the filter is in the way.
#[test]
fn typing_into_a_terminal_and_unusual_sockets_are_not_permitted() {
    let script = r#"
import errno, fcntl, os, socket, termios
become_root_of_a_namespace()
def say(what, attempt):
    try: attempt(); print(what, "done")
    except OSError as error: print(what, errno.errorcode[error.errno])
terminal = os.openpty()[1]
say("TIOCSTI", lambda: fcntl.ioctl(terminal, termios.TIOCSTI, b"x"))
say("TIOCLINUX", lambda: fcntl.ioctl(terminal, 0x541C, b"\2"))
say("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
say("raw, of version 6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58))
say("packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM))
say("packets, the oldest way", lambda: socket.socket(socket.AF_INET, 10))
say("the kernel's ciphers", lambda: socket.socket(38, socket.SOCK_SEQPACKET))
say("virtual machines", lambda: socket.socket(40, socket.SOCK_STREAM))
say("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
"#;
    let outcomes =
        in_a_sandbox(&with_nested_namespaces(View::Transactional), &format!("{PROLOGUE}{script}"));
    let expected = "TIOCSTI EPERM\nTIOCLINUX EPERM\nraw EPERM\nraw, of version 6 EPERM\n\
        packets EPERM\npackets, the oldest way EPERM\nthe kernel's ciphers EPERM\n\
        virtual machines EPERM\nnetlink done\n";
    assert_eq!(outcomes, expected);
}
