//! Steps that are made of what is handed to the engine: staged trees, changes of file tools.
//!
//! Until the first of it comes, others change the folder as if there were no such step, in ambient
//! ones. From then on they wait until it has ended: nothing of theirs may end up in it, or would be
//! taken back with it.
//!
//! ```text
//! open_step          first own change              close_step, abort_step
//!     │  reserved        │  open, alone                 │
//!     ├──────────────────┼──────────────────────────────┤
//! others: ambient steps  │  wait                        │  go on
//! ```

use std::sync::Arc;

use codeagent_common::{RelPath, StepId};
use parking_lot::{ArcRwLockWriteGuard, RawRwLock};

use super::UndoEngine;
use crate::error::Result;
use crate::host::FileId;
use crate::interceptor::{Entered, Mutation, Whereabouts, WriteInterceptor};
use crate::permit::Permit;

/// Held by a step that takes nothing but its own changes: nobody else's mutation is on its way, nor
/// begins. Dropped with the step, however that ends.
pub(super) type Alone = ArcRwLockWriteGuard<RawRwLock, ()>;

impl UndoEngine {
    /// The step that was reserved for own changes, if there is one, becomes the open one. Waits for
    /// what is on its way, and so must not be called with a lock that others may wait for.
    pub(super) fn open_reserved(&self) -> Result<()> {
        if self.state.read().reserved.is_none() {
            return Ok(());
        }
        // What others have written so far is theirs.
        self.write_out_caches();
        let alone = self.others.write_arc();
        let mut state = self.state.write();
        self.finish_interrupted(&mut state)?;
        self.end_ambient(&mut state)?;
        if let Some(mut step) = state.reserved.take() {
            step.alone = Some(alone);
            state.open = Some(step);
        }
        Ok(())
    }

    /// Others wait for the end of the open step. Whoever ends it must not wait for them.
    pub(super) fn is_alone(&self) -> bool {
        self.state.read().open.as_ref().is_some_and(|step| step.alone.is_some())
    }
}

/// The interceptor of the changes that a step with [`StepRequest::own`](super::StepRequest) is
/// made of; to the engine itself come those of everybody else.
#[derive(Debug, Clone)]
pub struct OwnChanges(pub Arc<UndoEngine>);

impl WriteInterceptor for OwnChanges {
    fn enter(&self) -> Result<Entered<'_>> {
        self.0.open_reserved()?;
        Ok(Entered::default())
    }

    fn before_at<'e>(
        &'e self,
        mutation: &Mutation<'_>,
        whereabouts: Whereabouts,
    ) -> Result<Permit<'e>> {
        self.0.before_of(mutation, whereabouts, true)
    }

    /// There are few of them.
    fn repeat_write<'e>(&'e self, _: FileId, _: u64, _: u64) -> Option<Permit<'e>> {
        None
    }

    fn kept_names(&self, file: FileId) -> u32 {
        self.0.kept_names(file)
    }

    fn inspects(&self, path: RelPath<'_>) -> bool {
        self.0.inspects(path)
    }

    fn may_wait(&self) -> bool {
        self.0.may_wait()
    }

    fn current_step(&self) -> Option<StepId> {
        self.0.state.read().begun().map(|step| step.id)
    }
}
