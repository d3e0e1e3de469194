//! Running commands.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use codeagent_common::{CancelToken, Refusal, RelPathBuf, StepId, StepInfo};
use codeagent_control::{
    ByteString, Cause, CommandLine, Exec, ExitStatus, Order, Outcome, PtySize, Stdin, Stream,
};
use codeagent_interceptor::ClosedStep;
use codeagent_namespace::{FolderStep, View, WorkFolder};
use serde::Serialize;

use super::event::Event;
use super::lane::{Patience, Turn};
use super::questions::Questions;
use super::view::{Refusals, ViewSetting};
use super::{Active, Session};
use crate::classify;
use crate::error::{Result, SandboxError};
use crate::executor::{Isolation, Ran, Work};

/// How long a command waits for the one before it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A command that waited for its turn has not heard that it is to end.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// The way to give a command orders while it runs, and before.
#[derive(Debug, Clone)]
pub(crate) struct Orders {
    sender: Sender<Order>,
    cancelled: CancelToken,
    is_background: bool,
    command: u64,
    /// What it asks is not wanted any more when it is cancelled.
    questions: Arc<Questions>,
}

impl Orders {
    /// `false`: it has ended.
    fn send(&self, order: Order) -> bool {
        if matches!(order, Order::Cancel) {
            self.cancelled.cancel();
            self.questions.deny_those_of(self.command);
        }
        self.sender.send(order).is_ok()
    }
}

/// A command to run.
#[derive(Debug, Clone)]
pub struct CommandRequest {
    pub command: CommandLine,
    /// The line that it is about, if the rest of it only sees that line through.
    pub script: Option<String>,
    /// What the history calls it, in place of the command line.
    pub label: Option<String>,
    /// Where it begins; the first working directory if not given.
    pub cwd: Option<PathBuf>,
    /// Added to what commands get in any case.
    pub env: BTreeMap<String, ByteString>,
    /// Run it in a terminal of this size.
    pub pty: Option<PtySize>,
    /// Input follows as [`Order::Input`].
    pub takes_input: bool,
    pub timeout: Option<Duration>,
    /// As the session has it, if not given.
    pub view: Option<ViewSetting>,
    /// Refuse a line that nobody means well with, or that cannot work in a sandbox, before it runs.
    pub is_checked: bool,
    /// Others run meanwhile: in the live view, its changes are ambient steps.
    pub background: bool,
}

impl CommandRequest {
    pub fn new(command: CommandLine) -> Self {
        Self {
            command,
            script: None,
            label: None,
            cwd: None,
            env: BTreeMap::new(),
            pty: None,
            takes_input: false,
            timeout: None,
            view: None,
            is_checked: false,
            background: false,
        }
    }

    /// A line for `/bin/sh -c`.
    pub fn shell(line: impl Into<ByteString>) -> Self {
        Self::new(CommandLine::Shell(line.into()))
    }

    pub fn argv(words: impl IntoIterator<Item = impl Into<ByteString>>) -> Self {
        Self::new(CommandLine::Argv(words.into_iter().map(Into::into).collect()))
    }

    /// What it is called.
    pub fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| self.command.to_string())
    }

    fn exec(&self) -> Exec {
        use std::os::unix::ffi::OsStrExt;
        let mut exec = Exec::new(self.command.clone());
        exec.label.clone_from(&self.label);
        exec.cwd = self.cwd.as_ref().map(|cwd| ByteString::from(cwd.as_os_str().as_bytes()));
        exec.env.clone_from(&self.env);
        exec.pty = self.pty;
        exec.stdin = if self.takes_input { Stdin::Stream } else { Stdin::Null };
        exec.timeout_ms =
            self.timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        exec
    }
}

/// What a command did.
#[derive(Debug, Clone, Serialize)]
pub struct CommandReport {
    pub command: u64,
    /// As shells have it: 128 and more for signals.
    pub exit_code: i32,
    /// That ended it.
    pub signal: Option<i32>,
    pub cause: Cause,
    pub isolation: Isolation,
    /// `None`: it worked in the folders themselves.
    pub view: Option<View>,
    /// Why it is not the view that was asked for.
    pub other_view: Option<String>,
    /// What may help, if it failed because of its view.
    pub hint: Option<String>,
    /// What it did to the folders can be undone.
    pub undoable: bool,
    /// Why it cannot.
    pub not_undoable: Option<String>,
    /// Everything that should keep it in did.
    pub confined: bool,
    /// For each working directory it could change.
    pub directories: Vec<Directory>,
}

/// What a command did to one working directory.
#[derive(Debug, Clone, Serialize)]
pub struct Directory {
    pub directory: String,
    pub step: Option<StepId>,
    /// `None`: it changed nothing, or a transaction goes on.
    pub info: Option<StepInfo>,
    /// Left out, because the path is protected; with the rule.
    pub protected: Vec<(RelPathBuf, String)>,
    /// Somebody else changed these meanwhile, too.
    pub changed_meanwhile: Vec<RelPathBuf>,
    /// Neither files, directories, symlinks, FIFOs nor sockets: left out.
    pub refused: Vec<RelPathBuf>,
    /// Steps that were dropped to stay within the limits.
    pub evicted: Vec<StepId>,
    /// Refused, because a question about it was denied while a command ran in the background: of this
    /// command, or of that one. Without one, nothing of a command that is denied is kept.
    pub denied: Vec<Refusal>,
}

impl Directory {
    fn new(directory: String, step: FolderStep) -> Self {
        let FolderStep { closed, report } = step;
        let (step, info, evicted, denied) = match closed {
            ClosedStep::Recorded { step, evicted, denied, .. } => {
                (Some(step.id), Some(step), evicted, denied)
            }
            ClosedStep::Joined { step, denied } => (Some(step), None, vec![], denied),
            ClosedStep::Empty { denied, .. } => (None, None, vec![], denied),
            ClosedStep::Denied { .. } => (None, None, vec![], vec![]),
        };
        Self {
            directory,
            step,
            info,
            protected: report.adopted.protected,
            changed_meanwhile: report.changed_meanwhile,
            refused: report.refused,
            evicted,
            denied,
        }
    }
}

/// A command that runs on a thread of its own.
#[derive(Debug)]
pub struct Running {
    pub id: u64,
    orders: Orders,
    thread: JoinHandle<Result<CommandReport>>,
}

impl Running {
    /// The command may have ended already; then nobody hears it.
    pub fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for its end.
    pub fn wait(self) -> Result<CommandReport> {
        drop(self.orders);
        let gone = |_| Err(SandboxError::CommandLost("its thread is gone".into()));
        self.thread.join().unwrap_or_else(gone)
    }
}

impl Session {
    /// Runs a command to its end. `output` is called with what it says, as it says it.
    pub fn exec(
        &self,
        request: &CommandRequest,
        mut output: impl FnMut(Stream, &[u8]),
    ) -> Result<CommandReport> {
        let (id, orders, taken) = self.register(request);
        let cancel = orders.cancelled.clone();
        drop(orders);
        self.run((id, request), taken, &cancel, &mut output)
    }

    /// As [`Session::exec`], with orders for it while it runs.
    pub fn exec_with_orders(
        &self,
        request: &CommandRequest,
        orders: Receiver<Order>,
        output: impl FnMut(Stream, &[u8]),
    ) -> Result<CommandReport> {
        self.exec_announced(request, orders, |_| {}, output)
    }

    /// As [`Session::exec_with_orders`]; the number of the command is `announced` before it begins.
    pub fn exec_announced(
        &self,
        request: &CommandRequest,
        orders: Receiver<Order>,
        announce: impl FnOnce(u64),
        mut output: impl FnMut(Stream, &[u8]),
    ) -> Result<CommandReport> {
        let (id, own, taken) = self.register(request);
        announce(id);
        let cancel = own.cancelled.clone();
        // Those who only know the number of the command can give orders, too.
        std::thread::Builder::new().name("orders".into()).spawn(move || {
            for order in orders {
                if !own.send(order) {
                    return;
                }
            }
        })?;
        self.run((id, request), taken, &cancel, &mut output)
    }

    /// The current directory of this process, if it lies in a working directory.
    pub fn current_dir(&self) -> Option<PathBuf> {
        let here = std::env::current_dir().ok()?;
        let active = self.active().ok()?;
        active.folders.iter().any(|folder| here.starts_with(&folder.path)).then_some(here)
    }

    /// Runs a command on a thread of its own.
    pub fn spawn(
        self: &Arc<Self>,
        request: CommandRequest,
        mut output: impl FnMut(Stream, &[u8]) + Send + 'static,
    ) -> Result<Running> {
        let (id, orders, taken) = self.register(&request);
        let (session, cancel) = (Arc::clone(self), orders.cancelled.clone());
        let thread = std::thread::Builder::new()
            .name(format!("command-{id}"))
            .spawn(move || session.run((id, &request), taken, &cancel, &mut output))?;
        Ok(Running { id, orders, thread })
    }

    /// Tells a running command something.
    pub fn order(&self, command: u64, order: Order) -> Result<()> {
        let orders = self.running.lock().get(&command).cloned();
        let orders = orders.ok_or(SandboxError::UnknownCommand(command))?;
        match orders.send(order) {
            true => Ok(()),
            false => Err(SandboxError::UnknownCommand(command)),
        }
    }

    /// Ends a command and everything it has started.
    pub fn cancel(&self, command: u64) -> Result<()> {
        self.order(command, Order::Cancel)
    }

    /// Cancels all commands, and waits until none is left.
    pub(crate) fn end_commands(&self) {
        let mut running = self.running.lock();
        while !running.is_empty() {
            for orders in running.values() {
                let _ = orders.send(Order::Cancel); // it has just ended
            }
            self.ended.wait_for(&mut running, ASK_AGAIN);
        }
    }

    /// Commands that have not ended.
    pub fn running(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.running.lock().keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// One whose changes come at any time.
    pub(crate) fn background_command(&self) -> Option<u64> {
        self.running.lock().iter().find(|(_, orders)| orders.is_background).map(|(id, _)| *id)
    }

    fn register(&self, request: &CommandRequest) -> (u64, Orders, Receiver<Order>) {
        let id = self.next_command.fetch_add(1, Ordering::Relaxed);
        let (sender, taken) = channel();
        let orders = Orders {
            sender,
            cancelled: CancelToken::new(),
            is_background: request.background,
            command: id,
            questions: Arc::clone(&self.questions),
        };
        self.running.lock().insert(id, orders.clone());
        (id, orders, taken)
    }

    fn run(
        &self,
        (id, request): (u64, &CommandRequest),
        orders: Receiver<Order>,
        cancel: &CancelToken,
        output: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<CommandReport> {
        let line = request.label();
        let class = self.classifier.classify(&line);
        let refused = request.is_checked.then(|| classify::refuse(&line)).flatten();
        self.bus.tell(&Event::CommandStarted { command: id, line, class });
        let ran = self.active().and_then(|active| {
            if let Some(reason) = refused {
                return Err(SandboxError::Refused { reason });
            }
            self.run_in(&active, (id, request), orders, cancel, output)
        });
        self.running.lock().remove(&id);
        self.ended.notify_all();
        let (exit_code, steps) = match &ran {
            Ok(report) => (
                Some(report.exit_code),
                report.directories.iter().filter_map(|directory| directory.step).collect(),
            ),
            Err(_) => (None, vec![]),
        };
        self.bus.tell(&Event::CommandEnded { command: id, exit_code, steps });
        ran
    }

    fn run_in(
        &self,
        active: &Active,
        (id, request): (u64, &CommandRequest),
        orders: Receiver<Order>,
        cancel: &CancelToken,
        output: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<CommandReport> {
        // Silence would look like a command that hangs.
        let waits = || {
            let message = "waiting for the command of another process in this folder".into();
            self.bus.tell(&Event::Warning { directory: None, message });
        };
        let cancelled = || cancel.is_cancelled();
        let patience = Patience { limit: PATIENCE, cancelled: &cancelled, waits: &waits };
        let turn = match request.background {
            true => None,
            false => Some(active.take_turn(&patience)?),
        };
        let asks = self.questions.may_come_from(id, request.background);
        // It may have had to wait.
        if cancelled() {
            return Err(SandboxError::Cancelled);
        }
        let beside = if turn.is_none() { active.keepers()? } else { vec![] };
        let workers = turn.as_ref().map_or(&beside, Turn::workers);
        let folders: Vec<WorkFolder<'_>> = active
            .folders
            .iter()
            .zip(workers)
            .map(|(folder, keeper)| WorkFolder {
                path: &folder.path,
                worker: keeper.as_ref().map(|keeper| keeper.client()),
            })
            .collect();
        let isolation = active.executor.isolation();
        let view = self.choose_view(request, isolation, workers, &folders)?;
        let keepers = super::keepers_of(&active.folders)?;
        let shared = super::shared(&active.folders, &keepers);
        let warn = |message| self.bus.tell(&Event::Warning { directory: None, message });
        // What it takes to begin is not the command's time.
        active.executor.begin(&shared, &warn, cancel)?;
        asks.begins(request.timeout);
        let mut refusals = Refusals::default();
        let mut heard = |stream, bytes: &[u8]| {
            if view.only_reads {
                refusals.hear(stream, bytes);
            }
            output(stream, bytes);
        };
        let ran = active.executor.run(Work {
            folders: &folders,
            shared: &shared,
            exec: request.exec(),
            view: view.choice,
            background: request.background,
            orders,
            output: &mut heard,
            warn: &warn,
            cancel,
        });
        if ran.is_err() {
            // A worker that was lost meanwhile is replaced at once: the next one takes back what its
            // step had done.
            let _ = super::keepers_of(&active.folders);
        }
        let mut report = report(id, active, ran?)?;
        if report.exit_code != 0 && refusals.were_told() {
            report.hint = Some(self.wanted_to_write());
        }
        if request.background {
            // It has no step of its own that would tell.
            for directory in &mut report.directories {
                add_refusals(&mut directory.denied, asks.refusals_in(&directory.directory));
            }
        }
        Ok(report)
    }
}

/// Those of a step count more exactly.
fn add_refusals(refusals: &mut Vec<Refusal>, told: Vec<Refusal>) {
    for refusal in told {
        if !refusals.iter().any(|known| known.safeguard == refusal.safeguard) {
            refusals.push(refusal);
        }
    }
}

fn report(id: u64, active: &Active, ran: Ran) -> Result<CommandReport> {
    let Outcome::Completed { status, cause } = ran.outcome else {
        return Err(crate::error::lost(ran.outcome));
    };
    let directories = active
        .folders
        .iter()
        .zip(ran.steps)
        .filter_map(|(folder, step)| Some(Directory::new(folder.label.clone(), step?)))
        .collect();
    Ok(CommandReport {
        command: id,
        exit_code: status.shell_code(),
        signal: match status {
            ExitStatus::Signal(signal) => Some(signal),
            ExitStatus::ExitCode(_) => None,
        },
        cause,
        isolation: active.executor.isolation(),
        view: ran.view,
        other_view: ran.other_view,
        hint: None,
        undoable: ran.not_undoable.is_none(),
        not_undoable: ran.not_undoable,
        confined: ran.confined,
        directories,
    })
}
