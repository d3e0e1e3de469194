//! What commands can reach. Everything is on loopback: what is listed, and what is not.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use codeagent_test_support::as_ordinary_user;
use common::{Person, text};

/// Answers every request with `hello`, and counts who came.
struct Server {
    port: u16,
    visitors: Arc<AtomicUsize>,
}

impl Server {
    fn at(address: impl Into<IpAddr>) -> Self {
        let listener = TcpListener::bind((address.into(), 0)).unwrap();
        let (port, visitors) = (listener.local_addr().unwrap().port(), Arc::default());
        let counter: Arc<AtomicUsize> = Arc::clone(&visitors);
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                counter.fetch_add(1, Ordering::SeqCst);
                let _ = client.read(&mut [0; 4096]);
                let head = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close";
                let _ = write!(client, "{head}\r\n\r\nhello\n");
            }
        });
        Self { port, visitors }
    }

    fn visitors(&self) -> usize {
        self.visitors.load(Ordering::SeqCst)
    }
}

fn said(output: &Output) -> (String, String) {
    (text(&output.stdout), text(&output.stderr))
}

fn what_is_listed_is_reached() {
    let (server, person) = (Server::at([127, 0, 0, 51]), Person::new());
    let port = server.port;
    let rule = format!("127.0.0.51:{port}");
    let script = format!(
        "curl -s http://127.0.0.51:{port}/ && curl -sp http://127.0.0.51:{port}/ && \
         curl -s --proxy socks5h://127.0.0.1:3128 http://127.0.0.51:{port}/"
    );
    let output = person.run_with(&["--network", "allowlist", "--allow-host", &rule], &script);
    let (stdout, stderr) = said(&output);
    assert_eq!(stdout, "hello\n".repeat(3), "{stderr}");
    assert!(!stderr.contains("blocked"), "{stderr}");
    // A name that leads to this machine does not do, unless the address is listed as well.
    let here = Server::at(Ipv4Addr::LOCALHOST);
    let url = format!("curl -s http://localhost:{}/", here.port);
    let name = format!("localhost:{}", here.port);
    let output = person.run_with(&["--allow-host", &name, "--allow-host", "127.0.0.51"], &url);
    assert!(said(&output).0.contains("leads to 127.0.0.1"), "{output:?}");
    assert_eq!(here.visitors(), 0);
    let address = format!("127.0.0.1:{}", here.port);
    let output = person.run_with(&["--allow-host", &name, "--allow-host", &address], &url);
    assert_eq!(said(&output).0, "hello\n");
}

#[test]
fn what_is_listed_can_be_reached() {
    what_is_listed_is_reached();
}

#[test]
fn what_is_listed_can_be_reached_for_an_ordinary_user() {
    as_ordinary_user(
        "what_is_listed_can_be_reached_for_an_ordinary_user",
        what_is_listed_is_reached,
    );
}

/// Every way that comes to mind. A line for each that leads anywhere.
const ATTEMPTS: &str = r#"
import os, socket, sys, urllib.request
port, port6, dns, listed = map(int, sys.argv[1:5])
# Where nobody is to be bothered if something does get out.
elsewhere = ["10.0.2.2", "169.254.169.254", "8.8.8.8"] if "elsewhere" in sys.argv else []
def attempt(name, way):
    try:
        answer = way()
        if answer: print(name, answer)
    except Exception:
        pass
def said(stream, request):
    stream.settimeout(3); stream.sendall(request); return stream.recv(4096)
def direct(host, port):
    return lambda: said(socket.create_connection((host, port), timeout=3), b"GET / HTTP/1.0\r\n\r\n")
attempt("listed address, past the proxy", direct("127.0.0.53", listed))
for host in ["127.0.0.52", "::ffff:127.0.0.52", "localhost", "127.0.0.1"] + elsewhere:
    attempt(host, direct(host, port))
attempt("ipv6", direct("::1", port6))
def proxy():
    return socket.create_connection(("127.0.0.1", 3128), timeout=3)
def unix():
    stream = socket.socket(socket.AF_UNIX); stream.connect("/run/codeagent/gateway"); return stream
for way in [proxy, unix]:
    for host in ["127.0.0.52", "[::ffff:127.0.0.52]", "[::ffff:7f00:34]", "127.0.52", "2130706484", "0x7f.0.0.52", "0.0.0.0", "localhost", "127.0.0.53@127.0.0.52", "127.0.0.53\t127.0.0.52"]:
        def tunnel():
            answer = said(way(), f"CONNECT {host}:{port} HTTP/1.1\r\nHost: 127.0.0.53\r\n\r\n".encode())
            return answer.split(b"\r\n")[0] if b" 200 " in answer else None
        def plain():
            answer = said(way(), f"GET http://{host}:{port}/ HTTP/1.1\r\nHost: 127.0.0.53:{listed}\r\n\r\n".encode())
            return answer if b"hello" in answer else None
        attempt(f"tunnel {host}", tunnel); attempt(f"plain {host}", plain)
    def tunnel6():
        return b" 200 " in said(way(), f"CONNECT [::1]:{port6} HTTP/1.1\r\n\r\n".encode())
    attempt("tunnel ipv6", tunnel6)
    def socks(command, kind, address, port):
        stream = way(); said(stream, b"\x05\x01\x00")
        answer = said(stream, bytes([5, command, 0, kind]) + address + port.to_bytes(2, "big"))
        return answer if answer[1] == 0 else None
    attempt("socks", lambda: socks(1, 1, socket.inet_aton("127.0.0.52"), port))
    attempt("socks name", lambda: socks(1, 3, b"\x09localhost", port))
    attempt("socks ipv6", lambda: socks(1, 4, socket.inet_pton(socket.AF_INET6, "::1"), port6))
    attempt("socks mapped", lambda: socks(1, 4, socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.52"), port))
    attempt("socks bind", lambda: socks(2, 1, socket.inet_aton("127.0.0.53"), listed))
    attempt("socks udp", lambda: socks(3, 1, socket.inet_aton("127.0.0.52"), dns))
    # The connection to the listed server is one to that server, whatever is said on it.
    def smuggled():
        request = f"GET http://127.0.0.53:{listed}/ HTTP/1.1\r\n\r\nGET http://127.0.0.52:{port}/ HTTP/1.1\r\n\r\n"
        stream = way(); said(stream, request.encode()); stream.recv(4096)
    attempt("smuggled", smuggled)
query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06secret\x07example\x03org\x00\x00\x01\x00\x01"
for host in ["127.0.0.52"] + elsewhere:
    def ask():
        stream = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); stream.settimeout(0.3)
        stream.sendto(query, (host, dns)); return stream.recv(512)
    attempt(f"dns {host}", ask)
if elsewhere: attempt("resolver", lambda: socket.getaddrinfo("secret.example.org", 80))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
for name in [name for name in os.environ if "proxy" in name.lower()]: del os.environ[name]
attempt("no variables", lambda: urllib.request.urlopen(f"http://127.0.0.52:{port}/", timeout=3).read())
print("done")
"#;

fn nothing_gets_out() {
    let (unlisted, unlisted6) = (Server::at([127, 0, 0, 52]), Server::at(Ipv6Addr::LOCALHOST));
    let listed = Server::at([127, 0, 0, 53]);
    let dns = UdpSocket::bind("127.0.0.52:0").unwrap();
    dns.set_nonblocking(true).unwrap();
    let person = Person::new();
    std::fs::write(person.path("attempts.py"), ATTEMPTS).unwrap();
    let script = format!(
        "/usr/bin/python3 attempts.py {} {} {} {}",
        unlisted.port,
        unlisted6.port,
        dns.local_addr().unwrap().port(),
        listed.port
    );
    let rule = format!("127.0.0.53:{}", listed.port);
    let allowlist = ["--network", "allowlist", "--allow-host", &rule, "--allow-host", "0.0.0.0/0"];
    for arguments in [&allowlist[..], &["--network", "disabled"]] {
        let script = format!("{script} elsewhere");
        let (stdout, stderr) = said(&person.run_with(arguments, &script));
        assert_eq!(stdout, "done\n", "{arguments:?}: {stderr}");
        assert_eq!((unlisted.visitors(), unlisted6.visitors()), (0, 0));
        assert!(dns.recv(&mut [0; 64]).is_err(), "a datagram got out");
    }
    assert_eq!(listed.visitors(), 2, "the proxy worked all the while");
    // Where nothing is closed the same attempts lead somewhere, so they are good ones.
    let (stdout, _) = said(&person.run_with(&["--network", "open"], &script));
    for way in ["127.0.0.52 ", "::ffff:127.0.0.52 ", "ipv6 ", "no variables ", "listed address"] {
        assert!(stdout.contains(way), "{way}: {stdout}");
    }
    assert!(dns.recv(&mut [0; 64]).is_ok());
}

#[test]
fn nothing_else_gets_out() {
    nothing_gets_out();
}

#[test]
fn nothing_else_gets_out_for_an_ordinary_user() {
    as_ordinary_user("nothing_else_gets_out_for_an_ordinary_user", nothing_gets_out);
}

#[test]
fn what_was_blocked_is_told_once_at_the_end_with_how_to_allow_it() {
    let person = Person::new();
    let script =
        "for n in 1 2 3; do curl -s https://example.org/; done; curl -s http://b.example/; true";
    let output = person.run_with(&["--network", "allowlist"], script);
    let (stdout, stderr) = said(&output);
    let blocked: Vec<&str> = stderr.lines().filter(|line| line.contains("blocked")).collect();
    assert_eq!(
        blocked,
        [
            "sandbox: blocked: example.org:443 is not listed; allow it with --allow-host example.org:443",
            "sandbox: blocked: b.example:80 is not listed; allow it with --allow-host b.example:80",
        ]
    );
    assert_eq!(stdout, "b.example:80 is not listed; allow it with --allow-host b.example:80\n");
    let told = person.json(&["run", "--network", "allowlist", "--", "sh", "-c", script]);
    assert_eq!(told["network_refused"], serde_json::json!(["example.org:443", "b.example:80"]));
}

#[test]
fn the_configuration_lists_hosts_and_a_project_lists_fewer() {
    let (one, two, person) =
        (Server::at([127, 0, 0, 54]), Server::at([127, 0, 0, 55]), Person::new());
    let script = format!(
        "curl -s http://127.0.0.54:{}/; curl -s http://127.0.0.55:{}/; true",
        one.port, two.port
    );
    person.configure(
        "[sandbox]\nnetwork = 'allowlist'\nallow_hosts = ['127.0.0.54', '127.0.0.55']\n",
    );
    assert_eq!(said(&person.run(&script)).0, "hello\nhello\n");
    std::fs::write(
        person.path("codeagent.toml"),
        "[sandbox]\nnetwork = 'allowlist'\nallow_hosts = ['127.0.0.54', '10.0.0.0/8']\n",
    )
    .unwrap();
    let (stdout, stderr) = said(&person.run(&script));
    assert!(stdout.starts_with("hello\n127.0.0.55"), "{stdout}");
    assert!(stderr.contains("sandbox.allow_hosts") && stderr.contains("is ignored"), "{stderr}");
}

#[test]
fn programs_of_a_command_reach_each_other_without_the_proxy() {
    let person = Person::new();
    let script = "/usr/bin/python3 -m http.server 8000 >/dev/null 2>&1 & \
        for n in $(seq 100); do curl -sf http://127.0.0.1:8000/ >/dev/null && echo reached && break; \
        sleep 0.1; done; kill $!";
    let output = person.run_with(&["--allow-host", "example.org"], script);
    assert_eq!(said(&output).0, "reached\n");
}

#[test]
fn the_gateway_goes_with_its_session_and_leftovers_with_the_next() {
    let person = Person::new();
    person.run_with(&["--network", "allowlist"], "true");
    let sandboxes = person.home().join(".codeagent/sandboxes");
    let dir = std::fs::read_dir(&sandboxes).unwrap().next().unwrap().unwrap().path();
    let gateways = || {
        let names = std::fs::read_dir(&dir).unwrap().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("gateway-")).count()
    };
    assert_eq!(gateways(), 0);
    drop(std::os::unix::net::UnixListener::bind(dir.join("gateway-1-1")).unwrap());
    person.run_with(&["--network", "allowlist"], "true");
    assert_eq!(gateways(), 0);
}

#[test]
fn a_frontend_names_hosts_and_hears_of_what_was_blocked() {
    use common::client::frontend;
    use serde_json::json;
    let (server, person) = (Server::at([127, 0, 0, 56]), Person::new());
    let network = json!({
        "network_policy": "allowlist", "network_allowlist": [format!("127.0.0.56:{}", server.port)],
    });
    let mut client = frontend(&person, &[], network);
    assert_eq!(client.ask("session.status", json!({}))["network_policy"], "allowlist");
    let command =
        format!("curl -s http://127.0.0.56:{}/; curl -s http://other.example/", server.port);
    let done = client.ask("agent.execute", json!({"command": command}));
    assert_eq!(done["exit_code"], 0, "{done}");
    assert_eq!(server.visitors(), 1);
    let told = client.wait_for(|line| line["payload"]["code"] == "network_refused");
    assert!(told.to_string().contains("--allow-host other.example:80"), "{told}");
    client.ask("session.stop", json!({}));
    let start = json!({
        "working_directories": [{"path": person.project()}],
        "network_policy": "allowlist", "network_allowlist": ["example.org", "https://b"],
    });
    let id = client.request("session.start", start);
    let error = client.response(id)["error"].clone();
    assert_eq!(error["field"], "payload.network_allowlist[1]", "{error}");
}
