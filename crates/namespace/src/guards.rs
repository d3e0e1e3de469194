//! Guards whose sandboxes have ended. What they hold goes with them, which may take as long as writing
//! out a whole disk, and nobody has to wait for it.

use std::process::Child;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Each has a thread. More than these at a time means that a disk is slower than whoever runs commands,
/// who then waits for it.
const MOST: usize = 16;

static PENDING: AtomicUsize = AtomicUsize::new(0);

/// Says when a guard has ended, to whom it matters.
#[derive(Debug)]
pub struct GuardEnd(Option<Receiver<()>>);

impl GuardEnd {
    /// It has ended.
    pub(crate) fn past() -> Self {
        Self(None)
    }

    /// Whether it ends within this time.
    pub fn wait(&self, patience: Duration) -> bool {
        let Some(ended) = &self.0 else { return true };
        // Nobody says anything: whoever would has gone when the guard has.
        ended.recv_timeout(patience) != Err(RecvTimeoutError::Timeout)
    }
}

/// Sees to it that a guard is waited for, by somebody else if possible.
pub(crate) fn see_off(guard: Child) -> GuardEnd {
    see_off_beside(&PENDING, Builder::new().name("guard".into()), guard)
}

fn see_off_beside(pending: &'static AtomicUsize, thread: Builder, guard: Child) -> GuardEnd {
    let place = Place::take(pending);
    // If there can be no thread, it is still in here.
    let guard = Arc::new(Mutex::new(Some(guard)));
    if let Some(place) = place {
        let (told, ended) = channel();
        let guard = guard.clone();
        let wait = move || {
            reap(&guard);
            drop(place);
            drop(told);
        };
        if thread.spawn(wait).is_ok() {
            return GuardEnd(Some(ended));
        }
    }
    reap(&guard);
    GuardEnd::past()
}

fn reap(guard: &Mutex<Option<Child>>) {
    let guard = guard.lock().unwrap_or_else(PoisonError::into_inner).take();
    // It is a child of this process and nobody else waits for it: there is nothing to go wrong.
    drop(guard.map(|mut guard| guard.wait()));
}

/// One of those that are waited for by others.
struct Place(&'static AtomicUsize);

impl Place {
    fn take(pending: &'static AtomicUsize) -> Option<Self> {
        let one_more = |pending| (pending < MOST).then_some(pending + 1);
        pending.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).ok()?;
        Some(Self(pending))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::process::{Command, Stdio};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// Ends when its input does.
    fn guard() -> Child {
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    }

    fn is_there(pid: u32) -> bool {
        std::path::Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn who_sees_a_guard_off_need_not_wait_and_can() {
        static PENDING: AtomicUsize = AtomicUsize::new(0);
        let mut guard = guard();
        let (pid, input) = (guard.id(), guard.stdin.take());
        let end = see_off_beside(&PENDING, Builder::new(), guard);
        assert!(!end.wait(Duration::from_millis(20)));
        drop(input);
        assert!(end.wait(SOON) && end.wait(SOON), "as often as one likes");
        assert!(!is_there(pid), "it is reaped");
        assert_eq!(PENDING.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn when_many_are_pending_the_next_one_is_waited_for() {
        static PENDING: AtomicUsize = AtomicUsize::new(0);
        let mut inputs = Vec::new();
        let mut pending = Vec::new();
        for _ in 0..MOST {
            let mut guard = guard();
            inputs.push(guard.stdin.take());
            pending.push(see_off_beside(&PENDING, Builder::new(), guard));
        }
        assert!(pending.iter().all(|end| !end.wait(Duration::ZERO)));
        let one_more = guard();
        let pid = one_more.id();
        // `wait` closes its input first.
        assert!(see_off_beside(&PENDING, Builder::new(), one_more).wait(Duration::ZERO));
        assert!(!is_there(pid));
        drop(inputs);
        assert!(pending.iter().all(|end| end.wait(SOON)));
        assert_eq!(PENDING.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn without_a_thread_it_is_waited_for() {
        static PENDING: AtomicUsize = AtomicUsize::new(0);
        let guard = guard();
        let pid = guard.id();
        // More memory than there are addresses.
        let impossible = Builder::new().stack_size(1 << 60);
        assert!(see_off_beside(&PENDING, impossible, guard).wait(Duration::ZERO));
        assert!(!is_there(pid), "it is reaped");
        assert_eq!(PENDING.load(Ordering::SeqCst), 0);
    }
}
