//! LK: locks among the clients of a folder.

use std::sync::Arc;

use codeagent_p9::memory::Memory;
use codeagent_p9::wire::{Reply, Request, lock};
use codeagent_p9::{Errno, Limits, OpenFlags, Server};

use crate::client::{Answer, Client, ROOT, until};

fn two_clients() -> (Arc<Server>, Memory, Client, Client) {
    let server = Arc::new(Server::new(Limits::default()));
    let memory = Memory::default();
    let mut one = Client::to(&server, memory.clone());
    let mut two = Client::to(&server, memory.clone());
    for client in [&mut one, &mut two] {
        client.create(1, "file", OpenFlags::READ_WRITE, 0o644).unwrap();
    }
    (server, memory, one, two)
}

fn request(kind: u8, flags: u32, start: u64, length: u64, process: u32) -> Request<'static> {
    Request::Lock { fid: 1, kind, flags, start, length, process, client: b"guest" }
}

fn set(client: &mut Client, kind: u8, start: u64, length: u64, process: u32) -> Answer<u8> {
    let Reply::Lock { status } = client.ask(&request(kind, 0, start, length, process))? else {
        unreachable!()
    };
    Ok(status)
}

#[test]
fn what_one_has_locked_another_has_not() {
    let (_server, _memory, mut one, mut two) = two_clients();
    assert_eq!(set(&mut one, lock::WRITE, 0, 10, 1), Ok(lock::SUCCESS));
    assert_eq!(set(&mut two, lock::WRITE, 5, 10, 1), Ok(lock::BLOCKED), "same name, other guest");
    assert_eq!(set(&mut two, lock::READ, 9, 1, 1), Ok(lock::BLOCKED));
    assert_eq!(set(&mut two, lock::WRITE, 10, 5, 1), Ok(lock::SUCCESS));
    assert_eq!(set(&mut one, lock::WRITE, 0, 10, 2), Ok(lock::BLOCKED), "another process");
    assert_eq!(set(&mut one, lock::READ, 0, 10, 1), Ok(lock::SUCCESS), "its own");
    assert_eq!(set(&mut two, lock::READ, 0, 10, 1), Ok(lock::SUCCESS), "both only read now");
}

#[test]
fn a_lock_ends_with_its_unlocking_and_with_its_number() {
    let (_server, _memory, mut one, mut two) = two_clients();
    assert_eq!(set(&mut one, lock::WRITE, 0, 0, 1), Ok(lock::SUCCESS));
    assert_eq!(set(&mut one, lock::UNLOCK, 0, 0, 1), Ok(lock::SUCCESS));
    assert_eq!(set(&mut two, lock::WRITE, 0, 0, 1), Ok(lock::SUCCESS));
    two.clunk(1).unwrap();
    assert_eq!(set(&mut one, lock::WRITE, 0, 0, 1), Ok(lock::SUCCESS));
    one.leave().unwrap();
    two.create(1, "file", OpenFlags::READ_WRITE, 0o644).unwrap();
    assert_eq!(set(&mut two, lock::WRITE, 0, 0, 1), Ok(lock::SUCCESS));
}

#[test]
fn who_is_in_the_way_can_be_asked_for() {
    let (_server, _memory, mut one, mut two) = two_clients();
    set(&mut one, lock::WRITE, 10, 20, 7).unwrap();
    let (kind, client) = (lock::READ, &b"other"[..]);
    let ask = |start| Request::Getlock { fid: 1, kind, start, length: 5, process: 9, client };
    let free = Reply::Getlock { kind: lock::UNLOCK, start: 0, length: 5, process: 9, client };
    assert_eq!(two.ask(&ask(0)).unwrap(), free);
    let (kind, client) = (lock::WRITE, &b"guest"[..]);
    let taken = Reply::Getlock { kind, start: 10, length: 20, process: 7, client };
    assert_eq!(two.ask(&ask(8)).unwrap(), taken);
}

/// Linux asks so, whatever the program wanted.
#[test]
fn who_is_in_the_way_can_be_asked_for_without_saying_of_what() {
    let (_server, _memory, mut one, mut two) = two_clients();
    set(&mut one, lock::READ, 10, 20, 7).unwrap();
    let (kind, client) = (lock::UNLOCK, &b"guest"[..]);
    let ask = Request::Getlock { fid: 1, kind, start: 0, length: 0, process: 9, client };
    let taken =
        Reply::Getlock { kind: lock::READ, start: 10, length: 20, process: 7, client: b"guest" };
    assert_eq!(two.ask(&ask).unwrap(), taken);
}

/// A kernel gives up a lock in the name of another process than it was had by.
#[test]
fn processes_of_one_kernel_are_not_in_each_others_way() {
    let server = Arc::new(Server::for_kernels(Limits::default()));
    let memory = Memory::default();
    let mut one = Client::to(&server, memory.clone());
    let mut two = Client::to(&server, memory.clone());
    for client in [&mut one, &mut two] {
        client.create(1, "file", OpenFlags::READ_WRITE, 0o644).unwrap();
    }
    assert_eq!(set(&mut one, lock::WRITE, 0, 0, 1), Ok(lock::SUCCESS));
    assert_eq!(set(&mut one, lock::UNLOCK, 0, 0, 2), Ok(lock::SUCCESS));
    assert_eq!(set(&mut one, lock::WRITE, 0, 0, 3), Ok(lock::SUCCESS));
    assert_eq!(set(&mut two, lock::WRITE, 0, 0, 1), Ok(lock::BLOCKED), "another guest");
    one.clunk(1).unwrap();
    assert_eq!(set(&mut two, lock::WRITE, 0, 0, 1), Ok(lock::SUCCESS));
}

/// `flock` in a shell: each of them is a process of its own, and the file is open in the shell.
#[test]
fn what_one_process_of_a_guest_has_locked_another_unlocks_through_the_same_number() {
    let server = Arc::new(Server::for_kernels(Limits::default()));
    let memory = Memory::default();
    let mut one = Client::to(&server, memory.clone());
    let mut two = Client::to(&server, memory.clone());
    for client in [&mut one, &mut two] {
        client.create(1, "file", OpenFlags::READ_WRITE, 0o644).unwrap();
    }
    for process in (1..200).step_by(2) {
        assert_eq!(set(&mut one, lock::WRITE, 0, 0, process), Ok(lock::SUCCESS));
        assert_eq!(set(&mut two, lock::WRITE, 0, 0, 1), Ok(lock::BLOCKED));
        let forked = process + 1000;
        assert_eq!(set(&mut one, lock::UNLOCK, 0, 0, forked), Ok(lock::SUCCESS));
        assert_eq!(set(&mut two, lock::WRITE, 0, 0, 1), Ok(lock::BLOCKED), "only closed");
        one.tell(&request(lock::UNLOCK, lock::BLOCK, 0, 0, process + 1)).unwrap();
        assert_eq!(set(&mut two, lock::WRITE, 0, 0, 1), Ok(lock::SUCCESS));
        assert_eq!(set(&mut two, lock::UNLOCK, 0, 0, 1), Ok(lock::SUCCESS));
    }
}

/// P9-03.
#[test]
fn locks_that_nobody_can_have_are_refused() {
    let (_server, _memory, mut one, _two) = two_clients();
    assert_eq!(set(&mut one, 3, 0, 0, 1), Err(Errno::EINVAL));
    assert_eq!(set(&mut one, lock::WRITE, u64::MAX, 2, 1), Err(Errno::EINVAL));
    let (fid, kind, flags, start, length, process) = (ROOT, lock::READ, 0, 0, 0, 1);
    let not_open = Request::Lock { fid, kind, flags, start, length, process, client: b"" };
    assert_eq!(one.tell(&not_open), Err(Errno::EBADF));
    let long = [b'x'; 256];
    let long = Request::Lock { fid: 1, kind, flags, start, length, process, client: &long };
    assert_eq!(one.tell(&long), Err(Errno::EINVAL));
}

#[test]
fn who_wants_to_wait_waits_and_is_told_when_it_is_free() {
    let (_server, memory, mut one, mut two) = two_clients();
    set(&mut one, lock::WRITE, 0, 0, 1).unwrap();
    two.send(50, &request(lock::WRITE, lock::BLOCK, 0, 0, 1));
    // Nothing else of this client waits meanwhile.
    two.attributes(ROOT).unwrap();
    until("nothing else is on its way", || memory.unanswered() == 1);
    set(&mut one, lock::UNLOCK, 0, 0, 1).unwrap();
    assert_eq!(two.receive(), (50, Reply::Lock { status: lock::SUCCESS }));
    assert_eq!(set(&mut one, lock::WRITE, 0, 0, 1), Ok(lock::BLOCKED));
}

#[test]
fn who_waits_no_longer_gets_no_lock() {
    let (_server, memory, mut one, mut two) = two_clients();
    set(&mut one, lock::WRITE, 0, 0, 1).unwrap();
    two.send(50, &request(lock::WRITE, lock::BLOCK, 0, 0, 1));
    two.send(51, &Request::Flush { old_tag: 50 });
    // Either it was told that it is blocked first, or it is told nothing but that it is over.
    let mut answers = vec![two.receive().0];
    if answers == [50] {
        answers.push(two.receive().0);
    }
    assert_eq!(answers.last(), Some(&51));
    until("everything is answered", || memory.unanswered() == 0);
    set(&mut one, lock::UNLOCK, 0, 0, 1).unwrap();
    assert_eq!(set(&mut one, lock::WRITE, 0, 0, 1), Ok(lock::SUCCESS));
}

#[test]
fn who_gives_up_its_number_waits_for_no_lock_of_it() {
    let (_server, _memory, mut one, mut two) = two_clients();
    set(&mut one, lock::WRITE, 0, 0, 1).unwrap();
    two.send(50, &request(lock::WRITE, lock::BLOCK, 0, 0, 1));
    two.send(51, &Request::Clunk { fid: 1 });
    let mut answers = [two.receive().0, two.receive().0];
    answers.sort_unstable();
    assert_eq!(answers, [50, 51]);
    set(&mut one, lock::UNLOCK, 0, 0, 1).unwrap();
    assert_eq!(set(&mut one, lock::WRITE, 0, 0, 2), Ok(lock::SUCCESS), "nobody has it");
}

#[test]
fn who_hangs_up_waits_for_no_lock() {
    let (_server, memory, mut one, mut two) = two_clients();
    set(&mut one, lock::WRITE, 0, 0, 1).unwrap();
    two.send(50, &request(lock::WRITE, lock::BLOCK, 0, 0, 1));
    two.attributes(ROOT).unwrap();
    two.leave().unwrap();
    assert_eq!(memory.unanswered(), 0);
}

#[test]
fn more_than_may_wait_are_told_that_they_are_blocked() {
    let limits = Limits { waiting_locks: 2, ..Limits::default() };
    let (server, memory) = (Arc::new(Server::new(limits)), Memory::default());
    let mut client = Client::to(&server, memory.clone());
    client.create(1, "file", OpenFlags::READ_WRITE, 0o644).unwrap();
    set(&mut client, lock::WRITE, 0, 0, 1).unwrap();
    for (tag, process) in [(50, 2), (51, 3), (52, 4)] {
        client.send(tag, &request(lock::WRITE, lock::BLOCK, 0, 0, process));
    }
    assert_eq!(client.receive(), (52, Reply::Lock { status: lock::BLOCKED }));
    client.leave().unwrap();
    assert_eq!(memory.unanswered(), 0);
}
