//! The shim itself: reads the channel, keeps the list of commands.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use codeagent_control::{
    ByteString, CommandId, Exec, HostMessage, LineFault, MessageReader, PROTOCOL_VERSION,
    ShimErrorCode, ShimMessage, User,
};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

use crate::clock;
use crate::command::{self, RunningCommand};
use crate::courier::{self, Courier, LastReport};
use crate::outbox::Outbox;
use crate::rollback::{self, RollbackNotices};
use crate::tree;

/// Each costs a process and a thread.
const MAX_COMMANDS: usize = 256;
/// How long orphans of a killed supervisor are looked for.
const ORPHAN_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct ShimConfig {
    /// The binary that supervises commands when it is run with `--supervise`: our own.
    pub supervisor: PathBuf,
    /// Their filesystems are flushed before a command counts as completed.
    pub sync_dirs: Vec<PathBuf>,
    /// Gets one line per rollback; commands find its path in `CODEAGENT_ROLLBACK_FILE`.
    pub rollback_file: Option<PathBuf>,
    /// Drop the kernel's caches after a rollback; needs root.
    pub drop_caches: bool,
    /// The clock is set to what the host says; for a guest, whose clock stands still when the guest
    /// does. Needs root.
    pub sets_clock: bool,
    pub defaults: Defaults,
}

/// What a command gets if the host does not say otherwise.
#[derive(Debug, Clone, Default)]
pub struct Defaults {
    /// Without one, commands run as the shim does. Needs root.
    pub user: Option<User>,
    /// Not for commands that get nothing but what the host names.
    pub env: BTreeMap<String, ByteString>,
    pub cwd: Option<ByteString>,
}

impl Defaults {
    fn fill_in(&self, exec: &mut Exec) {
        exec.user = exec.user.or(self.user);
        if exec.cwd.is_none() {
            exec.cwd.clone_from(&self.cwd);
        }
        if !exec.clear_env {
            for (name, value) in &self.env {
                exec.env.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
    }
}

/// Why the shim came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The host closed the channel.
    ChannelClosed,
    /// The host asked for it.
    ShutDown,
}

/// Runs commands until the channel ends. Takes over the reaping of orphans in this process, so it
/// wants a process of its own.
#[derive(Debug)]
pub struct Shim {
    config: ShimConfig,
    notices: RollbackNotices,
    outbox: Arc<Outbox>,
    commands: Arc<Commands>,
    couriers: Vec<JoinHandle<()>>,
    /// The host said hello, in our version of the protocol.
    greeted: bool,
    instance: u64,
}

/// Commands whose processes, background ones included, have not all ended.
#[derive(Debug, Default)]
struct Commands(Mutex<BTreeMap<CommandId, Arc<RunningCommand>>>);

impl Commands {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<CommandId, Arc<RunningCommand>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shim {
    pub fn new(config: ShimConfig) -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let pid = u64::from(std::process::id());
        Self {
            notices: RollbackNotices {
                file: config.rollback_file.clone(),
                drop_caches: config.drop_caches,
            },
            config,
            outbox: Arc::default(),
            commands: Arc::default(),
            couriers: Vec::new(),
            greeted: false,
            instance: (started.as_micros() as u64).rotate_left(16) ^ pid,
        }
    }

    /// Returns when the channel has ended and no process of any command is left.
    pub fn run(
        mut self,
        from_host: impl Read,
        to_host: impl Write + Send + 'static,
    ) -> io::Result<Ended> {
        // Orphans of a supervisor that somebody killed come to us.
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(getpid()))?;
        let writer = thread::spawn({
            let outbox = self.outbox.clone();
            move || outbox.pump(to_host)
        });
        self.say_hello();
        let ended = self.serve(MessageReader::new(from_host));
        if !matches!(ended, Ok(Ended::ShutDown)) {
            self.outbox.close();
        }
        self.end_commands();
        if matches!(ended, Ok(Ended::ShutDown)) {
            self.outbox.finish();
            let _ = writer.join();
        }
        ended
    }

    fn serve(&mut self, mut messages: MessageReader<impl Read, HostMessage>) -> io::Result<Ended> {
        loop {
            match messages.read()? {
                None => return Ok(Ended::ChannelClosed),
                Some(Ok(HostMessage::Shutdown)) => return Ok(Ended::ShutDown),
                Some(Ok(message)) => self.handle(message),
                Some(Err(fault)) => self.complain_about(&fault),
            }
        }
    }

    fn handle(&mut self, message: HostMessage) {
        match message {
            HostMessage::Hello { version } => self.greet(version),
            HostMessage::Exec(exec) => self.exec(exec),
            HostMessage::Stdin { id, data, eof } => {
                self.with(id, |command| command.push_input(data.as_bytes(), eof));
            }
            HostMessage::Resize { id, size } => self.with(id, |command| command.resize(size)),
            HostMessage::Signal { id, .. } => self.with(id, |command| {
                command.signal(message);
                Ok(())
            }),
            HostMessage::Cancel { id } => self.with(id, |command| {
                command.cancel(message);
                Ok(())
            }),
            HostMessage::RollbackNotify { step_id } => {
                if let Err(error) = self.notices.announce(&message) {
                    let what = format!("the rollback was not announced completely: {error}");
                    self.refuse(None, ShimErrorCode::Other, what);
                }
                self.outbox.answer(ShimMessage::RollbackNoted { step_id });
            }
            HostMessage::Clock { unix_ms } if self.config.sets_clock => {
                if let Err(error) = clock::set(unix_ms) {
                    let what = format!("the clock was not set: {error}");
                    self.refuse(None, ShimErrorCode::Other, what);
                }
            }
            HostMessage::Clock { .. } => {} // it is the host's own
            HostMessage::Ping { token } => self.outbox.answer(ShimMessage::Pong { token }),
            HostMessage::Shutdown => {}
        }
    }

    fn say_hello(&self) {
        let (version, instance) = (PROTOCOL_VERSION, self.instance);
        self.outbox.answer(ShimMessage::Hello { version, instance });
    }

    fn greet(&mut self, version: u32) {
        self.say_hello();
        self.greeted = version == PROTOCOL_VERSION;
        if !self.greeted {
            self.refuse(None, ShimErrorCode::VersionMismatch, version_mismatch(version));
        }
    }

    fn exec(&mut self, mut exec: Exec) {
        let id = exec.id;
        if !self.greeted {
            let message = "the host has to say hello in our version first".to_owned();
            return self.refuse(Some(id), ShimErrorCode::VersionMismatch, message);
        }
        if let Some(file) = &self.config.rollback_file {
            let path = std::os::unix::ffi::OsStrExt::as_bytes(file.as_os_str());
            exec.env.entry(rollback::VARIABLE.to_owned()).or_insert_with(|| path.into());
        }
        self.config.defaults.fill_in(&mut exec);
        let is_terminal = exec.pty.is_some();
        // Held until the command is in the list, so that its supervisor is not taken for an orphan.
        let mut commands = self.commands.lock();
        let refusal = if commands.contains_key(&id) {
            Some((ShimErrorCode::DuplicateCommand, format!("command {id} is running already")))
        } else if commands.len() >= MAX_COMMANDS {
            Some((ShimErrorCode::TooManyCommands, format!("{MAX_COMMANDS} commands are running")))
        } else {
            None
        };
        let started = match refusal {
            Some(refusal) => Err(refusal),
            None => command::start(exec, &self.config.supervisor)
                .map_err(|error| (ShimErrorCode::SpawnFailed, format!("no supervisor: {error}"))),
        };
        let (command, luggage) = match started {
            Ok((command, luggage)) => (Arc::new(command), luggage),
            Err((code, message)) => {
                drop(commands);
                return self.refuse(Some(id), code, message);
            }
        };
        commands.insert(id, command.clone());
        drop(commands);
        let courier = Courier::new(id, command, self.outbox.clone(), luggage, is_terminal);
        let desk = Desk {
            id,
            outbox: self.outbox.clone(),
            commands: self.commands.clone(),
            sync_dirs: self.config.sync_dirs.clone(),
        };
        self.couriers.retain(|courier| !courier.is_finished());
        self.couriers.push(thread::spawn(move || desk.see_through(courier)));
    }

    /// Does something with a command, or says why not.
    fn with(&self, id: CommandId, act: impl FnOnce(&RunningCommand) -> Result<(), ShimErrorCode>) {
        let command = self.commands.lock().get(&id).cloned();
        let done = command.map_or(Err(ShimErrorCode::UnknownCommand), |command| act(&command));
        if let Err(code) = done {
            let why = match code {
                ShimErrorCode::UnknownCommand => "there is no such command",
                ShimErrorCode::StdinOverflow => "too much input is waiting; this was dropped",
                _ => "the command was not started for that",
            };
            self.refuse(Some(id), code, why.to_owned());
        }
    }

    fn complain_about(&self, fault: &LineFault) {
        self.refuse(None, ShimErrorCode::BadMessage, fault.to_string());
    }

    fn refuse(&self, id: Option<CommandId>, code: ShimErrorCode, message: String) {
        self.outbox.answer(ShimMessage::Error { id, code, message });
    }

    fn end_commands(&mut self) {
        for (id, command) in self.commands.lock().iter() {
            command.cancel(HostMessage::Cancel { id: *id });
        }
        for courier in self.couriers.drain(..) {
            let _ = courier.join();
        }
    }
}

/// What remains to be done around a courier, in its thread.
struct Desk {
    id: CommandId,
    outbox: Arc<Outbox>,
    commands: Arc<Commands>,
    sync_dirs: Vec<PathBuf>,
}

impl Desk {
    fn see_through(&self, mut courier: Courier) {
        let lost = match courier.carry() {
            LastReport::Completed(report) => {
                courier::sync(&self.sync_dirs);
                self.outbox.send(report);
                None
            }
            LastReport::NotStarted(report) => {
                self.outbox.send(report);
                None
            }
            LastReport::Lost => Some(courier.lost()),
        };
        if !courier.stay_for_leftovers() {
            self.end_orphans();
        }
        if let Some(report) = lost {
            self.outbox.send(report);
        }
        self.commands.lock().remove(&self.id);
    }

    /// Ends what a killed supervisor left: our children that supervise nothing, and all below them.
    fn end_orphans(&self) {
        let deadline = Instant::now() + ORPHAN_PATIENCE;
        loop {
            let commands = self.commands.lock();
            let is_supervisor = |pid: &Pid| commands.values().any(|c| c.supervisor == *pid);
            let orphans: Vec<Pid> =
                tree::children(getpid()).into_iter().filter(|pid| !is_supervisor(pid)).collect();
            drop(commands);
            if orphans.is_empty() || Instant::now() > deadline {
                return;
            }
            for orphan in orphans {
                tree::signal_descendants(orphan, Signal::KILL);
                let _ = kill_process(orphan, Signal::KILL);
                let _ = waitpid(Some(orphan), WaitOptions::NOHANG);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn version_mismatch(host: u32) -> String {
    format!("this shim speaks version {PROTOCOL_VERSION} of the control protocol, the host {host}")
}
