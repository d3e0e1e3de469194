//! One process at a time works on a mount point, and one with an undo directory.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

/// Held for as long as this lives: the kernel gives it back when the process ends, however it ends.
/// Nothing is on the disk, because what is to be claimed may be a dead mount, or not be there yet.
#[derive(Debug)]
pub struct Claim {
    _name: UnixListener,
}

impl Claim {
    /// `None` if another process has claimed `path` for the same `purpose`.
    pub fn take(purpose: &str, path: &Path) -> io::Result<Option<Self>> {
        // In another mount namespace the same path is another place.
        let user = rustix::process::geteuid().as_raw();
        let mounts = std::fs::metadata("/proc/self/ns/mnt")?.ino();
        // Names of sockets are short, those of directories are not.
        let place = xxhash_rust::xxh3::xxh3_128(resolved(path)?.as_os_str().as_bytes());
        let name = format!("codeagent/{purpose}/{user}/{mounts}/{place:032x}");
        let address = SocketAddr::from_abstract_name(name)?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Some(Self { _name: listener })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The path without symlinks, as far as it is there. A directory that it leads to is not asked: it
/// may be a mount which nobody serves.
pub(crate) fn resolved(path: &Path) -> io::Result<PathBuf> {
    resolved_within(path, MAX_SYMLINKS)
}

/// As many as the kernel follows.
const MAX_SYMLINKS: usize = 40;

fn resolved_within(path: &Path, symlinks: usize) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return path.canonicalize();
    };
    if let Ok(target) = path.read_link() {
        let left = symlinks.checked_sub(1).ok_or(io::Error::from(rustix::io::Errno::LOOP))?;
        return resolved_within(&parent.join(target), left);
    }
    let parent = match parent.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => resolved_within(parent, symlinks)?,
        parent => parent?,
    };
    Ok(parent.join(name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_claimed_can_be_had_again_once_it_is_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        let claim = Claim::take("test", &dir.path().join("one")).unwrap();
        assert!(claim.is_some());
        assert!(Claim::take("test", &link.join("one")).unwrap().is_none());
        assert!(Claim::take("test", &link.join("two")).unwrap().is_some());
        assert!(Claim::take("else", &link.join("one")).unwrap().is_some());
        let leads_there = dir.path().join("leads there");
        std::os::unix::fs::symlink("link/one", &leads_there).unwrap();
        assert!(Claim::take("test", &leads_there).unwrap().is_none());
        drop(claim);
        assert!(Claim::take("test", &link.join("one")).unwrap().is_some());
    }

    #[test]
    fn symlinks_that_lead_to_each_other_are_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("b", dir.path().join("a")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("b")).unwrap();
        let error = Claim::take("test", &dir.path().join("a")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::LOOP.raw_os_error()));
    }
}
