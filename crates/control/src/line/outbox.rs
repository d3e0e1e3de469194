//! What is on its way to the shim. A thread of its own writes it, because a shim that does not read
//! must keep nobody from ending it.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

/// More than this waits only for a shim that does not read.
const MOST_BYTES: usize = 16 << 20;
/// What is written at once, so that progress shows.
const PIECE_BYTES: usize = 16 << 10;

/// Ends its thread when it is dropped, as soon as that is not held up by the shim.
pub(super) struct Outbox(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    lines: VecDeque<Vec<u8>>,
    /// Not written yet, of the line that is being written, too.
    bytes: usize,
    /// When the shim last took something, or had taken everything.
    progress_at: Instant,
    /// Nobody puts anything in any more.
    is_closed: bool,
    /// The shim has gone; whoever reads from it notices.
    is_broken: bool,
}

impl Outbox {
    pub(super) fn open(to_shim: impl Write + Send + 'static) -> io::Result<Self> {
        let state = State {
            lines: VecDeque::new(),
            bytes: 0,
            progress_at: Instant::now(),
            is_closed: false,
            is_broken: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let writer = Arc::clone(&shared);
        thread::Builder::new().name("shim-writer".into()).spawn(move || writer.write(to_shim))?;
        Ok(Self(shared))
    }

    /// `false`: far too much is waiting.
    #[must_use = "what was not taken is never written"]
    pub(super) fn put(&self, line: Vec<u8>) -> bool {
        let mut state = self.0.state();
        if state.is_broken {
            return true;
        }
        if state.bytes + line.len() > MOST_BYTES {
            return false;
        }
        if state.bytes == 0 {
            state.progress_at = Instant::now();
        }
        state.bytes += line.len();
        state.lines.push_back(line);
        self.0.changed.notify_one();
        true
    }

    /// Since when the shim has taken nothing of what is there for it.
    pub(super) fn unread_since(&self) -> Option<Instant> {
        let state = self.0.state();
        (state.bytes > 0).then_some(state.progress_at)
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.0.state().is_closed = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn write(&self, mut to_shim: impl Write) {
        while let Some(line) = self.next() {
            for piece in line.chunks(PIECE_BYTES) {
                let written = to_shim.write_all(piece);
                let mut state = self.state();
                if written.is_err() {
                    state.is_broken = true;
                    state.lines.clear();
                    state.bytes = 0;
                    return;
                }
                state.bytes -= piece.len();
                state.progress_at = Instant::now();
            }
            let _ = to_shim.flush(); // what fails will fail again
        }
    }

    fn next(&self) -> Option<Vec<u8>> {
        let is_idle = |state: &mut State| state.lines.is_empty() && !state.is_closed;
        let state = self.changed.wait_while(self.state(), is_idle);
        state.unwrap_or_else(PoisonError::into_inner).lines.pop_front()
    }

    /// Nothing panics while it is held.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
