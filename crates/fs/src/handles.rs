//! Open handles: how many there are, and which file is behind those that can write.

use std::collections::hash_map::Entry;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use codeagent_interceptor::FileId;
use parking_lot::{Mutex, RwLock};

type Map<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

#[derive(Debug)]
pub(crate) struct Handles {
    open: AtomicU64,
    limit: u64,
    /// Known from the open on, so that a repeated write needs no look at the file.
    writable: RwLock<Map<u64, FileId>>,
    /// How many handles each inode has; files only.
    of_inodes: Mutex<Map<u64, usize>>,
}

impl Handles {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            open: AtomicU64::new(0),
            limit,
            writable: RwLock::default(),
            of_inodes: Mutex::default(),
        }
    }

    /// Runs `open` if one more handle is allowed.
    pub(crate) fn admit<T>(&self, open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let room = |open: u64| (open < self.limit).then_some(open + 1);
        self.open
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
            .map_err(|_| io::Error::from_raw_os_error(libc::ENFILE))?;
        open().inspect_err(|_| self.closed())
    }

    pub(crate) fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// A file was opened, and clients know the handle.
    pub(crate) fn opened(&self, inode: u64) {
        *self.of_inodes.lock().entry(inode).or_default() += 1;
    }

    pub(crate) fn released(&self, inode: u64) {
        if let Entry::Occupied(mut handles) = self.of_inodes.lock().entry(inode) {
            *handles.get_mut() -= 1;
            if *handles.get() == 0 {
                handles.remove();
            }
        }
        self.closed();
    }

    pub(crate) fn open_inodes(&self) -> Vec<u64> {
        self.of_inodes.lock().keys().copied().collect()
    }

    pub(crate) fn remember(&self, handle: u64, file: FileId) {
        self.writable.write().insert(handle, file);
    }

    pub(crate) fn forget(&self, handle: u64) {
        if self.writable.read().contains_key(&handle) {
            self.writable.write().remove(&handle);
        }
    }

    pub(crate) fn file(&self, handle: u64) -> Option<FileId> {
        self.writable.read().get(&handle).copied()
    }

    pub(crate) fn clear(&self) {
        self.open.store(0, Ordering::Relaxed);
        self.writable.write().clear();
        self.of_inodes.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_handle_too_many_is_refused_until_another_is_closed() {
        let handles = Handles::new(1);
        assert!(handles.admit(|| Ok(())).is_ok());
        let refused = handles.admit(|| Ok(())).err().and_then(|error| error.raw_os_error());
        assert_eq!(refused, Some(libc::ENFILE));
        handles.closed();
        assert!(handles.admit(|| Err::<(), _>(io::Error::other("no"))).is_err());
        assert!(handles.admit(|| Ok(())).is_ok());
    }
}
