//! Commands in sandboxes, each a step that can be undone.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use codeagent_common::StepId;
use codeagent_control::{ByteString, Exec, Line, LineError, Order, Outcome, Stream};
use codeagent_interceptor::{ClosedStep, OverlayReport};
use codeagent_worker::{Client, WorkerError};
use serde::{Deserialize, Serialize};

use crate::launch::{Sandbox, StartError};
use crate::report::{Confinement, Failed};
use crate::spec::{Folder, FolderView, HostPath, Spec};
use crate::steps::Steps;
use crate::surroundings::Surroundings;
use crate::work_dirs::WorkDirs;

/// How long the guard of a command may take to end whose disk is full.
const FULL_DISK_PATIENCE: Duration = Duration::from_secs(30);

/// A working directory of a session.
#[derive(Debug, Clone, Copy)]
pub struct WorkFolder<'a> {
    /// Canonical.
    pub path: &'a std::path::Path,
    /// The worker that holds its history; without one it is read-only.
    pub worker: Option<&'a Client>,
}

/// How a command sees the folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum View {
    /// What it does comes to the folders when it has ended, at once.
    #[default]
    Transactional,
    /// What it does is seen by everybody at once, and recorded before it happens.
    Live,
    /// The kernel refuses every change. There is no step, because there is nothing to undo.
    ReadOnly,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    pub outcome: Outcome,
    /// One for each folder, in their order; `None` for those that were read-only.
    pub steps: Vec<Option<FolderStep>>,
    pub view: View,
    /// Why it is not the view that was asked for.
    pub other_view: Option<String>,
    pub confinement: Confinement,
    /// Memory and processes are limited for all processes of the command together.
    pub limits_are_shared: bool,
    /// From the end of the command's last process until its steps were closed.
    pub committed_in: Duration,
}

/// What a command did to one folder.
#[derive(Debug)]
pub struct FolderStep {
    pub closed: ClosedStep,
    /// Of the transactional view.
    pub report: OverlayReport,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Conversation(#[from] LineError),
    #[error(transparent)]
    Worker(#[from] WorkerError),
    #[error("the command did not run to its end, and nothing of it was kept ({})", reason(.0))]
    Lost(Outcome),
    /// A safeguard asked, and the answer was no: the folders are as before.
    #[error(
        "the command ended, and nothing of what it did was kept, because this was denied: {asked}"
    )]
    Denied { outcome: Outcome, asked: String },
    /// There is no room for it, for example: the folders are as before.
    #[error("the command ended, and nothing of what it did was kept: {reason}")]
    NotKept { outcome: Outcome, reason: Box<WorkerError> },
    /// These folders are not as they were: a command in the background wrote there, too, what was done
    /// is part of a transaction, or they could not be brought back.
    #[error("{}; what had been done in {} was kept, and can be undone there", reason.cause(), listed(.kept))]
    PartlyKept { kept: Vec<KeptStep>, reason: Box<RunError> },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What was kept of a command that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptStep {
    pub folder: PathBuf,
    pub step: StepId,
}

impl fmt::Display for KeptStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (step {})", self.folder.display(), self.step)
    }
}

impl RunError {
    /// The same, of a command of which something was kept.
    pub fn but_kept(self, kept: Vec<KeptStep>) -> Self {
        match kept.is_empty() {
            true => self,
            false => Self::PartlyKept { kept, reason: Box::new(self) },
        }
    }

    /// What went wrong, without what became of the folders.
    fn cause(&self) -> String {
        match self {
            Self::Lost(outcome) => {
                format!("the command did not run to its end ({})", reason(outcome))
            }
            Self::Denied { asked, .. } => format!("this was denied: {asked}"),
            Self::NotKept { reason, .. } => reason.to_string(),
            other => other.to_string(),
        }
    }

    fn is_for_lack_of_room(&self) -> bool {
        match self {
            Self::NotKept { reason, .. } => matches!(
                &**reason,
                WorkerError::Failed(failure) if [libc::ENOSPC, libc::EDQUOT].contains(&failure.errno)
            ),
            Self::PartlyKept { reason, .. } => reason.is_for_lack_of_room(),
            _ => false,
        }
    }

    /// Why the view cannot be had, if it is that.
    fn lacking_view(self) -> Result<Failed, Self> {
        match self {
            Self::Start(StartError::Impossible(why_not)) if why_not.view => Ok(why_not),
            // It is in the history, whatever becomes of the command.
            Self::PartlyKept { kept, reason } => {
                reason.lacking_view().map_err(|reason| reason.but_kept(kept))
            }
            other => Err(other),
        }
    }
}

fn listed(kept: &[KeptStep]) -> String {
    kept.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
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
    live_options: Vec<u8>,
}

impl Executor {
    /// `main` of this program begins with [`run_if_asked`](crate::run_if_asked).
    pub fn new(surroundings: Surroundings) -> io::Result<Self> {
        Ok(Self::with_program(surroundings, std::env::current_exe()?))
    }

    /// As [`Executor::new`], with another program that begins so.
    pub fn with_program(surroundings: Surroundings, program: impl Into<PathBuf>) -> Self {
        Self { surroundings, program: HostPath(program.into()), live_options: Vec::new() }
    }

    /// What the worker's front end is told with the device of a live view.
    #[must_use]
    pub fn with_live_options(self, live_options: Vec<u8>) -> Self {
        Self { live_options, ..self }
    }

    /// Runs a command. Its changes are one step of each folder, whatever became of it; but if
    /// nobody knows what became of it, they are taken back.
    pub fn run(
        &self,
        folders: &[WorkFolder<'_>],
        exec: Exec,
        choice: ViewChoice,
        orders: Receiver<Order>,
        output: impl FnMut(Stream, &[u8]),
    ) -> Result<Finished, RunError> {
        self.run_and_tell(folders, exec, choice, orders, output, |_, _| {})
    }

    /// As [`Executor::run`]. If it is another view than the one that was asked for, `tell` is
    /// told which and why, before the command begins.
    pub fn run_and_tell(
        &self,
        folders: &[WorkFolder<'_>],
        mut exec: Exec,
        choice: ViewChoice,
        orders: Receiver<Order>,
        output: impl FnMut(Stream, &[u8]),
        tell: impl FnOnce(View, &Failed),
    ) -> Result<Finished, RunError> {
        let label = exec.label();
        self.complete(&mut exec, folders);
        let (first, second) = choice.plans();
        let mut other_view = None;
        let started = match (self.start(folders, &label, first), second) {
            (Err(error), Some(second)) => {
                let why_not = error.lacking_view()?;
                let started = self.start(folders, &label, second);
                let started = started.map_err(|error| neither(&why_not, error))?;
                tell(second.view, &why_not);
                other_view = Some(why_not.to_string());
                started
            }
            (started, _) => started?,
        };
        self.finish(folders, (started, other_view), exec, orders, output)
    }

    /// Runs the command in the sandbox that was made for it.
    fn finish(
        &self,
        folders: &[WorkFolder<'_>],
        (started, other_view): (Started<'_>, Option<String>),
        mut exec: Exec,
        orders: Receiver<Order>,
        output: impl FnMut(Stream, &[u8]),
    ) -> Result<Finished, RunError> {
        let Started { sandbox, work_dirs: _work_dirs, steps, view } = started;
        if view == View::Live {
            tell_git(&mut exec.env);
        }
        let line = Line::over(sandbox.channel()).map_err(LineError::from);
        let outcome = line.and_then(|line| line.run(exec, orders, output));
        let confinement = sandbox.confinement();
        let limits_are_shared = sandbox.limits_are_shared();
        // Nothing of the command may be left when its changes are looked at, or given up.
        let (outcome, guard) = match (sandbox.end(), outcome) {
            (Ok(guard), Ok(outcome @ Outcome::Completed { .. })) => (outcome, guard),
            (Ok(_), Ok(lost)) => {
                let kept = match &lost {
                    Outcome::NotStarted { .. } => steps.abort_unbegun(folders),
                    _ => steps.abort(folders),
                };
                return Err(RunError::Lost(lost).but_kept(kept));
            }
            (Err(error), _) => return Err(RunError::from(error).but_kept(steps.abort(folders))),
            (_, Err(error)) => return Err(RunError::from(error).but_kept(steps.abort(folders))),
        };
        let ended = Instant::now();
        let done = steps.close(folders, &outcome).inspect_err(|error| {
            // What was staged takes up room for as long as an overlay is there.
            if error.is_for_lack_of_room() {
                guard.wait(FULL_DISK_PATIENCE);
            }
        })?;
        let committed_in = ended.elapsed();
        Ok(Finished {
            outcome,
            steps: done,
            view,
            other_view,
            confinement,
            limits_are_shared,
            committed_in,
        })
    }

    /// As [`Executor::run`], for a command that others run beside: in the live view, and without
    /// a step of its own. What it changes while no other command has one is an ambient step.
    pub fn run_in_background(
        &self,
        folders: &[WorkFolder<'_>],
        mut exec: Exec,
        orders: Receiver<Order>,
        output: impl FnMut(Stream, &[u8]),
    ) -> Result<Finished, RunError> {
        self.complete(&mut exec, folders);
        let steps = Steps::ambient(folders)?;
        let started = self.start_in(folders, steps, View::Live.into())?;
        self.finish(folders, (started, None), exec, orders, output)
    }

    /// Opens the steps and makes the sandbox around them.
    fn start<'w>(
        &self,
        folders: &[WorkFolder<'w>],
        label: &str,
        plan: Plan,
    ) -> Result<Started<'w>, RunError> {
        self.start_in(folders, Steps::open(folders, label, plan.view)?, plan)
    }

    fn start_in<'w>(
        &self,
        folders: &[WorkFolder<'w>],
        mut steps: Steps<'w>,
        plan: Plan,
    ) -> Result<Started<'w>, RunError> {
        let started = self.spec(folders, &steps, plan).and_then(|(spec, work_dirs)| {
            let sandbox = Sandbox::start(&spec, |devices| {
                steps.attach(devices, &self.live_options).map_err(RunError::from)
            })?;
            Ok((sandbox, work_dirs))
        });
        match started {
            Ok((sandbox, work_dirs)) => Ok(Started { sandbox, work_dirs, steps, view: plan.view }),
            Err(error) => Err(error.but_kept(steps.abort_unbegun(folders))),
        }
    }

    fn spec(
        &self,
        folders: &[WorkFolder<'_>],
        steps: &Steps<'_>,
        plan: Plan,
    ) -> Result<(Spec, WorkDirs), RunError> {
        let surroundings = &self.surroundings;
        let undo_dirs = || steps.undo_dirs().map(HostPath::from);
        let in_folder = |path: &PathBuf| {
            let is_below = |folder: &WorkFolder<'_>| path.starts_with(folder.path);
            let leads_to = |folder: &WorkFolder<'_>| folder.path.starts_with(path);
            folders.iter().any(is_below) && !folders.iter().any(leads_to)
        };
        let hidden_in_folders = surroundings.hidden_in_folders().filter(in_folder);
        let views = steps.views().map(|view| match view {
            FolderView::ReadOnly if plan.is_sealed => FolderView::Sealed,
            view => view,
        });
        let with_view = folders.iter().zip(views);
        let with_view = with_view.map(|(folder, view)| Folder { path: folder.path.into(), view });
        let (home, work_dirs) = surroundings.home()?;
        let spec = Spec {
            system: surroundings.system(),
            hidden: surroundings.hidden().into_iter().chain(undo_dirs()).collect(),
            folders: with_view.collect(),
            hidden_in_folders: hidden_in_folders.map(HostPath).chain(undo_dirs()).collect(),
            home,
            tmp: surroundings.tmp().into(),
            empty: surroundings.empty().into(),
            network: surroundings.network().clone(),
            limits: surroundings.limits(),
            nested_namespaces: surroundings.nested_namespaces(),
            program: self.program.clone(),
        };
        Ok((spec, work_dirs))
    }

    /// What the command does not say about where and how it runs.
    fn complete(&self, exec: &mut Exec, folders: &[WorkFolder<'_>]) {
        use std::os::unix::ffi::OsStrExt;
        let paths: Vec<&Path> = folders.iter().map(|folder| folder.path).collect();
        let mut variables = self.surroundings.environment(&paths);
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

/// Why no view could be had. What kept the second one from being had may be easier to mend.
fn neither(first: &Failed, second: RunError) -> RunError {
    match second {
        RunError::Start(StartError::Impossible(second)) if second.view => {
            let reason = format!("{first}; {second}");
            let neither = Failed::new("no view of the folders can be had", reason);
            StartError::from(Failed { errno: second.errno, view: true, ..neither }).into()
        }
        other => other,
    }
}

/// FUSE numbers files anew in each live view, so git would take every one for another than the one
/// it knows, and read it. It is told to go by size and time.
pub fn tell_git(env: &mut BTreeMap<String, ByteString>) {
    const COUNT: &str = "GIT_CONFIG_COUNT";
    if env.contains_key(COUNT) {
        return; // whoever asked for the command tells git something himself
    }
    let settings =
        [(COUNT, "1"), ("GIT_CONFIG_KEY_0", "core.checkStat"), ("GIT_CONFIG_VALUE_0", "minimal")];
    env.extend(settings.map(|(name, value)| (name.to_owned(), value.into())));
}

/// Which view a command gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ViewChoice {
    /// The transactional one where it can be had, else the live one.
    #[default]
    Auto,
    /// The live one where it can be had, else the transactional one.
    AutoLive,
    /// This one or none.
    Only(View),
    /// [`View::ReadOnly`] for a command that is known to only read, or that others run beside: the
    /// folders themselves, at the speed they have. It can make no local sockets, with which it could
    /// reach those of the host.
    Reading,
}

/// How the folders of a command are made visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Plan {
    view: View,
    /// What cannot be changed is not the folder itself, but a picture of it.
    is_sealed: bool,
}

impl From<View> for Plan {
    fn from(view: View) -> Self {
        Self { view, is_sealed: false }
    }
}

impl ViewChoice {
    fn plans(self) -> (Plan, Option<Plan>) {
        match self {
            Self::Auto => (View::Transactional.into(), Some(View::Live.into())),
            Self::AutoLive => (View::Live.into(), Some(View::Transactional.into())),
            Self::Only(view @ View::ReadOnly) => {
                (Plan { view, is_sealed: true }, Some(view.into()))
            }
            Self::Only(view) => (view.into(), None),
            Self::Reading => (View::ReadOnly.into(), None),
        }
    }
}

struct Started<'w> {
    // Before the others: nothing of the command may be left when they are dropped.
    sandbox: Sandbox,
    work_dirs: WorkDirs,
    steps: Steps<'w>,
    view: View,
}
