//! The network of a guest, as a guest sees it that has a TCP/IP stack of its own and no manners.
//! Servers are on loopback, which has to be listed for that.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;
#[path = "common/guest.rs"]
mod guest;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use codeagent_network::link::{GATEWAY, GUEST, Link};
use common::{Echo, Listened, eventually, gate};
use guest::{Guest, MAC, framed};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpProtocol, Ipv4Packet,
    Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
};

struct Linked {
    listened: Listened,
    link: Option<Link>,
    guest: Guest,
}

fn linked(rules: &[&str], names: &[(&str, &[Ipv4Addr])]) -> Linked {
    let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
    let listened = gate(&rules, names);
    let (host, guest) = UnixStream::pair().unwrap();
    let link = Link::serve(host, listened.gate.clone()).unwrap();
    Linked { listened, link: Some(link), guest: Guest::new(guest) }
}

#[test]
fn what_is_listed_is_reached_and_carries_bytes_both_ways() {
    let echo = Echo::at([127, 0, 0, 31]);
    let mut l = linked(&["127.0.0.31"], &[]);
    let data: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    assert!(l.guest.exchange(echo.address, &data) == data);
    assert_eq!(l.guest.exchange(echo.address, b"once more"), b"once more");
    assert_eq!(l.listened.told(), Vec::<String>::new());
}

#[test]
fn what_is_not_listed_is_refused_at_once() {
    let echo = Echo::at([127, 0, 0, 32]);
    let port = echo.address.port();
    let other_port = format!("127.0.0.32:{}", if port == 9 { 10 } else { 9 });
    let mut l = linked(&[&other_port, "0.0.0.0/0"], &[]);
    let start = Instant::now();
    let hosts = [[127, 0, 0, 32], [10, 0, 2, 2], [10, 0, 3, 3], [169, 254, 169, 254]];
    for host in hosts {
        assert!(!l.guest.reaches(SocketAddrV4::new(host.into(), port)), "{host:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(echo.visitors(), 0);
    let told = l.listened.told();
    assert_eq!(told[0], format!("127.0.0.32:{port}"));
    assert_eq!(told.len(), 4, "{told:?}");
}

#[test]
fn a_listed_port_that_nobody_listens_at_is_refused_too() {
    let mut l = linked(&["127.0.0.33"], &[]);
    let free = TcpListener::bind("127.0.0.33:0").unwrap().local_addr().unwrap().port();
    let start = Instant::now();
    assert!(!l.guest.reaches(SocketAddrV4::new([127, 0, 0, 33].into(), free)));
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(l.listened.told(), Vec::<String>::new());
}

#[test]
fn names_have_addresses_if_they_are_listed_and_nothing_else() {
    let public = [Ipv4Addr::new(192, 0, 3, 4)];
    let mut l = linked(
        &["*.listed.example", "127.0.0.34"],
        &[
            ("a.listed.example", &public),
            ("b.listed.example", &[Ipv4Addr::new(10, 0, 0, 1)]),
            ("c.listed.example", &[Ipv4Addr::new(127, 0, 0, 34)]),
            ("other.example", &public),
        ],
    );
    let answers = |linked: &mut Linked, name, kind| {
        let message = linked.guest.look_up(GATEWAY, name, kind).unwrap();
        let data: Vec<_> = message.answers.iter().map(|answer| answer.data.to_string()).collect();
        (message.metadata.response_code, data.join(" "))
    };
    let nothing = String::new;
    for (name, kind, code, data) in [
        ("a.listed.example.", RecordType::A, ResponseCode::NoError, "192.0.3.4".into()),
        ("A.Listed.Example.", RecordType::A, ResponseCode::NoError, "192.0.3.4".into()),
        ("a.listed.example.", RecordType::AAAA, ResponseCode::NoError, nothing()),
        ("a.listed.example.", RecordType::TXT, ResponseCode::NoError, nothing()),
        ("a.listed.example.", RecordType::HTTPS, ResponseCode::NoError, nothing()),
        ("b.listed.example.", RecordType::A, ResponseCode::NXDomain, nothing()),
        ("c.listed.example.", RecordType::A, ResponseCode::NoError, "127.0.0.34".into()),
        ("d.listed.example.", RecordType::A, ResponseCode::NXDomain, nothing()),
        ("listed.example.", RecordType::A, ResponseCode::NXDomain, nothing()),
        ("other.example.", RecordType::A, ResponseCode::NXDomain, nothing()),
        ("other.example.", RecordType::TXT, ResponseCode::NXDomain, nothing()),
        ("c2VjcmV0.other.example.", RecordType::NULL, ResponseCode::NXDomain, nothing()),
        ("1.0.0.127.in-addr.arpa.", RecordType::PTR, ResponseCode::NXDomain, nothing()),
    ] {
        assert_eq!(answers(&mut l, name, kind), (code, data), "{name} {kind}");
    }
    let asked = l.listened.names.asked.lock().unwrap().clone();
    assert!(asked.iter().all(|name| name.ends_with(".listed.example")), "{asked:?}");
    assert!(l.listened.told().contains(&"other.example".to_owned()));
}

#[test]
fn no_other_dns_server_and_no_other_datagram_is_answered() {
    let socket = std::net::UdpSocket::bind("127.0.0.35:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let port = socket.local_addr().unwrap().port();
    let mut l = linked(&["127.0.0.35", "*.example"], &[]);
    let wait = Duration::from_millis(200);
    assert!(l.guest.look_up([127, 0, 0, 35].into(), "a.example.", RecordType::A).is_none());
    let to = SocketAddrV4::new([127, 0, 0, 35].into(), port);
    assert!(l.guest.datagram(to, b"hello", wait).is_none());
    assert!(l.guest.datagram(SocketAddrV4::new(GATEWAY, 54), b"hello", wait).is_none());
    assert!(l.guest.datagram(SocketAddrV4::new(GATEWAY, 53), b"no question", wait).is_none());
    assert!(l.guest.datagram(SocketAddrV4::new(GATEWAY, 53), &[0xff; 900], wait).is_none());
    assert!(socket.recv(&mut [0; 16]).is_err(), "it got out");
    assert_eq!(l.listened.names.asked.lock().unwrap().len(), 0);
}

/// An Ethernet frame to the gateway.
fn ethernet(kind: EthernetProtocol, payload: &[u8]) -> Vec<u8> {
    let to = EthernetAddress([0x52, 0x55, 10, 0, 2, 2]);
    let repr = EthernetRepr { src_addr: MAC, dst_addr: to, ethertype: kind };
    let mut bytes = vec![0; 14 + payload.len()];
    repr.emit(&mut EthernetFrame::new_unchecked(&mut bytes));
    bytes[14..].copy_from_slice(payload);
    bytes
}

/// The first packet of a connection, from anybody to anybody.
fn syn(
    from: SocketAddrV4,
    to: SocketAddrV4,
    change: impl FnOnce(&mut Ipv4Packet<&mut [u8]>),
) -> Vec<u8> {
    let tcp = TcpRepr {
        src_port: from.port(),
        dst_port: to.port(),
        control: TcpControl::Syn,
        seq_number: TcpSeqNumber(1234),
        ack_number: None,
        window_len: 1000,
        window_scale: None,
        max_seg_size: Some(1460),
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let ip = Ipv4Repr {
        src_addr: *from.ip(),
        dst_addr: *to.ip(),
        next_header: IpProtocol::Tcp,
        payload_len: tcp.buffer_len(),
        hop_limit: 64,
    };
    let checksums = ChecksumCapabilities::default();
    let mut packet = vec![0; 20 + tcp.buffer_len()];
    ip.emit(&mut Ipv4Packet::new_unchecked(&mut packet), &checksums);
    let (src, dst) = ((*from.ip()).into(), (*to.ip()).into());
    tcp.emit(&mut TcpPacket::new_unchecked(&mut packet[20..]), &src, &dst, &checksums);
    let mut changed = Ipv4Packet::new_unchecked(packet.as_mut_slice());
    change(&mut changed);
    changed.fill_checksum();
    ethernet(EthernetProtocol::Ipv4, &packet)
}

#[test]
fn garbage_fragments_ipv6_and_strangers_are_dropped_and_the_link_goes_on() {
    let echo = Echo::at([127, 0, 0, 36]);
    let mut l = linked(&["127.0.0.36", "0.0.0.0/0"], &[]);
    assert_eq!(l.guest.exchange(echo.address, b"before"), b"before");
    l.guest.linger(Duration::from_millis(50));
    let (from, to) = (SocketAddrV4::new(GUEST, 5000), echo.address);
    let stranger = SocketAddrV4::new([10, 0, 2, 99].into(), 5000);
    let nobody = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 5000);
    let mut frames = vec![
        Vec::new(),
        vec![0; 13],
        vec![0xff; 14],
        vec![0xff; 1514],
        ethernet(EthernetProtocol::Ipv4, &[]),
        ethernet(EthernetProtocol::Ipv4, &[0x45; 19]),
        ethernet(EthernetProtocol::Arp, &[0; 28]),
        ethernet(EthernetProtocol::Ipv6, &[0x60; 60]),
        ethernet(EthernetProtocol::Unknown(0x8100), &[0; 60]),
        syn(stranger, to, |_| {}),
        syn(nobody, to, |_| {}),
        syn(from, to, |packet| packet.set_more_frags(true)),
        syn(from, to, |packet| packet.set_frag_offset(64)),
        syn(from, to, |packet| packet.set_header_len(24)),
        syn(from, to, |packet| packet.set_version(6)),
        syn(from, SocketAddrV4::new(*to.ip(), 0), |_| {}),
        syn(from, to, |packet| packet.set_total_len(65_000)),
    ];
    // Every prefix of a good packet, and every byte of it turned around.
    let good = syn(from, to, |_| {});
    frames.extend((0..good.len()).map(|length| good[..length].to_vec()));
    for nth in 14..34 {
        let mut bent = good.clone();
        bent[nth] ^= 0xff;
        frames.push(bent);
    }
    let seen = l.guest.seen.len();
    for frame in &frames {
        l.guest.send(&framed(frame));
    }
    l.guest.linger(Duration::from_millis(200));
    assert_eq!(l.guest.seen.len(), seen, "something was answered");
    assert_eq!(echo.visitors(), 1, "something got through");
    assert_eq!(l.guest.exchange(echo.address, b"after"), b"after");
}

#[test]
fn ten_thousand_beginnings_of_connections_are_survived() {
    let echo = Echo::at([127, 0, 0, 37]);
    let mut l = linked(&["127.0.0.37"], &[]);
    assert!(l.guest.reaches(echo.address));
    let other = SocketAddrV4::new([127, 0, 0, 38].into(), 80);
    for port in 1..=5000 {
        let from = SocketAddrV4::new(GUEST, port);
        l.guest.send(&framed(&syn(from, echo.address, |_| {})));
        l.guest.send(&framed(&syn(from, other, |_| {})));
        l.guest.turn();
    }
    // Those that nobody confirms are given up by the guest's own stack, which knows of none.
    l.guest.until("there is room again", |guest| guest.reaches(echo.address));
    assert_eq!(l.guest.exchange(echo.address, b"still"), b"still");
}

#[test]
fn whoever_does_not_read_holds_up_his_own_connection_only() {
    let sent: Arc<AtomicUsize> = Arc::default();
    let (counter, listener) = (Arc::clone(&sent), TcpListener::bind("127.0.0.39:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        while client.write_all(&[7; 64 << 10]).is_ok() {
            counter.fetch_add(64 << 10, Ordering::SeqCst);
        }
    });
    let echo = Echo::at([127, 0, 0, 40]);
    let mut l = linked(&["127.0.0.39", "127.0.0.40"], &[]);
    let slow = l.guest.connect(SocketAddrV4::new([127, 0, 0, 39].into(), port));
    l.guest.until("it begins", |guest| guest.tcp(slow).can_recv());
    let mut last = usize::MAX;
    l.guest.until("it waits", |guest| {
        guest.linger(Duration::from_millis(100));
        std::mem::replace(&mut last, sent.load(Ordering::SeqCst)) == last
    });
    // What the kernel holds for the server, and what we do.
    assert!(last < 16 << 20, "{last}");
    assert_eq!(l.guest.exchange(echo.address, b"meanwhile"), b"meanwhile");
    let mut read = 0;
    l.guest.until("it goes on", |guest| {
        let socket = guest.tcp(slow);
        if socket.can_recv() {
            read += socket.recv(|bytes| (bytes.len(), bytes.len())).unwrap();
        }
        read > 2 << 20
    });
}

#[test]
fn a_guest_that_reads_nothing_at_all_costs_little_and_ends_cleanly() {
    let echo = Echo::at([127, 0, 0, 41]);
    let mut l = linked(&["127.0.0.41"], &[]);
    assert!(l.guest.reaches(echo.address));
    // Answers to these pile up until the link reads no more.
    let refused = framed(&syn(SocketAddrV4::new(GUEST, 9), SocketAddrV4::new(GATEWAY, 9), |_| {}));
    let mut written = 0;
    let deadline = Instant::now() + Duration::from_secs(10);
    while written < 64 << 20 && Instant::now() < deadline {
        match l.guest.stream.write(&refused) {
            Ok(count) if count == refused.len() => written += count,
            Ok(_) => break,
            Err(_) => {
                std::thread::sleep(Duration::from_millis(20));
                if l.guest.stream.write(&refused).is_err() {
                    break;
                }
            }
        }
    }
    assert!(written < 8 << 20, "{written} bytes were taken");
    l.link = None;
}

#[test]
fn connections_end_with_the_link_and_the_link_with_its_guest() {
    let echo = Echo::at([127, 0, 0, 42]);
    let mut l = linked(&["127.0.0.42"], &[]);
    let handle = l.guest.connect(echo.address);
    l.guest.until("it is there", |guest| guest.tcp(handle).may_send());
    let Linked { listened, link, guest } = l;
    let before = Arc::strong_count(&listened.gate);
    drop(guest);
    eventually("the thread has let go", || Arc::strong_count(&listened.gate) < before);
    drop(link);
    let (host, guest) = UnixStream::pair().unwrap();
    let link = Link::serve(host, listened.gate.clone()).unwrap();
    (&guest).write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    guest.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(std::io::Read::read(&mut &guest, &mut [0; 1]).unwrap(), 0);
    drop(link);
}

#[test]
fn the_gateway_answers_arp_and_pings_for_itself_only() {
    use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, Icmpv4Packet, Icmpv4Repr};
    let mut l = linked(&["0.0.0.0/0"], &[]);
    let ask = |target: Ipv4Addr| {
        let repr = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr: MAC,
            source_protocol_addr: GUEST,
            target_hardware_addr: EthernetAddress([0; 6]),
            target_protocol_addr: target,
        };
        let mut packet = vec![0; repr.buffer_len()];
        repr.emit(&mut ArpPacket::new_unchecked(&mut packet));
        let mut frame = ethernet(EthernetProtocol::Arp, &packet);
        frame[..6].fill(0xff);
        frame
    };
    let ping = |target: Ipv4Addr| {
        let icmp = Icmpv4Repr::EchoRequest { ident: 1, seq_no: 1, data: b"ping" };
        let ip = Ipv4Repr {
            src_addr: GUEST,
            dst_addr: target,
            next_header: IpProtocol::Icmp,
            payload_len: icmp.buffer_len(),
            hop_limit: 64,
        };
        let checksums = ChecksumCapabilities::default();
        let mut packet = vec![0; 20 + icmp.buffer_len()];
        ip.emit(&mut Ipv4Packet::new_unchecked(&mut packet), &checksums);
        icmp.emit(&mut Icmpv4Packet::new_unchecked(&mut packet[20..]), &checksums);
        ethernet(EthernetProtocol::Ipv4, &packet)
    };
    for (frame, answered) in [
        (ask(GUEST), false),
        (ask([10, 0, 2, 3].into()), false),
        (ask(GATEWAY), true),
        (ping(GATEWAY), true),
        (ping([1, 1, 1, 1].into()), false),
        (ping([10, 0, 2, 255].into()), false),
    ] {
        let before = l.guest.seen.len();
        l.guest.send(&framed(&frame));
        l.guest.linger(Duration::from_millis(100));
        assert_eq!(l.guest.seen.len() > before, answered, "{frame:?}");
    }
}
