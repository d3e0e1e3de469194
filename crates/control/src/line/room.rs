//! How much output may be on its way to those who run commands.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Past this, no more is read from the shim.
const MOST_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Room {
    taken_bytes: Mutex<usize>,
    changed: Condvar,
}

impl Room {
    pub(super) fn take(&self, bytes: usize) {
        *self.taken() += bytes;
    }

    pub(super) fn give_back(&self, bytes: usize) {
        let mut taken = self.taken();
        *taken = taken.saturating_sub(bytes);
        drop(taken);
        self.changed.notify_all();
    }

    /// Returns when there is room for more.
    pub(super) fn wait_for(&self) {
        let taken = self.taken();
        let full = |taken: &mut usize| *taken > MOST_BYTES;
        drop(self.changed.wait_while(taken, full).unwrap_or_else(PoisonError::into_inner));
    }

    /// A number cannot be left half changed by a thread that died.
    fn taken(&self) -> MutexGuard<'_, usize> {
        self.taken_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
