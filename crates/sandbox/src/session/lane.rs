//! One at a time: who has a step of its own in a session.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// A lock that can be waited for with a limit.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    taken: Mutex<bool>,
    free: Condvar,
}

impl Lane {
    /// `None`: it was not free in time.
    pub(crate) fn enter(&self, patience: Duration) -> Option<Turn<'_>> {
        let deadline = Instant::now() + patience;
        let mut taken = self.taken.lock();
        while *taken {
            if self.free.wait_until(&mut taken, deadline).timed_out() && *taken {
                return None;
            }
        }
        *taken = true;
        Some(Turn(self))
    }
}

/// Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Lane);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock() = false;
        self.0.free.notify_all();
    }
}
