//! What a command is allowed, and what it shares with the host: as little as promised, and it is the
//! kernel that says so.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use codeagent_namespace::{Network, View};
use codeagent_test_support::TempWorkspace;
use codeagent_test_support::filesystems::skip;
use common::{PROGRAM, Session, as_ordinary_user_with_fuse};

const VIEWS: [View; 3] = [View::Transactional, View::Live, View::ReadOnly];

/// The files of others, as far as they can be seen, its own processes, and low ports.
const CAPABILITIES_OF_ROOT: u64 = {
    let (chown, dac_override, fowner, fsetid) = (1 << 0, 1 << 1, 1 << 3, 1 << 4);
    let (kill, setgid, setuid, net_bind_service) = (1 << 5, 1 << 6, 1 << 7, 1 << 10);
    chown | dac_override | fowner | fsetid | kill | setgid | setuid | net_bind_service
};

#[test]
fn a_command_of_root_keeps_few_capabilities_and_gets_no_more() {
    look_at_privileges();
}

#[test]
fn a_command_of_an_ordinary_user_has_no_capabilities_and_gets_none() {
    let test = "a_command_of_an_ordinary_user_has_no_capabilities_and_gets_none";
    as_ordinary_user_with_fuse(test, look_at_privileges);
}

fn look_at_privileges() {
    let is_root = rustix::process::geteuid().is_root();
    let kept = if is_root { CAPABILITIES_OF_ROOT } else { 0 };
    let kept = format!("{kept:016x}");
    let none = format!("{:016x}", 0);
    for view in VIEWS {
        let ran = Session::new(|_| {}).seen(view).run("cat /proc/self/status");
        let status: BTreeMap<_, _> =
            ran.stdout.lines().filter_map(|l| l.split_once(":\t")).collect();
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            assert_eq!(status[set], kept, "{set} ({view:?}): {ran:?}");
        }
        for set in ["CapInh", "CapAmb"] {
            assert_eq!(status[set], none, "{set} ({view:?}): {ran:?}");
        }
        assert_eq!((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"), "{view:?}: {ran:?}");
        assert!(ran.finished.confinement.is_complete(), "{view:?}: {ran:?}");
    }
}

const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "ipc", "uts", "cgroup", "net"];

#[test]
fn no_namespace_is_the_one_of_the_host_but_that_of_an_open_network() {
    compare_namespaces();
}

#[test]
fn nor_is_one_of_those_of_an_ordinary_user() {
    as_ordinary_user_with_fuse("nor_is_one_of_those_of_an_ordinary_user", compare_namespaces);
}

fn compare_namespaces() {
    let of_host: Vec<_> = NAMESPACES
        .iter()
        .map(|kind| fs::read_link(format!("/proc/self/ns/{kind}")).unwrap())
        .map(|link| link.to_str().unwrap().to_owned())
        .collect();
    let script =
        format!("cd /proc/self/ns; for kind in {}; do readlink $kind; done", NAMESPACES.join(" "));
    for (network, shared) in [(Network::Disabled, &[][..]), (Network::Open, &["net"])] {
        for view in VIEWS {
            let with_network =
                |policy: &mut codeagent_namespace::Policy| policy.network = network.clone();
            let session = Session::with(TempWorkspace::new(), with_network).seen(view);
            let ran = session.run(&script);
            let of_command: Vec<_> = ran.stdout.lines().collect();
            assert_eq!(of_command.len(), NAMESPACES.len(), "{ran:?}");
            let both = NAMESPACES.iter().zip(of_host.iter().zip(&of_command));
            let same: Vec<_> = both.filter(|(_, (a, b))| a == *b).map(|(kind, _)| *kind).collect();
            assert_eq!(same, shared, "{view:?}, {network:?}");
        }
    }
}

/// What leads to keys, daemons and accounts.
#[test]
fn variables_of_whoever_starts_the_sandbox_are_not_there() {
    const SECRET: [&str; 7] = [
        "SSH_AUTH_SOCK",
        "GITHUB_TOKEN",
        "DOCKER_HOST",
        "AWS_SECRET_ACCESS_KEY",
        "DBUS_SESSION_BUS_ADDRESS",
        "LD_PRELOAD_CANARY",
        "OPENAI_API_KEY",
    ];
    for view in ["transactional", "live"] {
        let workspace = TempWorkspace::new();
        let state = tempfile::tempdir().unwrap();
        let output = Command::new(PROGRAM)
            .args(["session", view])
            .args([workspace.working(), workspace.undo(), state.path()])
            .arg("env > variables; cat > of-process-1 /proc/1/environ; true")
            .envs(SECRET.map(|name| (name, "canary")))
            .env("LANG", "C.UTF-8")
            .output()
            .unwrap();
        assert!(output.status.success(), "{view}: {output:?}");
        let variables = fs::read_to_string(workspace.path("variables")).unwrap();
        assert!(variables.contains("LANG=C.UTF-8\n"), "what may be passed on is: {variables}");
        assert!(!variables.contains("canary"), "{view}: {variables}");
        assert_eq!(fs::read(workspace.path("of-process-1")).unwrap(), b"", "{view}");
    }
}

/// Runs Python on the host or in a sandbox.
fn python(script: &str, arguments: &str) -> String {
    format!("python3 - {arguments} <<'EOF'\n{script}\nEOF")
}

fn on_the_host(script: &str, arguments: &str) -> String {
    let mut command = Command::new("sh");
    command.args(["-c", &python(script, arguments)]).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Does something on the host when the test is over, however it ends.
struct AtTheEnd<'a>(&'a dyn Fn());

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Objects of System V and POSIX, with the same name or number wherever they are looked for.
const IPC: &str = r#"
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
task, number = sys.argv[1], int(sys.argv[2])
name = b"/codeagent-canary-%d" % number
CREATE = 0o1000 if task == "make" else 0
def say(what, result):
    print(what, "found" if result >= 0 else errno.errorcode[ctypes.get_errno()])
    return result
memory = say("memory", libc.shmget(number, 4096, CREATE | 0o666))
semaphores = say("semaphores", libc.semget(number, 1, CREATE | 0o666))
messages = say("messages", libc.msgget(number, CREATE | 0o666))
say("queue", libc.mq_open(name, os.O_RDWR | (os.O_CREAT if CREATE else 0), 0o666, None))
say("shared", libc.shm_open(name, os.O_RDWR | (os.O_CREAT if CREATE else 0), 0o666))
listed = [len(open("/proc/sysvipc/" + kind).readlines()) - 1 for kind in ("shm", "sem", "msg")]
print("listed", all(count > 0 for count in listed) if any(listed) else "nothing")
if task == "remove":
    libc.shmctl(memory, 0, None); libc.semctl(semaphores, 0, 0); libc.msgctl(messages, 0, None)
    libc.mq_unlink(name); libc.shm_unlink(name)
"#;

#[test]
fn memory_semaphores_and_queues_of_the_host_are_not_there() {
    look_for_ipc();
}

#[test]
fn nor_are_those_of_an_ordinary_user() {
    as_ordinary_user_with_fuse("nor_are_those_of_an_ordinary_user", look_for_ipc);
}

fn look_for_ipc() {
    let number = std::process::id();
    let task = |task| format!("{task} {number}");
    let found =
        "memory found\nsemaphores found\nmessages found\nqueue found\nshared found\nlisted True\n";
    let remove = || drop(on_the_host(IPC, &task("remove")));
    let made = on_the_host(IPC, &task("make"));
    let _end = AtTheEnd(&remove);
    assert_eq!(made, found);
    assert_eq!(on_the_host(IPC, &task("find")), found, "the test finds what is there");
    for view in VIEWS {
        let ran = Session::new(|_| {}).seen(view).run(&python(IPC, &task("find")));
        let expected = "memory ENOENT\nsemaphores ENOENT\nmessages ENOENT\nqueue ENOENT\n\
            shared ENOENT\nlisted nothing\n";
        assert_eq!(ran.stdout, expected, "{view:?}: {ran:?}");
        assert_eq!(on_the_host(IPC, &task("find")), found, "{view:?}");
    }
}

/// Keys in the key rings of the user and of his sessions, which no namespace of ours hides.
const KEYS: &str = r#"
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
task, name, *serials = sys.argv[1:]
serials = [ctypes.c_int(int(serial)) for serial in serials]
ADD_KEY, REQUEST_KEY, KEYCTL = %NUMBERS%
UNLINK, READ, USER_RING, SESSION_RING = 9, 11, -4, -5
def say(what, result, text=""):
    print(what, text if result >= 0 else errno.errorcode[ctypes.get_errno()])
if task == "make":
    for ring in USER_RING, SESSION_RING:
        serial = libc.syscall(ADD_KEY, b"user", b"%s%d" % (name.encode(), -ring), b"secret", 6, ring)
        print(serial if serial >= 0 else errno.errorcode[ctypes.get_errno()])
if task == "read":
    for serial in serials:
        content = ctypes.create_string_buffer(6)
        say("read:", libc.syscall(KEYCTL, READ, serial, content, 6), content.raw.decode())
    for ring in USER_RING, SESSION_RING:
        say("asked for:", libc.syscall(REQUEST_KEY, b"user", b"%s%d" % (name.encode(), -ring), None, 0), "found")
    print("listed:", name in open("/proc/keys").read())
if task == "remove":
    for serial, ring in zip(serials, (USER_RING, SESSION_RING)):
        libc.syscall(KEYCTL, UNLINK, serial, ring)
"#;

#[test]
fn keys_in_the_key_rings_of_the_user_cannot_be_read() {
    look_for_keys("keys_in_the_key_rings_of_the_user_cannot_be_read");
}

#[test]
fn nor_can_those_of_an_ordinary_user() {
    let test = "nor_can_those_of_an_ordinary_user";
    as_ordinary_user_with_fuse(test, || look_for_keys(test));
}

fn look_for_keys(test: &str) {
    let numbers = [libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl];
    let script = KEYS.replace("%NUMBERS%", &format!("{numbers:?}"));
    let name = format!("codeagent-canary-{}-", std::process::id());
    let made = on_the_host(&script, &format!("make {name}"));
    if made.starts_with('E') {
        return skip(test, &format!("a key cannot be added here: {made}"));
    }
    let serials = made.replace('\n', " ");
    let remove = || drop(on_the_host(&script, &format!("remove {name} {serials}")));
    let _end = AtTheEnd(&remove);
    let read = format!("read {name} {serials}");
    let on_host = "read: secret\nread: secret\nasked for: found\nasked for: found\nlisted: True\n";
    assert_eq!(on_the_host(&script, &read), on_host, "the test reads what is there");
    for view in VIEWS {
        let ran = Session::new(|_| {}).seen(view).run(&python(&script, &read));
        let expected =
            "read: EPERM\nread: EPERM\nasked for: EPERM\nasked for: EPERM\nlisted: False\n";
        assert_eq!(ran.stdout, expected, "{view:?}: {ran:?}");
        assert_eq!(on_the_host(&script, &read), on_host, "{view:?}: they are as they were");
    }
}

#[test]
fn the_only_processes_that_can_be_seen_are_its_own() {
    for view in VIEWS {
        let ran = Session::new(|_| {}).seen(view).run("ls -d /proc/[0-9]* | wc -l");
        // Process 1, its supervisor, the shell and what it starts.
        assert!(ran.stdout.trim().parse::<usize>().unwrap() <= 6, "{view:?}: {ran:?}");
    }
}
