//! A guest without a machine: a TCP/IP stack of its own at the other end of the cable.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use codeagent_network::link::{GATEWAY, GUEST, PREFIX};
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::{tcp, udp};
use smoltcp::wire::{EthernetAddress, IpCidr, IpEndpoint};

pub(crate) const MAC: EthernetAddress = EthernetAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]);

#[derive(Default)]
struct Card {
    received: VecDeque<Vec<u8>>,
    sent: Vec<u8>,
}

impl Device for Card {
    type RxToken<'a> = In;
    type TxToken<'a> = Out<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(In, Out<'_>)> {
        Some((In(self.received.pop_front()?), Out(&mut self.sent)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Out<'_>> {
        Some(Out(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

struct In(Vec<u8>);
struct Out<'a>(&'a mut Vec<u8>);

impl RxToken for In {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl TxToken for Out<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        let mut frame = vec![0; length];
        let result = fill(&mut frame);
        self.0.extend(framed(&frame));
        result
    }
}

pub(crate) fn framed(frame: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(frame.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend_from_slice(frame);
    bytes
}

pub(crate) struct Guest {
    pub(crate) stream: UnixStream,
    unread: Vec<u8>,
    card: Card,
    interface: Interface,
    sockets: SocketSet<'static>,
    start: Instant,
    next_port: u16,
    /// Every frame that came.
    pub(crate) seen: Vec<Vec<u8>>,
}

impl Guest {
    pub(crate) fn new(stream: UnixStream) -> Self {
        stream.set_nonblocking(true).unwrap();
        let mut card = Card::default();
        let config = Config::new(MAC.into());
        let mut interface = Interface::new(config, &mut card, smoltcp::time::Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(GUEST.into(), PREFIX)).unwrap();
        });
        interface.routes_mut().add_default_ipv4_route(GATEWAY).unwrap();
        let sockets = SocketSet::new(Vec::new());
        let (start, next_port, unread, seen) = (Instant::now(), 40_000, Vec::new(), Vec::new());
        Self { stream, unread, card, interface, sockets, start, next_port, seen }
    }

    /// Sends, receives, and lets the stack work.
    pub(crate) fn turn(&mut self) {
        let mut piece = [0; 64 << 10];
        while let Ok(count) = self.stream.read(&mut piece) {
            if count == 0 {
                break;
            }
            self.unread.extend_from_slice(&piece[..count]);
        }
        while let Some((length, rest)) = self.unread.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            if rest.len() < length {
                break;
            }
            self.seen.push(rest[..length].to_vec());
            self.card.received.push_back(rest[..length].to_vec());
            self.unread.drain(..4 + length);
        }
        let elapsed = i64::try_from(self.start.elapsed().as_millis()).unwrap();
        let now = smoltcp::time::Instant::from_millis(elapsed);
        self.interface.poll(now, &mut self.card, &mut self.sockets);
        let sent = std::mem::take(&mut self.card.sent);
        self.send(&sent);
    }

    /// Bytes as they are, patiently.
    pub(crate) fn send(&mut self, mut bytes: &[u8]) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    assert!(Instant::now() < deadline, "the link does not read");
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn connect(&mut self, to: SocketAddrV4) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; 64 << 10]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        self.next_port += 1;
        socket.connect(self.interface.context(), IpEndpoint::from(to), self.next_port).unwrap();
        self.sockets.add(socket)
    }

    pub(crate) fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Whether a connection comes about.
    pub(crate) fn reaches(&mut self, to: SocketAddrV4) -> bool {
        let handle = self.connect(to);
        let is_decided = |guest: &mut Self| {
            !matches!(guest.tcp(handle).state(), tcp::State::SynSent | tcp::State::SynReceived)
        };
        self.until("a connection is made or refused", is_decided);
        let is_open = self.tcp(handle).is_open();
        self.tcp(handle).abort();
        self.turn();
        is_open
    }

    pub(crate) fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_so(self) {
            assert!(Instant::now() < deadline, "it never came about: {what}");
            self.turn();
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// For a while.
    pub(crate) fn linger(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            self.turn();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends everything, and comes back with what is answered until the other side ends.
    pub(crate) fn exchange(&mut self, to: SocketAddrV4, data: &[u8]) -> Vec<u8> {
        let handle = self.connect(to);
        let (mut rest, mut answer) = (data, Vec::new());
        self.until("everything has come back", |guest| {
            let socket = guest.tcp(handle);
            if socket.can_send() && !rest.is_empty() {
                rest = &rest[socket.send_slice(rest).unwrap()..];
                if rest.is_empty() {
                    socket.close();
                }
            }
            while socket.can_recv() {
                socket.recv(|bytes| (bytes.len(), answer.extend_from_slice(bytes))).unwrap();
            }
            rest.is_empty() && !socket.may_recv()
        });
        answer
    }

    /// What a DNS server says, if it says anything within a while.
    pub(crate) fn look_up(
        &mut self,
        server: Ipv4Addr,
        name: &str,
        kind: RecordType,
    ) -> Option<Message> {
        let mut question = Message::query();
        question.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        let bytes = question.to_vec().unwrap();
        let wait =
            if server == GATEWAY { Duration::from_secs(20) } else { Duration::from_millis(300) };
        let answer = self.datagram(SocketAddrV4::new(server, 53), &bytes, wait)?;
        Some(Message::from_vec(&answer).unwrap())
    }

    pub(crate) fn datagram(
        &mut self,
        to: SocketAddrV4,
        data: &[u8],
        wait: Duration,
    ) -> Option<Vec<u8>> {
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 4], vec![0; 4096]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        self.next_port += 1;
        socket.bind(self.next_port).unwrap();
        socket.send_slice(data, IpEndpoint::from(to)).unwrap();
        let handle = self.sockets.add(socket);
        let deadline = Instant::now() + wait;
        let mut answer = None;
        while answer.is_none() && Instant::now() < deadline {
            self.turn();
            let socket = self.sockets.get_mut::<udp::Socket<'_>>(handle);
            answer = socket.recv().ok().map(|(bytes, _)| bytes.to_vec());
            std::thread::sleep(Duration::from_micros(200));
        }
        self.sockets.remove(handle);
        answer
    }
}
