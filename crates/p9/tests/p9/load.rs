//! DOS: what one client can cost.

use std::io::{Read, Write};
use std::sync::Arc;

use codeagent_p9::memory::Memory;
use codeagent_p9::wire::{Frame, Reply, Request};
use codeagent_p9::{Errno, Limits, OpenFlags, Server};

use crate::client::{Client, Folder, ROOT, until};

/// As many bytes as this process has in memory.
fn resident() -> usize {
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

#[test]
fn a_hundred_thousand_numbers_are_too_many_by_one() {
    let memory = Memory::default();
    let mut client = Client::in_memory(&memory);
    client.mkdir(ROOT, "dir").unwrap();
    let stream = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let mut stream = std::io::BufWriter::new(stream);
        let mut frame = Frame::default();
        for new_fid in 1..=100_000 {
            let names = Default::default();
            frame.request(7, &Request::Walk { fid: ROOT, new_fid, names });
            stream.write_all(frame.bytes()).unwrap();
        }
        stream.flush().unwrap();
    });
    for _ in 1..100_000 {
        assert!(matches!(client.receive(), (7, Reply::Walk { .. })));
    }
    assert_eq!(client.receive(), (7, Reply::Error { errno: Errno::EMFILE.0 }));
    sender.join().unwrap();
    assert_eq!(client.walk(ROOT, 200_000, &["dir"]), Err(Errno::EMFILE));
    client.attributes(99_999).unwrap();
    client.clunk(99_999).unwrap();
    client.walk(ROOT, 200_000, &["dir"]).unwrap();
    client.leave().unwrap();
}

/// Numbers are few here, ways are long: what is on the way counts, too.
#[test]
fn a_few_numbers_do_not_hold_any_number_of_places() {
    let limits = Limits { fids: 10, ..Limits::default() };
    let mut client = Client::to(&Arc::new(Server::new(limits)), Memory::default());
    client.walk(ROOT, 1, &[]).unwrap();
    let mut depth = 0;
    let refused = loop {
        client.mkdir(1, "d").unwrap();
        match client.walk(1, 1, &["d"]) {
            Ok(_) => depth += 1,
            Err(errno) => break errno,
        }
        assert!(depth < 1000);
    };
    assert_eq!(refused, Errno::EMFILE);
    client.clunk(1).unwrap();
    client.walk(ROOT, 1, &["d", "d"]).unwrap();
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

/// Values of attributes are in memory until their numbers are given up, however many those are.
#[test]
fn attributes_that_are_never_finished_take_bounded_memory() {
    let server = Arc::new(Server::new(Limits::default()));
    let mut client = Client::to(&server, Memory::default());
    let mut start = |fid| {
        client.find(fid, "")?;
        let create = Request::Xattrcreate { fid, name: b"user.a", size: 64 << 10, flags: 0 };
        client.tell(&create)
    };
    let refused = (1..1_000).find(|fid| start(*fid) == Err(Errno::ENOSPC));
    let first = refused.expect("there is an end to it");
    assert!((200..=300).contains(&first), "{first}");
    client.clunk(1).unwrap_err();
    let create = Request::Xattrcreate { fid: first, name: b"user.a", size: 64 << 10, flags: 0 };
    client.tell(&create).unwrap();
}
