//! Questions that hold operations until somebody answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use codeagent_common::{
    Refusal, RelPath, RelPathBuf, SafeguardConfig, SafeguardDecision, SafeguardId, SafeguardKind,
    SafeguardRequest, StepId,
};
use parking_lot::{Condvar, Mutex};

use super::hooks::Stop;
use super::state::{Denial, StepSafeguards};
use crate::error::{Result, UndoError};

const SAMPLED_PATHS: usize = 10;

/// A question that an operation raises before it happens.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) kind: SafeguardKind,
    pub(super) count: u64,
    pub(super) sample_paths: Vec<RelPathBuf>,
    pub(super) message: String,
}

/// Where open questions lie. At most one at a time for each engine: while it is open, every
/// other mutation waits here too.
#[derive(Default)]
pub(super) struct SafeguardDesk {
    /// Mirrors `Desk::open`, for the hot path.
    pending: AtomicBool,
    inner: Mutex<Desk>,
    answered: Condvar,
}

#[derive(Default)]
struct Desk {
    last_id: u64,
    open: Option<SafeguardId>,
    /// The answer to the open question, or, after its time, the lack of one. Given once.
    decision: Option<SafeguardDecision>,
    waiting: usize,
}

impl SafeguardDesk {
    /// Waits while a question is open. Fails if too many wait already.
    pub(super) fn wait_until_clear(&self, config: &SafeguardConfig) -> Result<()> {
        if self.is_clear() {
            return Ok(());
        }
        let mut desk = self.inner.lock();
        if desk.open.is_some() && desk.waiting >= config.max_held_operations {
            return Err(UndoError::HeldQueueFull);
        }
        desk.waiting += 1;
        while desk.open.is_some() {
            self.answered.wait(&mut desk);
        }
        desk.waiting -= 1;
        Ok(())
    }

    pub(super) fn is_clear(&self) -> bool {
        !self.pending.load(Ordering::Acquire)
    }

    /// Opens a question; `None` if another one is open.
    pub(super) fn open(
        &self,
        (step, shared): (StepId, bool),
        question: Question,
    ) -> Option<SafeguardRequest> {
        let mut desk = self.inner.lock();
        if desk.open.is_some() {
            return None;
        }
        desk.last_id += 1;
        let id = SafeguardId(desk.last_id);
        desk.open = Some(id);
        desk.decision = None;
        self.pending.store(true, Ordering::Release);
        let Question { kind, count, sample_paths, message } = question;
        Some(SafeguardRequest { id, step, kind, count, sample_paths, message, shared })
    }

    /// Waits for the answer to the open question, and says whether it was given; none in time means
    /// deny.
    pub(super) fn decision(&self, timeout: Duration) -> (SafeguardDecision, bool) {
        let deadline = Instant::now() + timeout;
        let mut desk = self.inner.lock();
        loop {
            if let Some(decision) = desk.decision {
                return (decision, true);
            }
            if self.answered.wait_until(&mut desk, deadline).timed_out() {
                let answered = desk.decision.is_some();
                return (*desk.decision.get_or_insert(SafeguardDecision::Deny), answered);
            }
        }
    }

    /// Closes the question and lets the others go on.
    pub(super) fn close(&self) {
        let mut desk = self.inner.lock();
        desk.open = None;
        self.pending.store(false, Ordering::Release);
        drop(desk);
        self.answered.notify_all();
    }

    pub(super) fn answer(&self, id: SafeguardId, decision: SafeguardDecision) -> Result<()> {
        let mut desk = self.inner.lock();
        if desk.open != Some(id) || desk.decision.is_some() {
            return Err(UndoError::SafeguardUnknown(id));
        }
        desk.decision = Some(decision);
        self.answered.notify_all();
        Ok(())
    }
}

/// An operation that is not done.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) kind: SafeguardKind,
    pub(super) path: Option<RelPathBuf>,
}

impl Question {
    /// What it is about, should the answer be no.
    pub(super) fn refused(&self) -> Refused {
        // The last one is of the operation that asks.
        Refused { kind: self.kind, path: self.sample_paths.last().cloned() }
    }
}

impl StepSafeguards {
    /// What a question leads to: it is asked, unless the answer is known.
    pub(super) fn stop(&mut self, step: StepId, question: Question) -> Stop {
        match self.denied.get(&question.kind).cloned() {
            None => Stop::Ask(question),
            Some(denial) => {
                let error = denial.error(step);
                self.refuse(&denial, question.refused());
                Stop::Error(error)
            }
        }
    }

    /// From now on, operations of this kind are refused.
    pub(super) fn deny(&mut self, denial: Denial, refused: Refused) -> Refusal {
        self.denied.insert(refused.kind, denial.clone());
        self.refuse(&denial, refused)
    }

    fn refuse(&mut self, denial: &Denial, Refused { kind, path }: Refused) -> Refusal {
        let known = self.refusals.iter().position(|refusal| refusal.kind == kind);
        let nth = known.unwrap_or(self.refusals.len());
        if known.is_none() {
            let Denial { safeguard, asked } = denial.clone();
            self.refusals.push(Refusal { safeguard, kind, asked, count: 0, sample_paths: vec![] });
        }
        let refusal = &mut self.refusals[nth];
        refusal.count = refusal.count.saturating_add(1);
        if let Some(path) = path
            && refusal.sample_paths.len() < SAMPLED_PATHS
            && !refusal.sample_paths.contains(&path)
        {
            refusal.sample_paths.push(path);
        }
        refusal.clone()
    }

    /// Counts the removal of entries that the step did not create; asks before the one that
    /// reaches the threshold.
    pub(super) fn on_delete(
        &mut self,
        config: &SafeguardConfig,
        step: StepId,
        path: RelPath<'_>,
        entries: u64,
    ) -> Option<Question> {
        let threshold = config.delete_threshold?;
        let count = self.deletes.saturating_add(entries);
        if count >= threshold && !self.allowed.contains(&SafeguardKind::DeleteCount) {
            let mut sample_paths = self.deleted_paths.clone();
            sample_paths.push(path.to_buf());
            return Some(Question {
                kind: SafeguardKind::DeleteCount,
                count,
                sample_paths,
                message: format!(
                    "step {step} is about to delete {path}, its deletion number {count}"
                ),
            });
        }
        self.deletes = count;
        if self.deleted_paths.len() < SAMPLED_PATHS {
            self.deleted_paths.push(path.to_buf());
        }
        None
    }

    pub(super) fn on_overwrite(
        &self,
        config: &SafeguardConfig,
        step: StepId,
        path: RelPath<'_>,
        size_bytes: u64,
    ) -> Option<Question> {
        let threshold = config.overwrite_threshold_bytes?;
        let asks =
            size_bytes >= threshold && !self.allowed.contains(&SafeguardKind::OverwriteLarge);
        asks.then(|| Question {
            kind: SafeguardKind::OverwriteLarge,
            count: size_bytes,
            sample_paths: vec![path.to_buf()],
            message: format!("step {step} is about to overwrite {path} ({size_bytes} bytes)"),
        })
    }

    pub(super) fn on_rename_over(
        &self,
        config: &SafeguardConfig,
        step: StepId,
        to: RelPath<'_>,
    ) -> Option<Question> {
        let asks =
            config.rename_over_existing && !self.allowed.contains(&SafeguardKind::RenameOver);
        asks.then(|| Question {
            kind: SafeguardKind::RenameOver,
            count: 1,
            sample_paths: vec![to.to_buf()],
            message: format!("step {step} is about to replace {to} by a rename"),
        })
    }
}
