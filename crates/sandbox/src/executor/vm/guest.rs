//! A guest that runs.

use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use codeagent_common::{CancelToken, StepId};
use codeagent_control::{Exec, Line, LineError, Order, Outcome, Stream};
use codeagent_p9::linux::NinePOptions;
use codeagent_virtiofs::{GuestOptions, Owners, connection};
use codeagent_vm::{
    Accelerator, AcceleratorChoice, Backend, DeathWatch, Machine, MachineConfig, Progress, Share,
    ShareServer, VmError,
};
use parking_lot::Mutex;

use super::plan::VmPlan;
use crate::error::{Result, SandboxError};
use crate::executor::SharedFolder;

/// From the order to switch itself off.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(10);
/// The shim has spoken already; what is left is its answer.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// How soon it is noticed that a folder is not served any more.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often workers are asked whether they still serve it, in looks.
const ASK_EVERY: u32 = 10;
/// From the moment a guest falls silent until it is known how QEMU ended.
const OBITUARY: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Guest {
    line: Line,
    /// `None`: it was ended.
    machine: Mutex<Option<Machine>>,
    death: DeathWatch,
    /// Why we ended it, before its time.
    given_up: Mutex<Option<String>>,
    about: String,
    /// The processes that serve its folders, in their order, and what they call serving them to it.
    served: Vec<Served>,
    /// Its way out, if that is filtered. Ends with the guest.
    _network: Option<codeagent_network::link::Link>,
}

#[derive(Debug)]
struct Served {
    worker: u32,
    attachment: u64,
}

impl Guest {
    pub(super) fn start(
        plan: &VmPlan,
        folders: &[SharedFolder<'_>],
        warn: &dyn Fn(String),
        cancel: &CancelToken,
    ) -> Result<Self> {
        let started = Instant::now();
        let mut config = plan.machine().map_err(no_guest)?;
        config.cancel = cancel.clone();
        let boot_deadline = config.boot_deadline;
        let error = match Self::start_machine(config, plan, folders, warn)? {
            Ok(guest) => return Ok(guest),
            Err(error @ VmError::AcceleratorBroken { .. }) => error,
            Err(error) => return Err(no_guest(error)),
        };
        // A trial had shown that it works.
        warn(format!("{error}; the guest is emulated, which is slow"));
        let mut config = plan.machine().map_err(no_guest)?;
        config.cancel = cancel.clone();
        config.accelerator = AcceleratorChoice::Only(Accelerator::Tcg);
        config.boot_deadline =
            boot_deadline.saturating_sub(started.elapsed()).max(boot_deadline / 2);
        Self::start_machine(config, plan, folders, warn)?.map_err(no_guest)
    }

    /// The inner error is that of the machine, which has used up what it got.
    fn start_machine(
        mut config: MachineConfig,
        plan: &VmPlan,
        folders: &[SharedFolder<'_>],
        warn: &dyn Fn(String),
    ) -> Result<Result<Self, VmError>> {
        let mut served = Vec::new();
        for (nth, folder) in folders.iter().enumerate() {
            let (share, by) = share(plan, nth, folder)?;
            config.shares.push(share);
            served.push(by);
        }
        let (network, way_out) = plan.network().map_err(SandboxError::doing(NO_NETWORK))?;
        config.network = network;
        let machine = Machine::start(config, &mut |progress| {
            if let Progress::Warning(message) = progress {
                warn(message);
            }
        });
        let machine = match machine {
            Ok(machine) => machine,
            Err(error) => return Ok(Err(error)),
        };
        let line = Line::over(machine.control())
            .map_err(SandboxError::doing("cannot talk to the guest"))?;
        line.wait_until_ready(HELLO_PATIENCE).map_err(|error| {
            let death = machine.death().wait_for(OBITUARY);
            let reason = death.map_or_else(|| error.to_string(), |death| death.to_string());
            SandboxError::CommandLost(format!("the guest was lost: {reason}"))
        })?;
        Ok(Ok(Self {
            line,
            death: machine.death(),
            given_up: Mutex::new(None),
            about: format!("QEMU {}, {}", machine.qemu().version, machine.accelerator()),
            machine: Mutex::new(Some(machine)),
            served,
            _network: way_out,
        }))
    }

    /// Its clock stands still whenever it does.
    fn tell_time(&self) {
        let _ = self.line.tell_time(SystemTime::now()); // it has died meanwhile
    }

    /// Why it cannot run the next command.
    pub(super) fn reason_to_replace(&self, folders: &[SharedFolder<'_>]) -> Result<Option<String>> {
        if let Some(death) = self.death() {
            return Ok(Some(death));
        }
        if self.machine.lock().is_none() {
            return Ok(Some("it was ended".into()));
        }
        let mut workers = Vec::new();
        for folder in folders {
            workers.push(folder.worker.hello()?.pid);
        }
        if !workers.into_iter().eq(self.served.iter().map(|served| served.worker)) {
            return Ok(Some(FOLDER_LOST.into()));
        }
        let is_over = self.is_served_no_longer(folders);
        Ok(is_over.then(|| self.obituary().unwrap_or_else(|| FOLDER_ENDED.into())))
    }

    /// A worker has ended serving it: QEMU has gone, or what came from the guest made no sense. The
    /// guest need not have noticed.
    fn is_served_no_longer(&self, folders: &[SharedFolder<'_>]) -> bool {
        let is_over = |(folder, served): (&SharedFolder<'_>, &Served)| {
            let is_over = folder.worker.wait_until_detached(served.attachment, Duration::ZERO);
            is_over.unwrap_or(false) // a worker that does not say is gone, or about to be
        };
        folders.iter().zip(&self.served).any(is_over)
    }

    pub(super) fn run(
        &self,
        exec: Exec,
        orders: Receiver<Order>,
        output: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<Outcome, LineError> {
        self.tell_time();
        self.line.run(exec, orders, output)
    }

    /// Does something while somebody looks whether the folders are still served. A guest whose folder
    /// is not waits for it without end, and with it everything that wanted to write there.
    pub(super) fn watched<T>(&self, folders: &[SharedFolder<'_>], work: impl FnOnce() -> T) -> T {
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut looked, mut clocks) = (0, Clocks::now());
                while is_done.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                    looked += 1;
                    if clocks.have_parted() {
                        self.tell_time();
                    }
                    if folders.iter().any(|folder| folder.worker.is_gone()) {
                        return self.give_up(FOLDER_LOST);
                    }
                    if looked % ASK_EVERY == 0 && self.is_served_no_longer(folders) {
                        // Unless it has died, which is why then.
                        self.death.wait_for(OBITUARY);
                        return self.give_up(FOLDER_ENDED);
                    }
                }
            });
            let outcome = work();
            drop(done);
            outcome
        })
    }

    pub(super) fn about(&self) -> String {
        self.about.clone()
    }

    pub(super) fn death_watch(&self) -> DeathWatch {
        self.death.clone()
    }

    /// Nobody has ended it.
    pub(super) fn is_wanted(&self) -> bool {
        self.given_up.lock().is_none() && self.machine.lock().is_some()
    }

    /// Why it has ended, if it has.
    pub(super) fn death(&self) -> Option<String> {
        let given_up = self.given_up.lock().clone();
        given_up.or_else(|| self.death.death().map(|death| death.to_string()))
    }

    /// The same, where something has just shown that it probably has: QEMU may still be ending.
    pub(super) fn obituary(&self) -> Option<String> {
        let given_up = self.given_up.lock().clone();
        given_up.or_else(|| self.death.wait_for(OBITUARY).map(|death| death.to_string()))
    }

    /// A question is open anyway: without this it holds what it is about, and nothing else.
    pub(super) fn pause(&self) {
        let _ = self.line.stand_still(); // it has died meanwhile
        if let Some(machine) = &*self.machine.lock() {
            let _ = machine.pause();
        }
    }

    /// One that cannot go on is given up: everybody in it would wait for ever.
    pub(super) fn resume(&self) {
        let resumed = self.machine.lock().as_ref().map(Machine::resume);
        if let Some(Err(error)) = resumed
            // Or it has died meanwhile.
            && self.obituary().is_none()
        {
            self.give_up(&format!("it could not be resumed: {error}"));
        }
        self.tell_time();
        let _ = self.line.go_on(); // or it has died meanwhile
    }

    pub(super) fn notify_rollback(&self, step: StepId) {
        let _ = self.line.notify_rollback(step); // it has died meanwhile
    }

    /// Ends it at once. The first reason is told, unless it has died by itself.
    pub(super) fn give_up(&self, reason: &str) {
        if self.death.death().is_none() {
            self.given_up.lock().get_or_insert_with(|| reason.to_owned());
        }
        drop(self.machine.lock().take());
    }

    pub(super) fn shut_down(&self) {
        if let Some(machine) = self.machine.lock().take() {
            machine.shutdown(SHUTDOWN_PATIENCE);
        }
    }
}

/// Two clocks of the host. One of them stands still while the host sleeps, as the guest's does.
#[derive(Debug)]
struct Clocks(Instant, SystemTime);

impl Clocks {
    fn now() -> Self {
        Self(Instant::now(), SystemTime::now())
    }

    /// Whether they have, since this was last asked: the host slept, or somebody has set its clock.
    fn have_parted(&mut self) -> bool {
        let last = std::mem::replace(self, Self::now());
        let expected = last.1 + self.0.saturating_duration_since(last.0);
        let difference = self.1.duration_since(expected).unwrap_or_else(|error| error.duration());
        difference > PARTED
    }
}

/// Clocks that are adjusted part by less.
const PARTED: Duration = Duration::from_millis(500);

const FOLDER_LOST: &str = "a worker that served its folders is gone";
const FOLDER_ENDED: &str = "a folder is not served to it any more";
const NO_NETWORK: &str = "cannot open the way to the network";

/// A folder, and the process that serves it.
fn share(plan: &VmPlan, nth: usize, folder: &SharedFolder<'_>) -> Result<(Share, Served)> {
    let held = folder.worker.hello()?;
    if held.read_only != folder.read_only {
        return Err(held_otherwise(folder, held.pid));
    }
    let (stream, attachment) = connect(plan, folder)?;
    let share = Share {
        tag: format!("folder{nth}"),
        path: folder.path.into(),
        read_only: folder.read_only,
        backend: plan.backend(),
        server: ShareServer::Connected(stream.into()),
    };
    Ok((share, Served { worker: held.pid, attachment }))
}

/// The end for QEMU; the worker serves the other.
fn connect(plan: &VmPlan, folder: &SharedFolder<'_>) -> Result<(UnixStream, u64)> {
    let failed = |error| SandboxError::doing("cannot connect a folder to the guest")(error);
    let owners = Some(Owners::this_user());
    match plan.backend() {
        Backend::Virtiofs => {
            let (listener, stream) = connection(&plan.state_dir).map_err(failed)?;
            let options = GuestOptions { owners }.encode();
            Ok((stream, folder.worker.attach(&listener, None, options)?))
        }
        Backend::NineP => {
            let (ours, stream) = UnixStream::pair().map_err(failed)?;
            let options = NinePOptions { owners }.encode();
            Ok((stream, folder.worker.attach(&ours, None, options)?))
        }
    }
}

/// Whoever holds a folder decides what can be written to it: root in a guest makes little of how it
/// is mounted there.
fn held_otherwise(folder: &SharedFolder<'_>, worker: u32) -> SandboxError {
    let (how, other) = match folder.read_only {
        true => ("for writing", "read-only"),
        false => ("read-only", "for writing"),
    };
    SandboxError::usage(
        format!(
            "process {worker} holds {} {how}, so that no guest can have it {other}",
            folder.path.display()
        ),
        "end that process first, or use --isolation namespace",
    )
}

pub(super) fn no_guest(error: VmError) -> SandboxError {
    let hint = match error {
        VmError::Cancelled => return SandboxError::Cancelled,
        VmError::DiskOfOtherImage { .. } => {
            "`sandbox guest reset` throws away what was installed there, and nothing of the folder"
        }
        _ => "`sandbox doctor` says what this machine lacks; --isolation namespace needs no guest",
    };
    SandboxError::Isolation {
        isolation: crate::executor::Isolation::Vm,
        reason: error.to_string(),
        hint: hint.into(),
    }
}
