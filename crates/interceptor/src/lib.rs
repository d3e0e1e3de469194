//! The write interceptor and the undo engine.
//!
//! A filesystem front end asks [`WriteInterceptor::before`] for a [`Permit`] before each mutation.
//! [`UndoEngine`] answers by recording how to undo it; see `docs/undo-log-format.md` for what it
//! writes, and ARCHITECTURE.md for how the parts fit.
//!
//! Front ends for other systems than Linux can be written against the interface; the engine itself
//! exists on Linux only.

mod conflict;
mod error;
mod events;
mod file_id;
mod interceptor;
mod permit;

pub use conflict::{Conflict, ConflictKind};
pub use error::{Result, UndoError};
pub use events::{EngineEvent, EventSink, IgnoreEvents};
pub use file_id::FileId;
pub use interceptor::{
    Allocation, BorrowedFile, Entered, FileRef, Mutation, OpenFile, RenameMode, Whereabouts,
    WriteInterceptor,
};
pub use permit::Permit;

#[cfg(target_os = "linux")]
mod capture;
#[cfg(target_os = "linux")]
mod clock;
#[cfg(target_os = "linux")]
mod config;
#[cfg(target_os = "linux")]
mod engine;
#[cfg(target_os = "linux")]
mod fold;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod ignored;
#[cfg(target_os = "linux")]
mod inspect;
#[cfg(target_os = "linux")]
mod lineage;
#[cfg(target_os = "linux")]
mod probe;
#[cfg(target_os = "linux")]
mod store;

#[cfg(target_os = "linux")]
pub use {
    clock::{Clock, SystemClock},
    config::{AllowAll, EngineConfig, PathPolicy},
    engine::{
        AbortedStep, AdoptReport, ClientCache, ClosedStep, EntryContent, HistoryEntry, OnConflict,
        OverlayReport, OwnChanges, Preview, RecoveryReport, RestoreReport, RollbackOptions,
        RollbackReport, StagedChange, Staging, StepRequest, StoreStatus, UndoEngine,
    },
    inspect::{Finding, VerifyReport, dump, is_empty, verify},
    probe::{Fault, FaultInjector, Point},
    store::{Belonging, SOCKET, belonging, working_dir_of},
};
