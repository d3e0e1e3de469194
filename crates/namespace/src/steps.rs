//! The steps of a command: one for each folder that it may change, all of them or none.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use codeagent_common::StepId;
use codeagent_control::Outcome;
use codeagent_interceptor::{
    AbortedStep, ClosedStep, OnConflict, OverlayReport, Staging, StepRequest,
};
use codeagent_worker::{Client, Failure, Request, WorkerError};

use crate::executor::{FolderStep, KeptStep, RunError, View, WorkFolder};
use crate::launch::StartError;
use crate::report::Failed;
use crate::spec::FolderView;

/// How long the mount of a command may take to go.
const DETACH_PATIENCE: Duration = Duration::from_secs(5);

/// A step is closed when nothing was written for this long after its command ended,
const QUIET: Duration = Duration::from_millis(100);
/// but not later than this after it.
const QUIESCENCE_LIMIT: Duration = Duration::from_secs(2);

/// Open steps, in the order of the folders. Dropping them gives them up, as [`Steps::abort`] does.
#[derive(Debug)]
pub struct Steps<'w>(Vec<Option<Step<'w>>>);

impl<'w> Steps<'w> {
    pub fn open(folders: &[WorkFolder<'w>], label: &str, view: View) -> Result<Self, RunError> {
        let request = match view {
            View::Transactional => StepRequest::staged_command(label),
            View::Live => StepRequest::command(label),
            View::ReadOnly => return Ok(Self(folders.iter().map(|_| None).collect())),
        };
        Self::each(folders, |worker| Step::open(worker, request.clone(), view))
    }

    /// For a command that others run beside: what it changes while none of them has a step is an
    /// ambient one. Steps that are open meanwhile are shared, until the end of these.
    pub fn ambient(folders: &[WorkFolder<'w>]) -> Result<Self, RunError> {
        Self::each(folders, |worker| {
            worker.begin_background()?;
            Ok(Step::new(worker, None))
        })
    }

    fn each(
        folders: &[WorkFolder<'w>],
        open: impl Fn(&'w Client) -> Result<Step<'w>, RunError>,
    ) -> Result<Self, RunError> {
        let mut steps = Self(Vec::new());
        for folder in folders {
            match folder.worker.map(&open).transpose() {
                Ok(step) => steps.0.push(step),
                Err(error) => return Err(error.but_kept(steps.abort_unbegun(folders))),
            }
        }
        Ok(steps)
    }

    /// Nothing of the command may be left. Leaves the folders as they were, but for those in which a
    /// command in the background wrote meanwhile, those with a transaction, and those that cannot be
    /// brought back: what was done there is kept, in the step that comes back.
    pub fn abort(self, folders: &[WorkFolder<'_>]) -> Vec<KeptStep> {
        abort_all(folders, self.0, true)
    }

    /// The same, of a command that has not begun: in a transaction there is nothing of it.
    pub fn abort_unbegun(self, folders: &[WorkFolder<'_>]) -> Vec<KeptStep> {
        abort_all(folders, self.0, false)
    }

    /// Nothing of the command may be left. Everything it did becomes final, in all folders or, if
    /// that fails, in none.
    pub fn close(
        mut self,
        folders: &[WorkFolder<'_>],
        outcome: &Outcome,
    ) -> Result<Vec<Option<FolderStep>>, RunError> {
        if let [Some(step)] = self.0.as_mut_slice()
            && let Some(staging) = step.staging.take()
        {
            return match step.settle_and_close(&staging, outcome.exit_code()) {
                Ok((_, ClosedStep::Denied { asked, .. })) => {
                    let denied = RunError::Denied { outcome: outcome.clone(), asked };
                    Err(denied.but_kept(self.abort(folders)))
                }
                Ok((report, closed)) => Ok(vec![Some(FolderStep { closed, report })]),
                Err(reason) => Err(not_kept(outcome.clone(), reason).but_kept(self.abort(folders))),
            };
        }
        // All of them before the first is final.
        let settle = |step: &mut Option<Step<'_>>| step.as_mut().map(Step::settle).transpose();
        let reports = self.0.iter_mut().map(settle).collect::<Result<Vec<_>, _>>();
        let reports = match reports {
            Ok(reports) => reports,
            Err(reason) => {
                return Err(not_kept(outcome.clone(), reason).but_kept(self.abort(folders)));
            }
        };
        let closed = close_all(folders, self.0, outcome)?;
        let together = |(closed, report): (Option<_>, Option<_>)| {
            closed.zip(report).map(|(closed, report)| FolderStep { closed, report })
        };
        Ok(closed.into_iter().zip(reports).map(together).collect())
    }

    /// Has the folders whose changes are not staged served through these devices, in their order.
    pub(crate) fn attach(
        &mut self,
        devices: impl IntoIterator<Item = impl AsFd>,
        options: &[u8],
    ) -> Result<(), WorkerError> {
        let live = self.0.iter_mut().flatten().filter(|step| step.staging.is_none());
        for (step, device) in live.zip(devices) {
            step.attachment = Some(step.worker.attach(device, None, options.to_vec())?);
        }
        Ok(())
    }

    /// How each folder is seen.
    pub(crate) fn views(&self) -> impl Iterator<Item = FolderView> {
        self.0.iter().map(|step| match step {
            None => FolderView::ReadOnly,
            Some(Step { staging: None, .. }) => FolderView::Live,
            Some(Step { staging: Some(staging), .. }) => {
                FolderView::Transactional { staging: staging.path.clone().into() }
            }
        })
    }

    pub(crate) fn undo_dirs(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().flatten().filter_map(Step::undo_dir)
    }
}

/// Why a command's changes are not kept.
fn not_kept(outcome: Outcome, reason: WorkerError) -> RunError {
    match reason {
        WorkerError::Failed(Failure { asked: Some(asked), .. }) => {
            RunError::Denied { outcome, asked: asked.into() }
        }
        reason => RunError::NotKept { outcome, reason: Box::new(reason) },
    }
}

/// Makes the steps final: all of them or, if that fails, none but those that are shared.
fn close_all(
    folders: &[WorkFolder<'_>],
    steps: Vec<Option<Step<'_>>>,
    outcome: &Outcome,
) -> Result<Vec<Option<ClosedStep>>, RunError> {
    let mut closed = Vec::new();
    let mut steps = steps.into_iter();
    while let Some(mut step) = steps.next() {
        let result = step.as_mut().map(|step| step.close(outcome.exit_code())).transpose();
        let reason = match result {
            Ok(Some(ClosedStep::Denied { asked, .. })) => {
                RunError::Denied { outcome: outcome.clone(), asked }
            }
            Ok(step) => {
                closed.push(step);
                continue;
            }
            Err(reason) => not_kept(outcome.clone(), reason),
        };
        let mut kept = take_back(folders, &closed);
        let others = std::iter::once(step).chain(steps).collect();
        kept.extend(abort_all(folders.get(closed.len()..).unwrap_or_default(), others, true));
        return Err(reason.but_kept(kept));
    }
    Ok(closed)
}

/// What is final already is undone, because the rest cannot be kept; but nothing that may be somebody
/// else's, as a step is that was made in the background since then. What is left of it comes back.
fn take_back(folders: &[WorkFolder<'_>], closed: &[Option<ClosedStep>]) -> Vec<KeptStep> {
    let mut kept = Vec::new();
    for (folder, closed) in folders.iter().zip(closed) {
        if let (Some(worker), Some(ClosedStep::Recorded { step, shared, .. })) =
            (folder.worker, closed)
            && (*shared || worker.undo_newest(step.id, OnConflict::Refuse).is_err())
        {
            kept.push(KeptStep { folder: folder.path.to_owned(), step: step.id });
        }
    }
    kept
}

fn abort_all(
    folders: &[WorkFolder<'_>],
    steps: Vec<Option<Step<'_>>>,
    has_begun: bool,
) -> Vec<KeptStep> {
    let abort = |(folder, step): (&WorkFolder<'_>, Option<Step<'_>>)| {
        let step = step?.give_up(has_begun)?;
        Some(KeptStep { folder: folder.path.to_owned(), step })
    };
    folders.iter().zip(steps).filter_map(abort).collect()
}

/// An open step. Dropping it gives it up.
#[derive(Debug)]
struct Step<'w> {
    worker: &'w Client,
    /// Where changes are kept until the command has ended; in a live view they are not.
    staging: Option<Staging>,
    /// The mount that was made for this command, of a live view.
    attachment: Option<u64>,
    is_closed: bool,
    /// `None`: it is ambient. Others have steps of their own meanwhile, which are none of our business.
    id: Option<StepId>,
}

impl<'w> Step<'w> {
    fn open(worker: &'w Client, request: StepRequest, view: View) -> Result<Self, RunError> {
        let id = worker.open_step(request)?;
        let mut step = Self::new(worker, Some(id));
        if view == View::Transactional {
            step.staging = Some(worker.stage().map_err(no_staging)?);
        }
        Ok(step)
    }

    fn new(worker: &'w Client, id: Option<StepId>) -> Self {
        Self { worker, staging: None, attachment: None, is_closed: false, id }
    }

    /// Where the worker keeps what can be undone, as far as that is known.
    fn undo_dir(&self) -> Option<&Path> {
        self.staging.as_ref()?.path.ancestors().nth(2)
    }

    /// After this, everything the command did is in the folder and in the step.
    fn settle(&mut self) -> Result<OverlayReport, WorkerError> {
        match self.staging.take() {
            Some(staging) => {
                let adopted = self.worker.adopt_overlay(staging.number);
                if adopted.is_err() {
                    let _ = self.worker.drop_staged(staging.number);
                }
                adopted
            }
            None => {
                self.wait_until_quiet()?;
                Ok(OverlayReport::default())
            }
        }
    }

    /// Both, of the only folder there is: that is one call.
    fn settle_and_close(
        &mut self,
        staging: &Staging,
        exit_code: Option<i32>,
    ) -> Result<(OverlayReport, ClosedStep), WorkerError> {
        let done = self.worker.adopt_and_close(staging.number, exit_code);
        match &done {
            Ok(_) => self.is_closed = true,
            // If it was adopted, there is nothing to drop.
            Err(_) => drop(self.worker.drop_staged(staging.number)),
        }
        done
    }

    /// Until what is on its way has been done. A mount goes with the last process that sees it, a
    /// moment after that, and nobody writes through one that has gone; but what a guest has handed
    /// over is done even if that guest has died.
    fn wait_until_quiet(&self) -> Result<(), WorkerError> {
        let quiet = match self.attachment {
            Some(attachment) => {
                self.worker.wait_until_detached(attachment, DETACH_PATIENCE)?;
                Duration::ZERO
            }
            None => QUIET,
        };
        let quiescence = Request::WaitUntilQuiet { quiet, timeout: QUIESCENCE_LIMIT };
        self.worker.call::<bool>(quiescence).map(drop)
    }

    fn close(&mut self, exit_code: Option<i32>) -> Result<ClosedStep, WorkerError> {
        let closed = match self.id {
            Some(_) => self.worker.close_step(exit_code)?,
            None => self.worker.end_ambient_step()?.unwrap_or(ClosedStep::empty(StepId(0))),
        };
        self.is_closed = true;
        Ok(closed)
    }

    /// The step in which something of it may be left, if there is one.
    fn give_up(&mut self, has_begun: bool) -> Option<StepId> {
        if std::mem::replace(&mut self.is_closed, true) {
            return None;
        }
        let is_staged = self.staging.is_some();
        match self.staging.take() {
            Some(staging) => drop(self.worker.drop_staged(staging.number)),
            // What came later would be in no step, or in somebody else's.
            None => drop(self.wait_until_quiet()),
        }
        let id = self.id?;
        match self.worker.abort_step() {
            Ok(AbortedStep::TakenBack(_)) => None,
            Ok(AbortedStep::Kept(step)) => Some(step.id),
            // The transaction has what was done; what was staged has not come there.
            Ok(AbortedStep::Joined(transaction)) => {
                (has_begun && !is_staged).then_some(transaction)
            }
            // The next one takes back what was not finished.
            Err(WorkerError::Gone) => None,
            Err(_) => Some(id),
        }
    }
}

/// In a folder of somebody else, nothing can be staged that looks like it; the other view does
/// without.
fn no_staging(error: WorkerError) -> RunError {
    match error {
        WorkerError::Failed(failure) => {
            let failed = Failed::new("staging changes", failure.to_string());
            StartError::from(Failed { errno: failure.errno, view: true, ..failed }).into()
        }
        error => error.into(),
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.give_up(true);
        if self.id.is_none() {
            let _ = self.worker.end_background(); // it has gone, and with it what it counted
        }
    }
}
