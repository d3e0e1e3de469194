//! Mounts that nobody serves any more, and taking mounts away.

use std::io;
use std::path::Path;
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// Takes away what a server that died has left at `path`, if anything.
pub fn recover(path: &Path) -> io::Result<bool> {
    let mut recovered = false;
    // A server that died twice in a row may have left two, one upon the other.
    while is_dead(path) {
        unmount(path, true)?;
        recovered = true;
    }
    Ok(recovered)
}

pub(crate) fn is_dead(path: &Path) -> bool {
    // Not `stat`, which the kernel may answer from what it keeps.
    matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Takes a mount away; `lazy` also takes away what is still in use.
pub fn unmount(path: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => ask_fusermount(path, lazy),
        Err(errno) => Err(errno.into()),
    }
}

/// Without privileges, a helper of the system does it.
fn ask_fusermount(path: &Path, lazy: bool) -> io::Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(path);
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let busy = said.to_lowercase().contains("busy");
    Err(if busy { Errno::BUSY.into() } else { io::Error::other(said) })
}
