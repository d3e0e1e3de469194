//! What the kernel keeps of a mount, and how it is made to forget.
//!
//! The kernel answers a notification when it has the locks it needs, which a request that is being
//! served may hold. So notifications are sent by a thread of their own that holds no lock, and
//! nobody waits for it while serving a request.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use codeagent_fs::{Cache, InterceptedFs, Name};
use codeagent_interceptor::{ClientCache, UndoEngine};
use fuser::{INodeNo, Notifier};

type Fs = InterceptedFs<UndoEngine>;

/// How long an undo waits until the kernel has forgotten what is no longer true. It waits in vain
/// only if some program keeps a directory locked for as long.
const PATIENCE: Duration = Duration::from_secs(5);

enum Order {
    /// Forget what is no longer true; the answer says that it is done.
    Refresh(Sender<()>),
    /// Forget some files, whichever: too many are known.
    MakeRoom,
}

/// Gives orders to the thread, which ends when nobody can give any.
#[derive(Debug)]
pub(crate) struct KernelCache {
    orders: Sender<Order>,
    fs: Weak<Fs>,
    kernel: Notifier,
}

impl KernelCache {
    pub(crate) fn start(fs: &Arc<Fs>, kernel: Notifier) -> io::Result<Arc<Self>> {
        let (orders, received) = channel();
        let thread = Thread {
            fs: Arc::downgrade(fs),
            cache: fs.cache(),
            kernel: kernel.clone(),
            crowded: Arc::new(AtomicBool::new(false)),
        };
        let (crowded, asked) = (Arc::clone(&thread.crowded), orders.clone());
        fs.when_crowded(move || {
            if !crowded.swap(true, Ordering::AcqRel) {
                let _ = asked.send(Order::MakeRoom);
            }
        });
        let run = move || thread.obey(&received);
        std::thread::Builder::new().name("kernel-cache".into()).spawn(run)?;
        Ok(Arc::new(Self { orders, fs: Arc::downgrade(fs), kernel }))
    }
}

impl ClientCache for KernelCache {
    /// Only of files that are open for reading and writing: what is closed has been written out,
    /// and what is open for writing only cannot be mapped. The kernel writes out what it is made
    /// to forget, and looks at each page for that.
    fn write_out(&self) {
        let Some(fs) = self.fs.upgrade() else { return };
        for file in fs.mappable_files() {
            let _ = self.kernel.inval_inode(INodeNo(file), 0, 0); // or it was closed meanwhile
        }
    }

    fn changed(&self, in_request: bool) {
        let (done, answer) = channel();
        if self.orders.send(Order::Refresh(done)).is_ok() && !in_request {
            let _ = answer.recv_timeout(PATIENCE);
        }
    }
}

struct Thread {
    /// Not kept alive by us: its end is ours.
    fs: Weak<Fs>,
    cache: Cache,
    kernel: Notifier,
    /// `MakeRoom` has been ordered and not begun.
    crowded: Arc<AtomicBool>,
}

impl Thread {
    fn obey(&self, orders: &Receiver<Order>) {
        for order in orders {
            let Some(fs) = self.fs.upgrade() else { return };
            match order {
                Order::MakeRoom => {
                    self.crowded.store(false, Ordering::Release);
                    fs.surplus().iter().for_each(|name| self.forget(name));
                }
                Order::Refresh(done) => {
                    self.refresh(&fs);
                    let _ = done.send(()); // or nobody waits
                }
            }
        }
    }

    fn refresh(&self, fs: &Fs) {
        if self.cache == Cache::Auto {
            // Not every name: a directory whose name is forgotten is no longer found by programs
            // that work in it.
            fs.outdated().iter().for_each(|name| self.forget(name));
        }
        // Otherwise the kernel asks for the attributes of files each time, and for their contents
        // each time they are opened.
        let nodes = fs.nodes().into_iter();
        let kept = nodes.filter(|(_, is_dir)| *is_dir || self.cache == Cache::Auto);
        for node in kept.map(|(node, _)| node).chain(fs.open_files()) {
            let _ = self.kernel.inval_inode(INodeNo(node), 0, 0); // it may know it no longer
        }
    }

    fn forget(&self, name: &Name) {
        let _ = self.kernel.inval_entry(INodeNo(name.parent), OsStr::from_bytes(&name.name));
    }
}
