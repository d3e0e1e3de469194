//! Where a test can step in: before every store write and before every host mutation.
//!
//! Without the feature `fault-injection` a [`Probe`] is empty and costs nothing.

use std::io;

/// The places a fault injector is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// A frame or extent is about to be appended.
    StoreWrite,
    /// A file or directory of the store is about to be made, opened, replaced or synced.
    StoreOpen,
    /// `wal/in_progress` is about to become a step or a redo entry, or a directory to go to trash.
    Promotion,
    /// The engine is about to change the working directory.
    HostMutation,
    /// Recovery is about to invert a record.
    Recovery,
}

/// What the injector wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Fail with this errno.
    Errno(i32),
    /// Write only half, then fail with this errno.
    ShortWrite(i32),
}

/// Implemented by tests. May also end the process instead of returning.
pub trait FaultInjector: Send + Sync {
    fn reach(&self, point: Point) -> Fault;
}

#[derive(Clone, Default)]
pub(crate) struct Probe {
    #[cfg(feature = "fault-injection")]
    injector: Option<std::sync::Arc<dyn FaultInjector>>,
}

impl Probe {
    #[cfg(feature = "fault-injection")]
    pub(crate) fn new(injector: Option<std::sync::Arc<dyn FaultInjector>>) -> Self {
        Self { injector }
    }

    #[inline]
    pub(crate) fn fault(&self, point: Point) -> Fault {
        #[cfg(feature = "fault-injection")]
        if let Some(injector) = &self.injector {
            return injector.reach(point);
        }
        let _ = point;
        Fault::None
    }

    #[inline]
    pub(crate) fn reach(&self, point: Point) -> io::Result<()> {
        match self.fault(point) {
            Fault::None => Ok(()),
            Fault::Errno(errno) | Fault::ShortWrite(errno) => {
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }
}
