//! What the clients of a front end keep of the working directory.
//!
//! Bytes written into a mapping are seen by nobody until the client's kernel writes them out, and a
//! page that was read before an undo is still there after it. Both would end up in the wrong step:
//! the first one late, the second one together with a neighbouring byte that a program changes.
//! Names and attributes may be kept, too.

use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use super::UndoEngine;

/// What a front end lets its clients keep. Called without any lock held.
pub trait ClientCache: Send + Sync {
    /// Has clients write out what they have changed, through the front end as ever. Never called
    /// while a request is being served.
    fn write_out(&self);

    /// The engine has changed the working directory of its own accord: undo, redo, restore,
    /// adoption, a step taken back. Clients have to forget what was there.
    ///
    /// `in_request`: in a thread of the front end that is serving a request. It must not wait for
    /// those it serves, or they could wait for each other.
    fn changed(&self, in_request: bool);
}

#[derive(Default)]
pub(super) struct Caches(RwLock<Vec<Weak<dyn ClientCache>>>);

/// The working directory changes behind the back of clients; at the end they are told.
#[must_use = "clients are told when this is dropped"]
pub(super) struct Changing<'e> {
    engine: &'e UndoEngine,
    in_request: bool,
}

impl UndoEngine {
    /// From now on this cache is written out before a step begins or ends and before an undo, and
    /// told what the engine changes.
    pub fn add_cache(&self, cache: Weak<dyn ClientCache>) {
        let mut caches = self.caches.0.write();
        caches.retain(|cache| cache.strong_count() > 0);
        caches.push(cache);
    }

    pub(super) fn write_out_caches(&self) {
        // What waits for an answer cannot be written out before that is given, and what waits for
        // the end of a step not before that.
        if self.desk.is_clear() && !self.is_alone() {
            self.caches().iter().for_each(|cache| cache.write_out());
        }
    }

    /// To be taken before the gate, and so dropped after it.
    pub(super) fn change_contents(&self) -> Changing<'_> {
        self.write_out_caches();
        Changing { engine: self, in_request: false }
    }

    /// The same, for what is done while a request is being served.
    pub(super) fn change_in_a_request(&self) -> Changing<'_> {
        Changing { engine: self, in_request: true }
    }

    fn caches(&self) -> Vec<Arc<dyn ClientCache>> {
        self.caches.0.read().iter().filter_map(Weak::upgrade).collect()
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        // While somebody waits for an answer, or for the end of a step, so may a client.
        let may_wait = || self.engine.desk.is_clear() && !self.engine.is_alone();
        for cache in self.engine.caches() {
            cache.changed(self.in_request || !may_wait());
        }
    }
}
