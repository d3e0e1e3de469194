//! Time as the engine sees it; tests bring their own.

use std::sync::Arc;
use std::time::SystemTime;

use codeagent_common::Timestamp;

pub trait Clock: Send + Sync {
    fn now(&self) -> SystemTime;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

pub(crate) fn timestamp(clock: &Arc<dyn Clock>) -> Timestamp {
    clock.now().into()
}
