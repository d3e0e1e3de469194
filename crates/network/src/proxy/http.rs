//! HTTP/1: `CONNECT host:port`, and requests that name the whole address.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{HEAD_TIME, NoWay, connect};
use crate::gate::{Denied, Gate};

const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 128;

/// Headers that are for the proxy, or that it says itself.
const OWN: [&str; 6] =
    ["host", "connection", "keep-alive", "proxy-connection", "proxy-authorization", "te"];

/// What a client wants, and how it goes on.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    host: String,
    port: u16,
    /// What the server gets first; `None` for a tunnel.
    head: Option<Vec<u8>>,
}

/// `None`: the client has been told why not. The first byte of the head has been read already.
pub(super) async fn open<S>(
    client: &mut S,
    first: u8,
    gate: &Arc<Gate>,
) -> io::Result<Option<TcpStream>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut read = vec![first];
    let wanted = match timeout(HEAD_TIME, read_head(client, &mut read)).await? {
        Ok((wanted, head_bytes)) => {
            read.drain(..head_bytes);
            wanted
        }
        Err(Bad::Io(error)) => return Err(error),
        Err(bad) => {
            refuse(client, "400 Bad Request", &bad.to_string()).await?;
            return Ok(None);
        }
    };
    let mut server = match connect(gate, &wanted.host, wanted.port).await {
        Ok(server) => server,
        Err(no_way) => {
            let status = match &no_way {
                NoWay::Denied(Denied::Refused(_)) => "403 Forbidden",
                NoWay::Denied(Denied::Unknown(_)) | NoWay::Unreachable { .. } => "502 Bad Gateway",
            };
            refuse(client, status, &no_way.to_string()).await?;
            return Ok(None);
        }
    };
    match wanted.head {
        None => client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?,
        Some(head) => server.write_all(&head).await?,
    }
    // What came with the head.
    server.write_all(&read).await?;
    Ok(Some(server))
}

#[derive(Debug, thiserror::Error)]
enum Bad {
    #[error("the sandbox's proxy does not understand this request: {0}")]
    Head(#[from] httparse::Error),
    #[error("the head of this request is longer than the sandbox's proxy reads")]
    TooLong,
    #[error("this is a proxy: name the whole address, as http://example.org/, or use CONNECT")]
    NoAddress,
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Reads until the end of the head; more may have been read.
async fn read_head<S>(client: &mut S, read: &mut Vec<u8>) -> Result<(Wanted, usize), Bad>
where
    S: AsyncRead + Unpin,
{
    let mut piece = [0; 4096];
    loop {
        let count = client.read(&mut piece).await?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        read.extend_from_slice(&piece[..count]);
        match parse(read)? {
            Some(parsed) => return Ok(parsed),
            None if read.len() > MAX_HEAD_BYTES => return Err(Bad::TooLong),
            None => {}
        }
    }
}

/// What is wanted, and how long the head is; `None` if there is more to come.
fn parse(read: &[u8]) -> Result<Option<(Wanted, usize)>, Bad> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(read)? {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial => return Ok(None),
    };
    let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    let wanted = if method == "CONNECT" {
        let (host, port) = authority(target, None).ok_or(Bad::NoAddress)?;
        Wanted { host, port, head: None }
    } else {
        let rest = strip_scheme(target).ok_or(Bad::NoAddress)?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (named, path) = rest.split_at(end);
        let (host, port) = authority(named, Some(80)).ok_or(Bad::NoAddress)?;
        let head = forwarded(method, named, path, request.headers);
        Wanted { host, port, head: Some(head) }
    };
    Ok(Some((wanted, length)))
}

fn strip_scheme(target: &str) -> Option<&str> {
    let (scheme, rest) = target.split_at_checked("http://".len())?;
    scheme.eq_ignore_ascii_case("http://").then_some(rest)
}

/// `host:port`, `[address]:port`; nothing else, and no user.
fn authority(text: &str, default: Option<u16>) -> Option<(String, u16)> {
    let is_bracketed = text.starts_with('[');
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !is_bracketed || host.ends_with(']') => {
            (host, port.parse().ok().filter(|port| *port > 0)?)
        }
        _ => (text, default?),
    };
    (!host.is_empty() && !host.contains('@')).then(|| (host.to_owned(), port))
}

/// The head for the server. The connection is for this one request: the next one may be for
/// another host.
fn forwarded(method: &str, host: &str, path: &str, headers: &[httparse::Header<'_>]) -> Vec<u8> {
    let slash = if path.starts_with('/') { "" } else { "/" };
    let path = path.split('#').next().unwrap_or_default();
    let mut head = format!("{method} {slash}{path} HTTP/1.1\r\nHost: {host}\r\n").into_bytes();
    for header in headers {
        if !OWN.iter().any(|own| header.name.eq_ignore_ascii_case(own)) {
            for part in [header.name.as_bytes(), b": ", header.value, b"\r\n"] {
                head.extend_from_slice(part);
            }
        }
    }
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    head
}

async fn refuse<S>(client: &mut S, status: &str, sentence: &str) -> io::Result<()>
where
    S: AsyncWrite + Unpin,
{
    let length = sentence.len() + 1;
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{sentence}\n"
    );
    client.write_all(answer.as_bytes()).await?;
    client.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<Wanted> {
        parse(text.as_bytes()).ok().flatten().map(|(wanted, _)| wanted)
    }

    #[test]
    fn tunnels_and_whole_addresses_are_understood() {
        let tunnel = parsed("CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n");
        let expected = Wanted { host: "example.org".into(), port: 443, head: None };
        assert_eq!(tunnel, Some(expected));
        let tunnel = parsed("CONNECT [::1]:443 HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!((tunnel.host.as_str(), tunnel.port), ("[::1]", 443));
        for (target, host, port, line) in [
            ("http://example.org/a?b", "example.org", 80, "GET /a?b HTTP/1.1"),
            ("HTTP://example.org:8080", "example.org", 8080, "GET / HTTP/1.1"),
            ("http://example.org?b#c", "example.org", 80, "GET /?b HTTP/1.1"),
            ("http://[::1]/", "[::1]", 80, "GET / HTTP/1.1"),
        ] {
            let wanted = parsed(&format!("GET {target} HTTP/1.1\r\n\r\n")).unwrap();
            assert_eq!((wanted.host.as_str(), wanted.port), (host, port), "{target}");
            assert!(wanted.head.unwrap().starts_with(line.as_bytes()), "{target}");
        }
    }

    #[test]
    fn the_server_hears_of_the_host_that_was_asked_for_and_nothing_that_is_for_the_proxy() {
        let head = parsed(
            "POST http://example.org/ HTTP/1.1\r\nHost: other.net\r\nProxy-Authorization: x\r\n\
             Connection: keep-alive\r\nContent-Length: 3\r\n\r\nabc",
        );
        assert_eq!(
            String::from_utf8(head.unwrap().head.unwrap()).unwrap(),
            "POST / HTTP/1.1\r\nHost: example.org\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
        );
    }

    #[test]
    fn what_names_no_host_is_refused() {
        for text in [
            "GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
            "GET https://example.org/ HTTP/1.1\r\n\r\n",
            "GET http:// HTTP/1.1\r\n\r\n",
            "GET http://user@example.org/ HTTP/1.1\r\n\r\n",
            "GET http://example.org:99999/ HTTP/1.1\r\n\r\n",
            "CONNECT example.org HTTP/1.1\r\n\r\n",
            "CONNECT :443 HTTP/1.1\r\n\r\n",
            "CONNECT example.org:0 HTTP/1.1\r\n\r\n",
            "nonsense\r\n\r\n",
            "\0\0\0\0",
        ] {
            assert_eq!(parsed(text), None, "{text:?}");
        }
    }
}
