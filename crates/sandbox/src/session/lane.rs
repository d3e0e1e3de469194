//! One at a time: who has a step of its own in a session.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Result, SandboxError};

/// How soon somebody who waits notices that he is not to wait any more.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// A lock that can be waited for with a limit.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    taken: Mutex<bool>,
    free: Condvar,
}

impl Lane {
    pub(crate) fn enter(&self, patience: Duration) -> Result<Turn<'_>> {
        self.enter_unless(patience, &|| false)
    }

    /// Somebody may not want it any more.
    pub(crate) fn enter_unless(
        &self,
        patience: Duration,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Turn<'_>> {
        let deadline = Instant::now() + patience;
        let mut taken = self.taken.lock();
        while *taken {
            if cancelled() {
                return Err(SandboxError::Cancelled);
            }
            if Instant::now() >= deadline {
                return Err(SandboxError::Busy);
            }
            self.free.wait_until(&mut taken, deadline.min(Instant::now() + ASK_AGAIN));
        }
        *taken = true;
        Ok(Turn(self))
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
