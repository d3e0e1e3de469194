//! Names that are being looked up. Resolvers wait, so they have threads of their own; a full queue
//! refuses.

use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::Mutex;
use smoltcp::wire::IpEndpoint;

use super::dns::Question;
use crate::gate::Gate;

const MAX_WAITING: usize = 64;

/// A question, and whom to answer.
#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) question: Question,
    pub(super) from: IpEndpoint,
}

/// `None`: there is no such name, or none that may be known.
pub(super) type Found = (Lookup, Option<Vec<Ipv4Addr>>);

#[derive(Debug)]
pub(super) struct Lookups {
    waiting: SyncSender<Lookup>,
    found: Arc<Mutex<Vec<Found>>>,
    /// Readable when something was found.
    pub(super) bell: UnixStream,
}

impl Lookups {
    /// Without threads, everything is refused.
    pub(super) fn start(gate: &Arc<Gate>, threads: usize) -> io::Result<Self> {
        let (waiting, taken) = sync_channel::<Lookup>(MAX_WAITING);
        let taken = Arc::new(Mutex::new(taken));
        let found: Arc<Mutex<Vec<Found>>> = Arc::default();
        let (bell, rope) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        rope.set_nonblocking(true)?;
        let rope = Arc::new(rope);
        for _ in 0..threads {
            let (gate, taken, rope) = (Arc::clone(gate), Arc::clone(&taken), Arc::clone(&rope));
            // They may be in the middle of a lookup when nobody waits for it any more.
            let found = Arc::downgrade(&found);
            thread::Builder::new()
                .name("network-lookup".into())
                .spawn(move || look_up(&gate, &taken, &found, &rope))?;
        }
        Ok(Self { waiting, found, bell })
    }

    /// Gives it back if there are too many.
    pub(super) fn ask(&self, lookup: Lookup) -> Option<Lookup> {
        use std::sync::mpsc::TrySendError::{Disconnected, Full};
        match self.waiting.try_send(lookup) {
            Ok(()) => None,
            Err(Full(lookup) | Disconnected(lookup)) => Some(lookup),
        }
    }

    pub(super) fn take_found(&self) -> Vec<Found> {
        let mut rings = [0; 64];
        while (&self.bell).read(&mut rings).is_ok_and(|count| count > 0) {}
        std::mem::take(&mut *self.found.lock())
    }
}

fn look_up(
    gate: &Gate,
    taken: &Mutex<Receiver<Lookup>>,
    found: &Weak<Mutex<Vec<Found>>>,
    mut rope: &UnixStream,
) {
    loop {
        let Ok(lookup) = taken.lock().recv() else { return };
        let addresses = gate.look_up(&lookup.question.name).ok();
        let Some(found) = found.upgrade() else { return };
        found.lock().push((lookup, addresses));
        // If it is full of rings already, one more says nothing.
        let _ = rope.write(&[1]);
    }
}
