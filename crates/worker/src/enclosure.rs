//! A root directory for the worker alone, in which nothing exists but what it needs.
//!
//! Landlock does not cover the attributes of files, and root may change those of any file it can
//! name. So a worker that may see nothing outside its two directories must have no name for it:
//!
//! ```text
//!     /            an empty directory instead, the root of the process
//!     /home        another one       both directories are descriptors within the mount that holds
//!     /home/me     another one       them, as before: what is moved from one into the other stays
//!     /home/me/project   ◄── one     on one mount, and `..` leads to an empty directory
//!     /home/me/undo      ◄── two
//! ```
//!
//! Two mounts of their own, one for each directory, would be simpler; but the kernel renames nothing
//! from one mount to another, and the engine lives on that.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    mount_change, move_mount, open_tree, unmount,
};

use crate::mount_points::mount_points;
use crate::raw;

/// Nothing in these mounts is a program or a device for us, not even what we make ourselves.
const HARMLESS: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// Leaves everything but these two directories behind, and gives them as they are seen from inside.
/// `None` if this process may not do that; then nothing has changed for it.
pub(crate) fn enter(
    working_dir: BorrowedFd<'_>,
    undo_dir: BorrowedFd<'_>,
) -> io::Result<Option<[OwnedFd; 2]>> {
    let Ok(prepared) = prepare([working_dir, undo_dir]) else { return Ok(None) };
    prepared.cover()?;
    Ok(Some(prepared.directories))
}

struct Prepared {
    directories: [OwnedFd; 2],
    names: [PathBuf; 2],
    /// Every directory above the two, the deepest first, and what covers it; not mounted yet. Each
    /// has one of its own: before Linux 6.15 nothing can be copied that is not mounted.
    covers: Vec<(PathBuf, OwnedFd)>,
    /// Mounts for it, each with the name it gets.
    needed: Vec<(OwnedFd, &'static str)>,
}

/// Whatever can fail for want of permission or of a new kernel, in a copy of all mounts. What is
/// mounted outside later, within the directories too, is mounted in the copy; nothing goes the
/// other way.
fn prepare(outside: [BorrowedFd<'_>; 2]) -> io::Result<Prepared> {
    let names = [path_of(outside[0])?, path_of(outside[1])?];
    let above: BTreeSet<_> = names.iter().flat_map(|name| name.ancestors().skip(1)).collect();
    if names.iter().any(|name| above.contains(name.as_path())) {
        return Err(io::ErrorKind::InvalidInput.into()); // one lies within the other
    }
    let mut above: Vec<PathBuf> = above.into_iter().map(Path::to_path_buf).collect();
    above.sort_by_key(|path| std::cmp::Reverse(path.components().count()));

    raw::leave_the_mount_namespace()?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    let mut needed = vec![(copy_of("/proc/self/fd", HARMLESS)?, "proc/self/fd")];
    // Each thread that serves a mount opens it once.
    let device = HARMLESS.difference(MountAttrFlags::MOUNT_ATTR_NODEV);
    if let Ok(device) = copy_of("/dev/fuse", device) {
        needed.push((device, "dev/fuse"));
    }
    let covers = above
        .into_iter()
        .map(|path| {
            let cover = if path == Path::new("/") { make_root()? } else { make_empty()? };
            Ok((path, cover))
        })
        .collect::<io::Result<_>>()?;
    let directories = [inside(&names[0], outside[0])?, inside(&names[1], outside[1])?];
    // From here on nothing fails: without an enclosure, `/dev` has to be as it was.
    raw::restrict_mount(open("/")?, HARMLESS)?;
    let_go_of_other_mounts(&names);
    Ok(Prepared { directories, names, covers, needed })
}

impl Prepared {
    fn cover(&self) -> io::Result<()> {
        let whole = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        for (path, cover) in &self.covers {
            move_mount(cover, "", CWD, path, whole)?;
        }
        let root = self.cover_of(Path::new("/"))?;
        for (mount, name) in &self.needed {
            move_mount(mount, "", root, *name, whole)?;
        }
        rustix::process::fchdir(root)?;
        rustix::process::chroot(".")?;
        // Seeing is believing.
        for (name, directory) in self.names.iter().zip(&self.directories) {
            let above = self.cover_of(name.parent().unwrap_or(name))?;
            if identity(directory.as_fd(), "..")? != identity(above.as_fd(), "")? {
                return Err(io::Error::other("a directory of the worker is not shut off"));
            }
        }
        Ok(())
    }

    fn cover_of(&self, path: &Path) -> io::Result<&OwnedFd> {
        let cover = self.covers.iter().find(|(covered, _)| covered == path);
        cover.map(|(_, cover)| cover).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// A mount that is held here does not end when it is unmounted outside, and whoever serves it
/// would wait for us. Those that hold the directories, and those within them, stay.
fn let_go_of_other_mounts(names: &[PathBuf; 2]) {
    // Unread, they stay: that is no reason not to shut them off.
    for point in mount_points().unwrap_or_default().into_iter().rev() {
        let is_needed = |name: &PathBuf| name.starts_with(&point) || point.starts_with(name);
        if !names.iter().any(is_needed) {
            // What does not go was left by nobody for us to hold, or is covered already.
            let _ = unmount(&point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
    }
}

fn make_empty() -> io::Result<OwnedFd> {
    make_filesystem(HARMLESS | MountAttrFlags::MOUNT_ATTR_RDONLY)
}

fn make_filesystem(attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "mode", "0755")?;
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// An empty filesystem, but for places to mount what is needed.
fn make_root() -> io::Result<OwnedFd> {
    let root = make_filesystem(HARMLESS)?;
    let mask = rustix::process::umask(Mode::empty());
    let made = ["proc", "proc/self", "proc/self/fd", "dev"]
        .iter()
        .try_for_each(|name| rustix::fs::mkdirat(&root, *name, Mode::from_bits_retain(0o755)))
        .and_then(|()| {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(&root, "dev/fuse", flags, Mode::from_bits_retain(0o600)).map(drop)
        });
    rustix::process::umask(mask);
    made?;
    raw::restrict_mount(&root, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    Ok(root)
}

/// The same directory in this namespace. Its name may lead to a mount that hides it, our own among
/// them; here that can go.
fn inside(name: &Path, outside: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let wanted = identity(outside, "")?;
    loop {
        let found = open(name)?;
        if identity(found.as_fd(), "")? == wanted {
            return Ok(found);
        }
        drop(found);
        unmount(name, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
    }
}

/// A mount of what is at `path`, with nothing below it that can be changed.
fn copy_of(path: &str, restricted: MountAttrFlags) -> io::Result<OwnedFd> {
    let copy = tree(CWD, path)?;
    raw::restrict_mount(&copy, restricted | MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    Ok(copy)
}

fn tree(dir: impl AsFd, path: &str) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(open_tree(dir, path, flags)?)
}

fn open(path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path.as_ref(), flags, Mode::empty())?)
}

fn path_of(directory: BorrowedFd<'_>) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

/// Without asking whoever serves it.
fn identity(dir: BorrowedFd<'_>, path: &str) -> io::Result<(u32, u32, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statx(dir, path, flags, StatxFlags::INO)?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
}
