//! Makes readable, for the time of a snapshot, what its owner has locked.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};

/// Every level keeps a descriptor open. Nothing is unlocked further down.
const DEEPEST: usize = 500;

/// What was unlocked; locked again when this is dropped.
#[derive(Default)]
pub(super) struct Unlocked {
    handles: Vec<(OwnedFd, Mode)>,
    /// Paths and the modes they really have.
    pub(super) modes: Vec<(Vec<u8>, u32)>,
}

impl Unlocked {
    /// Directories lose nothing by it; a file that was unreadable has a new ctime afterwards.
    pub(super) fn below(root: &Path) -> Self {
        let mut unlocked = Self::default();
        if !rustix::process::geteuid().is_root()
            && let Ok(fd) = rustix::fs::openat(CWD, root, handle_flags(), Mode::empty())
        {
            // What cannot be unlocked, the snapshot itself complains about.
            let _ = unlocked.directory(&fd, Vec::new(), 0);
        }
        unlocked
    }

    fn directory(&mut self, fd: &OwnedFd, path: Vec<u8>, depth: usize) -> rustix::io::Result<()> {
        self.unlock(fd, &path, &rustix::fs::fstat(fd)?, Mode::RUSR | Mode::XUSR)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listing = Dir::new(rustix::fs::openat(fd, c".", flags, Mode::empty())?)?;
        let names: Vec<_> =
            listing.filter_map(|entry| Some(entry.ok()?.file_name().to_owned())).collect();
        for name in names.iter().filter(|name| !matches!(name.to_bytes(), b"." | b"..")) {
            let mut below = path.clone();
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(name.to_bytes());
            let stat = rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let child = || rustix::fs::openat(fd, name, handle_flags(), Mode::empty());
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory if depth < DEEPEST => {
                    self.directory(&child()?, below, depth + 1)?;
                }
                FileType::RegularFile if stat.st_mode & 0o400 == 0 => {
                    self.unlock(&child()?, &below, &stat, Mode::RUSR)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn unlock(
        &mut self,
        fd: &OwnedFd,
        path: &[u8],
        stat: &Stat,
        needed: Mode,
    ) -> rustix::io::Result<()> {
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        if !mode.contains(needed) {
            chmod(fd, mode | needed)?;
            self.handles.push((fd.try_clone().expect("another descriptor"), mode));
            self.modes.push((path.to_vec(), mode.as_raw_mode()));
        }
        Ok(())
    }
}

impl Drop for Unlocked {
    fn drop(&mut self) {
        for (fd, mode) in self.handles.drain(..).rev() {
            chmod(&fd, mode).expect("lock again what a snapshot had unlocked");
        }
    }
}

fn handle_flags() -> OFlags {
    OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn chmod(fd: &OwnedFd, mode: Mode) -> rustix::io::Result<()> {
    rustix::fs::chmod(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()), mode)
}
