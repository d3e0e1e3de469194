//! A running guest.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use codeagent_common::CancelToken;
use codeagent_control::HostMessage;
use codeagent_guest::{Address, Backend, GuestSettings, GuestShare, Link};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::command_line;
use crate::config::{
    AcceleratorChoice, Disk, MachineConfig, Network, Progress, ShareServer, Stage,
};
use crate::console::Tail;
use crate::death::{self, DeathWatch};
use crate::disk::{self, Opened};
use crate::error::{Result, VmError};
use crate::guard::{FIRST_DESCRIPTOR, Guard};
use crate::hardware::{
    Accelerator, Endpoint, FileSource, Hardware, HostSystem, NetworkDevice, ShareDevice,
    ShareTransport, share_slot, slot_address,
};
use crate::qemu::Qemu;
use crate::qmp::Qmp;

/// What QEMU takes for a tag.
const MAX_TAG_BYTES: usize = 36;
/// From `quit` to the end of QEMU.
const QUIT_PATIENCE: Duration = Duration::from_secs(2);
/// How often it is looked whether the guest has died while it boots.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A guest whose shim is ready. Dropping it ends it at once.
#[derive(Debug)]
pub struct Machine {
    accelerator: Accelerator,
    qemu: Qemu,
    control: UnixStream,
    qmp: Qmp,
    console: Tail,
    death: DeathWatch,
    /// Ends QEMU when it is dropped.
    guard: Guard,
}

/// How a machine was brought to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The guest ended its commands, wrote everything out and switched itself off.
    Clean,
    /// It took too long, and was switched off.
    Forced,
}

impl Machine {
    /// Starts a guest, and returns when its shim speaks.
    ///
    /// [`VmError::AcceleratorBroken`]: an accelerator that nobody insisted on worked when it was tried,
    /// and this guest did not start with it. It had half of its time. What was used up for it cannot be
    /// used again, so whoever wants the guest all the same starts another one, emulated.
    pub fn start(mut config: MachineConfig, progress: &mut dyn FnMut(Progress)) -> Result<Self> {
        let qemu = Qemu::find(config.qemu.as_deref(), config.image.architecture())?;
        config.image.expect_unchanged()?;
        expect_sensible(&config)?;
        let accelerator = crate::accelerator::choose(&config, &qemu, progress)?;
        let disk = open_disk(&config, progress)?;
        progress(Progress::Stage(Stage::Booting(accelerator)));
        let (image, verdicts_dir) = (config.image.clone(), config.verdicts_dir.clone());
        let is_on_trial =
            config.accelerator == AcceleratorChoice::Auto && accelerator != Accelerator::Tcg;
        if is_on_trial {
            config.boot_deadline /= 2;
        }
        let machine =
            Self::boot(config, disk, qemu.clone(), accelerator).map_err(|error| match error {
                VmError::DiedAtBoot(_) | VmError::BootDeadline { .. } => {
                    let damage = image.damage();
                    if damage.is_none() && is_on_trial {
                        return crate::accelerator::doubt(
                            &verdicts_dir,
                            &qemu,
                            accelerator,
                            &error,
                        );
                    }
                    damage.unwrap_or(error)
                }
                error => error,
            })?;
        progress(Progress::Stage(Stage::Ready));
        Ok(machine)
    }

    fn boot(
        config: MachineConfig,
        disk: Option<Opened>,
        qemu: Qemu,
        accelerator: Accelerator,
    ) -> Result<Self> {
        let give_up_at = Instant::now() + config.boot_deadline;
        let (program, deadline) = (config.program.clone(), config.boot_deadline);
        let cancel = config.cancel.clone();
        let (control, control_end) = pair()?;
        let (qmp, qmp_end) = pair()?;
        let (console, console_end) = pair()?;
        let mut cargo = Cargo::default();
        let channels = [control_end, qmp_end, console_end];
        let hardware = wire(config, disk, accelerator, &mut cargo, channels)?;
        let arguments = command_line::arguments(&hardware);
        let descriptors: Vec<_> = cargo.0.iter().map(AsFd::as_fd).collect();
        let (guard, stderr) =
            Guard::start(&program, &qemu.path, &arguments, &descriptors).map_err(VmError::Start)?;
        // With our copies gone, the channels end with QEMU.
        drop(cargo);
        let (console, said) = Tail::follow("guest-console", console).map_err(VmError::Start)?;
        let (stderr, complained) = Tail::follow("qemu-errors", stderr).map_err(VmError::Start)?;
        let death = DeathWatch::default();
        let left = give_up_at.saturating_duration_since(Instant::now());
        let (qmp, seen) = match Qmp::connect(qmp, left, &cancel) {
            Ok(connected) => connected,
            Err(VmError::Cancelled) => return Err(VmError::Cancelled),
            Err(VmError::Silent(error)) if error.kind() == io::ErrorKind::TimedOut => {
                return Err(VmError::BootDeadline { deadline, console: stderr.text() });
            }
            Err(error) => {
                drop(guard);
                let _ = complained.join();
                return Err(VmError::DiedAtBoot(complaint(&stderr.text(), &error)));
            }
        };
        let machine = Self { accelerator, qemu, control, qmp, console, death, guard };
        machine.watch(stderr, [said, complained, seen])?;
        machine.wait_until_ready(give_up_at, deadline, &cancel)?;
        Ok(machine)
    }

    /// Tells of the end of QEMU, whatever it was, when all that it said has been heard.
    fn watch(&self, stderr: Tail, listeners: [JoinHandle<()>; 3]) -> Result<()> {
        let listener = self.guard.listener().map_err(VmError::Start)?;
        let (death, console, seen) = (self.death.clone(), self.console.clone(), self.qmp.watch());
        let listen = move || {
            let end = listener.wait();
            for listener in listeners {
                let _ = listener.join();
            }
            death.announce(death::judge(end, &seen.seen(), console.text(), stderr.text()));
        };
        let thread = thread::Builder::new().name("vm-death".into()).spawn(listen);
        thread.map(drop).map_err(VmError::Start)
    }

    /// The first thing on the control channel is the hello of the shim; it stays there.
    fn wait_until_ready(
        &self,
        give_up_at: Instant,
        deadline: Duration,
        cancel: &CancelToken,
    ) -> Result<()> {
        loop {
            if cancel.is_cancelled() {
                return Err(VmError::Cancelled);
            }
            let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
            let wait = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.subsec_nanos().into() };
            let _ = poll(&mut fds, Some(&wait));
            let events = fds[0].revents();
            if let Some(death) = self.death.death() {
                return Err(VmError::DiedAtBoot(death.to_string()));
            }
            if events.contains(PollFlags::IN) && !events.contains(PollFlags::HUP) {
                return Ok(());
            }
            if Instant::now() > give_up_at {
                let console = self.console.text();
                return Err(VmError::BootDeadline { deadline, console });
            }
            if events.contains(PollFlags::HUP) {
                thread::sleep(LOOK_EVERY);
            }
        }
    }

    /// The channel to the shim: what `codeagent-control` speaks. It ends with the machine.
    pub fn control(&self) -> &UnixStream {
        &self.control
    }

    pub fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    pub fn qemu(&self) -> &Qemu {
        &self.qemu
    }

    /// Tells of the end of the machine, to any thread.
    pub fn death(&self) -> DeathWatch {
        self.death.clone()
    }

    /// The last of what the kernel of the guest said.
    pub fn console(&self) -> String {
        self.console.text()
    }

    /// No process of the guest runs from here on, and its clock stands still.
    pub fn pause(&self) -> Result<()> {
        self.qmp.pause()
    }

    pub fn resume(&self) -> Result<()> {
        self.qmp.resume()
    }

    pub fn is_paused(&self) -> Result<bool> {
        Ok(self.qmp.execute("query-status")?["status"] == "paused")
    }

    /// Has the guest end its commands, write out its file systems and switch itself off. What takes
    /// longer than `patience` is cut short. Nobody else may write to the control channel meanwhile.
    pub fn shutdown(mut self, patience: Duration) -> Ending {
        let asked = self.ask_to_switch_off();
        if asked.is_ok() && self.death.wait_for(patience).is_some() {
            self.guard.end();
            return Ending::Clean;
        }
        // QEMU writes out the disk before it goes.
        let _ = self.qmp.execute("quit");
        self.death.wait_for(QUIT_PATIENCE);
        self.guard.end();
        Ending::Forced
    }

    fn ask_to_switch_off(&self) -> io::Result<()> {
        // A guest that is paused does nothing.
        let _ = self.qmp.execute("cont");
        self.control.set_write_timeout(Some(QUIT_PATIENCE))?;
        let message =
            codeagent_control::encode(&HostMessage::Shutdown).map_err(io::Error::other)?;
        // A line that somebody left unfinished must not swallow ours.
        (&self.control).write_all(b"\n")?;
        (&self.control).write_all(&message)
    }
}

/// The first thing QEMU said that is more than a warning.
fn complaint(said: &str, error: &VmError) -> String {
    let line = said.lines().find(|line| !line.contains("warning:"));
    line.map_or_else(|| error.to_string(), str::to_owned)
}

/// The descriptors that QEMU inherits, in the order of their numbers.
#[derive(Debug, Default)]
struct Cargo(Vec<OwnedFd>);

impl Cargo {
    fn load(&mut self, descriptor: impl Into<OwnedFd>) -> i32 {
        self.0.push(descriptor.into());
        FIRST_DESCRIPTOR + self.0.len() as i32 - 1
    }
}

fn open_disk(config: &MachineConfig, progress: &mut dyn FnMut(Progress)) -> Result<Option<Opened>> {
    match disk::open(&config.disk, &config.image, &config.state_dir) {
        Err(error @ VmError::DiskInUse { .. }) => {
            progress(Progress::Warning(format!(
                "{error}; what this one changes outside the folders is gone when it ends"
            )));
            disk::open(&Disk::Ephemeral, &config.image, &config.state_dir)
        }
        opened => opened,
    }
}

fn wire(
    config: MachineConfig,
    disk: Option<Opened>,
    accelerator: Accelerator,
    cargo: &mut Cargo,
    [control, qmp, console]: [UnixStream; 3],
) -> Result<Hardware> {
    let settings = settings(&config, disk.is_some())?;
    let root_disk = disk.map(|disk| match disk {
        Opened::Nameless(file) => FileSource::Descriptor(cargo.load(file)),
        Opened::Named { path, claim } => {
            cargo.load(claim);
            FileSource::Path(path)
        }
    });
    let mut shares = Vec::new();
    let mut slots = slots(&config).into_iter();
    for share in config.shares {
        let socket = match share.server {
            ShareServer::Connected(socket) => socket,
            ShareServer::Socket(path) => UnixStream::connect(path).map_err(VmError::Share)?.into(),
        };
        let endpoint = Endpoint::Descriptor(cargo.load(socket));
        let transport = match (share.backend, slots.next().flatten()) {
            (Backend::Virtiofs, _) => ShareTransport::VhostUser(endpoint),
            (Backend::NineP, None) => ShareTransport::Port(endpoint),
            (Backend::NineP, Some(slot)) => ShareTransport::Console { slot, endpoint },
        };
        shares.push(ShareDevice { tag: share.tag, transport });
    }
    let network = match config.network {
        Network::Disabled => NetworkDevice::Absent,
        Network::Open => NetworkDevice::User,
        Network::Gateway { socket, .. } => {
            NetworkDevice::Stream(Endpoint::Descriptor(cargo.load(socket)))
        }
    };
    Ok(Hardware {
        host: HostSystem::current(),
        architecture: config.image.architecture(),
        accelerator,
        kernel: config.image.kernel(),
        initramfs: config.image.initramfs(),
        memory_mib: config.memory_mib,
        cpus: config.cpus,
        control: Endpoint::Descriptor(cargo.load(control)),
        qmp: Endpoint::Descriptor(cargo.load(qmp)),
        console: Endpoint::Descriptor(cargo.load(console)),
        settings: FileSource::Descriptor(cargo.load(settings)),
        root_disk,
        shares,
        network,
    })
}

/// Where the devices are of those shares that have their own: over 9P, in a guest with our module.
fn slots(config: &MachineConfig) -> Vec<Option<u8>> {
    let slot = |(number, share): (usize, &crate::config::Share)| {
        (share.backend == Backend::NineP && config.module_9p).then(|| share_slot(number)).flatten()
    };
    config.shares.iter().enumerate().map(slot).collect()
}

/// A file without a name that holds what the guest has to know.
fn settings(config: &MachineConfig, root_disk: bool) -> Result<OwnedFd> {
    let share = |(share, slot): (&crate::config::Share, Option<u8>)| GuestShare {
        tag: share.tag.clone(),
        path: share.path.clone(),
        read_only: share.read_only,
        backend: share.backend,
        device: slot.map(slot_address),
        options: String::new(),
    };
    let settings = GuestSettings {
        hostname: config.hostname.clone(),
        user: config.user.clone(),
        shares: config.shares.iter().zip(slots(config)).map(share).collect(),
        root_disk,
        network: match &config.network {
            Network::Disabled => None,
            Network::Open => Some(user_network()),
            Network::Gateway { link, .. } => Some(link.clone()),
        },
        time_zone: config.time_zone.clone(),
    };
    let write = || -> io::Result<OwnedFd> {
        let file = rustix::fs::memfd_create("settings", rustix::fs::MemfdFlags::CLOEXEC)?;
        let mut file = std::fs::File::from(file);
        serde_json::to_writer(&mut file, &settings)?;
        Ok(file.into())
    };
    write().map_err(VmError::Start)
}

/// As QEMU's own network has it.
fn user_network() -> Link {
    Link {
        address: Address { ip: [10, 0, 2, 15].into(), prefix_length: 24 },
        gateway: Some([10, 0, 2, 2].into()),
        name_servers: vec![[10, 0, 2, 3].into()],
        variables: Vec::new(),
    }
}

/// What QEMU or the guest would fail on, with less of a reason.
fn expect_sensible(config: &MachineConfig) -> Result<()> {
    let unusable = |reason: String| Err(VmError::Unusable(reason));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    for (index, share) in config.shares.iter().enumerate() {
        let tag = &share.tag;
        if tag.is_empty() || tag.len() > MAX_TAG_BYTES || !tag.chars().all(is_plain) {
            return unusable(format!("`{tag}` cannot be the tag of a share"));
        }
        if config.shares[..index].iter().any(|other| other.tag == *tag) {
            return unusable(format!("two shares have the tag `{tag}`"));
        }
        if !share.path.is_absolute() {
            return unusable(format!("{} is no absolute path", share.path.display()));
        }
    }
    let name = &config.user.name;
    if name.is_empty() || name.contains([':', '\n']) {
        return unusable(format!("`{name}` cannot be the name of a user"));
    }
    if config.cpus == 0 || config.memory_mib < 128 {
        return unusable("a machine has at least one processor and 128 MiB".to_owned());
    }
    Ok(())
}

fn pair() -> Result<(UnixStream, UnixStream)> {
    UnixStream::pair().map_err(VmError::Start)
}
