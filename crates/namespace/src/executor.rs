//! Commands in sandboxes, each a step that can be undone.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;

use codeagent_control::{ByteString, Exec, Outcome, Stream};
use codeagent_interceptor::{ClosedStep, OverlayReport, StepRequest};
use codeagent_worker::{Client, WorkerError};

use crate::conversation::{ConversationError, Order, converse};
use crate::launch::{Sandbox, StartError};
use crate::report::Confinement;
use crate::spec::{Folder, FolderView, HostPath, Spec};
use crate::surroundings::Surroundings;

/// A working directory of a session.
#[derive(Debug, Clone, Copy)]
pub struct WorkFolder<'a> {
    /// Canonical.
    pub path: &'a std::path::Path,
    /// The worker that holds its history; without one it is read-only.
    pub worker: Option<&'a Client>,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    pub outcome: Outcome,
    /// One for each folder, in their order; `None` for those that are read-only.
    pub steps: Vec<Option<FolderStep>>,
    pub confinement: Confinement,
    /// Memory and processes are limited for all processes of the command together.
    pub limits_are_shared: bool,
}

/// What a command did to one folder.
#[derive(Debug)]
pub struct FolderStep {
    pub closed: ClosedStep,
    pub report: OverlayReport,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error(transparent)]
    Worker(#[from] WorkerError),
    #[error("the command did not run to its end, and nothing of it was kept ({})", reason(.0))]
    Lost(Outcome),
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn reason(outcome: &Outcome) -> String {
    match outcome {
        Outcome::NotStarted { message, .. } => message.clone(),
        Outcome::ShimLost => "the sandbox was gone".into(),
        Outcome::Unresponsive => "the sandbox did not answer any more".into(),
        Outcome::Completed { .. } => "it completed".into(),
    }
}

/// Runs commands of one session.
#[derive(Debug)]
pub struct Executor {
    surroundings: Surroundings,
    program: HostPath,
}

impl Executor {
    /// `main` of this program begins with [`run_if_asked`](crate::run_if_asked).
    pub fn new(surroundings: Surroundings) -> io::Result<Self> {
        Ok(Self::with_program(surroundings, std::env::current_exe()?))
    }

    /// As [`Executor::new`], with another program that begins so.
    pub fn with_program(surroundings: Surroundings, program: impl Into<PathBuf>) -> Self {
        Self { surroundings, program: HostPath(program.into()) }
    }

    /// Runs a command in the transactional view: what it does comes to the folders when it has
    /// ended, at once and as one step each. Whatever fails before that leaves them untouched.
    pub fn run(
        &self,
        folders: &[WorkFolder<'_>],
        mut exec: Exec,
        orders: Receiver<Order>,
        output: impl FnMut(Stream, &[u8]),
    ) -> Result<Finished, RunError> {
        let label = exec.command.to_string();
        let mut steps = Vec::new();
        for folder in folders {
            steps.push(folder.worker.map(|worker| Step::open(worker, &label)).transpose()?);
        }
        let spec = self.spec(folders, &steps)?;
        self.complete(&mut exec, folders);
        let sandbox = Sandbox::start(&spec)?;
        sandbox.open()?;
        let outcome = converse(sandbox.channel(), exec, orders, output)?;
        let confinement = sandbox.confinement();
        let limits_are_shared = sandbox.limits_are_shared();
        // Nothing of the command may be left when its changes are looked at.
        sandbox.end()?;
        if !matches!(outcome, Outcome::Completed { .. }) {
            // Nobody knows how far it came: the folders stay as they were.
            return Err(RunError::Lost(outcome));
        }
        // All of them before the first is final.
        let mut reports = Vec::new();
        for step in &mut steps {
            reports.push(step.as_mut().map(Step::adopt).transpose()?);
        }
        let mut done = Vec::new();
        for (step, report) in steps.into_iter().zip(reports) {
            let closed = step.map(|step| step.close(outcome.exit_code())).transpose()?;
            done.push(closed.zip(report).map(|(closed, report)| FolderStep { closed, report }));
        }
        Ok(Finished { outcome, steps: done, confinement, limits_are_shared })
    }

    fn spec(
        &self,
        folders: &[WorkFolder<'_>],
        steps: &[Option<Step<'_>>],
    ) -> Result<Spec, RunError> {
        let surroundings = &self.surroundings;
        let folders = folders.iter().zip(steps).map(|(folder, step)| Folder {
            path: folder.path.into(),
            view: match step {
                Some(step) => FolderView::Transactional { staging: step.staging.clone() },
                None => FolderView::ReadOnly,
            },
        });
        Ok(Spec {
            system: surroundings.system(),
            hidden: surroundings.hidden(),
            folders: folders.collect(),
            home: surroundings.home()?,
            tmp: surroundings.tmp().into(),
            network: surroundings.network().clone(),
            limits: surroundings.limits(),
            nested_namespaces: surroundings.nested_namespaces(),
            program: self.program.clone(),
        })
    }

    /// What the command does not say about where and how it runs.
    fn complete(&self, exec: &mut Exec, folders: &[WorkFolder<'_>]) {
        use std::os::unix::ffi::OsStrExt;
        let mut variables = self.surroundings.environment();
        variables.append(&mut exec.env);
        exec.env = variables;
        exec.clear_env = true;
        if exec.cwd.is_none() {
            exec.cwd = folders
                .first()
                .map(|folder| ByteString::from(folder.path.as_os_str().as_bytes().to_vec()));
        }
    }
}

/// An open step and what is staged for it. Dropping it leaves the folder as it was.
struct Step<'w> {
    worker: &'w Client,
    number: u64,
    staging: HostPath,
    state: StepState,
}

#[derive(PartialEq)]
enum StepState {
    Staged,
    Adopted,
    Closed,
}

impl<'w> Step<'w> {
    fn open(worker: &'w Client, label: &str) -> Result<Self, WorkerError> {
        worker.open_step(StepRequest::command(label))?;
        match worker.stage() {
            Ok(staging) => Ok(Self {
                worker,
                number: staging.number,
                staging: staging.path.into(),
                state: StepState::Staged,
            }),
            Err(error) => {
                let _ = worker.abort_step();
                Err(error)
            }
        }
    }

    fn adopt(&mut self) -> Result<OverlayReport, WorkerError> {
        let report = self.worker.adopt_overlay(self.number)?;
        self.state = StepState::Adopted;
        Ok(report)
    }

    fn close(mut self, exit_code: Option<i32>) -> Result<ClosedStep, WorkerError> {
        let closed = self.worker.close_step(exit_code)?;
        self.state = StepState::Closed;
        Ok(closed)
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if self.state == StepState::Staged {
            let _ = self.worker.drop_staged(self.number);
        }
        if self.state != StepState::Closed {
            let _ = self.worker.abort_step();
        }
    }
}
