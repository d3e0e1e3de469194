//! DOS: what one client can cost, as far as Linux tells.

use std::io::{Read, Write};
use std::sync::Arc;

use codeagent_p9::linux::Shared;
use codeagent_p9::memory::Memory;
use codeagent_p9::wire::{Frame, Names, Reply, Request};
use codeagent_p9::{Errno, Limits, OpenFlags, Server};

use crate::client::{Client, ROOT, until};
use crate::folder::Folder;

/// As many bytes as this process has in memory.
pub(crate) fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// DOS-03, P9-04: sent without reading one answer, from another thread.
#[test]
fn thousands_of_pipelined_requests_are_all_answered_in_bounded_memory() {
    let folder = Folder::usual();
    let mut client = folder.client();
    client.find_open(1, "file", 0);
    let before = resident();
    let count: u16 = 20_000;
    let mut stream = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let mut frame = Frame::default();
        for tag in 0..count {
            let request = match tag % 3 {
                0 => Request::Read { fid: 1, offset: 0, count: 4096 },
                1 => Request::Getattr { fid: ROOT, wanted: 0x7ff },
                _ => Request::Mkdir { dir: ROOT, name: b"dir", mode: 0o755, gid: 0 },
            };
            frame.request(tag, &request);
            stream.write_all(frame.bytes()).unwrap();
        }
    });
    let mut seen = vec![false; count.into()];
    for _ in 0..count {
        let (tag, reply) = client.receive();
        match tag % 3 {
            0 => assert!(matches!(reply, Reply::Read { data } if data.0 == b"0123456789")),
            1 => assert!(matches!(reply, Reply::Getattr { .. })),
            _ => assert_eq!(reply, Reply::Error { errno: Errno::EEXIST.0 }),
        }
        assert!(!std::mem::replace(&mut seen[usize::from(tag)], true), "answered once");
    }
    sender.join().unwrap();
    assert!(seen.iter().all(|seen| *seen));
    let grown = resident().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes more");
}

/// Each for a file of its own, in a real folder: a hundred thousand, or as many as this process may
/// have descriptors for, with some for others. Whoever else has the folder goes on.
#[test]
fn files_that_a_client_knows_take_bounded_memory_and_descriptors() {
    const MOST: u64 = 100_000;
    const PER_DIRECTORY: u32 = 1000;
    codeagent_fs::raise_descriptor_limit();
    let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let files = allowed.map_or(MOST, |allowed| MOST.min(allowed * 3 / 4)) as u32;
    let folder = Folder::new(|root| {
        for dir in 0..=files / PER_DIRECTORY {
            let dir = root.join(format!("d{dir}"));
            std::fs::create_dir(&dir).unwrap();
            for file in 0..PER_DIRECTORY {
                std::fs::write(dir.join(format!("f{file}")), "x").unwrap();
            }
        }
    });
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let server = Arc::new(Server::new(Limits { fids: files as usize, ..Limits::default() }));
    let new_client = || Client::to(&server, Shared::new(Arc::new(folder.fs.another())));
    let (mut client, mut other) = (new_client(), new_client());
    let (bytes_before, before) = (resident(), descriptors());
    let mut stream = std::io::BufWriter::new(client.stream.try_clone().unwrap());
    let sender = std::thread::spawn(move || {
        let mut frame = Frame::default();
        for number in 0..files {
            let dir = format!("d{}", number / PER_DIRECTORY);
            let file = format!("f{}", number % PER_DIRECTORY);
            let mut buffer = Vec::new();
            let names = Names::collect(&[dir.as_bytes(), file.as_bytes()], &mut buffer).unwrap();
            frame.request(7, &Request::Walk { fid: ROOT, new_fid: number + 1, names });
            stream.write_all(frame.bytes()).unwrap();
        }
        stream.flush().unwrap();
    });
    for _ in 1..files {
        let (_, reply) = client.receive();
        assert!(matches!(&reply, Reply::Walk { qids } if qids.as_slice().len() == 2), "{reply:?}");
    }
    assert_eq!(client.receive().1, Reply::Error { errno: Errno::EMFILE.0 });
    sender.join().unwrap();

    let (more_bytes, more) = (resident().saturating_sub(bytes_before), descriptors() - before);
    println!("{files} files: {more_bytes} bytes and {more} descriptors more");
    assert!(more_bytes < files as usize * 2000, "{more_bytes} bytes more");
    assert!(more <= (files + files / PER_DIRECTORY + 1) as usize, "{more} descriptors more");
    other.find_open(1, "d0/f0", OpenFlags::READ_WRITE);
    other.write(1, 0, b"y").unwrap();
    assert_eq!(other.read(1, 0, 1).unwrap(), b"y");
    other.clunk(1).unwrap();
    client.leave().unwrap();
    assert!(descriptors() < before + 100, "they were given back");
    other.leave().unwrap();
}

/// Who does not read its answers is served no further, and holds nobody up.
#[test]
fn a_client_that_does_not_read_costs_nobody_else_anything() {
    let server = Arc::new(Server::new(Limits::default()));
    let memory = Memory::default();
    let mut slow = Client::to(&server, memory.clone());
    slow.create(1, "file", OpenFlags::READ_WRITE, 0o644).unwrap();
    slow.write(1, 0, &vec![7; 500_000]).unwrap();
    let before = resident();
    let mut stream = slow.stream.try_clone().unwrap();
    stream.set_write_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
    let mut frame = Frame::default();
    frame.request(1, &Request::Read { fid: 1, offset: 0, count: 500_000 });
    // Until its requests are not taken any more either.
    let mut sent = 0;
    while stream.write_all(frame.bytes()).is_ok() {
        sent += 1;
        assert!(sent < 1_000_000, "somebody must have kept them");
    }
    let mut other = Client::to(&server, memory.clone());
    other.find_open(1, "file", OpenFlags::READ_WRITE);
    for number in 0..100 {
        other.write(1, number, b"x").unwrap();
        assert_eq!(other.read(1, number, 1).unwrap(), b"x");
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes more");
    // When it reads again, it finds what it asked for.
    let mut header = [0; 11];
    slow.stream.read_exact(&mut header).unwrap();
    assert_eq!(header[4..7], [117, 1, 0]);
    slow.leave().ok();
    other.leave().unwrap();
    until("everything is answered or given up", || memory.unanswered() == 0);
}
