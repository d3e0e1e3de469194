//! DOS: what one client can have.

use std::io::Write;
use std::sync::Arc;

use codeagent_p9::memory::Memory;
use codeagent_p9::wire::{Frame, Names, Reply, Request};
use codeagent_p9::{Errno, Limits, Server};

use crate::client::{Client, ROOT};

/// Each for a file of its own, by a way of its own.
#[test]
fn a_hundred_thousand_numbers_are_too_many_by_one() {
    let memory = Memory::default();
    let mut client = Client::in_memory(&memory);
    client.mkdir(ROOT, "dir").unwrap();
    let stream = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let mut stream = std::io::BufWriter::new(stream);
        let mut frame = Frame::default();
        for new_fid in 1..=100_000_u32 {
            let (name, mut buffer) = (new_fid.to_string(), Vec::new());
            let name = name.as_bytes();
            let (mode, major, minor, gid) = (0o100_644, 0, 0, 0);
            frame.request(6, &Request::Mknod { dir: ROOT, name, mode, major, minor, gid });
            stream.write_all(frame.bytes()).unwrap();
            let names = Names::collect(&[name], &mut buffer).unwrap();
            frame.request(7, &Request::Walk { fid: ROOT, new_fid, names });
            stream.write_all(frame.bytes()).unwrap();
        }
        stream.flush().unwrap();
    });
    for _ in 1..100_000 {
        assert!(matches!(client.receive(), (6, Reply::Mknod { .. })));
        assert!(matches!(client.receive(), (7, Reply::Walk { .. })));
    }
    assert!(matches!(client.receive(), (6, Reply::Mknod { .. })));
    assert_eq!(client.receive(), (7, Reply::Error { errno: Errno::EMFILE.0 }));
    sender.join().unwrap();
    // The files themselves are among it.
    #[cfg(target_os = "linux")]
    assert!(crate::cost::resident() < 100 << 20, "{} bytes", crate::cost::resident());
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
