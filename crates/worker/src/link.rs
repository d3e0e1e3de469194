//! Messages over a Unix socket, each with a length in front, some with descriptors.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// No message is longer. A file that a tool writes has to fit into one.
const MAX_BYTES: usize = 256 << 20;

/// Most messages are shorter.
const SHORT_BYTES: usize = 16 << 10;

/// No message comes with more.
const MAX_DESCRIPTORS: usize = 2;

pub(crate) fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    rmp_serde::to_vec_named(message).map_err(io::Error::other)
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    rmp_serde::from_slice(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

pub(crate) fn send<T: Serialize>(stream: &UnixStream, message: &T) -> io::Result<()> {
    send_bytes(stream, &encode(message)?, &[])
}

pub(crate) fn send_bytes(
    mut stream: &UnixStream,
    body: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if body.len() > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
    }
    let mut head: &[u8] = &(body.len() as u32).to_le_bytes();
    if !descriptors.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
        }
        let sent = rustix::io::retry_on_intr(|| {
            sendmsg(stream, &[IoSlice::new(head)], &mut ancillary, SendFlags::NOSIGNAL)
        })?;
        head = &head[sent..];
    }
    // At once: the other end is woken by the first byte.
    stream.write_all(&[head, body].concat())
}

/// The next message; `None` at the end of the stream.
pub(crate) fn receive<T: DeserializeOwned>(
    stream: &UnixStream,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let Some((length, descriptors)) = receive_head(stream)? else { return Ok(None) };
    if length > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    // But for short ones, memory follows what arrives, not what was announced.
    let mut body = Vec::with_capacity(length.min(SHORT_BYTES));
    stream.take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Ok(None);
    }
    Ok(Some((decode(&body)?, descriptors)))
}

fn receive_head(stream: &UnixStream) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut head = [0; 4];
    let mut filled = 0;
    let mut found = Vec::new();
    while filled < head.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            let mut rest = [IoSliceMut::new(&mut head[filled..])];
            recvmsg(stream.as_fd(), &mut rest, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        })?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                found.extend(descriptors);
            }
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        filled += received.bytes;
    }
    Ok(Some((u32::from_le_bytes(head) as usize, found)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_with_their_descriptors() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        send(&one, &"first".to_owned()).unwrap();
        let both = [one.as_fd(), writer.as_fd()];
        send_bytes(&one, &encode(&"x".repeat(100_000)).unwrap(), &both).unwrap();
        drop(one);
        let (first, none) = receive::<String>(&other).unwrap().unwrap();
        assert_eq!((first.as_str(), none.len()), ("first", 0));
        let (second, mut some) = receive::<String>(&other).unwrap().unwrap();
        assert_eq!((second.len(), some.len()), (100_000, 2));
        let last = some.pop().unwrap();
        drop(some);
        assert!(receive::<String>(&other).unwrap().is_none());
        drop(writer);
        std::fs::File::from(last).write_all(b"through it").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through it");
    }

    #[test]
    fn a_length_without_its_bytes_costs_no_memory_and_ends_the_stream() {
        let (mut one, other) = UnixStream::pair().unwrap();
        one.write_all(&(200u32 << 20).to_le_bytes()).unwrap();
        drop(one);
        assert!(receive::<String>(&other).unwrap().is_none());
        let (mut one, other) = UnixStream::pair().unwrap();
        one.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(receive::<String>(&other).is_err());
    }
}
