//! SO: how a client begins, and what its numbers stand for.

use std::io::Write;
use std::sync::Arc;

use codeagent_p9::memory::Memory;
use codeagent_p9::wire::{NO_FID, NO_TAG, Reply, Request, VERSION};
use codeagent_p9::{Errno, Limits, OpenFlags, ServeError, Server, Share};

use crate::client::{Client, ROOT};
#[cfg(target_os = "linux")]
use crate::folder::Folder;

fn server(limits: Limits) -> Arc<Server> {
    Arc::new(Server::new(limits))
}

fn silent() -> Client {
    Client::silent(server(Limits::default()), Memory::default())
}

/// Bytes that no encoder writes.
fn raw(client: &mut Client, number: u8, tag: u16, fields: &[u8]) -> Result<(), Errno> {
    let mut bytes = (7 + fields.len() as u32).to_le_bytes().to_vec();
    bytes.push(number);
    bytes.extend(tag.to_le_bytes());
    bytes.extend(fields);
    client.stream.write_all(&bytes).unwrap();
    match client.receive() {
        (got, Reply::Error { errno }) if got == tag => Err(Errno(errno)),
        (got, _) if got == tag => Ok(()),
        (got, reply) => panic!("{got}: {reply:?}"),
    }
}

#[test]
fn the_smaller_message_size_is_agreed_on() {
    assert_eq!(silent().greet(8192), 8192);
    assert_eq!(silent().greet(u32::MAX), 4 << 20);
    let small = Limits { msize: 65_536, ..Limits::default() };
    assert_eq!(Client::silent(server(small), Memory::default()).greet(1 << 20), 65_536);
}

#[test]
fn another_dialect_is_unknown_and_nothing_else_is_answered_then() {
    for dialect in [&b"9P2000"[..], b"9P2000.u", b"", b"9P2000.L.x"] {
        let mut client = silent();
        client.send(NO_TAG, &Request::Version { msize: 8192, version: dialect });
        assert_eq!(client.receive().1, Reply::Version { msize: 8192, version: b"unknown" });
        assert_eq!(client.attach(ROOT), Err(Errno::EPROTO));
    }
}

#[test]
fn nothing_is_served_before_the_version() {
    assert_eq!(silent().attach(ROOT), Err(Errno::EPROTO));
}

#[test]
fn a_message_size_nobody_can_work_with_is_refused() {
    let mut client = silent();
    client.send(NO_TAG, &Request::Version { msize: 4095, version: VERSION });
    assert_eq!(client.receive().1, Reply::Error { errno: Errno::EMSGSIZE.0 });
    assert_eq!(client.greet(4096), 4096);
}

#[test]
fn a_new_version_gives_up_every_number() {
    let memory = Memory::default();
    let mut client = Client::in_memory(&memory);
    client.walk(ROOT, 1, &[]).unwrap();
    client.greet(8192);
    assert_eq!(client.attributes(ROOT), Err(Errno::EBADF));
    assert_eq!(client.clunk(1), Err(Errno::EBADF));
    client.attach(1).unwrap();
}

#[test]
fn there_is_nothing_to_authenticate_with() {
    let mut client = silent();
    client.greet(8192);
    let auth = Request::Auth { fid: 1, user: b"me", tree: b"", uid: 0 };
    assert_eq!(client.tell(&auth), Err(Errno::ENOENT));
    let attach = Request::Attach { fid: 1, auth_fid: 7, user: b"me", tree: b"", uid: 0 };
    assert_eq!(client.tell(&attach), Err(Errno::EBADF));
}

#[test]
fn several_users_attach_each_with_a_number() {
    let mut client = silent();
    client.greet(8192);
    for (fid, uid) in [(1, 0), (2, 1000), (3, u32::MAX), (4, u32::MAX - 1)] {
        let attach = Request::Attach { fid, auth_fid: NO_FID, user: b"", tree: b"any", uid };
        client.tell(&attach).unwrap();
        assert!(client.attributes(fid).unwrap().qid.is_dir());
    }
}

#[test]
fn a_number_in_use_stands_for_nothing_else() {
    let mut client = Client::in_memory(&Memory::default());
    assert_eq!(client.attach(ROOT), Err(Errno::EINVAL));
    client.walk(ROOT, 1, &[]).unwrap();
    assert_eq!(client.walk(ROOT, 1, &[]), Err(Errno::EINVAL));
    let xattr = Request::Xattrwalk { fid: ROOT, new_fid: 1, name: b"" };
    assert_eq!(client.tell(&xattr), Err(Errno::EINVAL));
}

#[test]
fn a_number_is_free_again_when_it_was_given_up() {
    let mut client = Client::in_memory(&Memory::default());
    for _ in 0..3 {
        client.create(1, "file", OpenFlags::READ_WRITE, 0o644).unwrap();
        client.clunk(1).unwrap();
        assert_eq!(client.clunk(1), Err(Errno::EBADF));
    }
    client.walk(ROOT, 1, &[]).unwrap();
    assert!(client.attributes(1).unwrap().qid.is_dir(), "nothing is left of the file");
}

/// P9-03.
#[test]
fn every_request_with_an_unknown_number_is_a_bad_descriptor() {
    let mut client = Client::in_memory(&Memory::default());
    let (fid, dir, name) = (77, 77, &b"x"[..]);
    let time = codeagent_p9::Time::default();
    use Request as R;
    let all = [
        R::Statfs { fid },
        R::Lopen { fid, flags: 0 },
        R::Lcreate { fid, name, flags: 2, mode: 0, gid: 0 },
        R::Symlink { dir, name, target: name, gid: 0 },
        R::Mknod { dir, name, mode: 0o100_644, major: 0, minor: 0, gid: 0 },
        R::Rename { fid, dir: ROOT, name },
        R::Readlink { fid },
        R::Getattr { fid, wanted: 0 },
        R::Setattr {
            fid,
            valid: 0,
            mode: 0,
            uid: 0,
            gid: 0,
            size: 0,
            accessed: time,
            modified: time,
        },
        R::Xattrwalk { fid, new_fid: 78, name },
        R::Xattrcreate { fid, name, size: 0, flags: 0 },
        R::Readdir { fid, offset: 0, count: 100 },
        R::Fsync { fid, data_only: 0 },
        R::Lock { fid, kind: 0, flags: 0, start: 0, length: 0, process: 0, client: b"" },
        R::Getlock { fid, kind: 0, start: 0, length: 0, process: 0, client: b"" },
        R::Link { dir: ROOT, fid, name },
        R::Link { dir, fid: ROOT, name },
        R::Mkdir { dir, name, mode: 0, gid: 0 },
        R::Renameat { old_dir: dir, old_name: name, new_dir: ROOT, new_name: name },
        R::Renameat { old_dir: ROOT, old_name: name, new_dir: dir, new_name: name },
        R::Unlinkat { dir, name, flags: 0 },
        R::Walk { fid, new_fid: 78, names: Default::default() },
        R::Read { fid, offset: 0, count: 1 },
        R::Write { fid, offset: 0, data: Default::default() },
        R::Clunk { fid },
        R::Remove { fid },
    ];
    for request in all {
        assert_eq!(client.tell(&request), Err(Errno::EBADF), "{request:?}");
    }
}

/// P9-03.
#[test]
fn what_is_no_message_gets_an_error_and_the_next_one_its_answer() {
    let mut client = Client::in_memory(&Memory::default());
    assert_eq!(raw(&mut client, 120, 5, &[]), Err(Errno::EPROTO), "a field is missing");
    assert_eq!(raw(&mut client, 120, 5, &[0; 5]), Err(Errno::EPROTO), "one byte too many");
    assert_eq!(raw(&mut client, 118, 6, &[0xff; 16]), Err(Errno::EPROTO), "a length that lies");
    for unknown in [0, 6, 7, 9, 106, 121, 124, 255] {
        assert_eq!(raw(&mut client, unknown, 7, &[]), Err(Errno::EOPNOTSUPP), "{unknown}");
    }
    client.attributes(ROOT).unwrap();
}

/// DOS-04, P9-05.
#[test]
fn a_message_that_claims_too_much_ends_the_connection_at_once() {
    for claim in [8193_u32, 2 << 30, u32::MAX, 6, 0] {
        let mut client = Client::in_memory(&Memory::default());
        client.greet(8192);
        client.stream.write_all(&claim.to_le_bytes()).unwrap();
        // It does not wait for what will never come.
        let mut nothing = [0];
        assert_eq!(std::io::Read::read(&mut client.stream, &mut nothing).unwrap(), 0);
        let ended = client.leave();
        assert!(matches!(ended, Err(ServeError::Size { .. })), "{claim}: {ended:?}");
    }
}

#[test]
fn a_client_that_hangs_up_is_no_error_and_one_that_breaks_off_is() {
    Client::in_memory(&Memory::default()).leave().unwrap();
    let mut client = Client::in_memory(&Memory::default());
    client.stream.write_all(&[50, 0, 0, 0, 100]).unwrap();
    assert!(matches!(client.leave(), Err(ServeError::Io(_))));
}

#[test]
fn nothing_counts_as_unanswered_when_everything_is_answered() {
    let memory = Memory::default();
    let mut client = Client::in_memory(&memory);
    client.create(1, "file", OpenFlags::READ_WRITE, 0o644).unwrap();
    client.write(1, 0, b"x").unwrap();
    client.leave().unwrap();
    assert_eq!(memory.unanswered(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn who_goes_leaves_nothing_open() {
    let folder = Folder::usual();
    let mut client = folder.client();
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open_files();
    client.find_open(1, "file", OpenFlags::READ_WRITE);
    client.find_open(2, "dir", 0);
    client.find(3, "dir/inner").unwrap();
    assert!(open_files() > before);
    client.greet(8192);
    assert_eq!(open_files(), before);
    client.leave().unwrap();
}

/// A share whose every operation is a mistake of its author's.
struct Panicking(Memory);

macro_rules! panics {
    ($(fn $name:ident($($type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self $(, _: $type)*) -> codeagent_p9::Result<$result> { panic!("a mistake") })*
    };
}

type Node = <Memory as Share>::Node;

impl Share for Panicking {
    type Node = Node;
    type Open = ();
    type Taken = <Memory as Share>::Taken;

    fn taken(&self) -> Self::Taken {
        self.0.taken()
    }

    fn root(
        &self,
        caller: codeagent_p9::Caller,
    ) -> codeagent_p9::Result<codeagent_p9::Found<Node>> {
        self.0.root(caller)
    }

    panics! {
        fn lookup(codeagent_p9::Caller, &Node, &[u8]) -> codeagent_p9::Found<Node>;
        fn attributes(codeagent_p9::Caller, &Node, Option<&()>, u64) -> codeagent_p9::Attributes;
        fn change(codeagent_p9::Caller, &Node, Option<&()>, &codeagent_p9::Change) -> ();
        fn open(codeagent_p9::Caller, &Node, OpenFlags) -> ();
        fn create(codeagent_p9::Caller, &Node, &[u8], OpenFlags, u32)
            -> codeagent_p9::Created<Node, ()>;
        fn read(codeagent_p9::Caller, &Node, &(), u64, &mut [u8]) -> usize;
        fn write(codeagent_p9::Caller, &Node, &(), u64, &[u8]) -> usize;
        fn list(codeagent_p9::Caller, &Node, &(), u64,
            &mut dyn FnMut(codeagent_p9::Entry<'_>) -> bool) -> ();
        fn read_link(codeagent_p9::Caller, &Node) -> Vec<u8>;
        fn make(codeagent_p9::Caller, &Node, &[u8], codeagent_p9::NewNode<'_>)
            -> codeagent_p9::wire::Qid;
        fn link(codeagent_p9::Caller, &Node, &Node, &[u8]) -> ();
        fn unlink(codeagent_p9::Caller, &Node, &[u8]) -> ();
        fn remove_dir(codeagent_p9::Caller, &Node, &[u8]) -> ();
        fn rename(codeagent_p9::Caller, (&Node, &[u8]), (&Node, &[u8])) -> ();
        fn xattr(codeagent_p9::Caller, &Node, &[u8]) -> Vec<u8>;
        fn xattr_names(codeagent_p9::Caller, &Node) -> Vec<u8>;
        fn set_xattr(codeagent_p9::Caller, &Node, &[u8], &[u8], codeagent_p9::XattrFlags) -> ();
        fn remove_xattr(codeagent_p9::Caller, &Node, &[u8]) -> ();
        fn sync(codeagent_p9::Caller, &Node, &(), bool) -> ();
        fn figures(codeagent_p9::Caller, &Node) -> codeagent_p9::FileSystemFigures;
    }
}

#[test]
fn a_mistake_in_a_share_costs_one_request() {
    let share = Panicking(Memory::default());
    let mut client = Client::to(&server(Limits::default()), share);
    assert_eq!(client.attributes(ROOT), Err(Errno::EIO));
    assert_eq!(client.mkdir(ROOT, "x"), Err(Errno::EIO));
    client.walk(ROOT, 1, &[]).unwrap();
    client.leave().unwrap();
}
