//! The guests that are compared.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use codeagent_interceptor::{OnConflict, StepRequest};
use codeagent_p9::linux::NinePOptions;
use codeagent_sandbox::policy::PathRules;
use codeagent_test_guest::{Folder, Guest, Parts};
use codeagent_virtiofs::{GuestOptions, Owners, connection};
use codeagent_vm::Backend;
use codeagent_worker::{Settings, WorkerProcess, WorkerSpec};

use crate::place::{NotMeasured, Place, Scratch};

const NEEDED_BYTES: u64 = 256 << 20;

/// This program is also what runs inside a guest.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    codeagent_test_guest::run_inside()
}

pub(super) fn needed_parts() -> Result<Parts> {
    Parts::find().map_err(|missing| anyhow!(NotMeasured(missing)))
}

pub(super) trait Side {
    fn guest(&mut self) -> &mut Guest;

    /// Has the guest do a workload.
    fn work(&mut self, workload: &str) -> Result<()> {
        let outcome = self.guest().run(&format!("/agent workload {workload} . && sync"));
        ensure!(outcome.code == 0, "{workload}: {}", outcome.output);
        Ok(())
    }
}

/// A folder that a worker serves.
pub(super) struct Ours {
    // Dropped in this order.
    guest: Guest,
    worker: WorkerProcess,
    scratch: Scratch,
}

impl Side for Ours {
    fn guest(&mut self) -> &mut Guest {
        &mut self.guest
    }
}

impl Ours {
    pub(super) fn start(
        place: &Place,
        backend: Backend,
        fill: impl Fn(&Path) -> Result<()>,
    ) -> Result<Self> {
        let parts = needed_parts()?;
        let scratch = place.scratch(NEEDED_BYTES)?;
        fill(&scratch.work())?;
        let mut settings = Settings::new(scratch.work(), scratch.path("undo"));
        // As in every session.
        settings.path_rules = Some(PathRules::default().to_bytes()?.into());
        let spec = WorkerSpec::new(settings)?;
        let worker = WorkerProcess::start(&spec, |_| {})??;
        let owners = Some(Owners::this_user());
        let folder = match backend {
            Backend::Virtiofs => {
                let (listener, stream) = connection(&scratch.path(""))?;
                worker.client().attach(&listener, None, GuestOptions { owners }.encode())?;
                Folder::Virtiofs(stream)
            }
            Backend::NineP => {
                let (served, stream) = UnixStream::pair()?;
                worker.client().attach(&served, None, NinePOptions { owners }.encode())?;
                Folder::NineP(stream)
            }
        };
        let guest = Guest::boot(&parts, &std::env::current_exe()?, folder);
        Ok(Self { guest, worker, scratch })
    }

    pub(super) fn folder(&self) -> PathBuf {
        self.scratch.work()
    }

    /// Has the guest do a workload, as one step.
    pub(super) fn step(&mut self, workload: &str) -> Result<()> {
        self.worker.client().open_step(StepRequest::command(workload))?;
        self.work(workload)?;
        self.worker.client().close_step(Some(0))?;
        Ok(())
    }

    pub(super) fn undo(&mut self) -> Result<()> {
        self.worker.client().undo(1, OnConflict::Refuse)?;
        Ok(())
    }
}

/// A folder that QEMU serves itself.
pub(super) struct QemuNineP {
    // Dropped in this order.
    guest: Guest,
    scratch: Scratch,
}

impl Side for QemuNineP {
    fn guest(&mut self) -> &mut Guest {
        &mut self.guest
    }
}

impl QemuNineP {
    pub(super) fn start(place: &Place, fill: impl Fn(&Path) -> Result<()>) -> Result<Self> {
        let parts = needed_parts()?;
        let scratch = place.scratch(NEEDED_BYTES)?;
        fill(&scratch.work())?;
        let folder = Folder::QemuNineP(scratch.work());
        let guest = Guest::boot(&parts, &std::env::current_exe()?, folder);
        Ok(Self { guest, scratch })
    }

    /// Has the folder as it was in the beginning.
    pub(super) fn refill(&mut self, fill: impl Fn(&Path) -> Result<()>) -> Result<()> {
        refill(&self.scratch.work(), fill)
    }
}

fn refill(folder: &Path, fill: impl Fn(&Path) -> Result<()>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        std::fs::remove_dir_all(entry?.path())?;
    }
    fill(folder)
}

/// A folder that virtiofsd serves.
pub(super) struct Upstream {
    // Dropped in this order.
    guest: Guest,
    server: Child,
    scratch: Scratch,
}

impl Side for Upstream {
    fn guest(&mut self) -> &mut Guest {
        &mut self.guest
    }
}

impl Upstream {
    pub(super) fn start(place: &Place, fill: impl Fn(&Path) -> Result<()>) -> Result<Self> {
        let parts = needed_parts()?;
        let scratch = place.scratch(NEEDED_BYTES)?;
        fill(&scratch.work())?;
        let socket = scratch.path("socket");
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve-guest").arg(scratch.work()).arg(&socket).stdout(Stdio::null());
        let server = command.spawn()?;
        let deadline = Instant::now() + Duration::from_secs(10);
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(_) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(error).context("virtiofsd does not listen"),
            }
        };
        let guest = Guest::boot(&parts, &std::env::current_exe()?, Folder::Virtiofs(stream));
        Ok(Self { guest, server, scratch })
    }

    /// Has the folder as it was in the beginning.
    pub(super) fn refill(&mut self, fill: impl Fn(&Path) -> Result<()>) -> Result<()> {
        refill(&self.scratch.work(), fill)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
