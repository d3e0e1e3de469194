//! Filesystems for tests and benchmarks: loop images of btrfs, XFS and ext4, mounted below
//! `target/test-fs/` for the length of one run.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::{find_program, is_root, program, run_silently, scratch};

/// A filesystem the tests want to see besides the one the repository is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Has reflinks.
    Btrfs,
    /// Has reflinks.
    Xfs,
    /// Has none, and is what most Linux machines run on.
    Ext4,
}

impl Kind {
    pub(crate) const ALL: &[Self] = &[Self::Btrfs, Self::Xfs, Self::Ext4];

    fn name(self) -> &'static str {
        match self {
            Self::Btrfs => "btrfs",
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
        }
    }

    /// The variable that tells a test where the filesystem is.
    fn variable(self) -> &'static str {
        match self {
            Self::Btrfs => "CODEAGENT_TEST_BTRFS",
            Self::Xfs => "CODEAGENT_TEST_XFS",
            Self::Ext4 => "CODEAGENT_TEST_EXT4",
        }
    }

    fn mkfs_options(self) -> &'static [&'static str] {
        match self {
            Self::Btrfs => &["--quiet", "--force"],
            Self::Xfs => &["-q", "-f", "-m", "reflink=1"],
            Self::Ext4 => &["-q", "-F"],
        }
    }
}

/// The filesystems of one run. Dropping it unmounts them and removes their images.
#[derive(Debug)]
pub(crate) struct Filesystems {
    ready: Vec<(Kind, PathBuf)>,
    /// Kinds that could not be had, and why.
    missing: Vec<(Kind, String)>,
    /// Held while anything below `target/test-fs/` may be mounted, so that no second run unmounts
    /// it as a leftover. Declared last: it is released after everything is unmounted.
    _lock: File,
}

impl Filesystems {
    /// Makes and mounts the filesystems, each with room for `size_bytes`. One that cannot be had is
    /// no error: the tests that need it are skipped and say so.
    pub(crate) fn prepare(kinds: &[Kind], size_bytes: u64) -> Result<Self> {
        let home = scratch("test-fs");
        fs::create_dir_all(&home).with_context(|| format!("cannot create {}", home.display()))?;
        let lock = lock(&home.join("lock"))?;
        // An earlier run may have been killed before it could clean up.
        unmount_below(&home);

        let mut filesystems = Self { ready: Vec::new(), missing: Vec::new(), _lock: lock };
        for &kind in kinds {
            match make(kind, &home, size_bytes) {
                Ok(folder) => filesystems.ready.push((kind, folder)),
                Err(error) => filesystems.missing.push((kind, format!("{error:#}"))),
            }
        }
        Ok(filesystems)
    }

    /// Tells a program where the filesystems are.
    pub(crate) fn announce(&self, command: &mut Command) {
        for (kind, folder) in &self.ready {
            command.env(kind.variable(), folder);
        }
        for (kind, _) in &self.missing {
            command.env_remove(kind.variable());
        }
    }

    /// One line a filesystem, for people.
    pub(crate) fn describe(&self) -> Vec<String> {
        let ready = self.ready.iter().map(|(kind, _)| format!("{}: ready", kind.name()));
        let missing =
            self.missing.iter().map(|(kind, why)| format!("{}: not available, {why}", kind.name()));
        ready.chain(missing).collect()
    }
}

impl Drop for Filesystems {
    fn drop(&mut self) {
        let home = scratch("test-fs");
        unmount_below(&home);
        for kind in Kind::ALL {
            // Absent when it was not asked for, or not ours to make.
            let _ = fs::remove_file(image_of(*kind, &home));
        }
    }
}

fn image_of(kind: Kind, home: &Path) -> PathBuf {
    home.join(format!("{}.img", kind.name()))
}

fn make(kind: Kind, home: &Path, size_bytes: u64) -> Result<PathBuf> {
    // Someone who may not mount can still offer a directory of their own.
    let offered = env::var_os(kind.variable()).filter(|value| !value.is_empty());
    if let Some(offered) = offered.map(PathBuf::from) {
        if !offered.is_dir() {
            bail!("{} names {}, which is no directory", kind.variable(), offered.display());
        }
        return Ok(offered);
    }
    if !cfg!(target_os = "linux") {
        bail!("it is mounted on Linux only");
    }
    if !is_root() {
        bail!(
            "mounting it needs root; run as root, or set {} to a directory on {}",
            kind.variable(),
            kind.name()
        );
    }
    let mkfs = format!("mkfs.{}", kind.name());
    let Some(mkfs) = find_program(&mkfs) else { bail!("{mkfs} is not installed") };

    let image = image_of(kind, home);
    File::create(&image)
        .and_then(|file| file.set_len(size_bytes))
        .with_context(|| format!("cannot create {}", image.display()))?;
    run_silently(program(mkfs).args(kind.mkfs_options()).arg(&image))?;

    let folder = home.join(kind.name());
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    run_silently(program("mount").args(["-o", "loop"]).arg(&image).arg(&folder))?;
    Ok(folder)
}

fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    #[cfg(unix)]
    if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("another `cargo xtask test` or `bench` runs in this repository; wait until it ends");
    }
    Ok(file)
}

/// Unmounts everything mounted below `home`, the latest mount first.
fn unmount_below(home: &Path) {
    let Ok(table) = fs::read("/proc/self/mountinfo") else {
        return;
    };
    for folder in mount_points(&String::from_utf8_lossy(&table))
        .iter()
        .rev()
        .filter(|folder| folder.starts_with(home))
    {
        if run_silently(program("umount").arg(folder)).is_ok() {
            continue;
        }
        // A process that a test left behind still holds it: take it out of sight now, the kernel
        // lets go of it when that process ends.
        if let Err(error) = run_silently(program("umount").arg("--lazy").arg(folder)) {
            eprintln!("Could not unmount {}: {error:#}", folder.display());
        }
    }
}

/// The mount points of a `mountinfo` table, in order of mounting.
fn mount_points(table: &str) -> Vec<PathBuf> {
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|field| PathBuf::from(unescape(field)))
        .collect()
}

/// Undoes the escapes of the kernel for characters that would break the table.
fn unescape(field: &str) -> String {
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_spaces() {
        let table = "26 1 254:0 / / rw - ext4 /dev/vda rw\n\
                      30 26 7:0 / /a\\040b/test-fs/xfs rw shared:1 - xfs /dev/loop0 rw\n";

        let points = mount_points(table);

        assert_eq!(points, [PathBuf::from("/"), PathBuf::from("/a b/test-fs/xfs")]);
    }
}
