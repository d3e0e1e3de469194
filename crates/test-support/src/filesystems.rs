//! The filesystems this machine offers to tests, and what they can do.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// The filesystems with copy-on-write clones: directories that `CODEAGENT_TEST_BTRFS` and
/// `CODEAGENT_TEST_XFS` name, with the name of the filesystem.
pub fn reflink_dirs() -> Vec<(&'static str, PathBuf)> {
    let named = [("btrfs", "CODEAGENT_TEST_BTRFS"), ("xfs", "CODEAGENT_TEST_XFS")];
    let found = named.map(|(name, variable)| dir_from(variable).map(|dir| (name, dir)));
    found.into_iter().flatten().collect()
}

/// A directory on a real disk: the one that `CODEAGENT_TEST_EXT4` names, else the
/// temporary directory unless that is in memory.
pub fn disk_dir() -> Option<PathBuf> {
    dir_from("CODEAGENT_TEST_EXT4").or_else(|| {
        let dir = std::env::temp_dir();
        (!is_in_memory(&dir)).then_some(dir)
    })
}

/// Whether `dir` is on tmpfs or ramfs.
pub fn is_in_memory(dir: &Path) -> bool {
    let filesystem = rustix::fs::statfs(dir).expect("statfs");
    #[allow(clippy::cast_sign_loss)] // The type of the magic number depends on the machine.
    let magic = filesystem.f_type as u64 & 0xffff_ffff;
    magic == TMPFS_MAGIC || magic == RAMFS_MAGIC
}

/// Whether files in `dir` can have `user.*` xattrs.
pub fn supports_user_xattrs(dir: &Path) -> bool {
    accepts_xattr(dir, "user.codeagent-probe", b"1")
}

/// Whether files in `dir` can have POSIX ACLs.
pub fn supports_acls(dir: &Path) -> bool {
    accepts_xattr(dir, "system.posix_acl_access", &crate::fixtures::sample_acl())
}

/// Says why `test` cannot run here, on stderr and, for CI to count, as a line of the file
/// that `CODEAGENT_SKIPS` names.
#[expect(clippy::print_stderr, reason = "this is what it is for")]
pub fn skip(test: &str, reason: &str) {
    eprintln!("skipped: {test}: {reason}");
    if let Some(file) = std::env::var_os("CODEAGENT_SKIPS") {
        append_skip(Path::new(&file), test, reason);
    }
}

fn append_skip(file: &Path, test: &str, reason: &str) {
    // One write of the whole line, as tests of several processes share the file.
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .and_then(|mut file| file.write_all(format!("{test}: {reason}\n").as_bytes()))
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

fn dir_from(variable: &str) -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os(variable).filter(|value| !value.is_empty())?);
    // A wrong setting must fail, not skip tests in silence.
    assert!(dir.is_dir(), "{variable} names no directory: {}", dir.display());
    Some(dir)
}

fn accepts_xattr(dir: &Path, name: &str, value: &[u8]) -> bool {
    let probe = tempfile::NamedTempFile::new_in(dir).expect("create a file to probe");
    rustix::fs::fsetxattr(probe.as_file(), name, value, XattrFlags::empty()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_are_appended_a_line_each() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("skips");
        append_skip(&file, "first_test", "no btrfs here");
        append_skip(&file, "second_test", "no xfs here");
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text, "first_test: no btrfs here\nsecond_test: no xfs here\n");
    }

    #[test]
    fn memory_filesystems_are_told_from_disks() {
        assert!(is_in_memory(Path::new("/dev/shm")));
        assert!(!is_in_memory(Path::new("/proc")));
    }
}

/// A small filesystem in memory, mounted until it is dropped.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where mounting is not allowed.
    pub fn mount(at: &Path, size: &str) -> Option<Self> {
        Self::mount_with(at, &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
    }

    /// One whose files have no extended attributes. `None` where mounting is not allowed.
    pub fn without_attributes(at: &Path) -> Option<Self> {
        Self::mount_with(at, &["-t", "ramfs", "ramfs"])
    }

    fn mount_with(at: &Path, options: &[&str]) -> Option<Self> {
        std::fs::create_dir_all(at).expect("make a mount point");
        let mounted = std::process::Command::new("mount")
            .args(options)
            .arg(at)
            .status()
            .is_ok_and(|status| status.success());
        mounted.then(|| Self(at.to_path_buf()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn free_bytes(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.0).expect("statvfs");
        stat.f_bavail * stat.f_frsize
    }

    /// Takes all the space that is left, in a file of this name.
    pub fn fill(&self, name: &str) {
        let mut file = std::fs::File::create(self.0.join(name)).expect("make a file");
        while file.write_all(&[1; 4096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
