//! How many mutations are on their way, and how many requests wait for an answer.

use std::sync::Arc;
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

/// A request that a client waits for, whatever it is about, for as long as this lives.
#[derive(Debug)]
#[must_use = "it is to be kept until the client has its answer"]
pub struct Unanswered(Arc<InFlight>);

impl Unanswered {
    pub(crate) fn among(requests: &Arc<InFlight>) -> Self {
        requests.came();
        Self(Arc::clone(requests))
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.went();
    }
}

impl InFlight {
    pub(crate) fn enter(&self) -> Mutating<'_> {
        self.came();
        Mutating(self)
    }

    fn came(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    fn went(&self) {
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1 && *self.waiting.lock() > 0 {
            self.quiet.notify_all();
        }
    }

    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits until no mutation has been on its way for as long as `quiet`; `false` if that took longer
    /// than `limit`.
    ///
    /// ```text
    /// asked            last mutation ends              true
    ///   │◄── mutations ──►│◄──────── quiet ─────────────►│
    ///   │◄──────────────────── at most limit ───────────►│
    /// ```
    pub(crate) fn wait_until_quiet(&self, quiet: Duration, limit: Duration) -> bool {
        let give_up_at = Instant::now() + limit;
        let mut waiting = self.waiting.lock();
        *waiting += 1;
        // Since when, and how many had begun by then: one may come and go between two looks.
        let mut silence: Option<(Instant, u64)> = None;
        let is_quiet = loop {
            let (now, begun) = (Instant::now(), self.begun());
            silence = match silence {
                _ if self.count() > 0 => None,
                Some((since, then)) if then == begun => Some((since, then)),
                _ => Some((now, begun)),
            };
            let quiet_at = silence.map(|(since, _)| since + quiet);
            if quiet_at.is_some_and(|at| now >= at) {
                break true;
            }
            if now >= give_up_at {
                break false;
            }
            // Woken by the end of the last one; a beginning wakes nobody, because all pay for that.
            let until = quiet_at.map_or(give_up_at, |at| at.min(give_up_at));
            self.quiet.wait_until(&mut waiting, until);
        };
        *waiting -= 1;
        is_quiet
    }
}

impl Drop for Mutating<'_> {
    fn drop(&mut self) {
        self.0.went();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_last_mutation() {
        let in_flight = InFlight::default();
        assert!(in_flight.wait_until_quiet(Duration::ZERO, Duration::ZERO));
        let (first, second) = (in_flight.enter(), in_flight.enter());
        assert!(!in_flight.wait_until_quiet(Duration::ZERO, Duration::from_millis(1)));
        std::thread::scope(|scope| {
            let waiter =
                scope.spawn(|| in_flight.wait_until_quiet(Duration::ZERO, Duration::from_secs(60)));
            drop(first);
            drop(second);
            assert!(waiter.join().is_ok_and(|quiet| quiet));
        });
        assert_eq!(in_flight.count(), 0);
    }

    const QUIET: Duration = Duration::from_millis(100);

    #[test]
    fn silence_has_to_last() {
        let in_flight = InFlight::default();
        let began = Instant::now();
        assert!(in_flight.wait_until_quiet(QUIET, Duration::from_secs(60)));
        assert!(began.elapsed() >= QUIET);
        assert!(!in_flight.wait_until_quiet(QUIET, QUIET / 2), "the limit came first");
    }

    #[test]
    fn a_mutation_that_came_and_went_between_two_looks_breaks_the_silence() {
        let in_flight = InFlight::default();
        let began = Instant::now();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| in_flight.wait_until_quiet(QUIET, Duration::from_secs(60)));
            std::thread::sleep(QUIET / 2);
            drop(in_flight.enter());
            let last = Instant::now();
            assert!(waiter.join().is_ok_and(|quiet| quiet));
            assert!(last.elapsed() >= QUIET || began.elapsed() >= QUIET + QUIET / 2);
        });
    }
}
