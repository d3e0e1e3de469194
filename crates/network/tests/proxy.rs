//! The proxy, as its clients see it. Servers are on loopback, which has to be listed for that.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use codeagent_network::proxy::Proxy;
use common::{Echo, Listened, gate};
use tempfile::TempDir;

struct Served {
    listened: Listened,
    dir: TempDir,
    proxy: Option<Proxy>,
}

impl Served {
    fn new(rules: &[String], names: &[(&str, &[Ipv4Addr])]) -> Self {
        let (listened, dir) = (gate(rules, names), tempfile::tempdir().unwrap());
        let proxy = Proxy::start(&dir.path().join("socket"), listened.gate.clone()).unwrap();
        Self { listened, dir, proxy: Some(proxy) }
    }

    fn connect(&self) -> UnixStream {
        let client = UnixStream::connect(self.dir.path().join("socket")).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client
    }

    /// Everything that is answered to a request, if nothing more is said.
    fn ask(&self, request: impl AsRef<[u8]>) -> Vec<u8> {
        let mut client = self.connect();
        client.write_all(request.as_ref()).unwrap();
        let _ = client.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer);
        answer
    }

    fn ask_text(&self, request: &str) -> String {
        String::from_utf8(self.ask(request)).unwrap()
    }
}

/// A whole SOCKS conversation, up to what the server gets.
fn socks(kind: u8, address: &[u8], port: u16, then: &[u8]) -> Vec<u8> {
    let mut said = vec![5, 2, 0, 2, 5, 1, 0, kind];
    said.extend(address);
    said.extend(port.to_be_bytes());
    said.extend(then);
    said
}

fn named(name: &str) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(name.len()).unwrap()];
    bytes.extend(name.as_bytes());
    bytes
}

const LOCAL: &[Ipv4Addr] = &[Ipv4Addr::new(127, 0, 0, 21)];

#[test]
fn a_tunnel_leads_to_what_is_listed_by_address_and_by_name() {
    let echo = Echo::at([127, 0, 0, 21]);
    let port = echo.address.port();
    let rules = [format!("127.0.0.21:{port}"), format!("echo.example:{port}")];
    let served = Served::new(&rules, &[("echo.example", LOCAL)]);
    for host in ["127.0.0.21", "echo.example", "ECHO.example.", "[::ffff:127.0.0.21]"] {
        let answer = served.ask_text(&format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\nhello"));
        assert_eq!(answer, "HTTP/1.1 200 Connection established\r\n\r\nhello", "{host}");
    }
    let name = named("echo.example");
    for (kind, address) in [(1, &[127, 0, 0, 21][..]), (3, &name), (3, &named("127.0.0.21"))] {
        let answer = served.ask(socks(kind, address, port, b"hello"));
        assert_eq!(answer, b"\x05\x00\x05\x00\x00\x01\0\0\0\0\0\0hello");
    }
    assert_eq!(echo.visitors(), 7);
    assert_eq!(served.listened.told(), Vec::<String>::new());
}

#[test]
fn nothing_leads_to_what_is_not_listed() {
    let echo = Echo::at([127, 0, 0, 22]);
    let port = echo.address.port();
    let local = [Ipv4Addr::new(127, 0, 0, 22)];
    let served = Served::new(
        &["listed.example".into(), "127.0.0.22:1".into(), "0.0.0.0/0".into()],
        &[("listed.example", &local), ("other.example", &local)],
    );
    let hosts = [
        "127.0.0.22",
        "[::ffff:127.0.0.22]",
        "[::1]",
        "0.0.0.0",
        "0",
        "127.22",
        "2130706454",
        "0x7f000016",
        "localhost",
        "listed.example",
        "other.example",
        "169.254.169.254",
    ];
    for host in hosts {
        let answer = served.ask_text(&format!("CONNECT {host}:{port} HTTP/1.1\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{host}: {answer}");
        let answer = served.ask_text(&format!("GET http://{host}:{port}/ HTTP/1.1\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{host}: {answer}");
        let answer = served.ask(socks(3, &named(host.trim_matches(['[', ']'])), port, b""));
        assert_eq!(answer[..4], [5, 0, 5, 2], "{host}");
    }
    let answer = served.ask(socks(1, &[127, 0, 0, 22], port, b""));
    assert_eq!(answer[..4], [5, 0, 5, 2]);
    let answer = served.ask(socks(4, &Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(), port, b""));
    assert_eq!(answer[..4], [5, 0, 5, 2]);
    assert_eq!(echo.visitors(), 0);
    // Only what is listed was ever looked up.
    assert!(
        served.listened.names.asked.lock().unwrap().iter().all(|name| name == "listed.example")
    );
    assert!(served.listened.told().contains(&format!("other.example:{port}")));
}

#[test]
fn a_refusal_is_one_sentence_that_says_how_to_allow_it() {
    let served = Served::new(&[], &[]);
    let answer = served.ask_text("CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n");
    let body = answer.split("\r\n\r\n").nth(1).unwrap();
    assert_eq!(body, "example.org:443 is not listed; allow it with --allow-host example.org:443\n");
    served.ask_text("CONNECT example.org:443 HTTP/1.1\r\n\r\n");
    assert_eq!(served.listened.told(), ["example.org:443"]);
}

#[test]
fn a_plain_request_reaches_its_server_as_one_of_its_own() {
    let echo = Echo::at([127, 0, 0, 23]);
    let port = echo.address.port();
    let served = Served::new(&["127.0.0.23".into()], &[]);
    let answer = served.ask_text(&format!(
        "POST http://127.0.0.23:{port}/a?b HTTP/1.1\r\nHost: elsewhere\r\nProxy-Connection: x\r\n\
         Content-Length: 4\r\n\r\nbody"
    ));
    assert_eq!(
        answer,
        format!(
            "POST /a?b HTTP/1.1\r\nHost: 127.0.0.23:{port}\r\nContent-Length: 4\r\n\
             Connection: close\r\n\r\nbody"
        )
    );
}

#[test]
fn whatever_is_said_the_proxy_goes_on() {
    let echo = Echo::at([127, 0, 0, 24]);
    let served = Served::new(&["127.0.0.24".into()], &[]);
    let endless = format!("GET http://127.0.0.24/ HTTP/1.1\r\nx: {}", "y".repeat(200_000));
    for nonsense in [
        &b"\x05"[..],
        b"\x05\x00",
        b"\x05\x01\x02",
        b"\x05\x01\x00\x05\x02\x00\x01\x7f\x00\x00\x18\x00\x50",
        b"\x05\x01\x00\x05\x01\x00\x09",
        b"\x04\x01\x00\x50\x7f\x00\x00\x18\x00",
        b"\x16\x03\x01\x02\x00",
        b"\0\0\0\0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"CONNECT \xff\xff:80 HTTP/1.1\r\n\r\n",
        endless.as_bytes(),
        b"",
    ] {
        served.ask(nonsense);
    }
    // More than it serves at once, which say nothing and go away.
    let idle: Vec<_> = (0..300).map(|_| served.connect()).collect();
    drop(idle);
    let port = echo.address.port();
    let answer = served.ask_text(&format!("CONNECT 127.0.0.24:{port} HTTP/1.1\r\n\r\nstill"));
    assert!(answer.ends_with("still"), "{answer}");
}

#[test]
fn a_server_that_is_not_there_is_said_to_be_so() {
    let echo = Echo::at([127, 0, 0, 25]);
    let port = echo.address.port();
    let served = Served::new(&["127.0.0.26".into(), "gone.example".into()], &[]);
    let answer = served.ask_text(&format!("CONNECT 127.0.0.26:{port} HTTP/1.1\r\n\r\n"));
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    let answer = served.ask_text("CONNECT gone.example:443 HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert_eq!(served.listened.told(), Vec::<String>::new());
}

#[test]
fn the_socket_is_its_owners_and_everything_ends_with_the_proxy() {
    let echo = Echo::at([127, 0, 0, 27]);
    let mut served = Served::new(&["127.0.0.27".into()], &[]);
    let socket = served.dir.path().join("socket");
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut client = served.connect();
    let request = format!("CONNECT 127.0.0.27:{} HTTP/1.1\r\n\r\n", echo.address.port());
    client.write_all(request.as_bytes()).unwrap();
    client.read_exact(&mut [0; 39]).unwrap();
    served.proxy = None;
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    assert!(!socket.exists() && UnixStream::connect(&socket).is_err());
}
