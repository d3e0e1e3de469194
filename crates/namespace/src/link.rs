//! Messages between whoever asks for a sandbox and the process that becomes one: a length, a
//! body, and descriptors.

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

/// As many working directories as there can be, and the control channel.
const MAX_DESCRIPTORS: usize = 16;
const MAX_BYTES: u32 = 1 << 20;

pub(crate) fn send<T: Serialize>(
    socket: &UnixStream,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let body = rmp_serde::to_vec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?.to_le_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    sendmsg(socket, &[IoSlice::new(&length)], &mut ancillary, SendFlags::NOSIGNAL)?;
    (&*socket).write_all(&body)
}

/// Hands over descriptors, for somebody to [`hold`].
pub(crate) fn leave(socket: &UnixStream, descriptors: &[OwnedFd]) -> io::Result<()> {
    for some in descriptors.chunks(MAX_DESCRIPTORS) {
        let some: Vec<_> = some.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&some));
        sendmsg(socket, &[IoSlice::new(b".")], &mut ancillary, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// Takes descriptors that were left in a socket. `false` when there will be no more.
pub(crate) fn hold(socket: &UnixStream, held: &mut Vec<OwnedFd>) -> io::Result<bool> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = rustix::io::retry_on_intr(|| {
        let mut into = [IoSliceMut::new(&mut byte)];
        recvmsg(socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    held.extend(descriptors(ancillary));
    Ok(received.bytes > 0)
}

fn descriptors(mut ancillary: RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let of = |message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    };
    ancillary.drain().filter_map(of).flatten().collect()
}

pub(crate) fn receive<T: DeserializeOwned>(socket: &UnixStream) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut into = [IoSliceMut::new(&mut length)];
        recvmsg(socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptors = descriptors(ancillary);
    (&*socket).read_exact(&mut length[received.bytes..])?;
    let length = u32::from_le_bytes(length);
    if length > MAX_BYTES {
        return Err(io::Error::other("a message is too long"));
    }
    let mut body = vec![0; length as usize];
    (&*socket).read_exact(&mut body)?;
    Ok((rmp_serde::from_slice(&body).map_err(io::Error::other)?, descriptors))
}
