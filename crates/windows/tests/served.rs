//! The folder as a guest's kernel has it: through the server, message by message.
#![cfg(windows)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::fs;
use std::io::{PipeReader, PipeWriter, Read, Write};

use codeagent_p9::wire::{
    AT_REMOVEDIR, Data, DirEntries, Frame, NO_FID, NO_TAG, Names, Reply, Request, VERSION, getattr,
    setattr,
};
use codeagent_p9::{Errno, Limits, OpenFlags, ServeError, Server, Time};
use common::Folder;

const ROOT: u32 = 0;

struct Client {
    requests: PipeWriter,
    answers: PipeReader,
    frame: Frame,
    input: Vec<u8>,
    server: std::thread::JoinHandle<Result<(), ServeError>>,
}

impl Client {
    /// Greeted and attached.
    fn of(folder: &Folder) -> Self {
        let share = folder.another();
        let (read, requests) = std::io::pipe().unwrap();
        let (answers, write) = std::io::pipe().unwrap();
        let serve = move || Server::for_kernels(Limits::default()).serve(share, read, write);
        let server = std::thread::spawn(serve);
        let (frame, input) = (Frame::default(), Vec::new());
        let mut client = Self { requests, answers, frame, input, server };
        let version = Request::Version { msize: 1 << 16, version: VERSION };
        let agreed = Reply::Version { msize: 1 << 16, version: VERSION };
        assert_eq!(client.ask_as(NO_TAG, &version), Ok(agreed));
        let (user, tree) = (&b""[..], &b"/"[..]);
        client.tell(&Request::Attach { fid: ROOT, auth_fid: NO_FID, user, tree, uid: 1000 });
        client
    }

    fn ask_as(&mut self, tag: u16, request: &Request<'_>) -> Result<Reply<'_>, Errno> {
        self.frame.request(tag, request);
        self.requests.write_all(self.frame.bytes()).unwrap();
        let mut size = [0; 4];
        self.answers.read_exact(&mut size).unwrap();
        self.input.resize(u32::from_le_bytes(size) as usize, 0);
        self.input[..4].copy_from_slice(&size);
        self.answers.read_exact(&mut self.input[4..]).unwrap();
        match Reply::read_frame(&self.input).unwrap() {
            (got, Reply::Error { errno }) if got == tag => Err(Errno(errno)),
            (got, reply) if got == tag => Ok(reply),
            (got, reply) => panic!("{got}: {reply:?}"),
        }
    }

    fn ask(&mut self, request: &Request<'_>) -> Result<Reply<'_>, Errno> {
        self.ask_as(1, request)
    }

    #[track_caller]
    fn tell(&mut self, request: &Request<'_>) {
        let told = self.ask(request);
        assert!(told.is_ok(), "{told:?}");
    }

    fn walk(&mut self, new_fid: u32, names: &[&[u8]]) -> Result<usize, Errno> {
        let mut buffer = Vec::new();
        let names = Names::collect(names, &mut buffer).unwrap();
        let Reply::Walk { qids } = self.ask(&Request::Walk { fid: ROOT, new_fid, names })? else {
            panic!("no walk")
        };
        Ok(qids.as_slice().len())
    }

    fn leave(self) -> Result<(), ServeError> {
        drop((self.requests, self.answers));
        self.server.join().unwrap()
    }
}

#[test]
fn a_guest_works_in_the_folder_message_by_message() {
    let folder = Folder::new();
    let mut client = Client::of(&folder);
    client.tell(&Request::Mkdir { dir: ROOT, name: b"dir", mode: 0o750, gid: 1000 });
    assert_eq!(client.walk(1, &[b"dir"]), Ok(1));
    let (flags, mode, gid) = (OpenFlags::READ_WRITE | OpenFlags::CREATE, 0o640, 1000);
    client.tell(&Request::Lcreate { fid: 1, name: b"file", flags, mode, gid });
    let written = client.ask(&Request::Write { fid: 1, offset: 0, data: Data(b"0123456789") });
    assert_eq!(written, Ok(Reply::Write { count: 10 }));
    let read = client.ask(&Request::Read { fid: 1, offset: 7, count: 100 });
    assert_eq!(read, Ok(Reply::Read { data: Data(b"789") }));
    client.tell(&Request::Fsync { fid: 1, data_only: 0 });
    assert_eq!(fs::read(folder.host("dir/file")).unwrap(), b"0123456789");

    let zero = Time::default();
    client.tell(&Request::Setattr {
        fid: 1,
        valid: setattr::MODE | setattr::SIZE,
        mode: 0o755,
        uid: 0,
        gid: 0,
        size: 4,
        accessed: zero,
        modified: zero,
    });
    let asked = client.ask(&Request::Getattr { fid: 1, wanted: getattr::BASIC });
    let Ok(Reply::Getattr { attributes }) = asked else { panic!("{asked:?}") };
    assert_eq!((attributes.mode, attributes.size, attributes.uid), (0o100_755, 4, 1000));
    client.tell(&Request::Clunk { fid: 1 });

    client.tell(&Request::Symlink { dir: ROOT, name: b"link", target: b"dir/file", gid: 1000 });
    assert_eq!(client.walk(2, &[b"link"]), Ok(1));
    let target = client.ask(&Request::Readlink { fid: 2 });
    assert_eq!(target, Ok(Reply::Readlink { target: b"dir/file" }));
    let (old_name, new_name) = (&b"dir"[..], &b"moved"[..]);
    client.tell(&Request::Renameat { old_dir: ROOT, old_name, new_dir: ROOT, new_name });
    assert_eq!(client.walk(3, &[b"moved", b"file"]), Ok(2));
    assert_eq!(client.walk(4, &[b"dir"]), Err(Errno::ENOENT));

    assert_eq!(client.walk(5, &[]), Ok(0));
    client.tell(&Request::Lopen { fid: 5, flags: OpenFlags::DIRECTORY });
    let listed = client.ask(&Request::Readdir { fid: 5, offset: 0, count: 8192 });
    let Ok(Reply::Readdir { entries }) = listed else { panic!("{listed:?}") };
    let mut names: Vec<&[u8]> = DirEntries::new(entries.0).map(|entry| entry.name).collect();
    names.sort_unstable();
    assert_eq!(names, [&b"."[..], b"..", b"link", b"moved"]);

    let refused = client.ask(&Request::Unlinkat { dir: ROOT, name: b"moved", flags: AT_REMOVEDIR });
    assert_eq!(refused, Err(Errno::ENOTEMPTY));
    client.tell(&Request::Remove { fid: 3 });
    client.tell(&Request::Unlinkat { dir: ROOT, name: b"moved", flags: AT_REMOVEDIR });
    client.tell(&Request::Unlinkat { dir: ROOT, name: b"link", flags: 0 });
    assert_eq!(fs::read_dir(folder.host("")).unwrap().count(), 0);
    folder.victim_is_untouched();
    client.leave().unwrap();
}

/// What Windows does not bear is refused on the way, and the guest goes on.
#[test]
fn a_guest_is_told_what_windows_does_not_bear() {
    let folder = Folder::new();
    let mut client = Client::of(&folder);
    for name in [&b"CON"[..], b"a:b", b"a.", b"..\\outside"] {
        let made = client.ask(&Request::Mkdir { dir: ROOT, name, mode: 0o755, gid: 1000 });
        assert_eq!(made, Err(Errno::EINVAL), "{name:?}");
    }
    folder.notes.refuse(true);
    let made = client.ask(&Request::Mkdir { dir: ROOT, name: b"dir", mode: 0o755, gid: 1000 });
    assert_eq!(made, Err(Errno::EROFS));
    assert_eq!(fs::read_dir(folder.host("")).unwrap().count(), 0);
    folder.victim_is_untouched();
    client.leave().unwrap();
}
