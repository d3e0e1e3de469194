//! The device: takes requests off the guest's queues and puts the answers back.
//!
//! One thread takes the requests and serves those that wait for nobody itself, because handing one
//! over costs as much as serving it. What may have to wait goes to the pool, so that a question that
//! holds one request holds no other:
//!
//! ```text
//!   queue thread:  take ── quick? ── serve ── answer
//!                              └ no: pool ── serve ── answer      (in any order)
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use codeagent_common::Pool;
use codeagent_fs::{GuestView, Unanswered};
use codeagent_interceptor::UndoEngine;
use codeagent_worker::WorkerFs;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::bitmap::BitmapMmapRegion;
use vhost_user_backend::{VhostUserBackend, VringMutex, VringT};
use virtio_bindings::bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC,
};
use virtio_queue::QueueOwnedT;
use virtiofsd::server::Server;
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic};
use vmm_sys_util::epoll::EventSet;

use crate::options::GuestOptions;
use crate::request::{Chain, Memory, Pace, Request, refuse_unserved, unless_it_panics};

/// One for what has priority (a guest forgets inodes through it), one for everything else. Without a
/// notification queue: no kernel has that yet.
pub(crate) const QUEUES: usize = 2;

/// Requests that a queue can hold; QEMU offers no more.
const QUEUE_SIZE: usize = 1024;

pub(crate) type MemoryHandle = GuestMemoryAtomic<Memory>;
type Vring = VringMutex<MemoryHandle>;

pub(crate) struct Device {
    server: Server<GuestView<UndoEngine>>,
    fs: Arc<WorkerFs>,
    memory: MemoryHandle,
    pool: Pool,
    /// How often a driver has come to use the device. An answer to one that has gone would be
    /// written into the memory of the next.
    drivers: AtomicU64,
}

/// Where an answer belongs.
struct ReturnAddress {
    vring: Vring,
    head: u16,
    driver: u64,
    /// A machine that was paused goes on only when all its answers are there: to the device it is
    /// another driver from then on, and gets no answer of before.
    _unanswered: Unanswered,
}

impl Device {
    pub(crate) fn new(fs: Arc<WorkerFs>, options: GuestOptions, memory: MemoryHandle) -> Self {
        Self {
            server: Server::new(GuestView::new(Arc::clone(&fs), options.owners)),
            fs,
            memory,
            pool: Pool::default(),
            drivers: AtomicU64::new(0),
        }
    }

    /// Waits until every request that was taken has been served.
    pub(crate) fn finish(&self) {
        self.pool.finish();
    }

    /// Whether there were any.
    fn serve_those_in(self: &Arc<Self>, vring: &Vring) -> bool {
        let chains: Vec<(Chain, ReturnAddress)> = {
            let mut state = vring.get_mut();
            let driver = self.drivers.load(Ordering::Acquire);
            let Ok(chains) = state.get_queue_mut().iter(self.memory.memory()) else {
                return false; // the guest has spoilt its own queue
            };
            let address = |head| ReturnAddress {
                vring: vring.clone(),
                head,
                driver,
                _unanswered: self.fs.taken(),
            };
            chains.map(|chain| (chain.clone(), address(chain.head_index()))).collect()
        };
        let found = !chains.is_empty();
        for (chain, address) in chains {
            self.serve(&chain, address);
        }
        found
    }

    fn serve(self: &Arc<Self>, chain: &Chain, address: ReturnAddress) {
        let memory = self.memory.memory();
        let at_once = || {
            let request = match Request::read(&memory, chain) {
                Ok(request) => request,
                Err(written) => return Some(written),
            };
            let waits = match request.pace() {
                Pace::Quick => false,
                Pace::Mutation => self.fs.may_wait(),
                Pace::Slow => true,
            };
            (!waits).then(|| request.serve(&self.server))
        };
        let refused = |errno| refuse_unserved(&memory, chain, errno);
        if let Some(written) = unless_it_panics(at_once, || Some(refused(libc::EIO))) {
            return self.answer(&address, written);
        }
        let later = {
            let (device, chain) = (Arc::clone(self), chain.clone());
            let address = ReturnAddress {
                vring: address.vring.clone(),
                _unanswered: self.fs.taken(),
                ..address
            };
            let serve = move || {
                let memory = device.memory.memory();
                // Read anew: it may have changed, and a request borrows the memory.
                let serve = || match Request::read(&memory, &chain) {
                    Ok(request) => request.serve(&device.server),
                    Err(written) => written,
                };
                let refused = || refuse_unserved(&memory, &chain, libc::EIO);
                device.answer(&address, unless_it_panics(serve, refused));
            };
            let fs = Arc::clone(&self.fs);
            // A step ends only when the answer is there.
            move || fs.until_told(serve)
        };
        // A driver has no more than a queue holds; one that claims to have is up to something.
        if !self.pool.take(QUEUE_SIZE, later) {
            self.answer(&address, refused(libc::EBUSY));
        }
    }

    fn answer(&self, address: &ReturnAddress, written: usize) {
        let mut state = address.vring.get_mut();
        if self.drivers.load(Ordering::Acquire) != address.driver {
            return;
        }
        let written = u32::try_from(written).unwrap_or_default();
        // Otherwise the guest has put its queue where it has no memory, and hears of nothing more.
        if state.add_used(address.head, written).is_ok()
            && state.needs_notification().unwrap_or(true)
        {
            let _ = state.signal_used_queue(); // or QEMU has gone
        }
    }
}

/// The device, for each of the threads that serve it.
#[derive(Clone)]
pub(crate) struct SharedDevice(pub(crate) Arc<Device>);

impl VhostUserBackend for SharedDevice {
    type Bitmap = BitmapMmapRegion;
    type Vring = Vring;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        (1 << VIRTIO_F_VERSION_1)
            | (1 << VIRTIO_RING_F_INDIRECT_DESC)
            | (1 << VIRTIO_RING_F_EVENT_IDX)
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    /// Nothing that lets QEMU ask for the tag: some versions crash if they can. No migration: the
    /// journal belongs to this process.
    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE
    }

    /// A driver says this before it uses a queue.
    fn acked_features(&self, _features: u64) {
        self.0.drivers.fetch_add(1, Ordering::AcqRel);
    }

    fn reset_device(&self) {
        self.0.drivers.fetch_add(1, Ordering::AcqRel);
    }

    /// The queue itself is told, too, and knows what to do.
    fn set_event_idx(&self, _enabled: bool) {}

    /// The handle leads to whatever memory there is.
    fn update_memory(&self, _memory: MemoryHandle) -> io::Result<()> {
        Ok(())
    }

    /// An error ends the thread that waits for events.
    fn handle_event(
        &self,
        event: u16,
        _events: EventSet,
        vrings: &[Vring],
        _thread: usize,
    ) -> io::Result<()> {
        let Some(vring) = vrings.get(usize::from(event)) else {
            return Err(io::ErrorKind::ConnectionAborted.into()); // as was wanted
        };
        loop {
            let _ = vring.disable_notification();
            let found = self.0.serve_those_in(vring);
            // What came in between is not announced.
            if !(vring.enable_notification().unwrap_or(false) && found) {
                return Ok(());
            }
        }
    }
}
