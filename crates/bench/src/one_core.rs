//! Everything on one core: what takes turns anyway should not be at the mercy of where the
//! scheduler puts it, and of how long another core takes to wake up.

use anyhow::Result;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// This thread, and the processes it starts, stay on one core while this lives.
#[derive(Debug)]
pub(crate) struct OneCore {
    before: CpuSet,
}

impl OneCore {
    pub(crate) fn keep() -> Result<Self> {
        let before = sched_getaffinity(None)?;
        let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| before.is_set(cpu));
        let mut one = CpuSet::new();
        one.set(last.unwrap_or(0));
        sched_setaffinity(None, &one)?;
        Ok(Self { before })
    }
}

impl Drop for OneCore {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.before);
    }
}
