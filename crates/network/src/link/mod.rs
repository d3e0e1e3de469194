//! The network of a guest: Ethernet frames on a stream, as QEMU's `-netdev stream` sends them.
//!
//! The guest has the address [`GUEST`] in a network of [`PREFIX`] bits; [`GATEWAY`] is its router
//! and its DNS server. TCP to what the gate allows goes through sockets of the host; what it does
//! not allow is refused at once. Names that may be looked up have their IPv4 addresses, all others
//! do not exist. Everything else gets no answer: other UDP, IPv6, fragments, other hosts of the
//! network.

mod connection;
mod device;
mod dns;
mod framing;
mod inspect;
mod lookups;
mod stack;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use smoltcp::wire::EthernetAddress;

use crate::gate::Gate;
use framing::{Incoming, MAX_FRAME_BYTES, RESERVE_FRAMES};
use stack::Stack;

/// The address of the guest; it has no other.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
/// Its router and its DNS server.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// Bits of their network.
pub const PREFIX: u8 = 24;

const GATEWAY_MAC: EthernetAddress = inspect::mac(2);
const DNS_PORT: u16 = 53;
/// Names that are looked up at once.
const LOOKUP_THREADS: usize = 4;
/// Read at once: no more frames than can be answered.
const PIECE_BYTES: usize = RESERVE_FRAMES * MAX_FRAME_BYTES;

/// The network of one guest. It is there for as long as this is; all connections end with it.
#[derive(Debug)]
pub struct Link {
    guest: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Serves a guest on a thread of its own, until one side closes the stream.
    pub fn serve(guest: UnixStream, gate: Arc<Gate>) -> io::Result<Self> {
        let held = guest.try_clone()?;
        guest.set_nonblocking(true)?;
        let stack = Stack::new(gate, connection::dial, LOOKUP_THREADS)?;
        let thread = std::thread::Builder::new().name("network-link".into()).spawn(move || {
            // When it ends, for whichever reason, the guest has no network.
            let _ = run(&guest, stack);
            let _ = guest.shutdown(Shutdown::Both);
        })?;
        Ok(Self { guest: held, thread: Some(thread) })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = self.guest.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(mut guest: &UnixStream, mut stack: Stack) -> io::Result<()> {
    let (mut incoming, mut piece) = (Incoming::default(), vec![0; PIECE_BYTES]);
    loop {
        stack.advance();
        send(guest, &mut stack)?;
        wait(guest, &mut stack)?;
        // What it sends may have to be answered: without room for that, it waits.
        if !stack.out().has_room() {
            continue;
        }
        match guest.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                let taken = incoming.take(&piece[..count], |frame| stack.take(frame));
                taken.map_err(io::Error::other)?;
            }
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

fn send(mut guest: &UnixStream, stack: &mut Stack) -> io::Result<()> {
    while !stack.out().pending().is_empty() {
        match guest.write(stack.out().pending()) {
            Ok(count) => stack.out().has_sent(count),
            Err(error) if is_passing(&error) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Until there is something to do.
fn wait(guest: &UnixStream, stack: &mut Stack) -> io::Result<()> {
    let rest = stack.rest().and_then(|rest| Timespec::try_from(rest).ok());
    let (can_read, wants_to_write) = (stack.out().has_room(), !stack.out().pending().is_empty());
    let mut interest = PollFlags::empty();
    interest.set(PollFlags::IN, can_read);
    interest.set(PollFlags::OUT, wants_to_write);
    let mut watched = vec![PollFd::from_borrowed_fd(guest.as_fd(), interest)];
    let hosts = stack.watched();
    watched.extend(hosts.into_iter().map(|(fd, interest)| PollFd::from_borrowed_fd(fd, interest)));
    match poll(&mut watched, rest.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Plays a guest that sends these frames, to a network that connects to nobody. Comes back with
/// how many bytes were answered. For fuzzing.
#[doc(hidden)]
pub fn take_frames<'f>(
    gate: Arc<Gate>,
    frames: impl IntoIterator<Item = &'f [u8]>,
) -> io::Result<usize> {
    fn pair(_: std::net::SocketAddrV4) -> io::Result<std::os::fd::OwnedFd> {
        let (host, peer) = UnixStream::pair()?;
        host.set_nonblocking(true)?;
        (&peer).write_all(b"greetings of a server")?;
        Ok(host.into())
    }
    let (mut stack, mut incoming, mut answered) =
        (Stack::new(gate, pair, 0)?, Incoming::default(), 0);
    for piece in frames {
        let taken = incoming.take(piece, |frame| stack.take(frame));
        stack.advance();
        answered += stack.out().pending().len();
        let all = stack.out().pending().len();
        stack.out().has_sent(all);
        if stack.connections() > stack::MAX_CONNECTIONS || taken.is_err() {
            break;
        }
    }
    Ok(answered)
}
