//! Guests for tests and benchmarks of what serves them a folder: the image that sessions have, and in
//! it one program of ours that does what a shell cannot. `cargo xtask test` builds the image; without
//! it, or without QEMU, there is no guest.

#![cfg(target_os = "linux")]
// Only tests use this crate: a panic that names what went wrong is the wanted failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod image;
mod inside;
mod mapping;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use codeagent_control::{Exec, Line};
use codeagent_vm::{
    Accelerator, AcceleratorChoice, Architecture, Backend, GuestImage, GuestUser, Machine,
    MachineConfig, Qemu, Share, ShareServer,
};

pub use inside::{run_inside, workload};

/// Where the image is.
pub const IMAGE_VARIABLE: &str = "CODEAGENT_TEST_GUEST";

/// Where the folder is in the guest.
const FOLDER: &str = "/mnt";

/// The same options as in sessions, but for what carries the messages.
const MOUNT_QEMU_9P: &str = "for module in /modules/shares-9p/*; do insmod $module; done
mkdir -p /mnt
mount -t 9p -o trans=virtio,version=9p2000.L,cache=mmap,msize=524288,nosuid,nodev work /mnt
";

/// A machine that is busy with something else takes its time, more so without hardware support.
const BOOT_DEADLINE: Duration = Duration::from_secs(180);
const ANSWER_DEADLINE: Duration = Duration::from_secs(300);

/// What guests are made of.
#[derive(Debug, Clone)]
pub struct Parts {
    image: GuestImage,
}

impl Parts {
    /// Otherwise, what is missing.
    pub fn find() -> Result<Self, String> {
        let dir = std::env::var_os(IMAGE_VARIABLE)
            .map(PathBuf::from)
            .or_else(built_by_xtask)
            .ok_or_else(|| format!("there is no image for a guest: {IMAGE_VARIABLE} is not set"))?;
        let image = GuestImage::open(dir).map_err(|error| error.to_string())?;
        Qemu::find(None, image.architecture()).map_err(|error| error.to_string())?;
        Ok(Self { image })
    }

    pub fn image(&self) -> &GuestImage {
        &self.image
    }
}

/// Beside the workspace's other build products, wherever the test runs.
fn built_by_xtask() -> Option<PathBuf> {
    let name = format!("guest/minimal-{}", Architecture::current().name());
    let program = std::env::current_exe().ok()?;
    program.ancestors().map(|dir| dir.join(&name)).find(|dir| dir.is_dir())
}

/// The folder of a guest, and who serves it.
#[derive(Debug)]
pub enum Folder {
    /// Over vhost-user, at the other end of this.
    Virtiofs(UnixStream),
    /// 9P, likewise; over a device of its own if the image has our module.
    NineP(UnixStream),
    /// 9P over a serial port, likewise: what a relay in the guest carries.
    NinePRelay(UnixStream),
    /// QEMU itself, over 9P with a device of its own: what ours is compared with.
    QemuNineP(PathBuf),
}

/// A guest that runs. Dropping it is pulling its plug.
#[derive(Debug)]
pub struct Guest {
    line: Arc<Line>,
    machine: Machine,
    is_mounted: bool,
    /// Scripts that have been asked for, in their order.
    asked: Vec<Asked>,
    _dir: tempfile::TempDir,
}

#[derive(Debug)]
struct Asked {
    answer: Receiver<Outcome>,
    /// What was heard already, by somebody who only wanted to know whether there is an answer.
    heard: Option<Outcome>,
}

/// A program that is QEMU with one more device. Folders as QEMU serves them are nothing a session
/// could have, so a machine's configuration knows nothing of them.
fn qemu_with_9p(architecture: Architecture, dir: &Path, folder: &Path) -> PathBuf {
    let program = dir.join("qemu");
    let folder = folder.display().to_string().replace(',', ",,");
    let script = format!(
        "#!/bin/sh\ncase $* in *-version*) exec {0} \"$@\";; esac\nexec {0} \"$@\" \
         -fsdev 'local,id=work,path={folder},security_model=none' \
         -device virtio-9p-pci,fsdev=work,mount_tag=work\n",
        architecture.qemu()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    program
}

/// What a script in the guest did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub code: i32,
    pub output: String,
}

impl Guest {
    /// Boots a guest in which a folder is mounted at `/mnt`. `agent` is a program whose `main` begins with [`codeagent_vm::run_if_asked`] and [`run_inside`].
    ///
    /// # Panics
    /// When it does not come up.
    pub fn boot(parts: &Parts, agent: &Path, folder: Folder) -> Self {
        Self::boot_with(parts, agent, folder, &[])
    }

    /// As [`Guest::boot`], with further programs in its `/bin`.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn boot_with(parts: &Parts, agent: &Path, folder: Folder, programs: &[&Path]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = image::extended(&parts.image, dir.path(), agent, programs);
        let image = image.expect("make the image of a guest");
        let root = GuestUser { name: "root".into(), uid: 0, gid: 0, home: "/root".into() };
        let mut config = MachineConfig::new(agent, image, root, dir.path());
        // The same wherever figures are compared.
        config.accelerator = AcceleratorChoice::Only(Accelerator::Tcg);
        config.memory_mib = 512;
        config.cpus = 1;
        config.boot_deadline = BOOT_DEADLINE;
        let share = |backend, socket: UnixStream| Share {
            tag: "work".into(),
            path: FOLDER.into(),
            read_only: false,
            backend,
            server: ShareServer::Connected(socket.into()),
        };
        let mut to_mount = "";
        match folder {
            Folder::Virtiofs(socket) => config.shares.push(share(Backend::Virtiofs, socket)),
            Folder::NineP(socket) => config.shares.push(share(Backend::NineP, socket)),
            Folder::NinePRelay(socket) => {
                config.shares.push(share(Backend::NineP, socket));
                config.module_9p = false;
            }
            Folder::QemuNineP(folder) => {
                config.qemu = Some(qemu_with_9p(config.image.architecture(), dir.path(), &folder));
                to_mount = MOUNT_QEMU_9P;
            }
        }
        let machine = Machine::start(config, &mut |_| {}).expect("start a guest");
        let line = Arc::new(Line::over(machine.control()).unwrap());
        line.wait_until_ready(BOOT_DEADLINE).expect("talk to the guest");
        let mut guest = Self { line, machine, is_mounted: false, asked: Vec::new(), _dir: dir };
        guest.sh(to_mount);
        guest.is_mounted = true;
        guest
    }

    /// Runs a script in `/mnt`, as root.
    pub fn run(&mut self, script: &str) -> Outcome {
        self.ask(script);
        self.answer()
    }

    /// The same, for one that has to succeed.
    ///
    /// # Panics
    /// When it fails.
    pub fn sh(&mut self, script: &str) -> String {
        let outcome = self.run(&format!("set -eu\n{script}"));
        assert_eq!(outcome.code, 0, "{script}: {}", outcome.output);
        outcome.output
    }

    /// Names, attributes and contents of everything in `/mnt`, as the guest has them at this moment.
    ///
    /// # Panics
    /// When something cannot be read.
    pub fn see(&mut self) -> String {
        self.sh("/agent see .")
    }

    /// Has a script run; [`Guest::answer`] waits for its end.
    pub fn ask(&mut self, script: &str) {
        let mut exec = Exec::shell(format!("exec 2>&1\n{script}"));
        // Without a folder of a session it is not where scripts begin.
        exec.cwd = self.is_mounted.then(|| FOLDER.into());
        let (line, (tell, answer)) = (Arc::clone(&self.line), channel());
        std::thread::spawn(move || {
            let (_orders, taken) = channel();
            let mut output = Vec::new();
            let ran = line.run(exec, taken, |_, data| output.extend_from_slice(data));
            let code = ran.ok().and_then(|outcome| outcome.exit_code()).unwrap_or(-1);
            let output = String::from_utf8_lossy(&output).into_owned();
            let _ = tell.send(Outcome { code, output }); // nobody wants to know any more
        });
        self.asked.push(Asked { answer, heard: None });
    }

    /// How the script ended that was asked for first.
    ///
    /// # Panics
    /// When none was asked for, or it does not end.
    pub fn answer(&mut self) -> Outcome {
        let asked = self.asked.remove(0);
        let answer = asked.heard.or_else(|| asked.answer.recv_timeout(ANSWER_DEADLINE).ok());
        answer.unwrap_or_else(|| panic!("no answer:\n{}", self.machine.console()))
    }

    /// Whether that script has ended within this time; nothing is taken then.
    ///
    /// # Panics
    /// When none was asked for.
    pub fn answers_within(&mut self, time: Duration) -> bool {
        let asked = &mut self.asked[0];
        match asked.answer.recv_timeout(time) {
            Ok(outcome) => asked.heard = Some(outcome),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => panic!("nobody runs it"),
        }
        asked.heard.is_some()
    }
}
