//! One process at a time works on a mount point, and one with an undo directory.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::linux::net::SocketAddrExt;
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
        // Names of sockets are short, those of directories are not.
        let mut hasher = DefaultHasher::new();
        resolved(path)?.hash(&mut hasher);
        let name = format!("codeagent/{purpose}/{:016x}", hasher.finish());
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
    if path.read_link().is_ok() {
        return path.canonicalize();
    }
    let path = std::path::absolute(path)?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(path) };
    let parent = match parent.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => resolved(parent)?,
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
        drop(claim);
        assert!(Claim::take("test", &link.join("one")).unwrap().is_some());
    }
}
