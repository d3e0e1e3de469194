//! What the kernel of some client has in memory of files' contents.
//!
//! Bytes written into a mapping are seen by nobody until the kernel writes them out, and a page
//! that was read before an undo is still there after it. Both would end up in the wrong step: the
//! first one late, the second one together with a neighbouring byte that a program changes.

use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use super::UndoEngine;

/// Contents that a front end lets its clients keep. Called without any lock held, and never from
/// within a mutation.
pub trait ContentCache: Send + Sync {
    /// Writes out what has been changed, through the front end as ever.
    fn write_out(&self);

    /// Forgets everything: something else may be there now.
    fn forget(&self);
}

#[derive(Default)]
pub(super) struct Caches(RwLock<Option<Weak<dyn ContentCache>>>);

/// Contents change behind the back of clients; at the end they are made to forget them.
#[must_use = "contents are forgotten when this is dropped"]
pub(super) struct Changing<'e>(&'e UndoEngine);

impl UndoEngine {
    /// From now on this cache is written out before a step begins or ends and before an undo, and
    /// forgets everything after an undo.
    pub fn set_cache(&self, cache: Weak<dyn ContentCache>) {
        *self.caches.0.write() = Some(cache);
    }

    pub(super) fn write_out_caches(&self) {
        if let Some(cache) = self.cache() {
            cache.write_out();
        }
    }

    /// To be taken before the gate, and so dropped after it.
    pub(super) fn change_contents(&self) -> Changing<'_> {
        self.write_out_caches();
        Changing(self)
    }

    fn cache(&self) -> Option<Arc<dyn ContentCache>> {
        // What waits for an answer cannot be written out before that is given.
        if !self.desk.is_clear() {
            return None;
        }
        self.caches.0.read().as_ref().and_then(Weak::upgrade)
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(cache) = self.0.cache() {
            cache.forget();
        }
    }
}
