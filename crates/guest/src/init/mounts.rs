//! What is mounted in the guest.

use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount, mount_move};

use super::identity::make_dir;
use super::{InitError, While, consoles, ports};
use crate::settings::{Backend, GuestShare};
use crate::share_port;

const ROOT_DISK: &str = "/dev/vda";
/// A disk is there a moment after its driver.
const DISK_PATIENCE: Duration = Duration::from_secs(10);
/// Nothing is kept of names, attributes and contents, so that an undo is seen at once; but files can
/// be mapped for writing.
const OPTIONS_9P: &str = "version=9p2000.L,cache=mmap,msize=524288";
/// Where the root file system is before it becomes one; in the initial file system.
const NEW_ROOT: &str = "/new-root";

/// The mounts that move along into another root.
const KERNEL_FILESYSTEMS: [(&str, &str); 3] =
    [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")];

pub(super) fn mount_kernel_filesystems() -> Result<(), InitError> {
    for (kind, at) in KERNEL_FILESYSTEMS {
        let flags = if kind == "devtmpfs" {
            MountFlags::NOSUID
        } else {
            MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC
        };
        mount_on(kind, at, kind, flags, "")?;
    }
    Ok(())
}

/// The file system on the disk becomes the root, and the initial one is left behind, below it: our
/// own binary lives on there.
pub(super) fn enter_root_disk() -> Result<(), InitError> {
    let what = || format!("there is no disk at {ROOT_DISK}");
    let give_up_at = Instant::now() + DISK_PATIENCE;
    while fs::metadata(ROOT_DISK).is_err() && Instant::now() < give_up_at {
        thread::sleep(Duration::from_millis(1));
    }
    fs::metadata(ROOT_DISK).during(what)?;
    mount_on(ROOT_DISK, NEW_ROOT, "ext4", MountFlags::NOATIME, "")?;
    let what = || "cannot make the disk the root file system".to_owned();
    for (_, at) in KERNEL_FILESYSTEMS {
        let moved = format!("{NEW_ROOT}{at}");
        make_dir(Path::new(&moved))?;
        mount_move(at, moved.as_str()).during(what)?;
    }
    std::env::set_current_dir(NEW_ROOT).during(what)?;
    mount_move(".", "/").during(what)?;
    rustix::process::chroot(".").during(what)?;
    std::env::set_current_dir("/").during(what)
}

pub(super) fn mount_scratch() -> Result<(), InitError> {
    let careful = MountFlags::NOSUID | MountFlags::NODEV;
    mount_on("tmpfs", "/run", "tmpfs", careful, "mode=0755")?;
    mount_on("tmpfs", "/tmp", "tmpfs", careful, "mode=1777")?;
    mount_on("tmpfs", "/dev/shm", "tmpfs", careful, "mode=1777")?;
    mount_on("devpts", "/dev/pts", "devpts", MountFlags::NOSUID, "mode=0620,ptmxmode=0666,gid=5")
}

pub(super) fn mount_share(share: &GuestShare) -> Result<(), InitError> {
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, share.read_only);
    match share.backend {
        Backend::Virtiofs => mount_on(&share.tag, &share.path, "virtiofs", flags, &share.options),
        Backend::NineP => mount_9p(share, flags),
    }
}

/// The kernel talks to the device itself, where the image has the module for that; otherwise through
/// a relay of ours.
fn mount_9p(share: &GuestShare, flags: MountFlags) -> Result<(), InitError> {
    let what = || format!("cannot reach the folder {}", share.path.display());
    let mount = |source: &str, carrier: &str| {
        let more = &share.options;
        let separator = if more.is_empty() { "" } else { "," };
        let options = format!("{OPTIONS_9P},{carrier}{separator}{more}");
        mount_on(source, &share.path, "9p", flags, &options)
    };
    if let Some(address) = &share.device {
        let device = consoles::take(address).during(what)?;
        return mount(&device, "trans=console");
    }
    let port = ports::open(&share_port(&share.tag)).during(what)?;
    let kernels_end = codeagent_p9proxy::relay(port).during(what)?;
    let number = kernels_end.as_raw_fd();
    // The mount has a reference of its own to the socket.
    mount(&share.tag, &format!("trans=fd,rfdno={number},wfdno={number}"))
}

fn mount_on(
    source: &str,
    at: impl AsRef<Path>,
    kind: &str,
    flags: MountFlags,
    options: &str,
) -> Result<(), InitError> {
    let at = at.as_ref();
    make_dir(at)?;
    let what = || format!("cannot mount {source} at {}", at.display());
    let options = CString::new(options).map_err(std::io::Error::other).during(what)?;
    mount(source, at, kind, flags, options.as_c_str()).during(what)
}
