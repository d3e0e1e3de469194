//! What a frame is, before anything acts on it. Everything that is not named here is dropped.

use std::net::{Ipv4Addr, SocketAddrV4};

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv4Message, Icmpv4Packet, IpProtocol, Ipv4Packet, TcpPacket, UdpPacket,
};

use super::{DNS_PORT, GATEWAY, GATEWAY_MAC, GUEST};

/// A connection, as the guest sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    /// Of the guest.
    pub(super) port: u16,
    pub(super) to: SocketAddrV4,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// ARP for the gateway, a ping of it, a question to its DNS.
    Neighbourly,
    /// The first packet of a connection.
    Syn(Flow),
    /// The guest gives a connection up.
    Reset(Flow),
    /// Any other packet of one.
    Segment(Flow),
}

/// `None`: nobody is to see it.
pub(super) fn inspect(frame: &[u8]) -> Option<Kind> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    // What comes from nowhere or from everywhere cannot be answered.
    if !frame.src_addr().is_unicast() {
        return None;
    }
    let to = frame.dst_addr();
    match frame.ethertype() {
        EthernetProtocol::Arp if to.is_broadcast() || to == GATEWAY_MAC => arp(frame.payload()),
        EthernetProtocol::Ipv4 if to == GATEWAY_MAC => ipv4(frame.payload()),
        _ => None,
    }
}

/// Who asks for the gateway, or says that he is the guest.
fn arp(packet: &[u8]) -> Option<Kind> {
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: mac,
        source_protocol_addr: source,
        target_protocol_addr: target,
        ..
    } = ArpRepr::parse(&ArpPacket::new_checked(packet).ok()?).ok()?
    else {
        return None;
    };
    let is_known = matches!(operation, ArpOperation::Request | ArpOperation::Reply);
    let is_from_guest = source == GUEST && mac.is_unicast() && mac != GATEWAY_MAC;
    (is_known && is_from_guest && target == GATEWAY).then_some(Kind::Neighbourly)
}

fn ipv4(packet: &[u8]) -> Option<Kind> {
    let packet = Ipv4Packet::new_checked(packet).ok()?;
    let is_whole = !packet.more_frags() && packet.frag_offset() == 0;
    // No options: a source route would be one.
    let is_plain = packet.version() == 4 && packet.header_len() == 20;
    if !is_whole || !is_plain || !packet.verify_checksum() || packet.src_addr() != GUEST {
        return None;
    }
    let to: Ipv4Addr = packet.dst_addr();
    match packet.next_header() {
        IpProtocol::Tcp => tcp(to, packet.payload()),
        IpProtocol::Udp if to == GATEWAY => udp(packet.payload()),
        IpProtocol::Icmp if to == GATEWAY => icmp(packet.payload()),
        _ => None,
    }
}

fn tcp(to: Ipv4Addr, segment: &[u8]) -> Option<Kind> {
    let segment = TcpPacket::new_checked(segment).ok()?;
    if !segment.verify_checksum(&GUEST.into(), &to.into()) {
        return None;
    }
    if segment.src_port() == 0 || segment.dst_port() == 0 {
        return None;
    }
    let flow = Flow { port: segment.src_port(), to: SocketAddrV4::new(to, segment.dst_port()) };
    Some(match (segment.rst(), segment.syn() && !segment.ack() && !segment.fin()) {
        (true, _) => Kind::Reset(flow),
        (false, true) => Kind::Syn(flow),
        (false, false) => Kind::Segment(flow),
    })
}

fn udp(datagram: &[u8]) -> Option<Kind> {
    let datagram = UdpPacket::new_checked(datagram).ok()?;
    (datagram.src_port() != 0 && datagram.dst_port() == DNS_PORT).then_some(Kind::Neighbourly)
}

fn icmp(message: &[u8]) -> Option<Kind> {
    let message = Icmpv4Packet::new_checked(message).ok()?;
    (message.msg_type() == Icmpv4Message::EchoRequest).then_some(Kind::Neighbourly)
}

/// Of the gateway; locally administered, as those of guests are.
pub(super) const fn mac(last: u8) -> EthernetAddress {
    EthernetAddress([0x52, 0x55, 10, 0, 2, last])
}
