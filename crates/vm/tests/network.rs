//! The one way out of a guest: frames that whoever holds the other end of a socket lets through.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::io::Read;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;

use codeagent_control::Exec;
use codeagent_vm::{Address, Link, Network};
use common::{PATIENCE, Talk, config, image, start};

/// The kind of an Ethernet frame that asks who has an address.
const ARP: [u8; 2] = [0x08, 0x06];

#[test]
fn frames_of_a_guest_come_to_its_gateway() {
    let Some(image) = image("frames_of_a_guest_come_to_its_gateway") else { return };
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let gateway = Ipv4Addr::new(192, 0, 2, 1);
    let mut config = config(image);
    config.network = Network::Gateway {
        socket: theirs.into(),
        link: Link {
            address: Address { ip: Ipv4Addr::new(192, 0, 2, 2), prefix_length: 24 },
            gateway: Some(gateway),
            name_servers: vec![gateway],
            variables: vec![("HTTPS_PROXY".into(), "http://192.0.2.1:3128".into())],
        },
    };
    let machine = start(config);
    let mut talk = Talk::with(&machine);
    assert_eq!(
        talk.output("cat /etc/resolv.conf; echo $HTTPS_PROXY"),
        "nameserver 192.0.2.1\nhttp://192.0.2.1:3128\n"
    );
    assert!(talk.output("ip route").contains("default via 192.0.2.1 dev eth0"));

    let id = talk.begin(Exec::shell("nc -w 20 192.0.2.1 80 < /dev/null"));
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    let asked = loop {
        let frame = next_frame(&mut ours);
        // Its last four bytes are the address that is asked for.
        if frame[12..14] == ARP && frame[38..42] == gateway.octets() {
            break frame;
        }
    };
    assert_eq!(asked[28..32], [192, 0, 2, 2]);
    talk.send(&codeagent_control::HostMessage::Cancel { id });
    talk.finish(id);
}

fn next_frame(stream: &mut UnixStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).unwrap();
    frame
}
