//! Forged FUSE requests, made of arbitrary bytes: most of them with the form of real ones and
//! wild values, the rest wild altogether. Shared by a test and a fuzz target.
//!
//! One thing is always right, because the kernel itself writes it and the library relies on it:
//! how much data comes with a write, an attribute or a control.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use codeagent_fs::{FsConfig, InterceptedFs};
use codeagent_interceptor::{EngineConfig, RollbackOptions, UndoEngine};
use codeagent_test_support::{TempWorkspace, TreeSnapshot, assert_tree_eq};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send};

/// No answer takes longer, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(20);

const HEADER_BYTES: usize = 40;
const INIT: u32 = 26;
const DESTROY: u32 = 38;
/// Requests that are not answered, `DESTROY` apart.
const SILENT: [u32; 4] = [2, 36, 41, 42];
const STATFS: u32 = 17;
/// Not served, but read.
const IOCTL: u32 = 39;
/// Where write and setxattr say how much data they bring.
const LENGTHS: [(u32, usize); 2] = [(16, 16), (21, 0)];

/// What a field of a request holds.
#[derive(Clone, Copy)]
enum Field {
    U32,
    U64,
    /// A handle, perhaps one that was given out.
    Handle,
    /// An inode, perhaps one that was given out.
    Node,
    Name,
    Data,
}

use Field::{Data, Handle, Name, Node, U32, U64};

const FORMS: &[(u32, &[Field])] = &[
    (1, &[Name]),             // lookup
    (2, &[U64]),              // forget
    (3, &[U32, U32, Handle]), // getattr
    (4, &[U32, U32, Handle, U64, U64, U64, U64, U64, U32, U32, U32, U32, U32, U32, U32, U32]), // setattr
    (5, &[]),                                            // readlink
    (6, &[Name, Name]),                                  // symlink
    (8, &[U32, U32, U32, U32, Name]),                    // mknod
    (9, &[U32, U32, Name]),                              // mkdir
    (10, &[Name]),                                       // unlink
    (11, &[Name]),                                       // rmdir
    (12, &[Node, Name, Name]),                           // rename
    (13, &[Node, Name]),                                 // link
    (14, &[U32, U32]),                                   // open
    (15, &[Handle, U64, U32, U32, U64, U32, U32]),       // read
    (16, &[Handle, U64, U32, U32, U64, U32, U32, Data]), // write
    (17, &[]),                                           // statfs
    (18, &[Handle, U32, U32, U64]),                      // release
    (20, &[Handle, U32, U32]),                           // fsync
    (21, &[U32, U32, Name, Data]),                       // setxattr
    (22, &[U32, U32, Name]),                             // getxattr
    (23, &[U32, U32]),                                   // listxattr
    (24, &[Name]),                                       // removexattr
    (25, &[Handle, U32, U32, U64]),                      // flush
    (27, &[U32, U32]),                                   // opendir
    (28, &[Handle, U64, U32, U32, U64, U32, U32]),       // readdir
    (29, &[Handle, U32, U32, U64]),                      // releasedir
    (30, &[Handle, U32, U32]),                           // fsyncdir
    (34, &[U32, U32]),                                   // access
    (35, &[U32, U32, U32, U32, Name]),                   // create
    (42, &[U32, U32, Node, U64, Node, U64]),             // batch_forget
    (43, &[Handle, U64, U64, U32, U32]),                 // fallocate
    (44, &[Handle, U64, U32, U32, U64, U32, U32]),       // readdirplus
    (45, &[Node, U32, U32, Name, Name]),                 // rename2
    (46, &[Handle, U64, U32, U32]),                      // lseek
    (47, &[Handle, U64, Node, Handle, U64, U64, U64]),   // copy_file_range
];

const NAMES: &[&[u8]] = &[
    b"file",
    b"dir",
    b"inner",
    b"link",
    b"fifo",
    b"new",
    b"other",
    b"user.attribute",
    b"..",
    b".",
    b"",
    b"../outside",
    b"dir/inner",
    b"/etc",
    b"not\xfftext",
    b"away",
];

/// Sizes and offsets that mean something; none makes a filesystem in memory grow.
const NUMBERS: &[u64] = &[
    0,
    1,
    2,
    4095,
    4096,
    4097,
    65_536,
    70_000,
    1 << 20,
    i64::MAX as u64,
    u64::MAX,
    0o100_644,
    0o040_755,
    0o020_666,
    0o010_644,
    0o2,
    0o1000,
    0o2001,
    0o2_000_000,
    u32::MAX as u64,
];

/// Takes wild bytes one after the other; zeroes once there are none left.
struct Wild<'a>(&'a [u8]);

impl Wild<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn wide(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    fn number(&mut self) -> u64 {
        let choice = usize::from(self.byte());
        match NUMBERS.get(choice) {
            Some(number) => *number,
            None if choice < 200 => choice as u64 % 16,
            None => self.wide() & 0xf_ffff,
        }
    }

    /// Small numbers are what servers give out.
    fn reference(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=200 => u64::from(small % 16),
            201..=230 => u64::MAX,
            _ => self.wide(),
        }
    }

    fn name(&mut self) -> Vec<u8> {
        let choice = usize::from(self.byte());
        match NAMES.get(choice % 20) {
            Some(name) => name.to_vec(),
            None if choice % 20 == 19 => vec![b'x'; 300],
            // A NUL would end it.
            None => (0..choice % 7).map(|_| self.byte().max(1)).collect(),
        }
    }

    fn field(&mut self, field: Field, body: &mut Vec<u8>) {
        match field {
            U32 => body.extend((self.number() as u32).to_le_bytes()),
            U64 => body.extend(self.number().to_le_bytes()),
            Handle | Node => body.extend(self.reference().to_le_bytes()),
            Name => {
                body.extend(self.name());
                body.push(0);
            }
            Data => {
                let length = usize::from(self.byte()) * 20;
                body.extend(std::iter::repeat_n(self.byte(), length));
            }
        }
    }

    /// The code of a request and what follows its header.
    fn request(&mut self) -> (u32, Vec<u8>) {
        let choice = self.byte();
        let mut body = Vec::new();
        if choice < 16 {
            let code = u32::from(self.byte()) % 64;
            body.extend((0..usize::from(self.byte())).map(|_| self.byte()));
            let has_length = code == IOCTL || LENGTHS.iter().any(|(known, _)| *known == code);
            return (if has_length { STATFS } else { code }, body);
        }
        let (code, form) = FORMS[usize::from(choice) % FORMS.len()];
        let mut before_data = 0;
        for field in form {
            before_data = body.len();
            self.field(*field, &mut body);
        }
        if let Some((_, at)) = LENGTHS.iter().find(|(with_data, _)| *with_data == code) {
            let length = (body.len() - before_data) as u32;
            body[*at..at + 4].copy_from_slice(&length.to_le_bytes());
        } else if self.byte() > 245 {
            // Now and then something is missing at the end.
            body.truncate(body.len() / 2);
        }
        (code, body)
    }
}

/// The kernel's end of a connection.
struct Kernel {
    socket: OwnedFd,
    requests: u64,
    answer: Box<[u8]>,
}

impl Kernel {
    /// Two ends; the other one is for the server.
    fn new() -> (Self, OwnedFd) {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("two sockets");
        let mut kernel = Self { socket: ours, requests: 0, answer: vec![0; 2 << 20].into() };
        // Version 7.40, with room for everything.
        let init = [7_u32, 40, 0x10_0000, u32::MAX];
        let mut body: Vec<u8> = init.iter().flat_map(|value| value.to_le_bytes()).collect();
        body.resize(64, 0);
        kernel.send(INIT, 0, (0, 0), &body).expect("a first request");
        (kernel, theirs)
    }

    /// Sends what `bytes` make, and waits for each answer.
    fn play(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.wait()?; // for the answer to the first request
        let mut wild = Wild(bytes);
        while !wild.0.is_empty() {
            let node = wild.reference();
            let owner = (wild.reference() as u32, wild.reference() as u32);
            let (code, body) = wild.request();
            if [INIT, DESTROY].contains(&code) {
                continue;
            }
            self.send(code, node, owner, &body)?;
            if !SILENT.contains(&code) {
                self.wait()?;
            }
        }
        // A last one that any server answers: nothing of the above made it stop.
        self.send(STATFS, 1, (0, 0), &[])?;
        self.wait()
    }

    fn send(&mut self, code: u32, node: u64, owner: (u32, u32), body: &[u8]) -> io::Result<()> {
        self.requests += 1;
        let mut packet = Vec::with_capacity(HEADER_BYTES + body.len());
        packet.extend(((HEADER_BYTES + body.len()) as u32).to_le_bytes());
        packet.extend(code.to_le_bytes());
        packet.extend((self.requests * 2).to_le_bytes());
        packet.extend(node.to_le_bytes());
        packet.extend(owner.0.to_le_bytes());
        packet.extend(owner.1.to_le_bytes());
        packet.extend(1_u32.to_le_bytes());
        packet.extend(0_u32.to_le_bytes());
        packet.extend(body);
        send(&self.socket, &packet, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for the answer to the last request; others may come first.
    fn wait(&mut self) -> io::Result<()> {
        let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        loop {
            let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
            if poll(&mut ready, Some(&timeout))? == 0 {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the server hangs"));
            }
            let (length, _) = recv(&self.socket, &mut *self.answer, RecvFlags::empty())?;
            let Some(unique) = self.answer[..length].get(8..16) else {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server has gone"));
            };
            if unique == (self.requests * 2).to_le_bytes() {
                return Ok(());
            }
        }
    }
}

fn fixture(root: &Path) {
    fs::create_dir(root.join("dir")).unwrap();
    fs::write(root.join("file"), "file").unwrap();
    fs::write(root.join("dir/inner"), vec![1; 100_000]).unwrap();
    fs::hard_link(root.join("file"), root.join("dir/other")).unwrap();
    std::os::unix::fs::symlink("../outside", root.join("away")).unwrap();
    std::os::unix::fs::symlink("/etc", root.join("link")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
}

/// One kernel and one server. Nothing outside changes, nobody panics or hangs, and what happened
/// inside is undone exactly.
///
/// # Panics
/// When it is not so.
pub(crate) fn round(bytes: &[u8]) {
    let workspace = TempWorkspace::with_fixture(fixture);
    let beside = workspace.working().with_file_name("outside");
    fs::create_dir(&beside).unwrap();
    fs::write(beside.join("victim"), "untouched").unwrap();
    let outside = TreeSnapshot::capture(&beside);
    let before = workspace.snapshot();
    let config = EngineConfig::new(workspace.working(), workspace.undo());
    let engine = Arc::new(UndoEngine::open(config).unwrap());
    let fs_config = FsConfig::new(workspace.working());
    let fs = Arc::new(InterceptedFs::new(&fs_config, Arc::clone(&engine)).unwrap());
    let (mut kernel, channel) = Kernel::new();
    let session = codeagent_mount::serve(fs, channel, 1).unwrap();
    kernel.play(bytes).unwrap();
    drop(kernel);
    let _ = session.join(); // the connection was cut, which is an error to it
    assert_tree_eq(&outside, &TreeSnapshot::capture(&beside));
    engine.end_ambient_step().unwrap();
    let steps = engine.steps().len();
    if steps > 0 {
        engine.rollback(steps, RollbackOptions::default()).unwrap();
    }
    assert_tree_eq(&before, &workspace.snapshot());
}
