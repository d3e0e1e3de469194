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

/// Attempts, and what is said when they fail.
const ATTEMPTS: &[(&str, &str)] = &[
    ("write to the system", "echo x > /usr/bin/codeagent-canary"),
    ("write to /etc", "echo x >> /etc/passwd"),
    ("write to the root", "echo x > /canary"),
    ("make the system writable", "mount -o remount,rw /usr"),
    ("mount", "mount -t tmpfs none /tmp"),
    ("unmount", "umount /usr"),
    ("chroot out", "chroot /proc/1/root ls"),
    ("change a kernel setting", "echo 1 > /proc/sys/kernel/panic"),
    ("trigger the kernel", "echo b > /proc/sysrq-trigger"),
    (
        "write to sysfs",
        "f=$(find /sys -maxdepth 5 -type f -perm -200 | head -n 1); [ -n \"$f\" ] && cat \"$f\" > \"$f\"",
    ),
    ("read kernel memory", "head -c 1 /proc/kcore | grep -q . "),
    ("read other people's keys", "grep -q . /proc/keys"),
    ("trace", "python3 -c 'import ctypes,sys; sys.exit(ctypes.CDLL(None).ptrace(0, 0, 0, 0) < 0)'"),
    ("nest a user namespace", "unshare -U true"),
    ("nest a mount namespace", "unshare -m true"),
    ("enter another namespace", "nsenter -t 1 -m true"),
    (
        "a raw socket",
        "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
    ),
    ("a packet socket", "python3 -c 'import socket; socket.socket(17, socket.SOCK_DGRAM)'"),
    ("a device", "mknod null c 1 3"),
    ("a disk", "mknod disk b 8 0"),
    ("set the clock", "date -s 2001-01-01"),
    ("set the name of the host", "hostname canary"),
    ("kill what runs it", "kill -9 1; sleep 0.2; false"),
    ("read the memory of what runs it", "head -c 1 /proc/1/mem"),
    ("the environment of what runs it", "grep -q . /proc/1/environ"),
    ("FUSE", "test -e /dev/fuse"),
    ("KVM", "test -e /dev/kvm"),
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
        for (what, script) in ATTEMPTS {
            let ran = session.run(script);
            assert_ne!(ran.code(), Some(0), "{what} ({view:?}): {ran:?}");
            assert!(ran.code().is_some(), "{what} ({view:?}): {ran:?}");
        }
        assert!(!Path::new("/usr/bin/codeagent-canary").exists());
        let names: Vec<_> = fs::read_dir(session.workspace.working()).unwrap().collect();
        assert!(names.is_empty(), "{names:?}");
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
        "kill -9 {0}; ls /proc/{0} >/dev/null 2>&1 && echo seen; ps ax | grep -c .",
        victim.id()
    ));
    // It takes what runs it with it: nobody knows how it ended, and nothing of it is kept.
    let all = session.try_run(shell("echo x > file; kill -9 -1; sleep 10"));
    assert!(matches!(all, Err(RunError::Lost(_))), "{all:?}");
    assert!(!session.workspace.path("file").exists());
    assert!(!ran.stdout.contains("seen"), "{ran:?}");
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

#[test]
fn a_fork_bomb_and_a_glutton_meet_their_limits() {
    let session = Session::with(TempWorkspace::new(), |policy| {
        policy.limits.processes = Some(64);
        policy.limits.memory_bytes = Some(256 << 20);
        policy.limits.file_bytes = Some(1 << 20);
        policy.limits.open_files = Some(64);
    });
    let mut exec = shell("bomb() { bomb | bomb & }; bomb; sleep 1; echo survived");
    (exec.timeout_ms, exec.grace_ms) = (Some(8000), 500);
    let _ = session.try_run(exec).unwrap();
    let ran = session.run("python3 -c 'x = bytearray(1 << 30)' && echo got it");
    assert!(!ran.stdout.contains("got it"), "{ran:?}");
    let ran = session.run("head -c 2M /dev/zero > big && echo written; ulimit -n");
    assert!(!ran.stdout.contains("written"), "{ran:?}");
    assert!(ran.stdout.ends_with("64\n"), "{ran:?}");
    assert_eq!(session.run("echo still works").stdout, "still works\n");
}
