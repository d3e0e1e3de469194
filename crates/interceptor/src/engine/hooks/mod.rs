//! The hot path: what happens before each mutation.
//!
//! | file | what it holds |
//! |---|---|
//! | `names` | entries that appear, disappear or get other names |
//! | `change` | content and attributes of one inode, found by name or by handle |
//! | `judge` | policies and safeguards, asked first |
//! | `locks` | what mutations under way keep still |

mod change;
mod judge;
mod locks;
mod names;

use codeagent_common::{EntryKind, RelPath, SafeguardDecision, StepId};
use parking_lot::RwLockReadGuard;
use rustix::io::Errno;

use super::UndoEngine;
use super::safeguard::{Question, SafeguardDesk};
use super::state::{Denial, OpenStep, State};
use crate::capture::{Span, Wanted};
use crate::clock::timestamp;
use crate::error::{Result, UndoError};
use crate::events::EngineEvent;
use crate::host::FileId;
use crate::interceptor::{
    Allocation, Entered, Mutation, RenameMode, Whereabouts, WriteInterceptor,
};
use crate::permit::Permit;

/// Journal space kept free for the record of a mutation.
const RECORD_ROOM: u64 = 512;

/// Why a mutation does not go on at once.
pub(super) enum Stop {
    Error(UndoError),
    /// Somebody has to be asked first; nothing has been recorded.
    Ask(Question),
}

impl From<UndoError> for Stop {
    fn from(error: UndoError) -> Self {
        Self::Error(error)
    }
}

type Attempt<'e> = std::result::Result<Permit<'e>, Stop>;

fn errno<'e>(errno: Errno) -> Attempt<'e> {
    Err(UndoError::host(errno.into()).into())
}

impl WriteInterceptor for UndoEngine {
    fn enter(&self) -> Result<Entered<'_>> {
        Ok(Entered::sharing(self.others.read()))
    }

    fn kept_names(&self, file: FileId) -> u32 {
        self.count_kept(file)
    }

    fn before_at<'e>(
        &'e self,
        mutation: &Mutation<'_>,
        whereabouts: Whereabouts,
    ) -> Result<Permit<'e>> {
        self.before_of(mutation, whereabouts, false)
    }

    fn repeat_write<'e>(&'e self, file: FileId, offset: u64, length: u64) -> Option<Permit<'e>> {
        if !self.desk.is_clear() {
            return None;
        }
        let gate = self.state.read();
        let step = self.usable_step(&gate)?;
        let wanted = Wanted::Content(Span::of(offset, length));
        let covered = step.denied.get().is_none()
            && step.alone.is_none()
            && step.recorder()?.inodes.check(file, |state| state.covers(wanted));
        (covered && self.workspace.space.spend(length)).then(|| Permit::gated(gate))
    }

    fn inspects(&self, path: RelPath<'_>) -> bool {
        self.config.paths.inspects(path)
    }

    fn may_wait(&self) -> bool {
        !self.safeguards.read().asks_nothing()
            || !self.desk.is_clear()
            || self.state.try_read().is_none_or(|state| {
                state.reserved.is_some()
                    || state.open.as_ref().is_some_and(|step| step.alone.is_some())
            })
    }

    fn current_step(&self) -> Option<StepId> {
        self.state.read().open.as_ref().map(|step| step.id)
    }
}

impl UndoEngine {
    /// As [`WriteInterceptor::before_at`]; `own`: of the changes that the open step is made of.
    pub(super) fn before_of<'e>(
        &'e self,
        mutation: &Mutation<'_>,
        whereabouts: Whereabouts,
        own: bool,
    ) -> Result<Permit<'e>> {
        if self.config.read_only {
            return Err(UndoError::ReadOnly);
        }
        loop {
            let safeguards = *self.safeguards.read();
            self.desk.wait_until_clear(&safeguards)?;
            let gate = self.state.read();
            if gate.retired {
                return Err(UndoError::host(Errno::SHUTDOWN.into()));
            }
            if gate.disabled.is_some() {
                self.judge(mutation, None)?;
                self.verify(mutation, whereabouts, None)?;
                return Ok(Permit::gated(gate));
            }
            if gate.interrupted.is_some() {
                drop(gate);
                self.finish_interrupted(&mut self.state.write())?;
                continue;
            }
            let Some(step) = self.usable_step(&gate) else {
                drop(gate);
                self.renew_ambient_step()?;
                continue;
            };
            if step.alone.is_some() && !own {
                // Of whoever did not say that he would come.
                drop(gate);
                drop(self.enter()?);
                continue;
            }
            let id = step.id;
            if let Some(denial) = step.denied.get() {
                return Err(denial.error(id));
            }
            match self.attempt(gate, mutation, whereabouts) {
                Ok(permit) => return Ok(permit),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Ask(question)) => self.ask(id, question)?,
            }
        }
    }

    /// The open step, unless it is an ambient one that has been quiet for too long.
    fn usable_step<'s>(&self, state: &'s State) -> Option<&'s OpenStep> {
        let step = state.open.as_ref()?;
        // Attempts that a denied step refuses do not keep it alive.
        if step.id.is_ambient() && step.denied.get().is_none() {
            let now = timestamp(&self.config.clock);
            if self.ambient_expired(step, now) {
                return None;
            }
            // What it refuses is asked about again some time.
            if !step.refuses.load(std::sync::atomic::Ordering::Relaxed) {
                step.note_activity(now);
            }
        }
        Some(step)
    }

    /// Puts the question to whoever listens and waits. A denial undoes the step, or if it is shared
    /// refuses what was asked about.
    pub(super) fn ask(&self, step: StepId, question: Question) -> Result<()> {
        let (kind, refused) = (question.kind, question.refused());
        let of_step = |open: &OpenStep| open.id == step && open.shared;
        let shared = self.state.read().open.as_ref().is_some_and(of_step);
        let Some(request) = self.desk.open((step, shared), question) else {
            return Ok(()); // somebody else asked first: wait for their answer, then look again
        };
        let (question, asked) = (request.id, request.message.clone());
        let denial = Denial { safeguard: question, asked };
        let _closing = CloseOnDrop(&self.desk);
        self.config.events.event(EngineEvent::SafeguardTriggered(request));
        let timeout = self.safeguards.read().timeout;
        let (decision, in_time) = self.desk.decision(timeout);
        let (outcome, refused) = match decision {
            SafeguardDecision::Allow => {
                if let Some(open) = self.state.read().open.as_ref().filter(|open| open.id == step) {
                    open.safeguards.lock().allowed.insert(kind);
                }
                (Ok(()), None)
            }
            SafeguardDecision::Deny => {
                let error = denial.error(step);
                match self.deny_open_step(step, denial, refused) {
                    Ok(refusal) => (Err(error), refusal),
                    Err(failed) => (Err(failed), None),
                }
            }
        };
        let decided = EngineEvent::SafeguardDecided { question, step, decision, in_time, refused };
        self.config.events.event(decided);
        outcome
    }

    fn attempt<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        mutation: &Mutation<'_>,
        whereabouts: Whereabouts,
    ) -> Attempt<'e> {
        self.judge(mutation, gate.open.as_ref())?;
        self.check_growth(mutation)?;
        if self.ignores(mutation, gate.open.as_ref()) {
            self.verify(mutation, whereabouts, gate.open.as_ref())?;
            return Ok(Permit::gated(gate));
        }
        let recorder = self.recorder(&gate)?;
        recorder.make_room(RECORD_ROOM)?;
        let permit = if recorder.unprotected().is_some() {
            self.verify(mutation, whereabouts, gate.open.as_ref())?;
            Permit::gated(gate)
        } else {
            self.record(gate, mutation, whereabouts)?
        };
        self.tell_if_unprotected(&permit);
        Ok(permit)
    }

    fn record<'e>(
        &'e self,
        gate: RwLockReadGuard<'e, State>,
        mutation: &Mutation<'_>,
        whereabouts: Whereabouts,
    ) -> Attempt<'e> {
        let Whereabouts { dir, new_dir, file: number } = whereabouts;
        match *mutation {
            Mutation::Create { path, kind } => self.create(gate, (path, dir), kind),
            Mutation::Link { existing, path } => {
                self.link(gate, existing.map(|existing| (existing, number)), (path, dir))
            }
            Mutation::Mkdir { path } => self.create(gate, (path, dir), EntryKind::Directory),
            Mutation::Unlink { path } => self.unlink(gate, (path, dir)),
            Mutation::Rmdir { path } => self.rmdir(gate, (path, dir)),
            Mutation::Rename { from, to, mode: RenameMode::Exchange } => {
                self.exchange(gate, (from, dir), (to, new_dir))
            }
            Mutation::Rename { from, to, mode } => {
                self.rename(gate, (from, dir), (to, new_dir), mode)
            }
            Mutation::Write { file, offset, length } => {
                self.change(gate, (file, number), Wanted::Content(Span::of(offset, length)))
            }
            Mutation::Append { file } => {
                // Where the end is, is known for certain only while the inode is being captured.
                self.change(
                    gate,
                    (file, number),
                    Wanted::Content(Span { start: u64::MAX, end: u64::MAX }),
                )
            }
            Mutation::Truncate { file, length } => {
                self.change(gate, (file, number), Wanted::Content(Span::from(length)))
            }
            Mutation::Allocate { file, how, offset, length } => {
                let span = match how {
                    // Only bytes behind the end can change, and they read as zeros.
                    Allocation::Extend | Allocation::KeepSize => {
                        Span { start: u64::MAX, end: u64::MAX }
                    }
                    Allocation::PunchHole | Allocation::ZeroRange => Span::of(offset, length),
                    Allocation::CollapseRange | Allocation::InsertRange => Span::from(offset),
                };
                self.change(gate, (file, number), Wanted::Content(span))
            }
            Mutation::OpenUnseen { file } => {
                self.change(gate, (file, number), Wanted::Content(Span::ALL))
            }
            Mutation::SetAttributes { file } => {
                self.change(gate, (file, number), Wanted::Attributes)
            }
        }
    }

    fn tell_if_unprotected(&self, permit: &Permit<'_>) {
        if let Some((step, reason)) = permit.newly_unprotected() {
            self.config.events.event(EngineEvent::StepUnprotected { step, reason });
        }
    }
}

/// Closes the question that is open, whatever becomes of those who ask and answer.
struct CloseOnDrop<'d>(&'d SafeguardDesk);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
