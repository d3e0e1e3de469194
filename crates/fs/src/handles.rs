//! Open handles: how many there are, and which file is behind each.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use codeagent_interceptor::FileId;
use parking_lot::{Mutex, RwLock};

use crate::names::bad_descriptor;

type Map<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

#[derive(Debug)]
pub(crate) struct Handles {
    open: AtomicU64,
    limit: u64,
    /// Known from the open on, so that a repeated write needs no look at the file.
    writable: RwLock<Map<u64, Writable>>,
    /// The inodes of open files.
    files: Mutex<Map<u64, u64>>,
}

#[derive(Debug, Clone, Copy)]
struct Writable {
    inode: u64,
    file: FileId,
}

impl Handles {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            open: AtomicU64::new(0),
            limit,
            writable: RwLock::default(),
            files: Mutex::default(),
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

    /// A file was opened.
    pub(crate) fn opened(&self, handle: u64, inode: u64) {
        self.files.lock().insert(handle, inode);
    }

    /// The inodes of files that are open, each once.
    pub(crate) fn files(&self) -> Vec<u64> {
        self.files_of(|_| true)
    }

    /// Those that are open for writing.
    pub(crate) fn writable_files(&self) -> Vec<u64> {
        let writable = self.writable.read();
        self.files_of(|handle| writable.contains_key(handle))
    }

    fn files_of(&self, wanted: impl Fn(&u64) -> bool) -> Vec<u64> {
        let files = self.files.lock();
        let wanted = files.iter().filter(|(handle, _)| wanted(handle));
        let mut inodes: Vec<u64> = wanted.map(|(_, inode)| *inode).collect();
        inodes.sort_unstable();
        inodes.dedup();
        inodes
    }

    pub(crate) fn remember(&self, handle: u64, inode: u64, file: FileId) {
        self.writable.write().insert(handle, Writable { inode, file });
    }

    pub(crate) fn forget(&self, handle: u64) {
        self.files.lock().remove(&handle);
        if self.writable.read().contains_key(&handle) {
            self.writable.write().remove(&handle);
        }
    }

    /// The file behind a handle that this inode was opened with for writing.
    pub(crate) fn file(&self, inode: u64, handle: u64) -> io::Result<FileId> {
        let known = self.writable.read().get(&handle).copied();
        known
            .filter(|known| known.inode == inode)
            .map(|known| known.file)
            .ok_or_else(bad_descriptor)
    }

    pub(crate) fn clear(&self) {
        self.open.store(0, Ordering::Relaxed);
        self.writable.write().clear();
        self.files.lock().clear();
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

    #[test]
    fn files_are_known_by_their_inodes_until_their_last_handle_is_closed() {
        let handles = Handles::new(10);
        let file = FileId { device: 1, inode: 70 };
        for (handle, inode) in [(1, 7), (2, 7), (3, 8)] {
            handles.opened(handle, inode);
        }
        handles.remember(2, 7, file);
        assert_eq!((handles.files(), handles.writable_files()), (vec![7, 8], vec![7]));
        assert_eq!(handles.file(7, 2).ok(), Some(file));
        assert!(handles.file(8, 2).is_err(), "another file's handle");
        assert!(handles.file(7, 1).is_err(), "a handle for reading");
        handles.forget(2);
        assert!(handles.file(7, 2).is_err(), "closed");
        assert_eq!((handles.files(), handles.writable_files()), (vec![7, 8], vec![]));
        handles.forget(1);
        assert_eq!(handles.files(), [8]);
    }
}
