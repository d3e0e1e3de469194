//! Extended attributes of a name in an open directory. A symlink is never followed.
//!
//! The calls that take a directory came with Linux 6.13. Without them the way leads through
//! `/proc/self/fd`, and is several times as long.

#![allow(unsafe_code, reason = "calls that neither rustix nor the C library has")]

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lremovexattr, lsetxattr};
use rustix::io::Errno;

use super::Entry;

/// More than the kernel allows for a list of names or for a value.
const LIMIT: usize = 1 << 20;

/// The same on every architecture.
const SETXATTRAT: libc::c_long = 463;
const GETXATTRAT: libc::c_long = 464;
const LISTXATTRAT: libc::c_long = 465;
const REMOVEXATTRAT: libc::c_long = 466;

/// Set when the kernel turns out not to have those.
static IS_OLD: AtomicBool = AtomicBool::new(false);

/// What the kernel calls `struct xattr_args`.
#[repr(C)]
struct Value {
    address: u64,
    length: u32,
    flags: u32,
}

impl Value {
    const SIZE: usize = size_of::<Self>();

    fn at(address: usize, length: usize) -> rustix::io::Result<Self> {
        let length = u32::try_from(length).map_err(|_| Errno::TOOBIG)?;
        Ok(Self { address: address as u64, length, flags: 0 })
    }

    fn address(&self) -> usize {
        (&raw const *self).expose_provenance()
    }
}

/// All attributes that the kernel lists.
pub(super) fn names(entry: &Entry<'_>) -> io::Result<Vec<Vec<u8>>> {
    let names = read_grown(|buffer| list(entry, buffer))?.unwrap_or_default();
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

/// `None`: there is no such attribute.
pub(super) fn get(entry: &Entry<'_>, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let text = CString::new(name)?;
    read_grown(|buffer| {
        let value = Value::at(buffer.as_mut_ptr().expose_provenance(), buffer.len())?;
        let arguments = [text.as_ptr().expose_provenance(), value.address(), Value::SIZE];
        // SAFETY: the kernel reads the name, and writes to the buffer as far as is described.
        let done = unsafe { call(entry, GETXATTRAT, arguments) };
        done.unwrap_or_else(|| lgetxattr(proc_path(entry), name, buffer))
    })
}

pub(super) fn set(entry: &Entry<'_>, name: &[u8], value: &[u8]) -> io::Result<()> {
    let text = CString::new(name)?;
    let described = Value::at(value.as_ptr().expose_provenance(), value.len())?;
    let arguments = [text.as_ptr().expose_provenance(), described.address(), Value::SIZE];
    // SAFETY: the kernel reads the name, and the value that is described.
    match unsafe { call(entry, SETXATTRAT, arguments) } {
        Some(done) => done.map(drop)?,
        None => lsetxattr(proc_path(entry), name, value, XattrFlags::empty())?,
    }
    Ok(())
}

/// It may not be there.
pub(super) fn remove(entry: &Entry<'_>, name: &[u8]) -> io::Result<()> {
    let text = CString::new(name)?;
    let arguments = [text.as_ptr().expose_provenance(), 0, 0];
    // SAFETY: the kernel reads the name.
    let removed = match unsafe { call(entry, REMOVEXATTRAT, arguments) } {
        Some(done) => done.map(drop),
        None => lremovexattr(proc_path(entry), name),
    };
    match removed {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn list(entry: &Entry<'_>, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    let arguments = [buffer.as_mut_ptr().expose_provenance(), buffer.len(), 0];
    // SAFETY: the kernel writes at most so many bytes to the buffer.
    let listed = unsafe { call(entry, LISTXATTRAT, arguments) };
    listed.unwrap_or_else(|| llistxattr(proc_path(entry), buffer))
}

/// One of the newer calls; `None`: it has to be done without them.
///
/// # Safety
/// `arguments` are what the call takes behind directory, name and flags; it may use them.
unsafe fn call(
    entry: &Entry<'_>,
    number: libc::c_long,
    arguments: [usize; 3],
) -> Option<rustix::io::Result<usize>> {
    if IS_OLD.load(Ordering::Relaxed) {
        return None;
    }
    let name = match CString::new(entry.name()) {
        Ok(name) => name,
        Err(_) => return Some(Err(Errno::INVAL)),
    };
    let (dir, flags) = (entry.dir().as_raw_fd(), libc::AT_SYMLINK_NOFOLLOW);
    let [first, second, third] = arguments;
    // SAFETY: the name lives on; the caller answers for the rest.
    let done = unsafe { libc::syscall(number, dir, name.as_ptr(), flags, first, second, third) };
    if let Ok(length) = usize::try_from(done) {
        return Some(Ok(length));
    }
    match Errno::from_io_error(&io::Error::last_os_error()) {
        Some(Errno::NOSYS) => {
            IS_OLD.store(true, Ordering::Relaxed);
            None
        }
        // Refused by something that does not know the call, perhaps: the older one tells.
        Some(Errno::PERM) | None => None,
        Some(errno) => Some(Err(errno)),
    }
}

/// Reads into a buffer that grows until it is large enough. `None`: there is nothing.
fn read_grown(
    mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0; 256];
    loop {
        match read(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(Some(buffer));
            }
            Err(Errno::RANGE) if buffer.len() < LIMIT => buffer.resize(buffer.len() * 4, 0),
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The entry's path through its directory's descriptor: only the last component can still be a
/// symlink, and the `l…xattr` calls do not follow that one.
fn proc_path(entry: &Entry<'_>) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", entry.dir().as_raw_fd()).into_bytes();
    path.extend_from_slice(entry.name());
    path
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::host::Dir;

    fn work_with_attributes(dir: &Arc<Dir>) {
        let entry = dir.entry(&b"file"[..]);
        let long = vec![b'x'; 3000];
        set(&entry, b"user.one", b"1").unwrap();
        set(&entry, b"user.long", &long).unwrap();
        let mut found = names(&entry).unwrap();
        found.retain(|name| name.starts_with(b"user."));
        found.sort();
        assert_eq!(found, [&b"user.long"[..], b"user.one"]);
        assert_eq!(get(&entry, b"user.long").unwrap(), Some(long));
        assert_eq!(get(&entry, b"user.none").unwrap(), None);
        for name in [&b"user.one"[..], b"user.one", b"user.long"] {
            remove(&entry, name).unwrap();
        }
        assert_eq!(get(&entry, b"user.one").unwrap(), None);
        assert!(names(&dir.entry(&b"missing"[..])).is_err());
        // Of the link itself, not of the file it leads to.
        set(&entry, b"user.one", b"1").unwrap();
        let link = names(&dir.entry(&b"link"[..])).unwrap();
        assert!(!link.contains(&b"user.one".to_vec()));
        remove(&entry, b"user.one").unwrap();
    }

    #[test]
    fn attributes_are_the_same_with_and_without_the_newer_calls() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join("file"), "content").unwrap();
        std::os::unix::fs::symlink("file", scratch.path().join("link")).unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        work_with_attributes(&dir);
        IS_OLD.store(true, Ordering::Relaxed);
        work_with_attributes(&dir);
        IS_OLD.store(false, Ordering::Relaxed);
    }
}
