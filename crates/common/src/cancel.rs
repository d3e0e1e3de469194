//! How whoever asked for something says that they no longer want it.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Shared between the one who may cancel and the one who works. Once cancelled, it stays so.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    cancelled: bool,
    /// What to do at that moment.
    callbacks: Vec<Box<dyn FnOnce() + Send>>,
}

impl CancelToken {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn cancel(&self) {
        let callbacks = {
            let mut state = self.state();
            state.cancelled = true;
            std::mem::take(&mut state.callbacks)
        };
        self.0.changed.notify_all();
        for callback in callbacks {
            callback();
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.state().cancelled
    }

    /// Calls this once when it is cancelled, from whichever thread cancels; at once if it has been.
    pub fn on_cancel(&self, callback: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        if state.cancelled {
            drop(state);
            callback();
        } else {
            state.callbacks.push(Box::new(callback));
        }
    }

    /// Waits until it is cancelled, or no longer than `timeout`; whether it is.
    pub fn wait(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.state();
        while !state.cancelled {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.0.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelToken").field(&self.is_cancelled()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn callbacks_run_once_at_the_cancel_or_at_once_after_it() {
        let (sender, calls) = mpsc::channel();
        let token = CancelToken::new();
        let before = sender.clone();
        token.on_cancel(move || before.send("before").unwrap());
        assert!(calls.try_recv().is_err());

        token.clone().cancel();
        token.cancel();
        token.on_cancel(move || sender.send("after").unwrap());

        assert_eq!(calls.iter().collect::<Vec<_>>(), ["before", "after"]);
    }

    #[test]
    fn a_wait_ends_with_the_cancel_or_in_time() {
        let token = CancelToken::new();
        assert!(!token.wait(Duration::from_millis(1)));
        let other = token.clone();
        let canceller = std::thread::spawn(move || other.cancel());

        assert!(token.wait(Duration::from_secs(60)));

        canceller.join().unwrap();
    }
}
