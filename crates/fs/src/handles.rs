//! The open handles of a client: how many there are, and what is behind each.

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
    all: Mutex<Map<u64, Handle>>,
}

/// What an open handle leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) inode: u64,
    pub(crate) is_dir: bool,
}

/// What is open for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Writable {
    pub(crate) inode: u64,
    pub(crate) file: FileId,
    /// By a name whose content is inspected.
    pub(crate) inspected: bool,
    /// Open for reading as well: only then can it be mapped for writing.
    pub(crate) mappable: bool,
}

impl Handles {
    pub(crate) fn new(limit: u64) -> Self {
        Self { open: AtomicU64::new(0), limit, writable: RwLock::default(), all: Mutex::default() }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Runs `open` if one more handle is allowed.
    pub(crate) fn admit<T>(&self, open: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let room = |open: u64| (open < self.limit).then_some(open + 1);
        self.open
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
            .map_err(|_| io::Error::from_raw_os_error(libc::ENFILE))?;
        open().inspect_err(|_| self.closed())
    }

    /// One that was admitted is none any more.
    fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// A file was opened.
    pub(crate) fn opened(&self, handle: u64, inode: u64) {
        self.all.lock().insert(handle, Handle { inode, is_dir: false });
    }

    pub(crate) fn opened_dir(&self, handle: u64, inode: u64) {
        self.all.lock().insert(handle, Handle { inode, is_dir: true });
    }

    /// The client has gone: everything that it had open.
    pub(crate) fn take(&self) -> (Vec<(u64, Handle)>, Vec<Writable>) {
        let writable = self.writable.write().drain().map(|(_, open)| open).collect();
        let all: Vec<_> = self.all.lock().drain().collect();
        // And not those that are being opened: they are counted until that has failed, or are closed.
        self.open.fetch_sub(all.len() as u64, Ordering::Relaxed);
        (all, writable)
    }

    /// The inodes of files that are open, each once.
    pub(crate) fn files(&self) -> Vec<u64> {
        self.files_of(|_| true)
    }

    /// Those of which a client may have a mapping that it writes to.
    pub(crate) fn mappable_files(&self) -> Vec<u64> {
        let writable = self.writable.read();
        self.files_of(|handle| writable.get(handle).is_some_and(|open| open.mappable))
    }

    fn files_of(&self, wanted: impl Fn(&u64) -> bool) -> Vec<u64> {
        let all = self.all.lock();
        let wanted = all.iter().filter(|(handle, open)| !open.is_dir && wanted(handle));
        let mut inodes: Vec<u64> = wanted.map(|(_, open)| open.inode).collect();
        inodes.sort_unstable();
        inodes.dedup();
        inodes
    }

    pub(crate) fn remember(&self, handle: u64, open: Writable) {
        self.writable.write().insert(handle, open);
    }

    /// A handle that the client gives up, and what it was open for writing on, if it was. Those of
    /// other clients are not its to close.
    pub(crate) fn close(&self, handle: u64, open: Handle) -> io::Result<Option<Writable>> {
        {
            let mut all = self.all.lock();
            if all.get(&handle) != Some(&open) {
                return Err(bad_descriptor());
            }
            all.remove(&handle);
        }
        self.closed();
        // Most are not, and keep nobody waiting.
        let is_writable = self.writable.read().contains_key(&handle);
        Ok(is_writable.then(|| self.writable.write().remove(&handle)).flatten())
    }

    /// What is behind a handle that this inode was opened with for writing.
    pub(crate) fn writable(&self, inode: u64, handle: u64) -> io::Result<Writable> {
        let known = self.writable.read().get(&handle).copied();
        known.filter(|known| known.inode == inode).ok_or_else(bad_descriptor)
    }
}

/// How often each inode is open for writing, by whichever client.
#[derive(Debug, Default)]
pub(crate) struct Writers(Mutex<Map<u64, usize>>);

impl Writers {
    pub(crate) fn add(&self, inode: u64) {
        *self.0.lock().entry(inode).or_default() += 1;
    }

    pub(crate) fn remove(&self, inode: u64) {
        let mut writers = self.0.lock();
        if let Some(count) = writers.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                writers.remove(&inode);
            }
        }
    }

    pub(crate) fn any(&self, is_it: impl Fn(u64) -> bool) -> bool {
        self.0.lock().keys().any(|inode| is_it(*inode))
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
    fn a_client_that_goes_while_it_opens_something_can_open_as_much_as_before() {
        let handles = Handles::new(2);
        handles.admit(|| Ok(())).unwrap();
        handles.opened(1, 7);
        let too_late = handles.admit(|| {
            assert_eq!(handles.take().0.len(), 1);
            Err::<(), _>(io::Error::other("it has gone"))
        });
        assert!(too_late.is_err());
        for handle in [2, 3] {
            handles.admit(|| Ok(())).unwrap();
            handles.opened(handle, 7);
        }
        assert!(handles.admit(|| Ok(())).is_err());
    }

    #[test]
    fn files_are_known_by_their_inodes_until_their_last_handle_is_closed() {
        let handles = Handles::new(10);
        handles.open.store(4, Ordering::Relaxed);
        let file = FileId { device: 1, inode: 70 };
        let open = Writable { inode: 7, file, inspected: false, mappable: true };
        for (handle, inode) in [(1, 7), (2, 7), (3, 8), (4, 8)] {
            handles.opened(handle, inode);
        }
        handles.remember(2, open);
        handles.remember(4, Writable { inode: 8, mappable: false, ..open });
        assert_eq!((handles.files(), handles.mappable_files()), (vec![7, 8], vec![7]));
        assert_eq!(handles.writable(7, 2).ok(), Some(open));
        assert!(handles.writable(8, 2).is_err(), "another file's handle");
        assert!(handles.writable(7, 1).is_err(), "a handle for reading");
        let of = |inode| Handle { inode, is_dir: false };
        assert!(handles.close(2, of(8)).is_err(), "another file's handle");
        assert!(handles.close(9, of(7)).is_err(), "another client's handle");
        assert_eq!(handles.close(2, of(7)).unwrap(), Some(open));
        assert!(handles.writable(7, 2).is_err(), "closed");
        assert_eq!((handles.files(), handles.mappable_files()), (vec![7, 8], vec![]));
        assert_eq!(handles.close(1, of(7)).unwrap(), None);
        assert_eq!(handles.files(), [8], "two handles are left");
    }
}
