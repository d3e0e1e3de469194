//! Threads for calls. One that has nothing to do waits a while for the next call: starting one
//! takes longer than many a call.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;

const PATIENCE: Duration = Duration::from_secs(10);

/// More than that do not wait.
const MAX_IDLE: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(crate) struct Callers {
    /// Those that wait, the last one being the most likely to be in a processor's cache.
    idle: Mutex<Vec<(u64, Sender<Job>)>>,
    next: AtomicU64,
}

impl Callers {
    /// Runs a call on a thread of its own. It must not panic.
    pub(crate) fn run(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut job: Job = Box::new(job);
        while let Some((_, thread)) = self.pop() {
            match thread.send(job) {
                Ok(()) => return Ok(()),
                Err(SendError(unsent)) => job = unsent,
            }
        }
        let callers = Arc::clone(self);
        let work = move || callers.work(job);
        std::thread::Builder::new().name("call".into()).spawn(work).map(drop)
    }

    fn pop(&self) -> Option<(u64, Sender<Job>)> {
        self.idle.lock().pop()
    }

    /// The life of a thread.
    fn work(&self, first: Job) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, jobs) = channel();
        let mut next = Some(first);
        while let Some(job) = next {
            job();
            next = self.wait(id, &sender, &jobs);
        }
    }

    fn wait(&self, id: u64, sender: &Sender<Job>, jobs: &Receiver<Job>) -> Option<Job> {
        {
            let mut idle = self.idle.lock();
            if idle.len() >= MAX_IDLE {
                return None;
            }
            idle.push((id, sender.clone()));
        }
        match jobs.recv_timeout(PATIENCE) {
            Ok(job) => Some(job),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                let mut idle = self.idle.lock();
                match idle.iter().position(|(other, _)| *other == id) {
                    Some(at) => {
                        idle.remove(at);
                        None
                    }
                    // Somebody has just taken it from there, to send a job.
                    None => {
                        drop(idle);
                        jobs.recv().ok()
                    }
                }
            }
        }
    }
}

impl std::fmt::Debug for Callers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Callers").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_call_that_waits_keeps_no_other_from_running_and_threads_are_used_again() {
        let callers = Arc::new(Callers::default());
        let (release, held) = channel::<()>();
        let (done, finished) = channel();
        let report = done.clone();
        callers
            .run(move || {
                held.recv().unwrap();
                report.send(std::thread::current().id()).unwrap();
            })
            .unwrap();
        let mut threads = std::collections::HashSet::new();
        for round in 1..=20 {
            let report = done.clone();
            callers.run(move || report.send(std::thread::current().id()).unwrap()).unwrap();
            threads.insert(finished.recv().unwrap());
            let deadline = Instant::now() + Duration::from_secs(10);
            while callers.idle.lock().is_empty() {
                assert!(Instant::now() < deadline, "nobody waits after round {round}");
                std::thread::yield_now();
            }
        }
        assert_eq!(threads.len(), 1);
        release.send(()).unwrap();
        assert!(!threads.contains(&finished.recv().unwrap()));
    }
}
