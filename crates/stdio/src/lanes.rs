//! Threads for requests: each lane has a bounded number of them, and a bounded queue.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
pub(crate) struct LanePool {
    name: &'static str,
    max_threads: usize,
    /// What requests may cost while they wait, in bytes of their lines.
    max_waiting_bytes: usize,
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Default)]
struct State {
    threads: usize,
    waiting: VecDeque<(Job, usize)>,
    waiting_bytes: usize,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("threads", &self.threads)
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

impl LanePool {
    pub(crate) fn new(name: &'static str, max_threads: usize, max_waiting_bytes: usize) -> Self {
        let state = Mutex::default();
        Self { name, max_threads, max_waiting_bytes, state, idle: Condvar::new() }
    }

    /// Runs it now, or when a thread is free; whether there was room.
    pub(crate) fn submit(
        self: &Arc<Self>,
        cost_bytes: usize,
        job: impl FnOnce() + Send + 'static,
    ) -> io::Result<bool> {
        let job: Job = Box::new(job);
        let mut state = self.state.lock();
        if state.threads < self.max_threads {
            let pool = Arc::clone(self);
            std::thread::Builder::new().name(self.name.to_owned()).spawn(move || pool.work(job))?;
            state.threads += 1;
            return Ok(true);
        }
        if state.waiting_bytes + cost_bytes > self.max_waiting_bytes {
            return Ok(false);
        }
        state.waiting_bytes += cost_bytes;
        state.waiting.push_back((job, cost_bytes));
        Ok(true)
    }

    /// The life of a thread: it ends when nothing is waiting.
    fn work(&self, mut job: Job) {
        loop {
            job();
            let mut state = self.state.lock();
            let Some((next, cost_bytes)) = state.waiting.pop_front() else {
                state.threads -= 1;
                self.idle.notify_all();
                return;
            };
            state.waiting_bytes -= cost_bytes;
            job = next;
        }
    }

    /// Waits until everything that was submitted is done.
    pub(crate) fn finish(&self) {
        let mut state = self.state.lock();
        while state.threads > 0 {
            self.idle.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_full_lane_says_so_and_does_everything_it_took() {
        let pool = Arc::new(LanePool::new("test", 2, 100));
        let (gate, blocked) = mpsc::channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        let (done, finished) = mpsc::channel();
        let submit = |cost| {
            let (blocked, done) = (Arc::clone(&blocked), done.clone());
            pool.submit(cost, move || {
                let _ = blocked.lock().recv();
                done.send(()).unwrap();
            })
            .unwrap()
        };

        // Two run, whatever they cost; two wait; the fifth is too much.
        let admitted = [submit(1000), submit(1000), submit(50), submit(50), submit(1)];
        drop(gate);
        pool.finish();

        assert_eq!(admitted, [true, true, true, true, false]);
        assert_eq!(finished.try_iter().count(), 4);
    }
}
