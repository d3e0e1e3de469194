//! Where commands run.

mod choose;
mod host;
mod host_mounts;
mod namespace;
mod vm;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use codeagent_common::{CancelToken, StepId};
use codeagent_control::{Exec, Order, Outcome, Stream};
use codeagent_namespace::{FolderStep, View, ViewChoice, WorkFolder};
use codeagent_worker::Client;
use serde::{Deserialize, Serialize};

pub(crate) use choose::{Chosen, Wanted, choose};
pub use host::HostExecutor;
pub use namespace::NamespaceExecutor;
pub use vm::VmExecutor;
pub(crate) use vm::{
    GuestNetwork, VmPlan, facts as guest_facts, forget as forget_guest, forget_verdicts,
};

use crate::error::Result;

/// What stands between a command and the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    Vm,
    Namespace,
    /// Nothing.
    Host,
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum IsolationChoice {
    /// The first of the others that works
    #[default]
    Auto,
    /// A Linux guest in a virtual machine
    Vm,
    /// Linux namespaces
    Namespace,
    /// None: commands run on this machine as they are
    Host,
}

/// A command, and the folders it is for.
#[expect(missing_debug_implementations, reason = "it holds a function")]
pub struct Work<'a> {
    pub folders: &'a [WorkFolder<'a>],
    pub exec: Exec,
    pub view: ViewChoice,
    /// What it changes are ambient steps, so that other commands can have theirs meanwhile.
    pub background: bool,
    /// All folders of the session, those that are read-only included.
    pub shared: &'a [SharedFolder<'a>],
    pub orders: Receiver<Order>,
    pub output: &'a mut dyn FnMut(Stream, &[u8]),
    /// What people have to know before it begins.
    pub warn: &'a dyn Fn(String),
    /// It is not wanted any more; once it runs, that comes as an order.
    pub cancel: &'a CancelToken,
}

/// A folder of a session, for whoever shows it to more than one command.
#[derive(Debug, Clone, Copy)]
pub struct SharedFolder<'a> {
    /// Canonical.
    pub path: &'a Path,
    pub worker: &'a Client,
    pub read_only: bool,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ran {
    pub outcome: Outcome,
    /// One for each folder, in their order; `None` for those in which nothing was recorded.
    pub steps: Vec<Option<FolderStep>>,
    /// `None`: the command worked in the folders themselves.
    pub view: Option<View>,
    /// Why it is not the view that was asked for.
    pub other_view: Option<String>,
    /// Why what it did to the folders cannot be undone, if it cannot.
    pub not_undoable: Option<String>,
    /// Everything keeps it in that should.
    pub confined: bool,
    /// From the end of its last process until its steps were closed.
    pub committed_in: Duration,
}

/// Tells people something.
pub type Tell = Arc<dyn Fn(String) + Send + Sync>;

/// Runs commands of one session.
pub trait Executor: Send + Sync + fmt::Debug {
    fn isolation(&self) -> Isolation;

    /// What should keep commands in, beside that, and cannot be had here.
    fn weakness(&self) -> Option<String> {
        None
    }

    /// Before each command: makes what lasts longer than one, if it is not there. `warn` is for what
    /// people have to know.
    fn begin(
        &self,
        _folders: &[SharedFolder<'_>],
        _warn: &dyn Fn(String),
        _cancel: &CancelToken,
    ) -> Result<()> {
        Ok(())
    }

    /// Returns when the command has ended.
    fn run(&self, work: Work<'_>) -> Result<Ran>;

    /// Somebody may have to be asked about what a command wants to do. Must not wait. When it is
    /// decided, [`Executor::go_on`] is called.
    fn asked(&self) {}

    /// He is asked now: until then everything may wait.
    fn hold(&self) {}

    /// What was asked about is decided. `is_all_answered` waits a moment, and says whether everything
    /// that was on its way has been done or refused, in all folders.
    fn go_on(&self, _is_all_answered: &dyn Fn() -> bool) {}

    /// From here on, whoever looks at the session hears of what befalls it while no command runs.
    fn tell_of_losses(&self, _tell: Tell) {}

    /// A step was undone or redone, rolled back, or restored from: files have changed under the commands
    /// that run.
    fn rolled_back(&self, _step: StepId) {}

    /// What commands run in, beyond the kind of isolation.
    fn about(&self) -> Option<String> {
        None
    }

    /// No more commands will come, and none is running.
    fn end(&self) {}
}

/// If this process was started to run commands on the host, it does.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    host::run_if_asked()
}
