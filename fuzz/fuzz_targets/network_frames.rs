//! Whatever bytes a guest sends on its cable: nothing panics, and no more connections are open
//! than there may be.
#![no_main]

use std::sync::Arc;

use codeagent_network::link::take_frames;
use codeagent_network::{Allowlist, Gate, Policy};
use libfuzzer_sys::fuzz_target;

/// The gateway and the guest, so that what follows in an input can be a packet without the fuzzer
/// having to find out their addresses.
const ETHERNET: [u8; 14] = [0x52, 0x55, 10, 0, 2, 2, 0x52, 0x54, 0, 0x12, 0x34, 0x56, 8, 0];
const ADDRESSES: [u8; 8] = [10, 0, 2, 15, 10, 0, 2, 2];

fuzz_target!(|data: &[u8]| {
    let everything = Allowlist::new(["0.0.0.0/0".parse().unwrap()]);
    let gate = || Arc::new(Gate::new(Policy::Allowlist(everything.clone()), |_| {}));
    take_frames(gate(), data.chunks(97)).unwrap();
    // The same bytes as packets whose headers are right.
    let packets: Vec<Vec<u8>> = data.chunks(97).filter_map(packet).collect();
    take_frames(gate(), packets.iter().map(Vec::as_slice)).unwrap();
});

/// An IPv4 packet with its checksums: the first byte says which protocol, the next four where to.
fn packet(bytes: &[u8]) -> Option<Vec<u8>> {
    let (head, payload) = bytes.split_first_chunk::<5>()?;
    let protocol = [6, 17, 1][usize::from(head[0] % 3)];
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
    ip.extend(ADDRESSES);
    ip[2..4].copy_from_slice(&u16::try_from(20 + payload.len()).ok()?.to_be_bytes());
    if protocol == 6 {
        ip[16..20].copy_from_slice(&head[1..]);
    }
    let sum = checksum(&[&ip]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut payload = payload.to_vec();
    let at = match protocol {
        6 => 16,
        17 => 6,
        _ => 2,
    };
    if let Some(field) = payload.get_mut(at..at + 2) {
        field.fill(0);
        let length = u16::try_from(payload.len()).ok()?.to_be_bytes();
        let pseudo = [&ip[12..20], &[0, protocol], &length].concat();
        let sum =
            if protocol == 1 { checksum(&[&payload]) } else { checksum(&[&pseudo, &payload]) };
        payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    let frame = [&ETHERNET[..], &ip, &payload].concat();
    Some([&u32::try_from(frame.len()).ok()?.to_be_bytes()[..], &frame].concat())
}

fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
