//! What a guest can do to the device: ask for errors.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod forge;

use codeagent_test_support::assert_tree_eq;
use forge::{
    ANSWER, Driver, ELSEWHERE, MEMORY, NEXT, REQUEST, STATFS, Served, WRITABLE, packet, round,
};

const LOOKUP: u32 = 1;
const SYMLINK: u32 = 6;
const MKDIR: u32 = 9;
const UNLINK: u32 = 10;
const RMDIR: u32 = 11;
const RENAME: u32 = 12;
const OPEN: u32 = 14;
const READ: u32 = 15;
const SYNCFS: u32 = 50;
const CREATE: u32 = 35;
const OPENDIR: u32 = 27;

/// `fields`, and names with an end each.
fn body(fields: &[u32], names: &[&[u8]]) -> Vec<u8> {
    let mut body: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
    for name in names {
        body.extend(*name);
        body.push(0);
    }
    body
}

#[test]
fn names_that_lead_elsewhere_are_refused_and_nothing_outside_changes() {
    let mut served = Served::start(|_, _| {});
    let (before, outside) = (served.workspace.snapshot(), served.outside());
    let driver = &mut served.driver;
    for name in [&b"../outside/new"[..], b"..", b".", b"", b"/tmp/new", b"dir/new"] {
        for (code, body) in [
            (LOOKUP, body(&[], &[name])),
            (MKDIR, body(&[0o755, 0], &[name])),
            (SYMLINK, body(&[], &[name, b"target"])),
            (CREATE, body(&[0o101, 0o644, 0, 0], &[name])),
            (RENAME, body(&[1, 0], &[b"file", name])),
            (UNLINK, body(&[], &[name])),
            (RMDIR, body(&[], &[name])),
        ] {
            let (errno, _) = driver.ask(code, 1, &body);
            assert_ne!(errno, 0, "request {code} with {}", name.escape_ascii());
        }
    }
    for victim in [&b"../outside/victim"[..], b"../outside"] {
        assert_ne!(driver.ask(UNLINK, 1, &body(&[], &[victim])).0, 0);
    }
    driver.assert_alive();
    assert_tree_eq(&before, &served.workspace.snapshot());
    assert_tree_eq(&outside, &served.outside());
}

#[test]
fn a_chain_that_makes_no_sense_costs_the_guest_an_answer_and_nothing_else() {
    let mut served = Served::start(|_, _| {});
    let driver = &mut served.driver;
    let request = packet(STATFS, 2, 1, (0, 0), &[]);
    let (length, room) = (request.len() as u32, 4096);
    let answer = (ANSWER, room, WRITABLE, 0);
    for chain in [
        // Outside the guest's memory, or over its end.
        vec![(MEMORY, length, NEXT, 1), answer],
        vec![(u64::MAX - 8, length, NEXT, 1), answer],
        vec![(REQUEST, length, NEXT, 1), (MEMORY - 8, room, WRITABLE, 0)],
        vec![(REQUEST, u32::MAX, NEXT, 1), (ANSWER, u32::MAX, WRITABLE, 0)],
        // Nothing to read, nothing to write, too little of either.
        vec![answer],
        vec![(REQUEST, length, 0, 0)],
        vec![(REQUEST, 20, NEXT, 1), answer],
        vec![(REQUEST, length, NEXT, 1), (ANSWER, 8, WRITABLE, 0)],
        vec![(REQUEST, 0, NEXT, 1), (ANSWER, 0, WRITABLE, 0)],
        // Endless, or nowhere.
        vec![(REQUEST, length, NEXT, 0)],
        vec![(REQUEST, length, NEXT, 60_000)],
        // Tables of descriptors that are none.
        vec![(MEMORY, 32, ELSEWHERE, 0)],
        vec![(REQUEST, 17, ELSEWHERE, 0)],
        vec![(0, 16, ELSEWHERE, 0)],
    ] {
        driver.put(REQUEST, &request);
        driver.play(&chain);
        driver.assert_alive();
    }
}

#[test]
fn a_request_whose_lengths_are_forged_is_refused() {
    let mut served = Served::start(|_, _| {});
    let driver = &mut served.driver;
    for code in 1..=51 {
        for length in [0, 1, 39, 41, 4096, 1 << 20, u32::MAX] {
            let mut request = packet(code, 2, 1, (0, 0), &[b'x'; 100]);
            request[..4].copy_from_slice(&u32::to_le_bytes(length));
            for room in [0, 15, 16, 17, 4096] {
                driver.put(REQUEST, &request);
                driver.play(&[(REQUEST, 140, NEXT, 1), (ANSWER, room, WRITABLE, 0)]);
            }
        }
    }
    driver.begin();
    driver.assert_alive();
}

#[test]
fn a_queue_that_was_spoilt_serves_again_when_it_is_mended() {
    let mut served = Served::start(|_, _| {});
    let driver = &mut served.driver;
    driver.announce(driver.offered.wrapping_add(5000));
    driver.announce(driver.offered.wrapping_sub(1));
    driver.announce(driver.offered);
    driver.assert_alive();
}

#[test]
fn one_file_too_many_is_refused_until_another_is_closed() {
    let mut served = Served::start(|_, fs| fs.max_handles = 10);
    let driver = &mut served.driver;
    let (errno, entry) = driver.ask(LOOKUP, 1, &body(&[], &[b"file"]));
    assert_eq!(errno, 0);
    let node = u64::from_le_bytes(entry[..8].try_into().unwrap());
    let open = |driver: &mut Driver| driver.ask(OPEN, node, &body(&[0, 0], &[])).0;
    for _ in 0..10 {
        assert_eq!(open(driver), 0);
    }
    assert_eq!(open(driver), libc::ENFILE);
    assert_eq!(driver.ask(OPENDIR, 1, &body(&[0, 0], &[])).0, libc::ENFILE);
    // Reading is nothing new.
    let (errno, data) = driver.ask(READ, node, &body(&[0, 0, 0, 0, 100, 0, 0, 0, 0, 0], &[]));
    assert!(errno == 0 || errno == libc::EBADF, "{errno}: {data:?}");
    // A driver that begins anew has nothing open.
    driver.begin();
    let (_, entry) = driver.ask(LOOKUP, 1, &body(&[], &[b"file"]));
    let node = u64::from_le_bytes(entry[..8].try_into().unwrap());
    assert_eq!(driver.ask(OPEN, node, &body(&[0, 0], &[])).0, 0);
}

/// As the fuzz target `virtiofs_requests` does it, for as long as a test may take.
#[test]
fn wild_drivers_change_nothing_outside_and_are_undone_exactly() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let rounds = if std::env::var_os("CODEAGENT_LONG").is_some() { 5000 } else { 60 };
    for _ in 0..rounds {
        let bytes: Vec<u8> = (0..2000)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        round(&bytes);
    }
}

/// A guest cannot have the host write out all that its filesystem holds, of others as well: whatever it
/// names, nothing is asked of the host.
#[test]
fn a_guest_that_syncs_is_answered_without_the_host() {
    let mut served = Served::start(|_, _| {});
    for node in [1, 999] {
        let (errno, _) = served.driver.ask(SYNCFS, node, &[0; 8]);
        assert_eq!(errno, 0, "{node}");
    }
}
