//! The server: takes requests off a stream and puts the answers back.
//!
//! The thread that reads requests serves those that wait for nobody itself, because handing one over
//! costs as much as serving it. What may have to wait goes to a pool, so that a question that holds
//! one request holds no other:
//!
//! ```text
//!   reading thread:  take ── quick? ── serve ── answer
//!                                └ no: pool ── serve ── answer      (in any order)
//! ```
//!
//! Who does not read its answers keeps whoever writes them waiting, which is its own reading thread
//! and its own pool: it costs what the limits say, and nobody else anything.

mod fids;
mod incoming;
mod locking;
mod names;
mod operations;
mod session;
mod tree;
mod walking;
mod xattrs;

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::locks::{Among, Locks};
use crate::share::Share;

use incoming::Incoming;
use session::Session;

/// The least that both sides can work with.
pub const LEAST_MSIZE: u32 = 4096;

/// What one client may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in one message.
    pub msize: u32,
    /// Numbers that stand for files at once; further ones fail with EMFILE.
    pub fids: usize,
    /// Requests that wait at once.
    pub waiting: usize,
    /// Bytes that those have together.
    pub waiting_bytes: usize,
    /// How long none of those may come to its end before a further mutation, which has waited for
    /// that, fails with ENOSPC: then they wait for a person. Nothing else of the client is read
    /// meanwhile.
    pub patience: Duration,
    /// Locks that are waited for at once; further ones are told that they are blocked.
    pub waiting_locks: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            msize: 4 << 20,
            fids: 100_000,
            waiting: 1024,
            waiting_bytes: 32 << 20,
            patience: Duration::from_secs(1),
            waiting_locks: 32,
        }
    }
}

/// Why a client is served no longer.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("a message claims to have {claimed} bytes, of at most {most}")]
    Size { claimed: u32, most: usize },
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// A folder, for any number of clients that lock each other's ranges.
#[derive(Debug)]
pub struct Server {
    locks: Arc<Locks>,
    connections: AtomicU64,
    limits: Limits,
}

impl Server {
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { locks: Arc::default(), connections: AtomicU64::new(0), limits }
    }

    /// For clients that are kernels, as those of guests: between their processes they settle locks
    /// themselves.
    #[must_use]
    pub fn for_kernels(limits: Limits) -> Self {
        let locks = Arc::new(Locks::new(Among::Kernels));
        Self { locks, connections: AtomicU64::new(0), limits }
    }

    /// Serves one client, in this thread, until it hangs up. Everything it has asked for has been
    /// answered then, or nobody is there to be told.
    ///
    /// # Errors
    ///
    /// The connection failed, or what came over it cannot be a message.
    pub fn serve<S: Share>(
        &self,
        share: S,
        mut read: impl Read,
        write: impl Write + Send + 'static,
    ) -> Result<(), ServeError> {
        let connection = self.connections.fetch_add(1, Ordering::Relaxed);
        let session = Session::new(share, write, Arc::clone(&self.locks), connection, self.limits);
        let session = Arc::new(session);
        let mut incoming = Incoming::new();
        let mut buffers = session::Buffers::default();
        let mut serve = || -> Result<(), ServeError> {
            loop {
                while let Some(message) = incoming.next(session.largest_message())? {
                    session.take(message, &mut buffers)?;
                }
                if !incoming.fill(session.largest_message(), &mut read)? {
                    return Ok(());
                }
            }
        };
        let served = serve();
        session.finish();
        served
    }
}
