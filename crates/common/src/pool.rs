//! Threads for requests that may have to wait. There are as many as there are such requests, up to a
//! bound, and they end when there is nothing to do for a while.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// While a safeguard's question is open, each waiting request has one of these.
const MOST_THREADS: usize = 64;

const IDLE_FOR: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs in any order. A job that panics costs nobody else anything.
#[derive(Default)]
pub struct Pool {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is a job.
    work: Condvar,
    /// No job is left, and none is being done.
    quiet: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// Waiting, or being done.
    unfinished: usize,
    /// Nothing is taken any more: who has nothing to do ends.
    closed: bool,
    /// Those that have not ended, and some that have.
    handles: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Has a job done, unless `most` are unfinished already or no thread can be had.
    #[must_use = "a job that was not taken has to be dealt with"]
    pub fn take(&self, most: usize, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.shared.state.lock();
        if state.closed || state.unfinished >= most {
            return false;
        }
        if state.idle <= state.jobs.len() && state.threads < MOST_THREADS {
            let shared = Arc::clone(&self.shared);
            let name = "waiting".to_owned();
            match std::thread::Builder::new().name(name).spawn(move || shared.work()) {
                Ok(handle) => {
                    state.threads += 1;
                    state.handles.retain(|handle| !handle.is_finished());
                    state.handles.push(handle);
                }
                Err(_) if state.threads == 0 => return false,
                Err(_) => {} // another one does it later
            }
        }
        state.unfinished += 1;
        state.jobs.push_back(Box::new(job));
        drop(state);
        self.shared.work.notify_one();
        true
    }

    /// Waits until everything that was taken is done.
    pub fn finish(&self) {
        let mut state = self.shared.state.lock();
        while state.unfinished > 0 {
            self.shared.quiet.wait(&mut state);
        }
    }

    /// The same, and then nothing is taken any more and no thread is left. No job may call it.
    pub fn end(&self) {
        self.finish();
        let handles = self.close();
        for handle in handles {
            let _ = handle.join(); // what panics in it is caught there
        }
    }

    fn close(&self) -> Vec<JoinHandle<()>> {
        let mut state = self.shared.state.lock();
        state.closed = true;
        self.shared.work.notify_all();
        std::mem::take(&mut state.handles)
    }
}

impl Drop for Pool {
    /// The last job may drop it, so nobody is waited for.
    fn drop(&mut self) {
        drop(self.close());
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            while let Some(job) = state.jobs.pop_front() {
                drop(state);
                // Whoever waits for it hears nothing of it; what it owned is dropped, and says so.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.state.lock();
                state.unfinished -= 1;
                if state.unfinished == 0 {
                    self.quiet.notify_all();
                }
            }
            if state.closed {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            let waited = self.work.wait_for(&mut state, IDLE_FOR);
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_job_that_waits_keeps_no_other_from_being_done() {
        let pool = Pool::default();
        let (let_go, held) = channel::<()>();
        assert!(pool.take(10, move || held.recv().unwrap_or_default()));
        let (done, result) = channel();
        assert!(pool.take(10, move || done.send(7).unwrap()));
        assert_eq!(result.recv_timeout(Duration::from_secs(30)), Ok(7));
        drop(let_go);
        pool.finish();
    }

    #[test]
    fn more_than_may_be_unfinished_are_not_taken() {
        let pool = Pool::default();
        let (let_go, held) = channel::<()>();
        assert!(pool.take(1, move || held.recv().unwrap_or_default()));
        assert!(!pool.take(1, || {}));
        drop(let_go);
        pool.finish();
        assert!(pool.take(1, || {}));
        pool.finish();
    }

    #[test]
    fn no_thread_outlives_the_end() {
        let pool = Pool::default();
        for _ in 0..20 {
            assert!(pool.take(100, || {}));
        }
        pool.end();
        assert_eq!(pool.shared.state.lock().threads, 0);
        assert_eq!(Arc::strong_count(&pool.shared), 1, "they have let go of it");
        assert!(!pool.take(100, || {}));
    }

    #[test]
    fn threads_without_work_end_when_nobody_can_have_any_for_them() {
        let pool = Pool::default();
        assert!(pool.take(1, || {}));
        pool.finish();
        let shared = Arc::downgrade(&pool.shared);
        drop(pool);
        let deadline = std::time::Instant::now() + IDLE_FOR / 2;
        while shared.strong_count() > 0 {
            assert!(std::time::Instant::now() < deadline, "it waits for work");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_panic_costs_one_job() {
        let pool = Pool::default();
        for _ in 0..=MOST_THREADS {
            assert!(pool.take(1, || panic!("a mistake")));
            pool.finish();
        }
        let (done, result) = channel();
        assert!(pool.take(1, move || done.send(7).unwrap()));
        pool.finish();
        assert_eq!(result.try_recv(), Ok(7));
    }

    #[test]
    fn many_jobs_are_all_done() {
        let pool = Pool::default();
        let (done, results) = channel();
        for number in 0..1000 {
            let done = done.clone();
            assert!(pool.take(1000, move || done.send(number).unwrap()));
        }
        pool.finish();
        drop(done);
        assert_eq!(results.iter().sum::<u32>(), 499_500);
    }
}
