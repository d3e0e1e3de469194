//! What a guest of a session is to be.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeagent_common::CancelToken;
use codeagent_network::Gate;
use codeagent_network::link;
use codeagent_vm::image::Flavour;
use codeagent_vm::{
    Accelerator, AcceleratorChoice, Address, Architecture, Backend, Disk, Fact, FactsRequest,
    GuestImage, GuestUser, Link, MachineConfig, Network, Qemu, VmError,
};

use crate::error::{Result, SandboxError};
use crate::places;
use crate::session::VmOptions;

use super::guest::no_guest;

/// What commands in a guest can reach.
#[derive(Debug, Clone)]
pub(crate) enum GuestNetwork {
    Disabled,
    Open,
    /// What the gate lets through.
    Filtered(Arc<Gate>),
}

#[derive(Debug)]
pub(crate) struct VmPlan {
    image: GuestImage,
    options: VmOptions,
    /// What the guest changes in its own files is there again in the next session.
    persistent: bool,
    network: GuestNetwork,
    program: PathBuf,
    pub(super) state_dir: PathBuf,
}

impl VmPlan {
    pub(crate) fn new(
        options: VmOptions,
        network: GuestNetwork,
        (state_dir, persistent): (PathBuf, bool),
        program: Option<PathBuf>,
    ) -> Result<Self> {
        let image = image(&options).map_err(no_guest)?;
        Qemu::find(options.qemu.as_deref(), image.architecture()).map_err(no_guest)?;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&state_dir)
            .map_err(SandboxError::doing("cannot make a place for the guest"))?;
        let program = program.unwrap_or_else(|| "/proc/self/exe".into());
        Ok(Self { image, options, persistent, network, program, state_dir })
    }

    /// Why a guest would be slow; to find out may take a trial, once for each boot of the machine.
    pub(crate) fn lacks_acceleration(&self, cancel: &CancelToken) -> Result<Option<String>> {
        match self.options.accelerator {
            Some(Accelerator::Tcg) => {
                return Ok(Some("it would be emulated, as configured".into()));
            }
            Some(_) => return Ok(None),
            None => {}
        }
        let mut config = match self.machine() {
            Ok(config) => config,
            Err(error) => return Ok(Some(error.to_string())),
        };
        config.cancel = cancel.clone();
        Ok(match codeagent_vm::accelerator(&config) {
            Ok(Accelerator::Tcg) => Some("no accelerator works here, and it would be slow".into()),
            Ok(_) => None,
            Err(VmError::Cancelled) => return Err(SandboxError::Cancelled),
            Err(error) => Some(error.to_string()),
        })
    }

    /// What carries the folders.
    pub(crate) fn backend(&self) -> Backend {
        self.options.backend
    }

    /// Without folders and network.
    pub(super) fn machine(&self) -> std::result::Result<MachineConfig, VmError> {
        let mut config =
            MachineConfig::new(&self.program, self.image.clone(), this_user(), &self.state_dir);
        // What is known of accelerators is for all folders.
        config.verdicts_dir = verdicts_dir().unwrap_or_else(|| self.state_dir.clone());
        config.qemu.clone_from(&self.options.qemu);
        config.accelerator =
            self.options.accelerator.map_or(AcceleratorChoice::Auto, AcceleratorChoice::Only);
        config.memory_mib = self.options.memory_mib;
        config.cpus = self.options.cpus;
        config.boot_deadline = self.options.boot_deadline;
        config.time_zone = std::env::var("TZ").ok().filter(|zone| !zone.is_empty());
        config.disk = match (self.image.root(), self.persistent) {
            (None, _) => Disk::None,
            (Some(_), true) => Disk::Persistent(disk_in(&self.state_dir)),
            (Some(_), false) => Disk::Ephemeral,
        };
        Ok(config)
    }

    /// The network of a machine, and who serves it if it is filtered.
    pub(super) fn network(&self) -> io::Result<(Network, Option<link::Link>)> {
        let gate = match &self.network {
            GuestNetwork::Disabled => return Ok((Network::Disabled, None)),
            GuestNetwork::Open => return Ok((Network::Open, None)),
            GuestNetwork::Filtered(gate) => Arc::clone(gate),
        };
        let (ours, theirs) = UnixStream::pair()?;
        let served = link::Link::serve(ours, gate)?;
        let card = Link {
            address: Address { ip: link::GUEST, prefix_length: link::PREFIX },
            gateway: Some(link::GATEWAY),
            name_servers: vec![link::GATEWAY],
            variables: Vec::new(),
        };
        Ok((Network::Gateway { socket: theirs.into(), link: card }, Some(served)))
    }
}

/// The one that is named, or the best of those that were built.
fn image(options: &VmOptions) -> std::result::Result<GuestImage, VmError> {
    if let Some(dir) = &options.image {
        return GuestImage::open(dir);
    }
    let images = places::images_dir().unwrap_or_default();
    let dir = |flavour| GuestImage::dir_in(&images, flavour, Architecture::current());
    let missing = match GuestImage::open(dir(Flavour::Dev)) {
        Err(error @ VmError::ImageMissing { .. }) => error,
        found => return found,
    };
    match GuestImage::open(dir(Flavour::Minimal)) {
        Err(VmError::ImageMissing { .. }) => Err(missing),
        found => found,
    }
}

/// Files in the folders belong to whoever runs this, on both sides.
fn this_user() -> GuestUser {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    if uid == 0 {
        return GuestUser { name: "root".into(), uid, gid, home: "/root".into() };
    }
    let plain = |name: &String| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
    };
    let name = std::env::var("USER").ok().filter(plain).unwrap_or_else(|| "user".into());
    let home = PathBuf::from("/home").join(&name);
    GuestUser { name, uid, gid, home }
}

pub(super) fn disk_in(state_dir: &Path) -> PathBuf {
    state_dir.join("disk.qcow2")
}

fn verdicts_dir() -> Option<PathBuf> {
    places::own_dir()
}

/// The next start tries out every accelerator again.
pub(crate) fn forget_verdicts() -> io::Result<()> {
    verdicts_dir().map_or(Ok(()), |dir| codeagent_vm::forget_verdicts(&dir))
}

/// What this machine offers to guests.
pub(crate) fn facts(options: &VmOptions) -> Vec<Fact> {
    let image = match (&options.image, image(options)) {
        (Some(dir), _) => dir.clone(),
        (None, Ok(image)) => image.dir().to_owned(),
        (None, Err(_)) => GuestImage::dir_in(
            &places::images_dir().unwrap_or_default(),
            Flavour::Minimal,
            Architecture::current(),
        ),
    };
    codeagent_vm::facts(&FactsRequest {
        qemu: options.qemu.clone(),
        image,
        state_dir: verdicts_dir().unwrap_or_default(),
    })
}
