//! P9-04: requests that wait, and those that overtake them.

use std::sync::Arc;
use std::time::Duration;

use codeagent_p9::memory::Memory;
use codeagent_p9::wire::{Data, NO_TAG, Reply, Request, VERSION};
use codeagent_p9::{Errno, Limits, OpenFlags, Server};

use crate::client::{Client, ROOT, until};

fn mkdir(name: &[u8]) -> Request<'_> {
    Request::Mkdir { dir: ROOT, name, mode: 0o755, gid: 0 }
}

/// A client with a file open under 1, and a mutation that waits under the tag 50.
fn with_one_waiting(limits: Limits) -> (Memory, Client) {
    let memory = Memory::default();
    let mut client = Client::to(&Arc::new(Server::new(limits)), memory.clone());
    client.create(1, "file", OpenFlags::READ_WRITE, 0o644).unwrap();
    client.write(1, 0, b"content").unwrap();
    memory.close_gate();
    client.send(50, &mkdir(b"held"));
    until("it waits", || memory.waiting() == 1);
    (memory, client)
}

#[test]
fn a_mutation_that_waits_keeps_no_reader_waiting() {
    let (memory, mut client) = with_one_waiting(Limits::default());
    assert_eq!(client.read(1, 0, 10).unwrap(), b"content");
    client.walk(ROOT, 2, &["file"]).unwrap();
    client.clunk(2).unwrap();
    client.attributes(ROOT).unwrap();
    until("nothing else is on its way", || memory.unanswered() == 1);
    memory.open_gate();
    assert!(matches!(client.receive(), (50, Reply::Mkdir { .. })));
    client.find(2, "held").unwrap();
}

#[test]
fn answers_come_in_the_order_things_are_done() {
    let (memory, mut client) = with_one_waiting(Limits::default());
    client.send(51, &Request::Write { fid: 1, offset: 0, data: Data(b"C") });
    client.send(52, &Request::Fsync { fid: 1, data_only: 0 });
    client.send(53, &Request::Read { fid: 1, offset: 0, count: 7 });
    assert_eq!(client.receive(), (53, Reply::Read { data: Data(b"content") }));
    until("all wait", || memory.waiting() == 3);
    memory.open_gate();
    let mut tags: Vec<u16> = (0..3).map(|_| client.receive().0).collect();
    tags.sort_unstable();
    assert_eq!(tags, [50, 51, 52]);
    assert_eq!(client.read(1, 0, 7).unwrap(), b"Content");
}

#[test]
fn a_cancel_is_answered_after_what_it_cancels() {
    let (memory, mut client) = with_one_waiting(Limits::default());
    client.send(60, &Request::Flush { old_tag: 50 });
    client.send(61, &Request::Flush { old_tag: 60 });
    client.attributes(ROOT).unwrap();
    memory.open_gate();
    assert!(matches!(client.receive(), (50, Reply::Mkdir { .. })), "it had begun");
    assert_eq!(client.receive(), (60, Reply::Flush {}));
    assert_eq!(client.receive(), (61, Reply::Flush {}));
    until("everything is answered", || memory.unanswered() == 0);
}

#[test]
fn a_cancel_of_nothing_is_answered_at_once() {
    let (memory, mut client) = with_one_waiting(Limits::default());
    client.tell(&Request::Flush { old_tag: 999 }).unwrap();
    memory.open_gate();
    assert_eq!(client.receive().0, 50);
}

#[test]
fn a_tag_is_free_again_after_its_answer_and_not_before() {
    let (memory, mut client) = with_one_waiting(Limits::default());
    client.send(50, &mkdir(b"other"));
    assert_eq!(client.receive(), (50, Reply::Error { errno: Errno::EINVAL.0 }));
    memory.open_gate();
    assert!(matches!(client.receive(), (50, Reply::Mkdir { .. })));
    // At once, and often: nobody waits until the server has put things in order.
    for number in 0..300 {
        client.send(50, &Request::Fsync { fid: 1, data_only: 0 });
        assert_eq!(client.receive(), (50, Reply::Fsync {}), "{number}");
    }
    client.send(50, &mkdir(b"other"));
    assert!(matches!(client.receive(), (50, Reply::Mkdir { .. })));
}

#[test]
fn a_number_can_be_given_up_while_something_is_done_with_it() {
    let (memory, mut client) = with_one_waiting(Limits::default());
    client.send(51, &Request::Write { fid: 1, offset: 0, data: Data(b"late") });
    until("it waits", || memory.waiting() == 2);
    client.clunk(1).unwrap();
    client.find(1, "").unwrap();
    memory.open_gate();
    let mut answers: Vec<u16> = (0..2).map(|_| client.receive().0).collect();
    answers.sort_unstable();
    assert_eq!(answers, [50, 51]);
    client.clunk(1).unwrap();
    client.find_open(1, "file", 0);
    assert_eq!(client.read(1, 0, 10).unwrap(), b"lateent");
}

#[test]
fn a_new_conversation_gets_no_answer_of_the_former() {
    let (memory, mut client) = with_one_waiting(Limits::default());
    client.send(NO_TAG, &Request::Version { msize: 8192, version: VERSION });
    assert_eq!(client.receive().0, NO_TAG);
    client.attach(ROOT).unwrap();
    memory.open_gate();
    until("it is over", || memory.unanswered() == 0);
    client.send(50, &Request::Getattr { fid: ROOT, wanted: 0 });
    assert!(matches!(client.receive(), (50, Reply::Getattr { .. })));
    client.find(1, "held").unwrap();
}

#[test]
fn who_hangs_up_leaves_nothing_half_done() {
    let (memory, client) = with_one_waiting(Limits::default());
    let left = std::thread::spawn(|| client.leave());
    assert_eq!(memory.unanswered(), 1, "it is still at work");
    memory.open_gate();
    let _ = left.join().unwrap(); // whether it could still be told or not
    assert_eq!(memory.unanswered(), 0);
    Client::in_memory(&memory).find(1, "held").unwrap();
}

/// DOS-03.
#[test]
fn more_than_may_wait_fail_when_nothing_goes_on_and_readers_go_on() {
    let patience = Duration::from_millis(10);
    let limits = Limits { waiting: 3, patience, ..Limits::default() };
    let (memory, mut client) = with_one_waiting(limits);
    for tag in 51..100 {
        client.send(tag, &mkdir(&[b'd', tag as u8]));
    }
    for tag in 53..100 {
        assert_eq!(client.receive(), (tag, Reply::Error { errno: Errno::ENOSPC.0 }));
    }
    assert_eq!(client.read(1, 0, 3).unwrap(), b"con");
    memory.open_gate();
    let mut answers: Vec<u16> = (0..3).map(|_| client.receive().0).collect();
    answers.sort_unstable();
    assert_eq!(answers, [50, 51, 52]);
}

/// A kernel writes out more at once than may wait, and nobody is asked anything.
#[test]
fn who_finds_no_room_waits_while_others_come_to_their_end() {
    let patience = Duration::from_secs(600);
    let limits = Limits { waiting: 3, waiting_bytes: 3_000, patience, ..Limits::default() };
    let (memory, mut client) = with_one_waiting(limits);
    let bytes = [7; 1_000];
    for tag in 51..70 {
        client.send(tag, &Request::Write { fid: 1, offset: 0, data: Data(&bytes) });
    }
    until("as many wait as may", || memory.waiting() == 3);
    memory.open_gate();
    let mut answers: Vec<u16> = (50..70)
        .map(|_| match client.receive() {
            (tag, Reply::Mkdir { .. } | Reply::Write { count: 1_000 }) => tag,
            other => panic!("{other:?}"),
        })
        .collect();
    answers.sort_unstable();
    assert_eq!(answers, (50..70).collect::<Vec<_>>());
}

/// DOS-03.
#[test]
fn bytes_that_wait_are_bounded_whatever_their_number() {
    let patience = Duration::from_millis(10);
    let limits = Limits { waiting_bytes: 100_000, patience, ..Limits::default() };
    let (memory, mut client) = with_one_waiting(limits);
    let bytes = [0; 40_000];
    for tag in [51, 52, 53] {
        client.send(tag, &Request::Write { fid: 1, offset: 0, data: Data(&bytes) });
    }
    assert_eq!(client.receive(), (53, Reply::Error { errno: Errno::ENOSPC.0 }));
    memory.open_gate();
    let mut answers: Vec<u16> = (0..3).map(|_| client.receive().0).collect();
    answers.sort_unstable();
    assert_eq!(answers, [50, 51, 52]);
}

#[test]
fn an_attribute_that_is_set_when_its_number_goes_waits_like_a_mutation() {
    let (memory, mut client) = with_one_waiting(Limits::default());
    client.find(2, "file").unwrap();
    client.tell(&Request::Xattrcreate { fid: 2, name: b"user.a", size: 0, flags: 0 }).unwrap();
    client.send(51, &Request::Clunk { fid: 2 });
    until("it waits", || memory.waiting() == 2);
    client.attributes(ROOT).unwrap();
    memory.open_gate();
    let mut answers = [client.receive().0, client.receive().0];
    answers.sort_unstable();
    assert_eq!(answers, [50, 51]);
}
