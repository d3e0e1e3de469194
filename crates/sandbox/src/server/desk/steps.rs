//! `step.*`: a transaction spans all working directories; the answer is about the one that is named.

use codeagent_interceptor::{ClosedStep, UndoError};
use codeagent_stdio::operations::{StepBegin, StepBegun, StepCommit, StepCommitted, StepRollback};
use codeagent_stdio::{DirectoryRef, Outcome};

use super::{Desk, failure, summary};
use crate::error::SandboxError;
use crate::session::{Access, FolderInfo, Session};

impl Desk {
    pub(crate) fn begin_step(&self, request: StepBegin) -> Outcome<StepBegun> {
        let begin = |session: &Session| -> crate::Result<Vec<_>> {
            Ok(session.begin(&request.label)?.into_iter().map(Some).collect())
        };
        self.transact(request.directory.as_ref(), begin).map(|(step_id, ..)| StepBegun { step_id })
    }

    pub(crate) fn commit_step(&self, request: StepCommit) -> Outcome<StepCommitted> {
        let (closed, session, folder) =
            self.transact(request.directory.as_ref(), Session::commit)?;
        let step = match closed {
            ClosedStep::Recorded { step, .. } => Some(summary(&session, &folder.label, step)),
            _ => None,
        };
        Ok(StepCommitted { step })
    }

    pub(crate) fn rollback_step(&self, request: StepRollback) -> Outcome<StepBegun> {
        self.transact(request.directory.as_ref(), Session::rollback)
            .map(|(step_id, ..)| StepBegun { step_id })
    }

    fn transact<T>(
        &self,
        directory: Option<&DirectoryRef>,
        transact: impl FnOnce(&Session) -> crate::Result<Vec<Option<T>>>,
    ) -> Outcome<(T, std::sync::Arc<Session>, FolderInfo)> {
        let (session, folder) = self.directory(directory)?;
        let folders = session.folders().map_err(failure)?;
        let mut writable = folders.iter().filter(|other| other.access == Access::ReadWrite);
        let nth = writable
            .position(|other| other.label == folder.label)
            .ok_or_else(|| failure(SandboxError::ReadOnly(folder.path.clone())))?;
        let mut outcomes = transact(&session).map_err(failure)?;
        match outcomes.swap_remove(nth) {
            Some(outcome) => Ok((outcome, session, folder)),
            None => Err(failure(UndoError::NoStepOpen.into())),
        }
    }
}
