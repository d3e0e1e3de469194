//! Whose the files of a guest are.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod forge;

use std::fs;
use std::os::unix::fs::MetadataExt;

use codeagent_virtiofs::{GuestOptions, Ids, Owners};
use forge::Served;

const SETATTR: u32 = 4;
const MKNOD: u32 = 8;
const MKDIR: u32 = 9;
/// Where an entry, and an answer with attributes, say whose it is.
const OWNER_OF_ENTRY: usize = 40 + 68;
const OWNER_OF_ATTRIBUTES: usize = 16 + 68;

fn ids(answer: &[u8], at: usize) -> Ids {
    let number = |at: usize| u32::from_le_bytes(answer[at..at + 4].try_into().unwrap());
    Ids { uid: number(at), gid: number(at + 4) }
}

#[test]
fn whoever_makes_something_it_is_the_persons_and_is_seen_as_the_guest_users() {
    let guest = Ids { uid: 4321, gid: 4322 };
    let owners = Owners { guest, ..Owners::this_user() };
    let mut served = Served::start_with(GuestOptions { owners: Some(owners) }, |_, _| {});
    let mut body = vec![0xed, 1, 0, 0, 0, 0, 0, 0]; // 0755, no umask
    body.extend(b"made\0");
    let (errno, entry) = served.driver.ask(MKDIR, 1, &body);
    assert_eq!((errno, ids(&entry, OWNER_OF_ENTRY)), (0, guest));

    // Giving it to somebody else changes nothing.
    let mut chown = vec![0; 88];
    chown[0] = 2 | 4;
    chown[76..80].copy_from_slice(&7_u32.to_le_bytes());
    chown[80..84].copy_from_slice(&8_u32.to_le_bytes());
    let (errno, answer) = served.driver.ask(SETATTR, node_of(&entry), &chown);
    assert_eq!((errno, ids(&answer, OWNER_OF_ATTRIBUTES)), (0, guest));
    let meta = fs::metadata(served.workspace.path("made")).unwrap();
    assert_eq!(Ids { uid: meta.uid(), gid: meta.gid() }, owners.host);
}

/// Whoever opens it outside has a device of the host.
#[test]
fn a_guest_makes_no_devices() {
    let mut served =
        Served::start_with(GuestOptions { owners: Some(Owners::this_user()) }, |_, _| {});
    let mut make = |mode: u32, device: u32, name: &[u8]| {
        let fields = [mode | 0o666, device, 0, 0];
        let body: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
        served.driver.ask(MKNOD, 1, &[&body, name, b"\0"].concat()).0
    };
    assert_eq!(make(libc::S_IFCHR, 0x103, b"null"), libc::EPERM);
    assert_eq!(make(libc::S_IFBLK, 0x800, b"disk"), libc::EPERM);
    assert_eq!(make(libc::S_IFCHR, 0, b"whiteout"), libc::EPERM);
    assert_eq!(make(libc::S_IFIFO, 0, b"pipe"), 0);
    let is_there = |name| fs::symlink_metadata(served.workspace.path(name)).is_ok();
    let made = ["null", "disk", "whiteout", "pipe"].map(is_there);
    assert_eq!(made, [false, false, false, true]);
}

fn node_of(entry: &[u8]) -> u64 {
    u64::from_le_bytes(entry[..8].try_into().unwrap())
}
