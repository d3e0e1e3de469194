//! Attaching the kernel's end of a mount to a directory.
//!
//! Whoever may mount does it with the calls of the kernel; others ask `fusermount3`, which may.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::stale;

/// Shown as the device and as a part of the type in the list of mounts.
const NAME: &str = "codeagent";

/// Who may use a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Whoever the permissions of the files let in; only root may allow that.
    Everybody,
    Owner,
}

impl Access {
    pub(crate) fn possible() -> Self {
        if rustix::process::geteuid().is_root() { Self::Everybody } else { Self::Owner }
    }
}

/// Mounts at `point`, and gives the end that a filesystem has to serve. A dead mount that is there
/// is replaced, if the kernel can do that, without showing for a moment what lies below it.
pub fn attach(point: &Path, read_only: bool) -> io::Result<OwnedFd> {
    match attach_directly(point, read_only) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::PERM) => {
            stale::recover(point)?;
            ask_fusermount(point, read_only)
        }
        outcome => outcome,
    }
}

fn attach_directly(point: &Path, read_only: bool) -> io::Result<OwnedFd> {
    let device = open_device()?;
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let context = context.as_fd();
    let user = rustix::process::getuid().as_raw().to_string();
    let group = rustix::process::getgid().as_raw().to_string();
    let settings = [
        ("source", NAME),
        ("subtype", NAME),
        ("fd", &device.as_raw_fd().to_string()),
        ("rootmode", "40000"),
        ("user_id", &user),
        ("group_id", &group),
    ];
    for (key, value) in settings {
        fsconfig_set_string(context, key, value)?;
    }
    fsconfig_set_flag(context, "default_permissions")?;
    if Access::possible() == Access::Everybody {
        fsconfig_set_flag(context, "allow_other")?;
    }
    fsconfig_create(context)?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    if read_only {
        attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
    }
    let mount = fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let from_mount = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    if stale::is_dead(point) {
        let beneath = from_mount | MoveMountFlags::MOVE_MOUNT_BENEATH;
        if move_mount(&mount, "", CWD, point, beneath).is_ok() {
            // Once, without a look at what is there now: nobody serves that yet.
            stale::unmount(point, true)?;
            return Ok(device);
        }
        stale::recover(point)?;
    }
    move_mount(&mount, "", CWD, point, from_mount)?;
    Ok(device)
}

fn open_device() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open("/dev/fuse", flags, Mode::empty()).map_err(|errno| {
        let hint = match errno {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => "load the kernel module `fuse`",
            _ => "this user may not open it",
        };
        io::Error::new(io::Error::from(errno).kind(), format!("/dev/fuse: {errno}; {hint}"))
    })
}

/// The helper mounts, and sends the device over the socket that is its standard input.
fn ask_fusermount(point: &Path, read_only: bool) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut options = format!("fsname={NAME},subtype={NAME},default_permissions,nosuid,nodev");
    if read_only {
        options.push_str(",ro");
    }
    let child = Command::new("fusermount3")
        .args(["-o", &options, "--"])
        .arg(point)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::new(
                error.kind(),
                "an ordinary user needs fusermount3 to mount; install the package fuse3",
            ),
            _ => error,
        })?;
    let device = receive_device(&ours);
    drop(ours);
    let output = child.wait_with_output()?;
    match device? {
        Some(device) => Ok(device),
        None => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

fn receive_device(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| {
        let mut into = [io::IoSliceMut::new(&mut byte)];
        recvmsg(socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}
