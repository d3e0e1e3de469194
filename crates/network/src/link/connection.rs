//! One connection of the guest: a socket of smoltcp on its side, one of the host on the other.
//! Bytes go from the buffer of the one into the other, and are kept nowhere else.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;

/// A connection that the host is making. The guest's first packet waits until it is known whether
/// there is anybody, so that it finds out, too.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) host: OwnedFd,
    pub(super) syn: Vec<u8>,
    pub(super) until: Instant,
}

impl Opening {
    /// Whether it has been made; `None` if that is not known yet.
    pub(super) fn outcome(&self, now: Instant) -> Option<io::Result<()>> {
        let mut fds = [rustix::event::PollFd::new(&self.host, PollFlags::OUT)];
        match rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())) {
            Ok(0) if now < self.until => None,
            Ok(0) => Some(Err(io::ErrorKind::TimedOut.into())),
            Ok(_) => Some(match rustix::net::sockopt::socket_error(&self.host) {
                Ok(Ok(())) => Ok(()),
                Ok(Err(errno)) | Err(errno) => Err(errno.into()),
            }),
            Err(Errno::INTR) => None,
            Err(errno) => Some(Err(errno.into())),
        }
    }
}

/// Begins to connect.
pub(super) fn dial(to: SocketAddrV4) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

/// A connection that both sides have.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) host: OwnedFd,
    pub(super) guest: SocketHandle,
    host_has_ended: bool,
    guest_has_ended: bool,
}

impl Open {
    pub(super) fn new(host: OwnedFd, guest: SocketHandle) -> Self {
        Self { host, guest, host_has_ended: false, guest_has_ended: false }
    }

    /// Carries what can be carried now.
    pub(super) fn pump(&mut self, guest: &mut tcp::Socket<'_>) {
        let carried = self.carry_to_host(guest).and_then(|()| self.carry_to_guest(guest));
        if carried.is_err() {
            guest.abort();
        }
    }

    fn carry_to_host(&mut self, guest: &mut tcp::Socket<'_>) -> io::Result<()> {
        while guest.can_recv() {
            let sent = guest.recv(|bytes| {
                let sent = rustix::net::send(&self.host, bytes, SendFlags::NOSIGNAL);
                (*sent.as_ref().unwrap_or(&0), sent)
            });
            match sent {
                Ok(Ok(0)) | Ok(Err(Errno::AGAIN)) | Err(_) => break,
                Ok(Ok(_) | Err(Errno::INTR)) => {}
                Ok(Err(errno)) => return Err(errno.into()),
            }
        }
        let begins = matches!(guest.state(), tcp::State::Listen | tcp::State::SynReceived);
        if !begins && !guest.may_recv() && !self.guest_has_ended {
            self.guest_has_ended = true;
            // It may be gone altogether.
            let _ = rustix::net::shutdown(&self.host, Shutdown::Write);
        }
        Ok(())
    }

    fn carry_to_guest(&mut self, guest: &mut tcp::Socket<'_>) -> io::Result<()> {
        while guest.can_send() && !self.host_has_ended {
            let read = guest.send(|buffer| {
                let read = rustix::io::read(&self.host, buffer);
                (*read.as_ref().unwrap_or(&0), read)
            });
            match read {
                Ok(Ok(0)) => {
                    self.host_has_ended = true;
                    guest.close();
                }
                Ok(Ok(_) | Err(Errno::INTR)) => {}
                Ok(Err(Errno::AGAIN)) | Err(_) => break,
                Ok(Err(errno)) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// What the host is to be watched for; nothing, while it is the guest's turn.
    pub(super) fn interest(&self, guest: &tcp::Socket<'_>) -> PollFlags {
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, guest.can_send() && !self.host_has_ended);
        interest.set(PollFlags::OUT, guest.can_recv());
        interest
    }
}
