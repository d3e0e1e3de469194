//! What there is to see on a machine: its settings, and what happens when things are tried.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::room::Room;
use super::trials::{Trial, TrialRequest, Trials};
use super::{ARGUMENT, FactsRequest};
use crate::cgroup::{self, NoCgroup};
use crate::link;
use crate::report::Failed;

/// A trial that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone)]
pub(super) struct Readings {
    pub(super) settings: Settings,
    pub(super) trials: Trials,
    pub(super) request: FactsRequest,
    /// The overlay's upper layer would lie in another overlay.
    pub(super) undo_is_in_overlay: bool,
}

/// What files say.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    pub(super) is_root: bool,
    pub(super) kernel: String,
    pub(super) system: System,
    /// What kind of container this is.
    pub(super) container: Option<String>,
    pub(super) max_user_namespaces: Option<u64>,
    /// Debian's switch.
    pub(super) unprivileged_user_namespaces: Option<bool>,
    /// Ubuntu's.
    pub(super) apparmor_restricts: Option<bool>,
    pub(super) fuse_device: Device,
    pub(super) fusermount: Option<PathBuf>,
    pub(super) cgroup: Option<Result<PathBuf, NoCgroup>>,
    /// Of the user, beside his own.
    pub(super) other_groups: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Device {
    #[default]
    Missing,
    Unusable(String),
    Usable,
}

/// The distribution, for commands that differ.
#[derive(Debug, Clone, Default)]
pub(super) struct System {
    pub(super) id: String,
    pub(super) version: String,
    pub(super) codename: String,
}

impl Readings {
    pub(super) fn take(request: &FactsRequest) -> io::Result<Self> {
        let search_path = std::env::var_os("PATH").unwrap_or_default();
        let search_path: Vec<_> = std::env::split_paths(&search_path).collect();
        let room = Room::beside_changes(&request.undo_dir);
        let staging = room.as_ref().ok().map(|room| room.path().into());
        let undo_is_in_overlay = room.as_ref().is_ok_and(|room| is_in_overlay(room.path()));
        let mut trials = attempt(&request.program, &request.folder, staging)?;
        if let Err(error) = &room {
            trials.overlay = Trial::Failed(Failed::new(
                "making room beside the undo directory",
                error.to_string(),
            ));
        }
        let settings = Settings::read(Path::new("/"), &search_path);
        Ok(Self { settings, trials, request: request.clone(), undo_is_in_overlay })
    }
}

impl Settings {
    pub(super) fn read(root: &Path, search_path: &[PathBuf]) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).ok();
        let number = |path| text(path).and_then(|text| text.trim().parse::<u64>().ok());
        let switch = |path| number(path).map(|number| number != 0);
        Self {
            is_root: rustix::process::geteuid().is_root(),
            kernel: text("proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            system: System::read(&text("etc/os-release").unwrap_or_default()),
            container: container(root),
            max_user_namespaces: number("proc/sys/user/max_user_namespaces"),
            unprivileged_user_namespaces: switch("proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restricts: switch("proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            fuse_device: Device::open(&root.join("dev/fuse")),
            fusermount: search_path
                .iter()
                .map(|dir| dir.join("fusermount3"))
                .find(|path| is_executable(path)),
            cgroup: Some(cgroup::delegated(root)),
            other_groups: other_groups(),
        }
    }
}

fn other_groups() -> Vec<u32> {
    let own = rustix::process::getegid();
    let groups = rustix::process::getgroups().unwrap_or_default();
    groups.into_iter().filter(|group| *group != own).map(rustix::process::Gid::as_raw).collect()
}

impl Device {
    fn open(path: &Path) -> Self {
        match fs::OpenOptions::new().read(true).write(true).open(path) {
            Ok(_) => Self::Usable,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::Missing,
            Err(error) => Self::Unusable(error.to_string()),
        }
    }
}

impl System {
    fn read(os_release: &str) -> Self {
        let value = |name: &str| {
            let line =
                os_release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            line.unwrap_or_default().trim_matches('"').to_owned()
        };
        Self { id: value("ID"), version: value("VERSION_ID"), codename: value("VERSION_CODENAME") }
    }
}

fn container(root: &Path) -> Option<String> {
    if root.join(".dockerenv").exists() {
        return Some("docker".into());
    }
    if root.join("run/.containerenv").exists() {
        return Some("podman".into());
    }
    let systemd = fs::read_to_string(root.join("run/systemd/container")).ok()?;
    Some(systemd.trim().to_owned()).filter(|kind| !kind.is_empty())
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

fn is_in_overlay(path: &Path) -> bool {
    const OVERLAYFS: rustix::fs::FsWord = 0x794c_7630;
    rustix::fs::statfs(path).is_ok_and(|filesystem| filesystem.f_type == OVERLAYFS)
}

/// Has a process of one thread try everything.
fn attempt(program: &Path, folder: &Path, staging: Option<PathBuf>) -> io::Result<Trials> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = Command::new(program)
        .arg(ARGUMENT)
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let _child = Reaped(child);
    ours.set_read_timeout(Some(PATIENCE))?;
    let request = TrialRequest { folder: folder.into(), staging: staging.map(Into::into) };
    link::send(&ours, &request, &[])?;
    Ok(link::receive(&ours)?.0)
}

/// A process that is gone when this value is; what it started dies with it.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
