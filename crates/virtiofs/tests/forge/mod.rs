//! A driver that lies: it plays QEMU and the guest's kernel, and puts whatever it likes into its
//! memory and its queues. Shared by tests and a fuzz target.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code)]

#[path = "../../../mount/tests/forge/wild.rs"]
mod wild;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use codeagent_fs::{FsConfig, InterceptedFs};
use codeagent_interceptor::{EngineConfig, RollbackOptions, UndoEngine};
use codeagent_test_support::{TempWorkspace, TreeSnapshot, assert_tree_eq};
use codeagent_virtiofs::{GuestOptions, connection, serve};
use rustix::fs::MemfdFlags;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use wild::{DESTROY, INIT, fixture};
pub(crate) use wild::{STATFS, Wild, packet};

/// No answer takes longer, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const MEMORY: u64 = 4 << 20;
/// Where QEMU would have the guest's memory.
const USER: u64 = 0x7000_0000_0000;
const SIZE: u16 = 64;
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const INDIRECT: u64 = 0x3000;
pub(crate) const REQUEST: u64 = 0x1_0000;
pub(crate) const ANSWER: u64 = 0x20_0000;
const ANSWER_BYTES: u32 = 1 << 20;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITABLE: u16 = 2;
pub(crate) const ELSEWHERE: u16 = 4;

/// Address, length, flags, next.
pub(crate) type Descriptor = (u64, u32, u16, u16);

pub(crate) struct Driver {
    frontend: Frontend,
    memory: File,
    kick: EventFd,
    call: EventFd,
    pub(crate) offered: u16,
    unique: u64,
}

impl Driver {
    pub(crate) fn new(stream: UnixStream) -> Self {
        let memory = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        let memory = File::from(memory);
        memory.set_len(MEMORY).unwrap();
        let mut frontend = Frontend::from_stream(stream, 2);
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        frontend.set_features(features & !(1 << 29)).unwrap(); // every answer is announced
        assert!(features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0);
        let protocol = frontend.get_protocol_features().unwrap();
        assert!(!protocol.contains(VhostUserProtocolFeatures::CONFIG), "QEMU would ask for a tag");
        frontend.set_protocol_features(protocol & VhostUserProtocolFeatures::MQ).unwrap();
        assert_eq!(frontend.get_queue_num().unwrap(), 2);
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: memory.as_raw_fd(),
        };
        frontend.set_mem_table(&[region]).unwrap();
        let (kick, call) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
        let mut driver = Self { frontend, memory, kick, call, offered: 0, unique: 0 };
        driver.use_queue(1);
        driver
    }

    fn use_queue(&mut self, queue: usize) {
        let frontend = &mut self.frontend;
        frontend.set_vring_num(queue, SIZE).unwrap();
        let config = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: USER + DESCRIPTORS,
            used_ring_addr: USER + USED,
            avail_ring_addr: USER + AVAILABLE,
            log_addr: None,
        };
        frontend.set_vring_addr(queue, &config).unwrap();
        frontend.set_vring_base(queue, 0).unwrap();
        frontend.set_vring_call(queue, &self.call).unwrap();
        frontend.set_vring_kick(queue, &self.kick).unwrap();
        frontend.set_vring_enable(queue, true).unwrap();
    }

    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        let room = MEMORY.saturating_sub(at).min(bytes.len() as u64) as usize;
        self.memory.write_all_at(&bytes[..room], at).unwrap();
    }

    pub(crate) fn get(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    fn used(&self) -> u16 {
        u16::from_le_bytes(self.get(USED + 2, 2).try_into().unwrap())
    }

    /// Puts descriptors where the queue has them, the first one first.
    pub(crate) fn describe(&self, at: u64, chain: &[Descriptor]) {
        for (number, (address, length, flags, next)) in (0..).zip(chain) {
            let mut bytes = Vec::with_capacity(16);
            bytes.extend(address.to_le_bytes());
            bytes.extend(length.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
            bytes.extend(next.to_le_bytes());
            self.put(at + number * 16, &bytes);
        }
    }

    /// Says that one more request, which begins with the first descriptor, is there.
    pub(crate) fn offer(&mut self) {
        self.put(AVAILABLE + 4 + u64::from(self.offered % SIZE) * 2, &[0, 0]);
        self.offered = self.offered.wrapping_add(1);
        self.announce(self.offered);
    }

    pub(crate) fn announce(&self, offered: u16) {
        self.put(AVAILABLE + 2, &offered.to_le_bytes());
        self.kick.write(1).unwrap();
    }

    /// Waits until everything that was offered has come back; how long the last answer is.
    ///
    /// # Panics
    /// When it does not.
    pub(crate) fn wait(&self) -> u32 {
        let deadline = Instant::now() + PATIENCE;
        while self.used() != self.offered {
            assert!(Instant::now() < deadline, "the device hangs");
            std::thread::sleep(Duration::from_micros(20));
        }
        let last = u64::from(self.offered.wrapping_sub(1) % SIZE);
        u32::from_le_bytes(self.get(USED + 4 + last * 8 + 4, 4).try_into().unwrap())
    }

    /// A request of these descriptors.
    pub(crate) fn play(&mut self, chain: &[Descriptor]) -> u32 {
        self.describe(DESCRIPTORS, chain);
        self.offer();
        self.wait()
    }

    /// A request as a kernel would make it: the error number of the answer, and what follows.
    pub(crate) fn ask(&mut self, code: u32, node: u64, body: &[u8]) -> (i32, Vec<u8>) {
        self.unique += 2;
        let request = packet(code, self.unique, node, (0, 0), body);
        self.put(REQUEST, &request);
        let chain = [(REQUEST, request.len() as u32, NEXT, 1), (ANSWER, ANSWER_BYTES, WRITABLE, 0)];
        let length = self.play(&chain) as usize;
        let answer = self.get(ANSWER, length);
        let errno =
            answer.get(4..8).map_or(0, |field| -i32::from_le_bytes(field.try_into().unwrap()));
        (errno, answer.get(16..).unwrap_or_default().to_vec())
    }

    pub(crate) fn begin(&mut self) {
        // Version 7.38, with room for everything.
        let init = [7_u32, 38, 0x10_0000, u32::MAX];
        let mut body: Vec<u8> = init.iter().flat_map(|value| value.to_le_bytes()).collect();
        body.resize(64, 0);
        assert_eq!(self.ask(INIT, 0, &body).0, 0);
    }

    /// Any device answers this: nothing made it stop.
    pub(crate) fn assert_alive(&mut self) {
        assert_eq!(self.ask(STATFS, 1, &[]).0, 0);
    }

    /// Sends what `bytes` make, in chains of all shapes.
    pub(crate) fn play_wild(&mut self, bytes: &[u8]) {
        let mut wild = Wild(bytes);
        while !wild.0.is_empty() {
            let node = wild.reference();
            let owner = (wild.reference() as u32, wild.reference() as u32);
            let (code, body) = wild.request();
            if code == DESTROY {
                continue;
            }
            self.unique += 2;
            let mut request = packet(code, self.unique, node, owner, &body);
            if wild.byte() > 240 {
                let length = wild.number() as u32;
                request[..4].copy_from_slice(&length.to_le_bytes());
            }
            self.put(REQUEST, &request);
            let chain = wild_chain(&mut wild, request.len() as u32);
            match wild.byte() {
                // In a table of its own.
                byte @ 0..60 => {
                    self.describe(INDIRECT, &chain);
                    let length = match byte {
                        0..10 => wild.number() as u32,
                        _ => chain.len() as u32 * 16,
                    };
                    self.play(&[(INDIRECT, length, ELSEWHERE, 0)]);
                }
                _ => {
                    self.play(&chain);
                }
            }
        }
        self.assert_alive();
    }
}

/// The request in some pieces, and room for the answer in some; now and then something else.
fn wild_chain(wild: &mut Wild<'_>, length: u32) -> Vec<Descriptor> {
    let mut chain = Vec::new();
    let mut at = 0;
    while at < length && chain.len() < 8 {
        let piece = match wild.byte() {
            small @ 0..40 => u32::from(small),
            _ => length - at,
        }
        .min(length - at);
        chain.push((REQUEST + u64::from(at), piece, 0, 0));
        at += piece;
    }
    let mut room = 0;
    for _ in 0..=wild.byte() % 3 {
        let piece = match wild.byte() {
            small @ 0..30 => u32::from(small),
            _ => 70_000,
        };
        chain.push((ANSWER + u64::from(room), piece, WRITABLE, 0));
        room += piece;
    }
    let last = chain.len() - 1;
    for (number, descriptor) in chain.iter_mut().enumerate() {
        if number < last {
            (descriptor.2, descriptor.3) = (descriptor.2 | NEXT, number as u16 + 1);
        }
        if wild.byte() > 250 {
            match wild.byte() % 6 {
                0 => descriptor.0 = wild.wide(),
                1 => descriptor.1 = wild.number() as u32,
                2 => descriptor.2 = wild.byte().into(),
                3 => descriptor.3 = wild.byte().into(),
                4 => descriptor.0 = MEMORY - 1,
                _ => descriptor.0 = DESCRIPTORS, // the queue itself
            }
        }
    }
    chain
}

/// A folder that is served within this process.
pub(crate) struct Served {
    pub(crate) driver: Driver,
    pub(crate) engine: Arc<UndoEngine>,
    ended: Receiver<()>,
    pub(crate) workspace: TempWorkspace,
}

impl Served {
    pub(crate) fn start(change: impl FnOnce(&mut EngineConfig, &mut FsConfig)) -> Self {
        Self::start_with(GuestOptions::default(), change)
    }

    pub(crate) fn start_with(
        options: GuestOptions,
        change: impl FnOnce(&mut EngineConfig, &mut FsConfig),
    ) -> Self {
        let workspace = TempWorkspace::with_fixture(fixture);
        let beside = workspace.working().with_file_name("outside");
        fs::create_dir(&beside).unwrap();
        fs::write(beside.join("victim"), "untouched").unwrap();
        let mut config = EngineConfig::new(workspace.working(), workspace.undo());
        let mut fs_config = FsConfig::new(workspace.working());
        change(&mut config, &mut fs_config);
        let engine = Arc::new(UndoEngine::open(config).unwrap());
        let fs = Arc::new(InterceptedFs::new(&fs_config, Arc::clone(&engine)).unwrap());
        let (listener, stream) = connection(&beside).unwrap();
        let (sender, ended) = channel();
        let ended_is = Box::new(move || sender.send(()).unwrap());
        serve(fs, listener, options, ended_is).unwrap();
        let mut driver = Driver::new(stream);
        driver.begin();
        Self { driver, engine, ended, workspace }
    }

    pub(crate) fn outside(&self) -> TreeSnapshot {
        TreeSnapshot::capture(&self.workspace.working().with_file_name("outside"))
    }

    /// The driver goes; the device ends by itself.
    pub(crate) fn end(self) -> (Arc<UndoEngine>, TempWorkspace) {
        let Self { driver, engine, ended, workspace } = self;
        drop(driver);
        ended.recv_timeout(PATIENCE).expect("the device ends with its driver");
        (engine, workspace)
    }
}

/// One driver and one device. Nothing outside changes, nobody panics or hangs, and what happened
/// inside is undone exactly.
///
/// # Panics
/// When it is not so.
pub(crate) fn round(bytes: &[u8]) {
    let mut served = Served::start(|_, _| {});
    let (before, outside) = (served.workspace.snapshot(), served.outside());
    served.driver.play_wild(bytes);
    assert_tree_eq(&outside, &served.outside());
    let (engine, workspace) = served.end();
    engine.end_ambient_step().unwrap();
    let steps = engine.steps().len();
    if steps > 0 {
        engine.rollback(steps, RollbackOptions::default()).unwrap();
    }
    assert_tree_eq(&before, &workspace.snapshot());
}
