//! Directories that a build needs on its way, with gigabytes in them. They go with it; what a build
//! that was killed has left, the next one removes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use codeagent_common::CancelToken;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use super::programs::run;

/// Its name is this once somebody holds it.
const PREFIX: &str = ".codeagent-building-";
const NOT_HELD_YET: &str = ".codeagent-new-";

#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    /// The directory itself, locked for as long as this process lives.
    _held: File,
}

impl Scratch {
    /// Makes one, and removes those that nobody holds any more.
    pub(crate) fn new_in(place: &Path) -> io::Result<Self> {
        sweep(place)?;
        let new = tempfile::Builder::new().prefix(NOT_HELD_YET).tempdir_in(place)?;
        // Who installs a system without root is another user inside, who has to get through.
        fs::set_permissions(new.path(), fs::Permissions::from_mode(0o711))?;
        let held = File::open(new.path())?;
        flock(&held, FlockOperation::NonBlockingLockExclusive)?;
        let name = new.path().file_name().unwrap_or_default().to_string_lossy();
        let path = place.join(name.replacen(NOT_HELD_YET, PREFIX, 1));
        fs::rename(new.path(), &path)?;
        let _ = new.keep(); // it has another name
        Ok(Self { path, _held: held })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A directory in it.
    pub(crate) fn dir(&self, name: &str) -> io::Result<PathBuf> {
        let dir = self.path.join(name);
        fs::create_dir(&dir)?;
        Ok(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes what builds of this user that are dead have left.
fn sweep(place: &Path) -> io::Result<()> {
    for entry in fs::read_dir(place)?.flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|found| {
                found.is_dir() && found.uid() == rustix::process::geteuid().as_raw()
            });
        let path = entry.path();
        if is_ours && is_held_by_nobody(&path) {
            remove(&path);
        }
    }
    Ok(())
}

fn is_held_by_nobody(dir: &Path) -> bool {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(dir) = rustix::fs::open(dir, flags, Mode::empty()) else { return false };
    flock(dir, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// What cannot be removed stays, for the next build to try.
fn remove(dir: &Path) {
    if fs::remove_dir_all(dir).is_err() {
        // In a half-installed system are files of users that only mmdebstrap can become.
        let mut helper = Command::new("mmdebstrap");
        helper.args(["--unshare-helper", "rm", "-rf", "--"]).arg(dir);
        let _ = run(&mut helper, &CancelToken::new());
        let _ = fs::remove_dir_all(dir);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_build_has_left_goes_and_what_a_living_one_has_stays() {
        let place = tempfile::tempdir().unwrap();
        let left = place.path().join(format!("{PREFIX}dead"));
        fs::create_dir_all(left.join("tree")).unwrap();
        fs::write(left.join("tree/root.tar"), "gigabytes").unwrap();
        let others = place.path().join("minimal-x86_64");
        fs::create_dir(&others).unwrap();

        let first = Scratch::new_in(place.path()).unwrap();
        fs::write(first.path().join("half"), "").unwrap();
        assert!(!left.exists());
        let second = Scratch::new_in(place.path()).unwrap();
        assert!(first.path().join("half").exists() && others.exists());
        drop((first, second));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
