//! Free space on the disk, looked at now and then: by bytes written, not by time.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::error::{Result, UndoError};
use crate::store::Store;

/// Written at most between two looks.
const INTERVAL: i64 = 16 << 20;

pub(crate) struct FreeSpace {
    /// May still be written before the next look. Halving what is left at each look, writes come
    /// to an end just above the minimum, however fast they are.
    budget: AtomicI64,
    min_free_bytes: AtomicU64,
}

impl FreeSpace {
    pub(crate) fn keeping(min_free_bytes: u64) -> Self {
        Self { budget: AtomicI64::new(0), min_free_bytes: AtomicU64::new(min_free_bytes) }
    }

    pub(crate) fn keep(&self, min_free_bytes: u64) {
        self.min_free_bytes.store(min_free_bytes, Ordering::Relaxed);
        self.budget.store(0, Ordering::Relaxed);
    }

    /// Takes `bytes` from what is known to be free. `false`: somebody has to look first.
    pub(crate) fn spend(&self, bytes: u64) -> bool {
        // More than any budget is more than any budget, and must not make the counter wrap.
        let bytes = i64::try_from(bytes).unwrap_or(INTERVAL).min(INTERVAL + 1);
        self.budget.fetch_sub(bytes, Ordering::Relaxed) > bytes
    }

    /// Refuses to write `bytes` more where that would leave too little.
    pub(crate) fn take(&self, store: &Store, bytes: u64) -> Result<()> {
        if self.spend(bytes) {
            return Ok(());
        }
        let free_bytes = store
            .free_bytes()
            .map_err(UndoError::io("looking for free space in the undo directory"))?;
        let needed = self.min_free_bytes.load(Ordering::Relaxed).saturating_add(bytes);
        let Some(spare) = free_bytes.checked_sub(needed) else {
            self.budget.store(0, Ordering::Relaxed);
            return Err(UndoError::LowDiskSpace { free_bytes });
        };
        let budget = i64::try_from(spare / 2).unwrap_or(INTERVAL).min(INTERVAL);
        self.budget.store(budget, Ordering::Relaxed);
        Ok(())
    }
}
