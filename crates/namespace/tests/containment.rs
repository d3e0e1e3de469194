//! What a hostile command tries. Each attempt is refused, and what it was after is untouched.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};

use codeagent_namespace::{Network, RunError, View};
use codeagent_test_support::TempWorkspace;
use common::{Session, as_ordinary_user_with_fuse, sh, shell};

const VIEWS: [View; 3] = [View::Transactional, View::Live, View::ReadOnly];

/// A home with secrets and a tool in it.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let secrets = [
        ".ssh/id_ed25519",
        ".gnupg/key",
        ".aws/credentials",
        ".config/gh/hosts.yml",
        ".netrc",
        ".git-credentials",
        ".docker/config.json",
        ".kube/config",
        ".mozilla/profile/logins.json",
        ".cargo/credentials.toml",
        ".local/share/keyrings/login.keyring",
        "other-project/file",
    ];
    for secret in secrets {
        let path = home.path().join(secret);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "canary").unwrap();
    }
    fs::create_dir_all(home.path().join(".cargo/bin")).unwrap();
    fs::write(home.path().join(".cargo/bin/tool"), "#!/bin/sh\necho works\n").unwrap();
    sh("chmod +x .cargo/bin/tool", home.path());
    home
}

#[test]
fn secrets_and_other_projects_are_not_there() {
    look_for_secrets();
}

#[test]
fn an_ordinary_user_sees_no_secrets_either() {
    as_ordinary_user_with_fuse("an_ordinary_user_sees_no_secrets_either", look_for_secrets);
}

fn look_for_secrets() {
    let home = home();
    for view in VIEWS {
        let session =
            Session::with(TempWorkspace::new(), |policy| policy.home = Some(home.path().into()))
                .seen(view);
        let script = format!(
            "grep -rs canary ~ /home /root /tmp /var /run /mnt /srv {0} 2>/dev/null; \
             ls {0}/other-project 2>&1; cat {1} 2>&1; ls {2} 2>&1",
            home.path().display(),
            session.workspace.undo().join("version").display(),
            session.workspace.undo().display(),
        );
        let ran = session.run(&script);
        assert!(!ran.stdout.contains("canary"), "{ran:?}");
        assert_eq!(ran.stdout.matches("No such file or directory").count(), 3, "{ran:?}");
    }
    assert_eq!(fs::read_to_string(home.path().join(".ssh/id_ed25519")).unwrap(), "canary");
}

#[test]
fn tools_of_the_home_work_and_stay_as_they_are() {
    let home = home();
    let session =
        Session::with(TempWorkspace::new(), |policy| policy.home = Some(home.path().into()));
    let ran = session.run(
        "~/.cargo/bin/tool; echo new > ~/.cargo/bin/other; rm ~/.cargo/bin/tool; ls ~/.cargo/bin",
    );
    assert_eq!(ran.stdout, "works\nother\n", "{ran:?}");
    assert_eq!(session.run("ls ~/.cargo/bin").stdout, "other\n", "what it installed is kept");
    let bin = fs::read_dir(home.path().join(".cargo/bin")).unwrap();
    let names: Vec<_> = bin.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["tool"]);
}

/// What somebody tries, the program it takes, and what to say so that it happens.
type Attempt = (&'static str, &'static str, &'static str);

const ATTEMPTS: &[Attempt] = &[
    ("write to the system", "sh", "echo x > /usr/bin/codeagent-canary"),
    ("write to /etc", "sh", "echo x >> /etc/passwd"),
    ("write to the root", "sh", "echo x > /codeagent-canary"),
    ("make the system writable", "mount", "mount -o remount,rw /usr"),
    ("mount", "mount", "mount -t tmpfs none /tmp"),
    ("unmount", "umount", "umount /usr"),
    ("chroot out", "chroot", "chroot /proc/1/root ls"),
    ("change a kernel setting", "sh", "echo 1 > /proc/sys/kernel/panic"),
    ("have the kernel start a program", "sh", "echo '|/bin/sh' > /proc/sys/kernel/core_pattern"),
    ("trigger the kernel", "sh", "echo b > /proc/sysrq-trigger"),
    (
        "write to sysfs",
        "find",
        // Where there is nothing that could be written to, nothing is refused.
        "f=$(find /sys -maxdepth 5 -type f -perm -200 | head -n 1); \
         cat \"${f:-/sys/kernel/x}\" > \"${f:-/sys/kernel/x}\"",
    ),
    (
        "trace",
        "python3",
        "python3 -c 'import ctypes, os
c = ctypes.CDLL(None, use_errno=True)
if c.ptrace(0, 0, 0, 0) < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))'",
    ),
    ("nest a user namespace", "unshare", "unshare -U true"),
    ("nest a mount namespace", "unshare", "unshare -m true"),
    ("enter another namespace", "nsenter", "nsenter -t 1 -m true"),
    (
        "a raw socket",
        "python3",
        "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
    ),
    (
        "a packet socket",
        "python3",
        "python3 -c 'import socket; socket.socket(17, socket.SOCK_DGRAM)'",
    ),
    ("a device", "mknod", "mknod null c 1 3"),
    ("a disk", "mknod", "mknod disk b 8 0"),
    ("a disk in /tmp", "mknod", "mknod /tmp/disk b 8 0"),
    ("set the clock", "date", "date -s 2001-01-01"),
    ("set the name of the host", "hostname", "hostname canary"),
    ("read the memory of what runs it", "head", "head -c 1 /proc/1/mem"),
    ("the environment of what runs it", "cat", "cat /proc/1/environ"),
    ("what is open in what runs it", "cat", "for f in 0 3 4 5; do cat /proc/1/fd/$f; done; false"),
    ("the root of what runs it", "ls", "ls /proc/1/root/"),
    ("FUSE", "ls", "ls /dev/fuse"),
    ("KVM", "ls", "ls /dev/kvm"),
    ("disks", "ls", "ls /dev/sda /dev/vda /dev/nvme0n1"),
];

/// How programs say that something is not allowed, or not there. What fails for another reason has
/// not been tried.
const REFUSALS: [&str; 7] = [
    "Read-only file system",
    "Operation not permitted",
    "ermission denied",
    "must be superuser",
    "you must be root",
    "No such file or directory",
    "Directory nonexistent",
];

#[test]
fn every_attempt_is_refused() {
    attempt_everything();
}

#[test]
fn every_attempt_of_an_ordinary_user_is_refused() {
    as_ordinary_user_with_fuse("every_attempt_of_an_ordinary_user_is_refused", attempt_everything);
}

fn attempt_everything() {
    for view in VIEWS {
        let session = Session::new(|_| {}).seen(view);
        let before = Host::now();
        let programs: Vec<_> = ATTEMPTS.iter().map(|(_, program, _)| *program).collect();
        let look = "do command -v $program > /dev/null || echo $program; done";
        let missing = session.run(&format!("for program in {}; {look}", programs.join(" ")));
        assert_eq!(missing.stdout, "", "nobody tries what these are for: {missing:?}");
        for (what, _, script) in ATTEMPTS {
            let ran = session.run(script);
            assert!(ran.code().is_some_and(|code| code != 0), "{what} ({view:?}): {ran:?}");
            let is_refused = REFUSALS.iter().any(|refusal| ran.stderr.contains(refusal));
            assert!(is_refused, "{what} ({view:?}): {ran:?}");
        }
        assert_eq!(before, Host::now(), "{view:?}");
        let names: Vec<_> = fs::read_dir(session.workspace.working()).unwrap().collect();
        assert!(names.is_empty(), "{names:?}");
    }
}

/// What the attempts are after.
#[derive(Debug, PartialEq)]
struct Host {
    mounts: Vec<String>,
    name: String,
    settings: Vec<Option<String>>,
    /// Names of `/`, and of where else something could be put.
    names: Vec<Vec<std::ffi::OsString>>,
    /// Files that say who may do what.
    files: Vec<Option<Vec<u8>>>,
    /// Whether it is the century it was.
    is_clock_right: bool,
}

impl Host {
    fn now() -> Self {
        const SETTINGS: [&str; 7] = [
            "kernel/panic",
            "kernel/core_pattern",
            "kernel/modprobe",
            "kernel/domainname",
            "kernel/pid_max",
            "vm/overcommit_memory",
            "net/ipv4/ip_forward",
        ];
        const FILES: [&str; 7] = [
            "/etc/passwd",
            "/etc/group",
            "/etc/shadow",
            "/etc/hosts",
            "/etc/hostname",
            "/etc/resolv.conf",
            "/etc/ld.so.preload",
        ];
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        // Other tests mount something in directories of their own meanwhile.
        let of_tests = |line: &str| line.contains(" /dev/shm/") || line.contains(" /tmp/");
        let mut places = ["/", "/usr/bin", "/dev", "/etc"].map(|place| {
            let names = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name());
            names.collect::<Vec<_>>()
        });
        places.iter_mut().for_each(|names| names.sort());
        Self {
            mounts: mounts.lines().filter(|line| !of_tests(line)).map(str::to_owned).collect(),
            name: rustix::system::uname().nodename().to_str().unwrap().to_owned(),
            settings: SETTINGS
                .map(|name| fs::read_to_string(Path::new("/proc/sys").join(name)).ok())
                .into(),
            names: places.into(),
            files: FILES.map(|file| fs::read(file).ok()).into(),
            is_clock_right: std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() > 1_700_000_000,
        }
    }
}

/// Files of `/proc` that are about the machine, and not about a process of the sandbox.
#[test]
fn what_tells_of_the_memory_and_the_keys_of_the_host_is_empty() {
    const READ: &str = "for f in kcore keys key-users kpagecount kpageflags slabinfo timer_list \
        vmallocinfo sched_debug; do head -c 1 /proc/$f 2>/dev/null; done | wc -c";
    let on_host = Command::new("sh").args(["-c", READ]).output().unwrap();
    assert_ne!(String::from_utf8_lossy(&on_host.stdout).trim(), "0", "the host has none of them");
    for view in VIEWS {
        let ran = Session::new(|_| {}).seen(view).run(READ);
        assert_eq!(ran.stdout.trim(), "0", "{view:?}: {ran:?}");
    }
}

/// As those of docker, of a key agent or of a desktop.
#[test]
fn sockets_of_daemons_are_not_there() {
    let mut places = vec![tempfile::tempdir().unwrap()];
    if rustix::process::geteuid().is_root() {
        places.push(tempfile::tempdir_in("/run").unwrap());
    }
    for place in &places {
        let path = place.path().join("docker.sock");
        let _daemon = UnixListener::bind(&path).unwrap();
        for view in VIEWS {
            let session = Session::new(|_| {}).seen(view);
            let ran = session.run(&format!("ls {0}; test -S {0} && echo seen", path.display()));
            assert_eq!(ran.stdout, "", "{view:?}: {ran:?}");
        }
    }
}

/// As git, editors and servers leave them there.
#[test]
fn sockets_of_the_host_in_the_folder_are_out_of_reach() {
    reach_for_sockets_in_the_folder();
}

#[test]
fn those_in_the_folder_of_an_ordinary_user_are_out_of_reach_too() {
    as_ordinary_user_with_fuse(
        "those_in_the_folder_of_an_ordinary_user_are_out_of_reach_too",
        reach_for_sockets_in_the_folder,
    );
}

fn reach_for_sockets_in_the_folder() {
    let views = VIEWS.map(|view| (format!("{view:?}"), Session::new(|_| {}).seen(view)));
    let reading = ("reading".to_owned(), Session::new(|_| {}).reading());
    for (view, session) in views.into_iter().chain([reading]) {
        let daemon = UnixListener::bind(session.workspace.path("stream")).unwrap();
        daemon.set_nonblocking(true).unwrap();
        let post = UnixDatagram::bind(session.workspace.path("datagrams")).unwrap();
        post.set_nonblocking(true).unwrap();
        let ran = session.run(
            "python3 -c '
import socket
def attempt(f):
    try: f(); print(\"reached\")
    except OSError as error: print(\"refused\")
def pair(kind): return socket.socketpair(socket.AF_UNIX, kind)[0]
attempt(lambda: socket.socket(socket.AF_UNIX).connect(\"stream\"))
attempt(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b\"x\", \"datagrams\"))
attempt(lambda: pair(socket.SOCK_DGRAM).sendto(b\"x\", \"datagrams\"))
attempt(lambda: pair(socket.SOCK_RAW).sendto(b\"x\", \"datagrams\"))
attempt(lambda: pair(socket.SOCK_STREAM).connect(\"stream\"))
attempt(lambda: pair(socket.SOCK_SEQPACKET).connect(\"stream\"))
'",
        );
        assert_eq!(ran.stdout, "refused\n".repeat(6), "{view:?}: {ran:?}");
        assert!(daemon.accept().is_err() && post.recv(&mut [0]).is_err(), "{view:?}");
    }
}

#[test]
fn processes_of_the_host_are_out_of_reach() {
    reach_for_processes();
}

#[test]
fn processes_of_an_ordinary_user_are_out_of_reach() {
    as_ordinary_user_with_fuse(
        "processes_of_an_ordinary_user_are_out_of_reach",
        reach_for_processes,
    );
}

fn reach_for_processes() {
    let mut victim = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
    let session = Session::new(|_| {});
    let ran = session.run(&format!(
        "kill -9 {0}; ls /proc/{0} >/dev/null 2>&1 && echo seen; kill -9 1; echo lives",
        victim.id()
    ));
    assert_eq!(ran.stdout, "lives\n", "process 1 is out of reach, too: {ran:?}");
    // It takes what runs it with it: nobody knows how it ended, and nothing of it is kept.
    let all = session.try_run(shell("echo x > file; kill -9 -1; sleep 10"));
    assert!(matches!(all, Err(RunError::Lost(_))), "{all:?}");
    assert!(!session.workspace.path("file").exists());
    assert!(victim.try_wait().unwrap().is_none(), "it has been killed");
    victim.kill().unwrap();
    victim.wait().unwrap();
}

#[test]
fn sockets_of_the_host_are_out_of_reach() {
    use std::os::linux::net::SocketAddrExt;
    let name = format!("codeagent-canary-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract = UnixListener::bind_addr(&address).unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    let script = format!(
        "python3 -c '
import socket
def attempt(what, f):
    try: f(); print(what, \"reached\")
    except OSError as error: print(what, \"refused\")
def unix():
    socket.socket(socket.AF_UNIX).connect(\"\\0{name}\")
def tcp():
    socket.create_connection((\"127.0.0.1\", {port}), timeout=2)
attempt(\"abstract\", unix); attempt(\"tcp\", tcp)
'"
    );
    let closed = Session::new(|_| {});
    assert_eq!(closed.run(&script).stdout, "abstract refused\ntcp refused\n");
    let open = Session::with(TempWorkspace::new(), |policy| policy.network = Network::Open);
    assert_eq!(open.run(&script).stdout, "abstract refused\ntcp reached\n");
}

#[test]
fn the_only_way_out_is_the_gateway_where_there_is_one() {
    VIEWS.into_iter().for_each(go_out_through_the_gateway);
}

fn go_out_through_the_gateway(view: View) {
    use std::io::{Read, Write};
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("gateway");
    let listener = UnixListener::bind(&socket).unwrap();
    let gateway = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut request = [0; 4];
        client.read_exact(&mut request).unwrap();
        client.write_all(b"from the host").unwrap();
        request
    });
    let session = Session::with(TempWorkspace::new(), |policy| {
        policy.network = Network::Gateway { socket: socket.into(), host_loopback: false };
    })
    .seen(view);
    let ran = session.run(
        "python3 -c '
import os,socket
host, port = os.environ[\"https_proxy\"].removeprefix(\"http://\").split(\":\")
s = socket.create_connection((host, int(port))); s.sendall(b\"ping\"); print(s.makefile().read())
'",
    );
    assert_eq!(ran.stdout, "from the host\n", "{view:?}: {ran:?}");
    assert_eq!(&gateway.join().unwrap(), b"ping");
}
