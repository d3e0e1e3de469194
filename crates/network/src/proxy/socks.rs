//! SOCKS5 (RFC 1928): `CONNECT`, without a password.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{HEAD_TIME, NoWay, connect};
use crate::gate::{Denied, Gate};

/// The first byte of everything.
pub(super) const VERSION: u8 = 5;

const NO_PASSWORD: u8 = 0;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;

/// What is answered.
const DONE: u8 = 0;
const NOT_ALLOWED: u8 = 2;
const HOST_UNREACHABLE: u8 = 4;
const REFUSED: u8 = 5;
const NO_SUCH_COMMAND: u8 = 7;
const NO_SUCH_ADDRESS: u8 = 8;

/// `None`: the client has been told why not.
pub(super) async fn open<S>(client: &mut S, gate: &Arc<Gate>) -> io::Result<Option<TcpStream>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let wanted = match timeout(HEAD_TIME, negotiate(client)).await?? {
        Ok(wanted) => wanted,
        Err(reply) => {
            answer(client, reply).await?;
            return Ok(None);
        }
    };
    let (host, port) = wanted;
    match connect(gate, &host, port).await {
        Ok(server) => {
            answer(client, DONE).await?;
            Ok(Some(server))
        }
        Err(no_way) => {
            answer(client, reply_to(&no_way)).await?;
            Ok(None)
        }
    }
}

fn reply_to(no_way: &NoWay) -> u8 {
    match no_way {
        NoWay::Denied(Denied::Refused(_)) => NOT_ALLOWED,
        NoWay::Denied(Denied::Unknown(_)) => HOST_UNREACHABLE,
        NoWay::Unreachable { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
            REFUSED
        }
        NoWay::Unreachable { .. } => HOST_UNREACHABLE,
    }
}

/// Host and port, or what to answer.
async fn negotiate<S>(client: &mut S) -> io::Result<Result<(String, u16), u8>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let count = client.read_u8().await?;
    let mut methods = vec![0; count.into()];
    client.read_exact(&mut methods).await?;
    if !methods.contains(&NO_PASSWORD) {
        client.write_all(&[VERSION, NO_METHOD]).await?;
        return Err(io::ErrorKind::InvalidData.into());
    }
    client.write_all(&[VERSION, NO_PASSWORD]).await?;
    let mut head = [0; 4];
    client.read_exact(&mut head).await?;
    let [version, command, _, kind] = head;
    if version != VERSION {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let host = match kind {
        1 => Ipv4Addr::from(client.read_u32().await?).to_string(),
        3 => {
            let mut name = vec![0; client.read_u8().await?.into()];
            client.read_exact(&mut name).await?;
            String::from_utf8_lossy(&name).into_owned()
        }
        4 => Ipv6Addr::from(client.read_u128().await?).to_string(),
        _ => return Ok(Err(NO_SUCH_ADDRESS)),
    };
    let port = client.read_u16().await?;
    Ok(if command == CONNECT { Ok((host, port)) } else { Err(NO_SUCH_COMMAND) })
}

/// With an address that says nothing: ours is nobody's business.
async fn answer<S: AsyncWrite + Unpin>(client: &mut S, reply: u8) -> io::Result<()> {
    client.write_all(&[VERSION, reply, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    client.flush().await
}
