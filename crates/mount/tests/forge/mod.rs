//! Forged FUSE requests, made of arbitrary bytes: most of them with the form of real ones and
//! wild values, the rest wild altogether. Shared by a test and a fuzz target.
//!
//! Two things are always right, because the kernel itself writes them and the library relies on it:
//! how much data comes with a write, an attribute or a control, and that a second has no more than
//! its nanoseconds. (Guests, which keep to nothing, have another server.)
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use codeagent_fs::{FsConfig, InterceptedFs};
use codeagent_interceptor::{EngineConfig, RollbackOptions, UndoEngine};
use codeagent_test_support::{TempWorkspace, TreeSnapshot, assert_tree_eq};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send};

mod wild;

use wild::{DESTROY, INIT, SILENT, STATFS, Wild, fixture, packet};

/// No answer takes longer, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(20);

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
            self.send(code, node, owner, &with_real_times(code, body))?;
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
        let packet = packet(code, self.requests * 2, node, owner, body);
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

/// The library adds nanoseconds to seconds, and negates the latter, without looking.
fn with_real_times(code: u32, mut body: Vec<u8>) -> Vec<u8> {
    const SETATTR: u32 = 4;
    const SECONDS: [usize; 3] = [32, 40, 48];
    const NANOSECONDS: [usize; 3] = [56, 60, 64];
    if code != SETATTR {
        return body;
    }
    for at in SECONDS {
        if body.get(at..at + 8) == Some(&i64::MIN.to_le_bytes()[..]) {
            body[at] = 1;
        }
    }
    for at in NANOSECONDS {
        if let Some(field) = body.get_mut(at..at + 4) {
            let value = u32::from_le_bytes([field[0], field[1], field[2], field[3]]);
            field.copy_from_slice(&(value % 1_000_000_000).to_le_bytes());
        }
    }
    body
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
