//! The file tree that commands see: a read-only system, a home and a `/tmp` of their own, and the
//! working directories. What is not put in is not there.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, statat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountPropagationFlags, UnmountFlags, mount_change, unmount};

use super::mounts::{Mount, freeze, open_dir};
use super::{Context, Failed};
use crate::kernel;
use crate::spec::{Folder, FolderView, Home, HostPath, Limits, Network, Spec};

/// Where the program that runs commands is.
pub(super) const PROGRAM: &str = "/run/codeagent/program";
/// The socket of the gateway.
pub(super) const GATEWAY: &str = "/run/codeagent/gateway";

/// Files of `/dev` that are devices.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Of `/proc`, read-only: what is there is the host's.
const PROC_READ_ONLY: [&str; 5] = ["sys", "irq", "bus", "fs", "sysrq-trigger"];
/// Of `/proc`, empty: what tells of the host's memory and processes, and what a root could write to
/// that has to do with the host's devices.
const PROC_EMPTY: &[&str] = &[
    "acpi",
    "asound",
    "kcore",
    "key-users",
    "keys",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "mtrr",
    "sched_debug",
    "scsi",
    "slabinfo",
    "timer_list",
    "timer_stats",
    "vmallocinfo",
];

/// The kernel takes no smaller number.
const FEWEST_PROCESSES: u64 = 301;

/// The new root, before it is one.
struct Tree {
    root: OwnedFd,
    /// A file with nothing in it.
    empty: PathBuf,
}

/// Everything the tree is made of, opened before anything is mounted over the paths that lead
/// there.
pub(super) struct Parts<'s> {
    system: Vec<Entry>,
    hidden: Vec<&'s Path>,
    hidden_in_folders: Vec<&'s Path>,
    program: Mount,
    gateway: Option<Mount>,
    devices_of_dev: Vec<(&'static str, Mount)>,
    tmp: [Mount; 2],
    home: Vec<(PathBuf, Mount)>,
    folders: Vec<(&'s Path, Mount)>,
    /// Of the live views. Until they are served, whoever looks at those waits.
    pub(super) devices: Vec<OwnedFd>,
    /// Of the overlays that can be written to.
    pub(super) held: Vec<OwnedFd>,
    /// Commands could connect to sockets of the host in the folders, which they only may look at.
    pub(super) sockets_in_reach: bool,
}

pub(super) fn collect(spec: &Spec) -> Result<Parts<'_>, Failed> {
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    mount_change("/", private).context("detaching the mounts from those of the host")?;
    let (mut devices, mut held, mut is_bound) = (Vec::new(), Vec::new(), false);
    let mut folders = Vec::new();
    for folder in &spec.folders {
        let mount = match &folder.view {
            FolderView::ReadOnly => {
                is_bound = true;
                bound(folder)?
            }
            FolderView::Sealed => sealed(folder, spec)?,
            FolderView::Transactional { staging } => transactional(folder, staging, &mut held)?,
            FolderView::Live => live(folder, &mut devices)?,
        };
        folders.push((folder.path.as_path(), mount));
    }
    // Whoever works in other folders beside needs local sockets.
    let only_looks =
        |folder: &Folder| matches!(folder.view, FolderView::ReadOnly | FolderView::Sealed);
    let sockets_in_reach = is_bound && spec.folders.iter().all(only_looks);
    // They may lie in each other: outer ones before inner ones.
    folders.sort_by_key(|(path, _)| path.components().count());
    let tmp = || Mount::of(spec.tmp.as_path()).and_then(Mount::safe).context("finding /tmp");
    Ok(Parts {
        system: collect_system(spec)?,
        hidden: spec.hidden.iter().map(HostPath::as_path).collect(),
        hidden_in_folders: spec.hidden_in_folders.iter().map(HostPath::as_path).collect(),
        program: Mount::of(spec.program.as_path())
            .and_then(Mount::read_only)
            .context("finding the program that runs commands")?,
        gateway: match &spec.network {
            Network::Gateway { socket, .. } => {
                Some(Mount::of(socket.as_path()).context("finding the gateway to the network")?)
            }
            Network::Disabled | Network::Open => None,
        },
        devices_of_dev: DEVICES
            .iter()
            .map(|name| Ok((*name, Mount::of(&Path::new("/dev").join(name))?)))
            .collect::<io::Result<_>>()
            .context("finding the devices")?,
        tmp: [tmp()?, tmp()?],
        home: home_mounts(&spec.home, &mut held)?,
        folders,
        devices,
        held,
        sockets_in_reach,
    })
}

impl Parts<'_> {
    /// Puts the parts together, and makes the result the root.
    pub(super) fn enter(self, limits: &Limits, limits_are_shared: bool) -> Result<(), Failed> {
        let tree = Tree::new()?;
        for entry in self.system {
            tree.add(entry)?;
        }
        tree.make_dev(self.devices_of_dev, limits.memory_bytes)?;
        // A cgroup counts better.
        tree.make_proc(limits.processes.filter(|_| !limits_are_shared))?;
        tree.bind(PROGRAM.as_ref(), self.program)?;
        if let Some(gateway) = self.gateway {
            tree.bind(GATEWAY.as_ref(), gateway)?;
        }
        // No link: a folder may lie in either, and keeps its path.
        for (path, mount) in ["/tmp", "/var/tmp"].into_iter().zip(self.tmp) {
            tree.bind(path.as_ref(), mount)?;
        }
        tree.link("var/run", "../run")?;
        for (path, mount) in self.home {
            tree.bind(&path, mount)?;
        }
        for path in self.hidden {
            tree.hide(path)?;
        }
        // Last, because they may lie in any of the others.
        for (path, mount) in self.folders {
            tree.bind(path, mount)?;
        }
        for path in self.hidden_in_folders {
            tree.hide(path)?;
        }
        tree.become_root()
    }
}

/// A part of the system.
enum Entry {
    Mounted(PathBuf, Mount),
    Link(PathBuf, Vec<u8>),
}

fn collect_system(spec: &Spec) -> Result<Vec<Entry>, Failed> {
    let mut into = Vec::new();
    for path in &spec.system {
        let path = path.as_path();
        let stat = match rustix::fs::lstat(path) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno).context(format!("looking at {}", path.display())),
        };
        if FileType::from_raw_mode(stat.st_mode).is_symlink() {
            let target = rustix::fs::readlink(path, Vec::new())
                .context(format!("reading {}", path.display()))?;
            into.push(Entry::Link(path.to_owned(), target.into_bytes()));
            continue;
        }
        let mount = Mount::of(path)
            .and_then(Mount::read_only)
            .context(format!("making {} read-only", path.display()))?;
        into.push(Entry::Mounted(path.to_owned(), mount));
    }
    Ok(into)
}

fn home_mounts(home: &Home, held: &mut Vec<OwnedFd>) -> Result<Vec<(PathBuf, Mount)>, Failed> {
    let mut mounts = Vec::new();
    let content =
        Mount::of(home.content.as_path()).and_then(Mount::safe).context("finding the home")?;
    mounts.push((home.path.0.clone(), content));
    for toolchain in &home.toolchains {
        let path = toolchain.path.as_path();
        let overlay = Mount::overlay(&[path], toolchain.staging.as_path(), &toolchain.work);
        held.extend(overlay.iter().flat_map(Mount::hold));
        // Where no overlay can be had, tools can at least be used.
        let mount = overlay
            .or_else(|_| Mount::of(path).and_then(Mount::read_only))
            .context(format!("making {} usable", path.display()))?;
        mounts.push((path.to_owned(), mount));
    }
    for path in &home.readable {
        let mount = Mount::of(path.as_path())
            .and_then(Mount::read_only)
            .context(format!("making {} readable", path.as_path().display()))?;
        mounts.push((path.0.clone(), mount));
    }
    Ok(mounts)
}

fn bound(folder: &Folder) -> Result<Mount, Failed> {
    let path = folder.path.as_path();
    Mount::of(path)
        .and_then(Mount::read_only)
        .context(format!("making {} read-only", path.display()))
}

fn sealed(folder: &Folder, spec: &Spec) -> Result<Mount, Failed> {
    let path = folder.path.as_path();
    Mount::read_only_overlay(path, spec.empty.as_path())
        .and_then(Mount::read_only)
        .context(format!("mounting an overlay over {}", path.display()))
        .map_err(|failed| Failed { view: true, ..failed })
}

/// Something that holds it is added to the others.
fn transactional(
    folder: &Folder,
    staging: &HostPath,
    held: &mut Vec<OwnedFd>,
) -> Result<Mount, Failed> {
    let path = folder.path.as_path();
    let mount = Mount::overlay(&[path], staging.as_path(), "work")
        .context(format!("mounting an overlay over {}", path.display()))
        .map_err(|failed| Failed { view: true, ..failed })?;
    held.extend(mount.hold());
    Ok(mount)
}

/// Its device is added to the others.
fn live(folder: &Folder, devices: &mut Vec<OwnedFd>) -> Result<Mount, Failed> {
    let (mount, device) = fuse()
        .context(format!("mounting FUSE over {}", folder.path.as_path().display()))
        .map_err(|failed| Failed { view: true, ..failed })?;
    devices.push(device);
    Ok(mount)
}

pub(super) fn fuse() -> io::Result<(Mount, OwnedFd)> {
    use std::os::fd::AsRawFd;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
    let user = rustix::process::getuid().as_raw().to_string();
    let group = rustix::process::getgid().as_raw().to_string();
    let mount = Mount::new(
        "fuse",
        &[
            ("source", "codeagent"),
            ("subtype", "codeagent"),
            ("fd", &device.as_raw_fd().to_string()),
            ("rootmode", "40000"),
            ("user_id", &user),
            ("group_id", &group),
            ("default_permissions", ""),
            ("allow_other", ""),
        ],
    )?;
    Ok((mount, device))
}

impl Tree {
    fn new() -> Result<Self, Failed> {
        let base = ["/tmp", "/mnt", "/var/tmp", "/usr"]
            .into_iter()
            .find(|path| open_dir(path.as_ref()).is_ok())
            .ok_or_else(|| Failed::new("making a root", "no directory to mount it on"))?;
        let context = "making a root";
        let mount =
            Mount::new("tmpfs", &[("source", "codeagent"), ("mode", "0755"), ("size", "1m")])
                .context(context)?;
        mount.place(CWD, base.as_ref()).context(context)?;
        let root = open_dir(base.as_ref()).context(context)?;
        let tree = Self { root, empty: ".empty".into() };
        tree.make_file(&tree.empty).context(context)?;
        Ok(tree)
    }

    fn add(&self, entry: Entry) -> Result<(), Failed> {
        match entry {
            Entry::Mounted(path, mount) => self.bind(&path, mount),
            Entry::Link(path, target) => {
                let path = relative(&path);
                self.make_parents(path)
                    .and_then(|()| Ok(symlinkat(OsStr::from_bytes(&target), &self.root, path)?))
                    .context(format!("linking {}", path.display()))
            }
        }
    }

    fn link(&self, path: &str, target: &str) -> Result<(), Failed> {
        self.add(Entry::Link(PathBuf::from(path), target.as_bytes().to_vec()))
    }

    /// Puts a mount in its place, which is made if need be.
    fn bind(&self, path: &Path, mount: Mount) -> Result<(), Failed> {
        let inside = relative(path);
        let place = || {
            if inside.as_os_str().is_empty() {
                return Err(io::Error::other("this is the root"));
            }
            let target = match self.find(inside, OFlags::empty()) {
                Err(Errno::NOENT | Errno::NOTDIR) => {
                    self.make_parents(inside)?;
                    if mount.is_dir()? {
                        self.make_dir(inside)?;
                    } else {
                        self.make_file(inside)?;
                    }
                    self.find(inside, OFlags::NOFOLLOW)?
                }
                found => found?,
            };
            mount.place_on(target)
        };
        place().context(format!("putting {} in place", path.display()))
    }

    /// Nothing of it can be seen, if it is there.
    fn hide(&self, path: &Path) -> Result<(), Failed> {
        let inside = relative(path);
        let hide = || {
            let target = match self.find(inside, OFlags::NOFOLLOW) {
                Ok(target) => target,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => return Ok(()),
                Err(errno) => return Err(io::Error::from(errno)),
            };
            let kind = FileType::from_raw_mode(fstat(&target)?.st_mode);
            let mount = if kind.is_dir() {
                Mount::new("tmpfs", &[("mode", "0555"), ("size", "4k")])?.read_only()?
            } else if kind.is_symlink() {
                // Where it leads to is not there, or is hidden itself.
                return Ok(());
            } else {
                Mount::of_descriptor(&self.root, &self.empty)?.read_only()?
            };
            mount.place_on(target)
        };
        hide().context(format!("hiding {}", path.display()))
    }

    fn make_dev(
        &self,
        devices: Vec<(&str, Mount)>,
        memory_bytes: Option<u64>,
    ) -> Result<(), Failed> {
        let context = "making /dev";
        let dev = Mount::new("tmpfs", &[("mode", "0755"), ("size", "64k")]).context(context)?;
        self.bind("/dev".as_ref(), dev)?;
        for (name, mount) in devices {
            self.bind(&Path::new("/dev").join(name), mount)?;
        }
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let pts = Mount::with_attributes(
            "devpts",
            &[("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620")],
            attributes,
        )
        .context("making terminals")?;
        self.bind("/dev/pts".as_ref(), pts)?;
        // Memory, too, and of no process.
        let size = memory_bytes.map_or("50%".to_owned(), |bytes| bytes.to_string());
        let shm = Mount::new("tmpfs", &[("mode", "1777"), ("size", &size)]).context(context)?;
        self.bind("/dev/shm".as_ref(), shm)?;
        for (name, target) in [
            ("dev/ptmx", "pts/ptmx"),
            ("dev/fd", "/proc/self/fd"),
            ("dev/stdin", "/proc/self/fd/0"),
            ("dev/stdout", "/proc/self/fd/1"),
            ("dev/stderr", "/proc/self/fd/2"),
        ] {
            self.link(name, target)?;
        }
        Ok(())
    }

    /// The processes of the sandbox, and of the host what can be read and nothing that matters.
    fn make_proc(&self, processes: Option<u64>) -> Result<(), Failed> {
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let proc = Mount::with_attributes("proc", &[], attributes).context("mounting /proc")?;
        self.bind("/proc".as_ref(), proc)?;
        if let Some(processes) = processes {
            self.limit_processes(processes);
        }
        for name in PROC_READ_ONLY {
            let path = Path::new("proc").join(name);
            let covered = Mount::of_descriptor(&self.root, &path)
                .and_then(Mount::read_only)
                .and_then(|mount| mount.place(&self.root, &path));
            match covered {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                outcome => outcome.context(format!("making /proc/{name} read-only"))?,
            }
        }
        PROC_EMPTY.iter().try_for_each(|name| self.hide(&Path::new("/proc").join(name)))
    }

    /// Root's processes are limited by nothing else where there is no cgroup. Older kernels have
    /// one such number for the whole machine: it is not ours to change.
    fn limit_processes(&self, processes: u64) {
        if !kernel::this_one_counts_by_namespace() {
            return;
        }
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let path = "proc/sys/kernel/pid_max";
        if let Ok(file) = rustix::fs::openat(&self.root, path, flags, Mode::empty()) {
            let limit = processes.max(FEWEST_PROCESSES).to_string();
            let _ = rustix::io::write(file, limit.as_bytes());
        }
    }

    fn become_root(&self) -> Result<(), Failed> {
        let enter = || {
            rustix::process::fchdir(&self.root)?;
            // The old root comes to lie upon the new one, and goes.
            rustix::process::pivot_root(".", ".")?;
            unmount(".", UnmountFlags::DETACH)?;
            rustix::process::chdir("/")?;
            freeze(c"/dev")?;
            freeze(c"/")
        };
        enter().context("entering the new root")
    }

    fn make_parents(&self, path: &Path) -> io::Result<()> {
        let Some(parent) = path.parent() else { return Ok(()) };
        let mut made = PathBuf::new();
        for component in parent.components() {
            made.push(component);
            self.make_dir(&made)?;
        }
        Ok(())
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.find_parent(path)?;
        let is_one = || self.find(path, OFlags::DIRECTORY).is_ok();
        make_if_missing(&parent, name, is_one, || {
            mkdirat(&parent, name, Mode::from_raw_mode(0o755))
        })
    }

    fn make_file(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.find_parent(path)?;
        let is_one = || {
            let stat = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW);
            stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file())
        };
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        make_if_missing(&parent, name, is_one, || {
            openat(&parent, name, flags, Mode::from_raw_mode(0o444)).map(drop)
        })
    }

    fn find_parent<'p>(&self, path: &'p Path) -> io::Result<(OwnedFd, &'p OsStr)> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = self.find(parent.unwrap_or(Path::new(".")), OFlags::DIRECTORY)?;
        Ok((parent, name))
    }

    /// Earlier commands may have left symlinks in the home and in `/tmp`. As long as the root is
    /// still the host's, those would lead there: they lead to where commands will see them lead.
    fn find(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.root, path, flags, Mode::empty(), within)
    }
}

/// Makes a place for a mount. A command may have put something else there, in its home: a file, or a
/// link to nowhere. That goes; what another command that starts at the same time has made does not.
fn make_if_missing(
    parent: &OwnedFd,
    name: &OsStr,
    is_one: impl Fn() -> bool,
    make: impl Fn() -> rustix::io::Result<()>,
) -> io::Result<()> {
    loop {
        match make() {
            Err(Errno::EXIST) if is_one() => return Ok(()),
            Err(Errno::EXIST) => match unlinkat(parent, name, AtFlags::empty()) {
                Err(errno) if errno == Errno::NOENT || is_one() => {}
                outcome => outcome?,
            },
            made => return Ok(made?),
        }
    }
}

/// As seen from the new root.
fn relative(path: &Path) -> &Path {
    path.strip_prefix(Component::RootDir).unwrap_or(path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::Barrier;

    use super::*;

    /// Commands of one session share a home, and some start at the same time.
    #[test]
    fn whoever_makes_a_place_at_the_same_time_finds_it() {
        let scratch = tempfile::tempdir().unwrap();
        for round in 0..200 {
            let root = scratch.path().join(round.to_string());
            std::fs::create_dir(&root).unwrap();
            // What an earlier command has left.
            if round % 2 == 0 {
                symlink("nowhere", root.join("file")).unwrap();
                symlink("nowhere", root.join("dir")).unwrap();
            }
            let together = Barrier::new(4);
            let make = || {
                let tree = Tree { root: open_dir(&root).unwrap(), empty: PathBuf::new() };
                together.wait();
                tree.make_file("file".as_ref()).unwrap();
                tree.make_dir("dir".as_ref()).unwrap();
                if round % 2 == 1 {
                    tree.find("file".as_ref(), OFlags::NOFOLLOW).unwrap();
                    tree.find("dir".as_ref(), OFlags::NOFOLLOW).unwrap();
                }
            };
            std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(make))));
            assert!(root.join("file").is_file() && root.join("dir").is_dir());
        }
    }
}
