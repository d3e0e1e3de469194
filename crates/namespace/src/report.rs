//! What the process that becomes the sandbox says about it.

use serde::{Deserialize, Serialize};

/// What keeps commands in, beside the namespaces and what no command is begun without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    pub landlock: Landlock,
}

/// Writing only where it is meant to be, and no sockets or signals to the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Landlock {
    Complete,
    /// As far as the kernel knows it.
    Partial,
    Missing,
}

impl Confinement {
    pub fn is_complete(self) -> bool {
        self.landlock == Landlock::Complete
    }
}

/// What whoever asked for a sandbox hears, in this order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum News {
    /// With the devices of the live views: nobody can look at them before they are served.
    Serve,
    Ready(Confinement),
    Failed(Failed),
}

/// The sandbox could not be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{doing}: {reason}")]
pub struct Failed {
    /// What was being done.
    pub doing: String,
    pub reason: String,
    /// 0 where the system did not say.
    pub errno: i32,
    /// Another view of the folders may be possible.
    pub view: bool,
}

impl Failed {
    pub(crate) fn new(doing: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { doing: doing.into(), reason: reason.into(), errno: 0, view: false }
    }
}

/// Says what was being done when something failed.
pub(crate) trait Context<T> {
    fn context(self, doing: impl Into<String>) -> Result<T, Failed>;
}

impl<T, E: Into<std::io::Error>> Context<T> for Result<T, E> {
    fn context(self, doing: impl Into<String>) -> Result<T, Failed> {
        self.map_err(|error| {
            let error = error.into();
            let errno = error.raw_os_error().unwrap_or(0);
            Failed { doing: doing.into(), reason: error.to_string(), errno, view: false }
        })
    }
}
