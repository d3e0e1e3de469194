//! Mounts as descriptors: made and changed while nobody sees them, then put in their place.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use crate::raw;

/// No set-user-ID programs and no devices, wherever something is mounted.
const SAFE: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// A mount that is not in its place yet.
pub(super) struct Mount(OwnedFd);

impl Mount {
    /// What is at a path of the host, with everything mounted below it.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        Self::of_descriptor(CWD, path)
    }

    /// What is at a path below a directory.
    pub(super) fn of_descriptor(dir: impl AsFd, path: &Path) -> io::Result<Self> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE
            | OpenTreeFlags::AT_EMPTY_PATH;
        Ok(Self(open_tree(dir, path, flags)?))
    }

    /// A new filesystem.
    pub(super) fn new(kind: &str, options: &[(&str, &str)]) -> io::Result<Self> {
        Self::with_attributes(kind, options, SAFE)
    }

    pub(super) fn with_attributes(
        kind: &str,
        options: &[(&str, &str)],
        attributes: MountAttrFlags,
    ) -> io::Result<Self> {
        let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        let context = context.as_fd();
        for (key, value) in options {
            match *value {
                "" => fsconfig_set_flag(context, *key)?,
                value => fsconfig_set_string(context, *key, value)?,
            }
        }
        fsconfig_create(context)?;
        Ok(Self(fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?))
    }

    /// Changes of the lower layers, the first being the highest, go to `staging/up`, wherever they
    /// are; `work` is a directory of `staging` that nobody else has.
    pub(super) fn overlay(lower: &[&Path], staging: &Path, work: &str) -> io::Result<Self> {
        // Names in options are cut at commas and colons, and may not be long; descriptors have none.
        let lower = lower.iter().map(|path| open_dir(path)).collect::<io::Result<Vec<_>>>()?;
        let staging = open_dir(staging)?;
        let in_proc = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
        let lower_names = lower.iter().map(in_proc).collect::<Vec<_>>().join(":");
        let staging_name = in_proc(&staging);
        let options = [
            ("source", "codeagent"),
            ("lowerdir", lower_names.as_str()),
            ("upperdir", &format!("{staging_name}/up")),
            ("workdir", &format!("{staging_name}/{work}")),
            ("userxattr", ""),
            // Some kernels do that unless told otherwise, and then let nobody else, as the command
            // after this one, have the same layers before this mount has gone.
            ("index", "off"),
        ];
        Self::new("overlay", &options)
    }

    /// Something by which it stays mounted, wherever it is.
    pub(super) fn hold(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.0, ".", flags, Mode::empty())?)
    }

    /// What is in `lower`. Without a place for changes, the kernel wants two directories; the other
    /// one is `empty`.
    pub(super) fn read_only_overlay(lower: &Path, empty: &Path) -> io::Result<Self> {
        let (lower, empty) = (open_dir(lower)?, open_dir(empty)?);
        let names =
            format!("/proc/self/fd/{}:/proc/self/fd/{}", lower.as_raw_fd(), empty.as_raw_fd());
        let options = [("source", "codeagent"), ("lowerdir", names.as_str()), ("userxattr", "")];
        Self::new("overlay", &options)
    }

    pub(super) fn read_only(self) -> io::Result<Self> {
        self.restrict(SAFE | MountAttrFlags::MOUNT_ATTR_RDONLY)
    }

    pub(super) fn safe(self) -> io::Result<Self> {
        self.restrict(SAFE)
    }

    fn restrict(self, attributes: MountAttrFlags) -> io::Result<Self> {
        raw::set_mount_attributes(&self.0, c"", attributes.bits().into(), true)?;
        Ok(self)
    }

    /// Puts it in its place, below a directory.
    pub(super) fn place(self, dir: impl AsFd, path: &Path) -> io::Result<()> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        Ok(move_mount(&self.0, "", dir, path, flags)?)
    }

    /// Puts it over what is open here.
    pub(super) fn place_on(self, target: impl AsFd) -> io::Result<()> {
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(move_mount(&self.0, "", target, "", flags)?)
    }

    pub(super) fn is_dir(&self) -> io::Result<bool> {
        let stat = rustix::fs::statat(&self.0, "", AtFlags::EMPTY_PATH)?;
        Ok(rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())
    }
}

impl AsFd for Mount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Nothing can be made or removed in this directory any more; what is mounted below stays as it is.
pub(super) fn freeze(path: &CStr) -> io::Result<()> {
    raw::set_mount_attributes(CWD, path, MountAttrFlags::MOUNT_ATTR_RDONLY.bits().into(), false)
}

pub(super) fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}
