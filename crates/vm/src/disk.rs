//! The disk of a guest: the root file system of the image, which nobody changes, and a file on top
//! of it with what the guest has changed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::FlockOperation;
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

/// Made under another name first: a disk that is there is whole, and so is the note beside it.
fn make_persistent(path: &Path, base: &Path, image: &GuestImage) -> Result<()> {
    let failed =
        |error: io::Error| VmError::Disk { path: path.to_owned(), reason: error.to_string() };
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir).map_err(failed)?;
    let made = tempfile::Builder::new().prefix(".disk-").tempfile_in(dir).map_err(failed)?;
    make_overlay(made.path(), base)?;
    fs::write(note_beside(path), image.id()).map_err(failed)?;
    made.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

fn ephemeral(base: &Path, state_dir: &Path) -> Result<OwnedFd> {
    let failed =
        |error: io::Error| VmError::Disk { path: state_dir.to_owned(), reason: error.to_string() };
    fs::create_dir_all(state_dir).map_err(failed)?;
    let made = tempfile::Builder::new().prefix(".disk-").tempfile_in(state_dir).map_err(failed)?;
    make_overlay(made.path(), base)?;
    // Opened anew: the program may have put another file in its place.
    let file: File = OpenOptions::new().read(true).write(true).open(made.path()).map_err(failed)?;
    made.close().map_err(failed)?;
    Ok(file.into())
}

fn make_overlay(path: &Path, base: &Path) -> Result<()> {
    let failed = |reason: String| VmError::Disk { path: path.to_owned(), reason };
    let program = in_path("qemu-img").ok_or_else(|| {
        failed("there is no qemu-img; on Debian and Ubuntu: sudo apt-get install qemu-utils".into())
    })?;
    let base = base.canonicalize().map_err(|error| failed(error.to_string()))?;
    let output = Command::new(program)
        .args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"])
        .arg(base)
        .arg(path)
        .stdin(Stdio::null())
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
