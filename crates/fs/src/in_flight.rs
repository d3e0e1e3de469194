//! How many mutations are on their way.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
pub(crate) struct InFlight {
    count: AtomicUsize,
    begun: AtomicU64,
    /// Somebody waits for the count to be zero. Set under the lock, so that no wake-up is lost.
    waiting: Mutex<usize>,
    quiet: Condvar,
}

/// One mutation, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Mutating<'a>(&'a InFlight);

impl InFlight {
    pub(crate) fn enter(&self) -> Mutating<'_> {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::SeqCst);
        Mutating(self)
    }

    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits until no mutation is on its way; `false` if that took too long.
    pub(crate) fn wait_until_quiet(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut waiting = self.waiting.lock();
        *waiting += 1;
        let mut timed_out = false;
        while self.count() > 0 && !timed_out {
            timed_out = self.quiet.wait_until(&mut waiting, deadline).timed_out();
        }
        *waiting -= 1;
        self.count() == 0
    }
}

impl Drop for Mutating<'_> {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 && *self.0.waiting.lock() > 0 {
            self.0.quiet.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_last_mutation() {
        let in_flight = InFlight::default();
        assert!(in_flight.wait_until_quiet(Duration::ZERO));
        let (first, second) = (in_flight.enter(), in_flight.enter());
        assert!(!in_flight.wait_until_quiet(Duration::from_millis(1)));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| in_flight.wait_until_quiet(Duration::from_secs(60)));
            drop(first);
            drop(second);
            assert!(waiter.join().is_ok_and(|quiet| quiet));
        });
        assert_eq!(in_flight.count(), 0);
    }
}
