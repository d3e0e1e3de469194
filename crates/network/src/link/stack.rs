//! What a guest finds at the other end of its cable: a gateway that answers ARP, pings and DNS,
//! and behind it whatever the gate lets through.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::{tcp, udp};
use smoltcp::wire::{IpCidr, IpEndpoint};

use super::connection::{Open, Opening};
use super::device::Wire;
use super::dns::{self, Heard, MAX_QUESTION_BYTES};
use super::framing::Outgoing;
use super::inspect::{Flow, Kind, inspect};
use super::lookups::{Lookup, Lookups};
use super::{DNS_PORT, GATEWAY, GATEWAY_MAC, PREFIX};
use crate::gate::Gate;

/// At once, with those that are being made.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// Of each direction of a connection.
const BUFFER_BYTES: usize = 64 << 10;
const MAX_DATAGRAMS: usize = 64;
/// Until a server has answered the connection.
const CONNECT_TIME: Duration = Duration::from_secs(30);
/// A guest that confirms nothing for so long has lost the connection.
const SILENCE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(120);

/// Begins a connection to the host.
pub(super) type Dial = fn(SocketAddrV4) -> io::Result<OwnedFd>;

pub(super) struct Stack {
    gate: Arc<Gate>,
    dial: Dial,
    interface: Interface,
    sockets: SocketSet<'static>,
    wire: Wire,
    dns: SocketHandle,
    lookups: Lookups,
    opening: HashMap<Flow, Opening>,
    open: HashMap<Flow, Open>,
    start: Instant,
}

impl Stack {
    pub(super) fn new(gate: Arc<Gate>, dial: Dial, lookup_threads: usize) -> io::Result<Self> {
        let (mut wire, start) = (Wire::default(), Instant::now());
        let config = Config::new(GATEWAY_MAC.into());
        let mut interface = Interface::new(config, &mut wire, smoltcp::time::Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            // There is room for two.
            let _ = addresses.push(IpCidr::new(GATEWAY.into(), PREFIX));
        });
        // Every address is ours; what is let through to them has been judged before.
        interface.set_any_ip(true);
        let full = |_| io::Error::other("no room for a route");
        interface.routes_mut().add_default_ipv4_route(GATEWAY).map_err(full)?;
        let mut sockets = SocketSet::new(Vec::new());
        let dns = sockets.add(dns_socket()?);
        let lookups = Lookups::start(&gate, lookup_threads)?;
        let (opening, open) = Default::default();
        Ok(Self { gate, dial, interface, sockets, wire, dns, lookups, opening, open, start })
    }

    /// What is to go to the guest.
    pub(super) fn out(&mut self) -> &mut Outgoing {
        &mut self.wire.out
    }

    /// A frame of the guest.
    pub(super) fn take(&mut self, frame: &[u8]) {
        match inspect(frame) {
            None => {}
            Some(Kind::Neighbourly) => self.pass_on(frame.to_vec()),
            Some(Kind::Syn(flow)) => self.connect(flow, frame),
            Some(Kind::Reset(flow)) => {
                self.opening.remove(&flow);
                self.pass_on(frame.to_vec());
            }
            Some(Kind::Segment(flow)) if self.opening.contains_key(&flow) => {}
            Some(Kind::Segment(_)) => self.pass_on(frame.to_vec()),
        }
    }

    /// To smoltcp, which refuses every connection that it has no socket for.
    fn pass_on(&mut self, frame: Vec<u8>) {
        self.wire.arrived = Some(frame);
        let now = self.now();
        self.interface.poll_ingress_single(now, &mut self.wire, &mut self.sockets);
    }

    fn connect(&mut self, flow: Flow, frame: &[u8]) {
        if self.opening.contains_key(&flow) {
            return;
        }
        if self.open.contains_key(&flow) {
            return self.pass_on(frame.to_vec());
        }
        let is_full = self.opening.len() + self.open.len() >= MAX_CONNECTIONS;
        let allowed = self.gate.address((*flow.to.ip()).into(), flow.to.port());
        match allowed.ok().filter(|_| !is_full).and_then(|to| (self.dial)(to).ok()) {
            Some(host) => {
                let (syn, until) = (frame.to_vec(), Instant::now() + CONNECT_TIME);
                self.opening.insert(flow, Opening { host, syn, until });
            }
            None => self.pass_on(frame.to_vec()),
        }
    }

    /// Does whatever can be done now.
    pub(super) fn advance(&mut self) {
        self.settle();
        self.converse();
        for open in self.open.values_mut() {
            open.pump(self.sockets.get_mut::<tcp::Socket<'_>>(open.guest));
        }
        let now = self.now();
        self.interface.poll_egress(now, &mut self.wire, &mut self.sockets);
        self.sweep();
    }

    /// Connections that the host has made, or has not.
    fn settle(&mut self) {
        let now = Instant::now();
        let outcome = |(flow, opening): (&Flow, &Opening)| Some((*flow, opening.outcome(now)?));
        let settled: Vec<_> = self.opening.iter().filter_map(outcome).collect();
        for (flow, outcome) in settled {
            let Some(Opening { host, syn, .. }) = self.opening.remove(&flow) else { continue };
            if outcome.is_err() {
                // Without a socket the guest is refused, as we were.
                self.pass_on(syn);
                continue;
            }
            let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER_BYTES]);
            let mut socket = tcp::Socket::new(buffer(), buffer());
            socket.set_nagle_enabled(false);
            socket.set_timeout(Some(SILENCE));
            if socket.listen(IpEndpoint::from(flow.to)).is_err() {
                self.pass_on(syn);
                continue;
            }
            // It listens for this one packet only, and belongs to the guest's port from then on.
            let guest = self.sockets.add(socket);
            self.open.insert(flow, Open::new(host, guest));
            self.pass_on(syn);
        }
    }

    /// Questions about names, and their answers.
    fn converse(&mut self) {
        let socket = self.sockets.get_mut::<udp::Socket<'_>>(self.dns);
        for (lookup, addresses) in self.lookups.take_found() {
            let answer = match addresses {
                Some(addresses) => lookup.question.answer(&addresses),
                None => lookup.question.deny(),
            };
            say(socket, answer, lookup.from);
        }
        while let Ok((datagram, about)) = socket.recv() {
            let (heard, from) = (dns::hear(datagram), about.endpoint);
            let answer = match heard {
                Heard::Nothing => None,
                Heard::Answer(answer) => Some(answer),
                Heard::Addresses(question) | Heard::Other(question)
                    if self.gate.check_name(&question.name, None).is_err() =>
                {
                    question.deny()
                }
                Heard::Other(question) => question.answer(&[]),
                Heard::Addresses(question) => {
                    let refused = self.lookups.ask(Lookup { question, from });
                    refused.and_then(|lookup| lookup.question.put_off())
                }
            };
            say(socket, answer, from);
        }
    }

    /// Forgets connections that are over. No packet gets lost on this cable, so nobody has to wait
    /// for late ones.
    fn sweep(&mut self) {
        use tcp::State::{Closed, Listen, TimeWait};
        self.open.retain(|_, open| {
            let state = self.sockets.get::<tcp::Socket<'_>>(open.guest).state();
            let is_over = matches!(state, Closed | Listen | TimeWait);
            if is_over {
                self.sockets.remove(open.guest);
            }
            !is_over
        });
    }

    /// What to watch, beside the guest.
    pub(super) fn watched(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let opening = self.opening.values().map(|opening| (opening.host.as_fd(), PollFlags::OUT));
        let open = self.open.values().map(|open| {
            let guest = self.sockets.get::<tcp::Socket<'_>>(open.guest);
            (open.host.as_fd(), open.interest(guest))
        });
        // A descriptor that nobody is interested in would still tell that it was hung up.
        let open = open.filter(|(_, interest)| !interest.is_empty());
        let bell = [(self.lookups.bell.as_fd(), PollFlags::IN)];
        bell.into_iter().chain(opening).chain(open).collect()
    }

    /// How long there is nothing to do if nothing happens.
    pub(super) fn rest(&mut self) -> Option<Duration> {
        let until = self.opening.values().map(|opening| opening.until).min();
        let until = until.map(|until| until.saturating_duration_since(Instant::now()));
        let now = self.now();
        // When nothing more fits, only the guest can change that.
        let has_room = self.wire.out.has_room();
        let stack = self.interface.poll_delay(now, &self.sockets).filter(|_| has_room);
        let stack = stack.map(Duration::from);
        [until, stack].into_iter().flatten().min()
    }

    fn now(&self) -> smoltcp::time::Instant {
        let elapsed = self.start.elapsed().as_millis();
        smoltcp::time::Instant::from_millis(i64::try_from(elapsed).unwrap_or(i64::MAX))
    }

    /// Connections that are open or being made.
    pub(super) fn connections(&self) -> usize {
        self.opening.len() + self.open.len()
    }
}

fn dns_socket() -> io::Result<udp::Socket<'static>> {
    let buffer = || {
        let slots = vec![udp::PacketMetadata::EMPTY; MAX_DATAGRAMS];
        udp::PacketBuffer::new(slots, vec![0; MAX_DATAGRAMS * MAX_QUESTION_BYTES])
    };
    let mut socket = udp::Socket::new(buffer(), buffer());
    let bound = socket.bind((GATEWAY, DNS_PORT));
    bound.map_err(|_| io::Error::other("DNS cannot be answered"))?;
    Ok(socket)
}

/// If there is no room, the guest asks again.
fn say(socket: &mut udp::Socket<'_>, answer: Option<Vec<u8>>, to: IpEndpoint) {
    if let Some(answer) = answer {
        let _ = socket.send_slice(&answer, to);
    }
}
