//! What the filesystem below needs of each thread that calls it.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;

use rustix::fs::Mode;
use rustix::thread::{UnshareFlags, unshare_unsafe};

thread_local! {
    static PREPARED: Cell<bool> = const { Cell::new(false) };
}

/// Gives this thread a working directory and a umask of its own, once.
///
/// The filesystem below changes into `/proc/self/fd` for attributes of special files, and expects
/// a umask of 0 because clients apply their own. Neither may be seen by other threads.
pub(crate) fn prepare() -> io::Result<()> {
    if PREPARED.get() {
        return Ok(());
    }
    // SAFETY: only the working directory, root and umask stop being shared; no memory, no files.
    unsafe { unshare_unsafe(UnshareFlags::FS)? };
    rustix::process::umask(Mode::empty());
    PREPARED.set(true);
    Ok(())
}
