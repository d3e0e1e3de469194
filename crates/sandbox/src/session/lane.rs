//! One at a time: who has a step of its own, in a session and among those that share a folder.

use std::sync::Arc;
use std::time::{Duration, Instant};

use codeagent_common::ErrorCode;
use codeagent_worker::WorkerError;
use parking_lot::{Condvar, Mutex};

use super::folder::Keeper;
use crate::error::{Result, SandboxError};

/// How soon somebody who waits notices that he is not to wait any more.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// A lock that can be waited for with a limit.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    taken: Mutex<bool>,
    free: Condvar,
}

/// How to wait for a turn.
pub(crate) struct Patience<'a> {
    pub(crate) limit: Duration,
    /// It is not wanted any more.
    pub(crate) cancelled: &'a dyn Fn() -> bool,
    /// Called once, if another process is waited for.
    pub(crate) waits: &'a dyn Fn(),
}

impl Patience<'_> {
    pub(crate) fn of(limit: Duration) -> Self {
        Self { limit, cancelled: &|| false, waits: &|| {} }
    }

    fn check(&self, since: Instant) -> Result<()> {
        match since.elapsed() >= self.limit {
            _ if (self.cancelled)() => Err(SandboxError::Cancelled),
            true => Err(SandboxError::Busy),
            false => Ok(()),
        }
    }
}

/// Whose turn it is has a step. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    lane: &'a Lane,
    /// Where other processes may wait, too.
    taken: Vec<Arc<Keeper>>,
    workers: Workers,
}

/// Those of a session's folders, in their order; none for what cannot be changed.
pub(crate) type Workers = Vec<Option<Arc<Keeper>>>;

impl Lane {
    /// Waits until nobody else has a step in this session, nor any other process in the folders of
    /// these workers. One that has just gone is asked for again.
    pub(crate) fn enter(
        &self,
        workers: impl Fn() -> Result<Workers>,
        patience: &Patience<'_>,
    ) -> Result<Turn<'_>> {
        let since = Instant::now();
        let mut turn = self.enter_here(since, patience)?;
        let mut waits = false;
        while !turn.take_all(workers()?)? {
            patience.check(since)?;
            if !std::mem::replace(&mut waits, true) {
                (patience.waits)();
            }
            std::thread::sleep(ASK_AGAIN);
        }
        Ok(turn)
    }

    fn enter_here(&self, since: Instant, patience: &Patience<'_>) -> Result<Turn<'_>> {
        let mut taken = self.taken.lock();
        while *taken {
            patience.check(since)?;
            self.free.wait_for(&mut taken, ASK_AGAIN);
        }
        *taken = true;
        Ok(Turn { lane: self, taken: Vec::new(), workers: Vec::new() })
    }
}

impl Turn<'_> {
    pub(crate) fn workers(&self) -> &Workers {
        &self.workers
    }

    /// All or none: who had one and waited for another could wait for somebody who waits for him.
    fn take_all(&mut self, workers: Workers) -> Result<bool> {
        for worker in workers.iter().flatten() {
            let is_ours = match worker.client().take_turn() {
                Err(WorkerError::Gone) => false,
                Err(WorkerError::Failed(failure)) if failure.code == ErrorCode::WorkerEnding => {
                    false
                }
                taken => taken?,
            };
            if !is_ours {
                self.give_back();
                return Ok(false);
            }
            self.taken.push(Arc::clone(worker));
        }
        self.workers = workers;
        Ok(true)
    }

    fn give_back(&mut self) {
        for worker in self.taken.drain(..) {
            let _ = worker.client().end_turn(); // it has gone, and the turn with it
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.give_back();
        *self.lane.taken.lock() = false;
        self.lane.free.notify_all();
    }
}
