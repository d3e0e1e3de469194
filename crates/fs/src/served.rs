//! What whoever serves a filesystem to a client has to ask it, and to tell it.

use codeagent_interceptor::WriteInterceptor;

use crate::in_flight::Unanswered;
use crate::intercepted::InterceptedFs;

/// A filesystem that knows whether its client waits.
pub trait Served {
    /// Whether a mutation that comes now might have to wait for somebody's answer, or for an undo.
    fn may_wait(&self) -> bool;

    /// A request was taken from the client, of whichever kind. To be dropped when it has its answer.
    fn taken(&self) -> Unanswered;

    /// Counts a mutation as on its way until its client has been told how it went, too.
    fn until_told<T>(&self, work: impl FnOnce() -> T) -> T;
}

impl<I: WriteInterceptor> Served for InterceptedFs<I> {
    fn may_wait(&self) -> bool {
        Self::may_wait(self)
    }

    fn taken(&self) -> Unanswered {
        Self::taken(self)
    }

    fn until_told<T>(&self, work: impl FnOnce() -> T) -> T {
        Self::until_told(self, work)
    }
}
