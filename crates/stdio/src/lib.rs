//! The API for frontends: one JSON object a line, requests in, responses and events out.
//!
//! Whoever has a session implements the traits of [`operations`], one per group, and gives the
//! result to [`serve`]. Everything that travels is a type of this crate, and has a JSON Schema
//! ([`schema`]). `docs/stdio-api.md` is the page for those who write frontends.
//!
//! ```text
//! reader ── parse ──► lanes (threads) ── handler ──► outbox ──► writer
//!             │                             │ events ──┘
//!             └ cancel, hello: at once
//! ```

mod call;
mod envelope;
mod error;
mod event;
mod failure;
mod lanes;
mod line;
pub mod operations;
mod outbox;
pub mod schema;
mod server;
mod values;

pub use call::{Call, Events};
pub use envelope::{Envelope, Refusal, RequestId};
pub use error::StdioError;
pub use event::{
    AgentOutput, ErrorReport, Event, ExternalModification, Lagged, OutputStream, Recovery,
    SafeguardTriggered, StepCompleted, TerminalOutput, UndoVersionMismatch, Warning,
};
pub use failure::{Failure, Outcome};
pub use operations::{Handler, Lane, Request};
pub use server::{Limits, serve, serve_with};
pub use values::{
    Barrier, Conflict, ConflictKind, DeniedOperations, DirectoryRef, HistoryEntry, StepSummary,
    WirePath, limit_paths,
};

/// The newest version of the protocol that is spoken here.
pub const PROTOCOL_VERSION: u32 = 1;

/// The oldest one.
pub const MIN_PROTOCOL_VERSION: u32 = 1;

/// No request may be longer, its newline not counted. A longer line is skipped as it arrives.
pub const MAX_LINE_BYTES: usize = 1024 * 1024;
