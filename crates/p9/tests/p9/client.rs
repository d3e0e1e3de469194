//! A client for tests.
#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "some tests are for Linux only"))]

use std::io::{Read, Write};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use codeagent_p9::memory::Memory;
use codeagent_p9::wire::{
    Data, DirEntries, Frame, NO_FID, NO_TAG, Names, Qid, Reply, Request, VERSION, getattr,
};
use codeagent_p9::{Attributes, Errno, Limits, ServeError, Server, Share, Time};

pub(crate) type Answer<T> = Result<T, Errno>;

/// What clients talk over here.
#[cfg(unix)]
pub(crate) type Stream = std::os::unix::net::UnixStream;
/// Wine has no other sockets.
#[cfg(windows)]
pub(crate) type Stream = std::net::TcpStream;

pub(crate) const ROOT: u32 = 0;
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(unix)]
fn pair() -> (Stream, Stream) {
    Stream::pair().unwrap()
}

#[cfg(windows)]
fn pair() -> (Stream, Stream) {
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let ours = Stream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    for end in [&ours, &theirs] {
        end.set_nodelay(true).unwrap();
    }
    (ours, theirs)
}

/// Who runs the tests, as far as that matters to a folder.
#[cfg(target_os = "linux")]
fn me() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

#[cfg(not(target_os = "linux"))]
fn me() -> (u32, u32) {
    (1000, 1000)
}

/// Waits until something is so.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) struct Client {
    pub(crate) stream: Stream,
    frame: Frame,
    input: Vec<u8>,
    tag: u16,
    server: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Client {
    /// Connected, and nothing said yet.
    pub(crate) fn silent<S: Share>(server: Arc<Server>, share: S) -> Self {
        let (ours, theirs) = pair();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        let read = theirs.try_clone().unwrap();
        let thread = std::thread::spawn(move || server.serve(share, read, theirs));
        Self::over(ours, Some(thread))
    }

    pub(crate) fn over(stream: Stream, server: Option<JoinHandle<Result<(), ServeError>>>) -> Self {
        Self { stream, frame: Frame::default(), input: Vec::new(), tag: 0, server }
    }

    /// Greeted and attached, as the user who runs the tests.
    pub(crate) fn to<S: Share>(server: &Arc<Server>, share: S) -> Self {
        let mut client = Self::silent(Arc::clone(server), share);
        client.greet(1 << 20);
        client.attach(ROOT).unwrap();
        client
    }

    pub(crate) fn in_memory(memory: &Memory) -> Self {
        Self::to(&Arc::new(Server::new(Limits::default())), memory.clone())
    }

    pub(crate) fn greet(&mut self, msize: u32) -> u32 {
        self.send(NO_TAG, &Request::Version { msize, version: VERSION });
        let Reply::Version { msize, version } = self.receive().1 else { panic!("no version") };
        assert_eq!(version, VERSION);
        msize
    }

    pub(crate) fn send(&mut self, tag: u16, request: &Request<'_>) {
        self.frame.request(tag, request);
        self.stream.write_all(self.frame.bytes()).unwrap();
    }

    pub(crate) fn receive(&mut self) -> (u16, Reply<'_>) {
        let mut size = [0; 4];
        self.stream.read_exact(&mut size).unwrap();
        self.input.resize(u32::from_le_bytes(size) as usize, 0);
        self.input[..4].copy_from_slice(&size);
        self.stream.read_exact(&mut self.input[4..]).unwrap();
        Reply::read_frame(&self.input).unwrap()
    }

    pub(crate) fn ask(&mut self, request: &Request<'_>) -> Answer<Reply<'_>> {
        self.tag = (self.tag + 1) % 1000;
        let tag = self.tag;
        self.send(tag, request);
        match self.receive() {
            (got, _) if got != tag => panic!("an answer to {got} instead of {tag}"),
            (_, Reply::Error { errno }) => Err(Errno(errno)),
            (_, reply) => {
                assert_eq!(reply.number(), request.number() + 1);
                Ok(reply)
            }
        }
    }

    /// Where only success matters.
    pub(crate) fn tell(&mut self, request: &Request<'_>) -> Answer<()> {
        self.ask(request).map(|_| ())
    }

    pub(crate) fn attach(&mut self, fid: u32) -> Answer<Qid> {
        self.attach_as(fid, me().0)
    }

    pub(crate) fn attach_as(&mut self, fid: u32, uid: u32) -> Answer<Qid> {
        let request = Request::Attach { fid, auth_fid: NO_FID, user: b"", tree: b"/", uid };
        let Reply::Attach { qid } = self.ask(&request)? else { unreachable!() };
        Ok(qid)
    }

    pub(crate) fn walk(&mut self, fid: u32, new_fid: u32, names: &[&str]) -> Answer<Vec<Qid>> {
        let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        let mut buffer = Vec::new();
        let names = Names::collect(&names, &mut buffer).unwrap();
        let Reply::Walk { qids } = self.ask(&Request::Walk { fid, new_fid, names })? else {
            unreachable!()
        };
        Ok(qids.as_slice().to_vec())
    }

    /// Walks from the root, all the way.
    pub(crate) fn find(&mut self, new_fid: u32, path: &str) -> Answer<()> {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        let walked = self.walk(ROOT, new_fid, &names)?;
        if walked.len() == names.len() { Ok(()) } else { Err(Errno::ENOENT) }
    }

    pub(crate) fn open(&mut self, fid: u32, flags: u32) -> Answer<u32> {
        let Reply::Lopen { iounit, .. } = self.ask(&Request::Lopen { fid, flags })? else {
            unreachable!()
        };
        Ok(iounit)
    }

    pub(crate) fn find_open(&mut self, fid: u32, path: &str, flags: u32) {
        self.find(fid, path).unwrap();
        self.open(fid, flags).unwrap();
    }

    /// A new file in the root.
    pub(crate) fn create(&mut self, fid: u32, name: &str, flags: u32, mode: u32) -> Answer<Qid> {
        self.walk(ROOT, fid, &[]).unwrap();
        let (_, gid) = me();
        let request = Request::Lcreate { fid, name: name.as_bytes(), flags, mode, gid };
        let Reply::Lcreate { qid, .. } = self.ask(&request)? else { unreachable!() };
        Ok(qid)
    }

    pub(crate) fn read(&mut self, fid: u32, offset: u64, count: u32) -> Answer<Vec<u8>> {
        let Reply::Read { data } = self.ask(&Request::Read { fid, offset, count })? else {
            unreachable!()
        };
        Ok(data.0.to_vec())
    }

    pub(crate) fn write(&mut self, fid: u32, offset: u64, bytes: &[u8]) -> Answer<u32> {
        let request = Request::Write { fid, offset, data: Data(bytes) };
        let Reply::Write { count } = self.ask(&request)? else { unreachable!() };
        Ok(count)
    }

    pub(crate) fn clunk(&mut self, fid: u32) -> Answer<()> {
        self.tell(&Request::Clunk { fid })
    }

    pub(crate) fn attributes(&mut self, fid: u32) -> Answer<Attributes> {
        let wanted = getattr::BASIC;
        let Reply::Getattr { attributes } = self.ask(&Request::Getattr { fid, wanted })? else {
            unreachable!()
        };
        Ok(attributes)
    }

    /// Only what `valid` says is looked at.
    pub(crate) fn change(&mut self, fid: u32, valid: u32, mode: u32, size: u64) -> Answer<()> {
        let at = Time { seconds: 1_000_000_007, nanoseconds: 5 };
        let (accessed, modified) = (at, at);
        let (uid, gid) = (u32::MAX, u32::MAX);
        self.tell(&Request::Setattr { fid, valid, mode, uid, gid, size, accessed, modified })
    }

    /// Everything in an open directory, in pieces of so many bytes.
    pub(crate) fn list(&mut self, fid: u32, count: u32) -> Answer<Vec<String>> {
        let (mut names, mut offset) = (Vec::new(), 0);
        loop {
            let request = Request::Readdir { fid, offset, count };
            let Reply::Readdir { entries } = self.ask(&request)? else { unreachable!() };
            if entries.0.is_empty() {
                return Ok(names);
            }
            assert!(entries.0.len() <= count as usize);
            for entry in DirEntries::new(entries.0) {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                offset = entry.offset;
            }
        }
    }

    pub(crate) fn mkdir(&mut self, dir: u32, name: &str) -> Answer<()> {
        let (_, gid) = me();
        self.tell(&Request::Mkdir { dir, name: name.as_bytes(), mode: 0o755, gid })
    }

    pub(crate) fn unlink(&mut self, dir: u32, name: &str, flags: u32) -> Answer<()> {
        self.tell(&Request::Unlinkat { dir, name: name.as_bytes(), flags })
    }

    pub(crate) fn rename(&mut self, from: (u32, &str), to: (u32, &str)) -> Answer<()> {
        let (old_name, new_name) = (from.1.as_bytes(), to.1.as_bytes());
        self.tell(&Request::Renameat { old_dir: from.0, old_name, new_dir: to.0, new_name })
    }

    pub(crate) fn xattr(&mut self, fid: u32, name: &str) -> Answer<Vec<u8>> {
        let (new_fid, name) = (9999, name.as_bytes());
        let Reply::Xattrwalk { size } = self.ask(&Request::Xattrwalk { fid, new_fid, name })?
        else {
            unreachable!()
        };
        let value = self.read(new_fid, 0, size as u32 + 10).unwrap();
        assert_eq!(value.len() as u64, size);
        self.clunk(new_fid).unwrap();
        Ok(value)
    }

    /// As Linux does it: a clone, the size, the value, the end.
    pub(crate) fn set_xattr(
        &mut self,
        fid: u32,
        name: &str,
        value: &[u8],
        flags: u32,
    ) -> Answer<()> {
        let (clone, size) = (9999, value.len() as u64);
        self.walk(fid, clone, &[]).unwrap();
        let name = name.as_bytes();
        let made = self.tell(&Request::Xattrcreate { fid: clone, name, size, flags });
        if made.is_ok() && !value.is_empty() {
            self.write(clone, 0, value)?;
        }
        let set = self.clunk(clone);
        made.and(set)
    }

    /// Hangs up, and says how serving it ended.
    pub(crate) fn leave(mut self) -> Result<(), ServeError> {
        self.stream.shutdown(std::net::Shutdown::Both).unwrap();
        self.server.take().unwrap().join().unwrap()
    }
}
