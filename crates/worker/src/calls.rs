//! The threads that answer the calls of one client.
//!
//! To begin and end a thread for each call takes longer than most calls do: the other processors have
//! to hear of its stack. So one that has nothing more to do waits for the next call for a while.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

const IDLE_FOR: Duration = Duration::from_secs(10);

/// Answers one call; what it returns is done once the thread can take another one.
type Job = Box<dyn FnOnce() -> Afterwards + Send>;
type Afterwards = Box<dyn FnOnce() + Send>;

/// Threads for calls, as many as there are calls at once.
#[derive(Default)]
pub(crate) struct Calls {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job. Never fewer than there are jobs: none waits for another.
    idle: usize,
    /// No more calls will come.
    closed: bool,
}

impl Calls {
    /// Has `job` done by a thread that does nothing else meanwhile. It returns what says that the
    /// call is over, which is done only when its thread is counted as free: so there never are more
    /// threads at work than calls that are not over.
    pub(crate) fn begin(
        &self,
        job: impl FnOnce() -> Afterwards + Send + 'static,
    ) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        if state.idle > state.jobs.len() {
            state.jobs.push_back(Box::new(job));
            drop(state);
            self.shared.work.notify_one();
            return Ok(());
        }
        drop(state);
        let shared = Arc::clone(&self.shared);
        let work = move || shared.work(Box::new(job));
        std::thread::Builder::new().name("call".into()).spawn(work).map(drop)
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn work(&self, first: Job) {
        let mut job = first;
        loop {
            let afterwards = job();
            let mut state = self.state.lock();
            state.idle += 1;
            drop(state);
            afterwards();
            state = self.state.lock();
            job = loop {
                if let Some(next) = state.jobs.pop_front() {
                    state.idle -= 1;
                    break next;
                }
                let waited = !state.closed && !self.work.wait_for(&mut state, IDLE_FOR).timed_out();
                // A job that came at the last moment counts on this thread.
                if !waited && state.jobs.is_empty() {
                    state.idle -= 1;
                    return;
                }
            };
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn calls_that_come_one_after_the_other_share_a_thread() {
        let calls = Calls::default();
        let (done, results) = channel();
        let threads: std::collections::HashSet<_> = (0..20)
            .map(|_| {
                let (answered, over) = (done.clone(), channel());
                calls
                    .begin(move || {
                        answered.send(std::thread::current().id()).unwrap();
                        Box::new(move || over.0.send(()).unwrap())
                    })
                    .unwrap();
                over.1.recv().unwrap();
                results.recv().unwrap()
            })
            .collect();
        assert_eq!(threads.len(), 1);
    }

    #[test]
    fn a_call_that_waits_keeps_no_other_from_being_answered() {
        let calls = Calls::default();
        let (let_go, held) = channel::<()>();
        calls
            .begin(move || {
                let _ = held.recv();
                Box::new(|| {})
            })
            .unwrap();
        for number in 0..3 {
            let (done, result) = channel();
            calls
                .begin(move || {
                    done.send(number).unwrap();
                    Box::new(|| {})
                })
                .unwrap();
            assert_eq!(result.recv_timeout(Duration::from_secs(30)), Ok(number));
        }
        drop(let_go);
    }
}
