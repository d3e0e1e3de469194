//! The disk of a guest: the root file system of the image, which nobody changes, and a file on top
//! of it with what the guest has changed.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, FlockOperation};
use rustix::io::Errno;

use crate::config::Disk;
use crate::error::{Result, VmError};
use crate::image::GuestImage;
use crate::qemu::in_path;

/// What QEMU opens.
#[derive(Debug)]
pub(crate) enum Opened {
    /// It has no name any more, and is gone when nobody has it open.
    Nameless(OwnedFd),
    /// Whoever has the claim open has the disk; QEMU inherits it, so that it goes with the machine.
    Named { path: PathBuf, claim: OwnedFd },
}

pub(crate) fn open(disk: &Disk, image: &GuestImage, state_dir: &Path) -> Result<Option<Opened>> {
    let base = match disk {
        Disk::None => return Ok(None),
        _ => image.root().ok_or(VmError::NoRootFilesystem)?,
    };
    match disk {
        Disk::Persistent(path) => {
            let claim = persistent(path, &base, image)?;
            Ok(Some(Opened::Named { path: path.clone(), claim }))
        }
        _ => Ok(Some(Opened::Nameless(ephemeral(&base, state_dir)?))),
    }
}

pub fn exists(path: &Path) -> bool {
    path.exists()
}

/// Throws away what a guest has changed; the next one begins with the image again. Not while one has
/// it: what that goes on to change would be gone unsaid.
pub fn discard(path: &Path) -> io::Result<()> {
    let claim = match File::open(path) {
        Ok(disk) => Some(disk),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(disk) = &claim {
        match rustix::fs::flock(disk, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, "a guest has this disk"));
            }
            claimed => claimed?,
        }
    }
    for file in [path.to_owned(), note_beside(path)] {
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Makes the disk unless it is there, and claims it.
fn persistent(path: &Path, base: &Path, image: &GuestImage) -> Result<OwnedFd> {
    let failed =
        |error: io::Error| VmError::Disk { path: path.to_owned(), reason: error.to_string() };
    loop {
        if path.exists() {
            expect_same_image(path, image)?;
        } else {
            make_persistent(path, base, image)?;
        }
        let claim = File::open(path).map_err(failed)?;
        match rustix::fs::flock(&claim, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(VmError::DiskInUse { path: path.to_owned() }),
            Err(error) => return Err(failed(error.into())),
        }
        // Somebody may have discarded it meanwhile, or have made it at the same time.
        let is_still_there = fs::metadata(path).is_ok_and(|there| {
            claim
                .metadata()
                .is_ok_and(|ours| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
        });
        if is_still_there {
            return Ok(claim.into());
        }
    }
}

/// Made without a name first: a disk that is there is whole, and so is the note beside it; and nothing
/// is left of one that was not finished.
fn make_persistent(path: &Path, base: &Path, image: &GuestImage) -> Result<()> {
    let failed =
        |error: io::Error| VmError::Disk { path: path.to_owned(), reason: error.to_string() };
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir).map_err(failed)?;
    let made = tempfile::tempfile_in(dir).map_err(failed)?;
    // What is installed there is nobody else's affair.
    made.set_permissions(fs::Permissions::from_mode(0o600)).map_err(failed)?;
    make_overlay(&made, path, base)?;
    fs::write(note_beside(path), image.id()).map_err(failed)?;
    let from = format!("/proc/self/fd/{}", made.as_raw_fd());
    match rustix::fs::linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW) {
        // Somebody else was quicker, and that one is as good.
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        // Some file systems know no file that gets its name late.
        Err(_) => {
            let named = tempfile::Builder::new().prefix(".disk-").tempfile_in(dir);
            let named = named.map_err(failed)?;
            make_overlay(named.as_file(), path, base)?;
            match named.persist_noclobber(path) {
                Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => {
                    Err(failed(error.error))
                }
                _ => Ok(()),
            }
        }
    }
}

fn ephemeral(base: &Path, state_dir: &Path) -> Result<OwnedFd> {
    let failed =
        |error: io::Error| VmError::Disk { path: state_dir.to_owned(), reason: error.to_string() };
    fs::create_dir_all(state_dir).map_err(failed)?;
    let made = tempfile::tempfile_in(state_dir).map_err(failed)?;
    make_overlay(&made, state_dir, base)?;
    Ok(made.into())
}

/// Makes one in an open file, which needs no name; errors are about `path`.
fn make_overlay(file: &File, path: &Path, base: &Path) -> Result<()> {
    let failed = |reason: String| VmError::Disk { path: path.to_owned(), reason };
    let program = in_path("qemu-img").ok_or_else(|| {
        failed("there is no qemu-img; on Debian and Ubuntu: sudo apt-get install qemu-utils".into())
    })?;
    let base = base.canonicalize().map_err(|error| failed(error.to_string()))?;
    let output = Command::new(program)
        .args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"])
        .arg(base)
        .arg("/dev/stdin")
        .stdin(file.try_clone().map_err(|error| failed(error.to_string()))?)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// What lies on top of other bytes than it was made for is garbage.
fn expect_same_image(path: &Path, image: &GuestImage) -> Result<()> {
    match fs::read_to_string(note_beside(path)) {
        Ok(id) if id == image.id() => Ok(()),
        _ => Err(VmError::DiskOfOtherImage { path: path.to_owned() }),
    }
}

fn note_beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".image");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base_in(dir: &Path) -> Option<PathBuf> {
        let base = dir.join("base.qcow2");
        let made = Command::new(in_path("qemu-img")?)
            .args(["create", "-q", "-f", "qcow2"])
            .arg(&base)
            .arg("16M")
            .status();
        made.is_ok_and(|status| status.success()).then_some(base)
    }

    /// A process that is killed in the middle of it leaves nothing, because there is nothing to see.
    #[test]
    fn a_throw_away_disk_never_has_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let Some(base) = base_in(dir.path()) else {
            return codeagent_test_support::filesystems::skip(
                "a_throw_away_disk_never_has_a_name",
                "there is no qemu-img",
            );
        };
        let state = dir.path().join("state");
        let disk = File::from(ephemeral(&base, &state).unwrap());
        assert_eq!(disk.metadata().unwrap().nlink(), 0);
        assert_eq!(fs::read_dir(&state).unwrap().count(), 0);
        let mut magic = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&disk, &mut magic, 0).unwrap();
        assert_eq!(&magic, b"QFI\xfb");
    }
}
