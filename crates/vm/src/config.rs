//! What a session asks for.

use std::path::PathBuf;
use std::time::Duration;

use codeagent_common::CancelToken;
#[cfg(unix)]
use codeagent_guest::Link;
use codeagent_guest::{Backend, GuestUser};

use crate::hardware::Accelerator;
use crate::image::GuestImage;

#[derive(Debug)]
pub struct MachineConfig {
    /// A program whose `main` begins with [`run_if_asked`](crate::run_if_asked): it becomes the guard.
    pub program: PathBuf,
    /// The one in `PATH`, if none is named.
    pub qemu: Option<PathBuf>,
    pub image: GuestImage,
    pub accelerator: AcceleratorChoice,
    pub memory_mib: u32,
    pub cpus: u32,
    pub disk: Disk,
    pub shares: Vec<Share>,
    /// Folders over 9P have devices of their own, which takes our module in the guest. Otherwise a
    /// relay in the guest carries them.
    pub module_9p: bool,
    pub network: Network,
    pub hostname: String,
    /// Who runs the commands: the ids of the person on the host, so that files are theirs.
    pub user: GuestUser,
    /// Such as `Europe/Berlin`.
    pub time_zone: Option<String>,
    /// How long the guest may take until its shim speaks.
    pub boot_deadline: Duration,
    /// How long a guest may take that only shows whether an accelerator works. Those that boot at
    /// all take a second or two.
    pub trial_deadline: Duration,
    /// Where throw-away disks are made.
    pub state_dir: PathBuf,
    /// Where it is remembered which accelerators work.
    pub verdicts_dir: PathBuf,
    /// It is not wanted any more. Once it is ready, that is of no matter.
    pub cancel: CancelToken,
}

impl MachineConfig {
    /// A machine without folders, network and disk, as the image has it.
    pub fn new(
        program: impl Into<PathBuf>,
        image: GuestImage,
        user: GuestUser,
        state_dir: impl Into<PathBuf>,
    ) -> Self {
        let state_dir = state_dir.into();
        let module_9p = image.manifest().module_9p;
        Self {
            program: program.into(),
            qemu: None,
            image,
            accelerator: AcceleratorChoice::Auto,
            memory_mib: 1024,
            cpus: 2,
            disk: Disk::None,
            shares: Vec::new(),
            module_9p,
            network: Network::Disabled,
            hostname: "sandbox".to_owned(),
            user,
            time_zone: None,
            boot_deadline: Duration::from_secs(60),
            trial_deadline: Duration::from_secs(10),
            verdicts_dir: state_dir.clone(),
            state_dir,
            cancel: CancelToken::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceleratorChoice {
    /// The first that works. Each is tried once in the lifetime of the host's kernel.
    Auto,
    /// This one or none.
    Only(Accelerator),
}

/// Where the root file system of the guest is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disk {
    /// In memory: what the initial file system has.
    None,
    /// That of the image; what changes is gone with the machine.
    Ephemeral,
    /// That of the image; what changes is kept in this file, which is made if it is not there. One
    /// machine at a time has it; another has a throw-away disk meanwhile, and is warned.
    Persistent(PathBuf),
}

/// A folder of the host.
#[derive(Debug)]
pub struct Share {
    /// At most 36 bytes, and one of its kind.
    pub tag: String,
    /// Where the guest sees it: the absolute path it has on the host.
    pub path: PathBuf,
    pub read_only: bool,
    pub backend: Backend,
    pub server: ShareServer,
}

/// Who serves a folder.
#[derive(Debug)]
pub enum ShareServer {
    /// A socket that is connected to it.
    #[cfg(unix)]
    Connected(std::os::fd::OwnedFd),
    /// A socket it listens at.
    Socket(PathBuf),
}

#[derive(Debug)]
pub enum Network {
    /// There is no network card.
    Disabled,
    /// Everything the host reaches.
    Open,
    /// Ethernet frames go to whoever is at the other end of the socket, each after its length in
    /// four bytes (big endian). What gets through is decided there, out of reach of the guest.
    #[cfg(unix)]
    Gateway {
        socket: std::os::fd::OwnedFd,
        /// How the guest sets up its card.
        link: Link,
    },
}

/// What happens on the way to a machine that is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    Stage(Stage),
    /// Something a person should know; it does not keep the machine from starting.
    Warning(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Seeing whether an accelerator works.
    Trying(Accelerator),
    Booting(Accelerator),
    Ready,
}
