//! Mounts that nobody serves any more, and taking mounts away.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::claim::resolved;
use crate::mounted::Unmounted;

/// For so long a mount in use may be in use by somebody who only had a look, as `df` has.
const GLANCE: Duration = Duration::from_millis(300);

/// Takes away what a server that died has left at `path`, if anything.
pub fn recover(path: &Path) -> io::Result<bool> {
    let mut recovered = false;
    // A server that died twice in a row may have left two, one upon the other.
    while is_dead(path) && is_ours(path)? {
        unmount(path, true)?;
        recovered = true;
    }
    Ok(recovered)
}

pub(crate) fn is_dead(path: &Path) -> bool {
    // Not `stat`, which the kernel may answer from what it keeps.
    matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Whether what is mounted at `path` is a mount of ours, dead or alive.
pub fn is_ours(path: &Path) -> io::Result<bool> {
    let point = resolved(path)?;
    let mounts = std::fs::read("/proc/self/mounts")?;
    let mut kinds = mounts.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ').skip(1);
        let (at, kind) = (fields.next()?, fields.next()?);
        (unescaped(at) == point.as_os_str().as_bytes()).then_some(kind)
    });
    let uppermost = kinds.next_back();
    Ok(uppermost == Some(b"fuse.codeagent"))
}

/// Blanks and their like are octal numbers there.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, behind)) = rest.split_first() {
        let number = (first == b'\\')
            .then(|| behind.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match number {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    bytes
}

/// Takes a mount away, whoever uses it; those who do can go on until they close their files.
pub(crate) fn take_away(path: &Path) -> io::Result<Unmounted> {
    let deadline = Instant::now() + GLANCE;
    loop {
        match unmount(path, false) {
            Ok(()) => return Ok(Unmounted::Cleanly),
            Err(error) if error.kind() != io::ErrorKind::ResourceBusy => return Err(error),
            Err(_) if Instant::now() < deadline => std::thread::sleep(GLANCE / 100),
            Err(_) => return unmount(path, true).map(|()| Unmounted::WhileInUse),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_mount_points_are_read_as_they_are() {
        assert_eq!(unescaped(br"/a\040b\134c"), b"/a b\\c");
        assert_eq!(unescaped(br"/plain\9"), br"/plain\9");
    }

    #[test]
    fn what_is_not_ours_is_left_alone() -> io::Result<()> {
        assert!(!is_ours(Path::new("/proc"))?);
        assert!(!is_ours(Path::new("/"))?);
        Ok(())
    }
}
