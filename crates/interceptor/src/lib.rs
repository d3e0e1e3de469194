//! The write interceptor and the undo engine.
//!
//! A filesystem front end asks [`WriteInterceptor::before`] for a [`Permit`] before each mutation.
//! [`UndoEngine`] answers by recording how to undo it; see `docs/undo-log-format.md` for what it
//! writes, and ARCHITECTURE.md for how the parts fit.

mod capture;
mod clock;
mod config;
mod engine;
mod error;
mod events;
mod fold;
mod host;
mod ignored;
mod inspect;
mod interceptor;
mod lineage;
mod probe;
mod store;

pub use clock::{Clock, SystemClock};
pub use config::{AllowAll, EngineConfig, PathPolicy};
pub use engine::{
    AdoptReport, ClientCache, ClosedStep, Conflict, ConflictKind, HistoryEntry, OnConflict, Permit,
    Preview, RecoveryReport, RestoreReport, RollbackOptions, RollbackReport, StagedChange,
    StepRequest, StoreStatus, UndoEngine,
};
pub use error::{Result, UndoError};
pub use events::{EngineEvent, EventSink, IgnoreEvents};
pub use host::FileId;
pub use inspect::{Finding, VerifyReport, dump, verify};
pub use interceptor::{Allocation, FileRef, Mutation, RenameMode, WriteInterceptor};
pub use probe::{Fault, FaultInjector, Point};
pub use store::{SOCKET, working_dir_of};
