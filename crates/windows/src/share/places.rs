//! Where each file that a guest knows is.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use codeagent_interceptor::FileId;
use parking_lot::Mutex;

use crate::volume_path::VolumePath;

/// A file, directory or link that a guest knows. All nodes of one file share its place.
#[derive(Debug)]
pub struct Node {
    id: FileId,
    place: Arc<Mutex<VolumePath>>,
}

impl Node {
    pub(super) fn id(&self) -> FileId {
        self.id
    }

    /// Its last known name.
    pub(super) fn place(&self) -> VolumePath {
        self.place.lock().clone()
    }
}

/// The places of all nodes there are.
#[derive(Debug, Default)]
pub(super) struct Places {
    known: Mutex<HashMap<FileId, Weak<Mutex<VolumePath>>>>,
}

impl Places {
    /// The file was just seen here. A file with several names is known by the last one seen.
    pub(super) fn node(&self, id: FileId, place: VolumePath) -> Node {
        const ENOUGH: usize = 1024;
        let mut known = self.known.lock();
        if let Some(shared) = known.get(&id).and_then(Weak::upgrade) {
            *shared.lock() = place;
            return Node { id, place: shared };
        }
        // Of files that nobody knows any more; in one go, when there are as many as others.
        if known.len() >= ENOUGH && known.len() == known.capacity() {
            known.retain(|_, place| place.strong_count() > 0);
        }
        let shared = Arc::new(Mutex::new(place));
        known.insert(id, Arc::downgrade(&shared));
        Node { id, place: shared }
    }

    /// Everything at `from` and below is at `to`.
    pub(super) fn renamed(&self, from: &VolumePath, to: &VolumePath) {
        const BACKSLASH: u16 = b'\\' as u16;
        let known = self.known.lock();
        for shared in known.values().filter_map(Weak::upgrade) {
            let mut place = shared.lock();
            let moved = match place.units.strip_prefix(from.units.as_slice()) {
                Some([]) => Some(to.clone()),
                Some([BACKSLASH, rest @ ..]) => {
                    VolumePath::existing(&[&to.units, &[BACKSLASH][..], rest].concat())
                }
                _ => None,
            };
            if let Some(moved) = moved {
                *place = moved;
            }
        }
    }
}
