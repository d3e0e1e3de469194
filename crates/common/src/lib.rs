//! The vocabulary of the sandbox: what every crate means by a step, a barrier, a safeguard, a path.
//!
//! No I/O happens here; see ARCHITECTURE.md for the glossary.

mod byte_string;
mod cancel;
mod change;
mod error_code;
mod path;
#[cfg(unix)]
pub mod path_bytes;
mod policy;
mod pool;
mod safeguard;
mod step;

pub use byte_string::ByteString;
pub use cancel::CancelToken;
pub use change::{Change, ChangeKind, EntryKind};
pub use error_code::ErrorCode;
pub use path::{InvalidPath, RelPath, RelPathBuf};
pub use policy::{
    ExternalModificationPolicy, OverLimitPolicy, PathUse, PathVerdict, ResourceLimits,
    SymlinkPolicy,
};
pub use pool::Pool;
pub use safeguard::{
    Refusal, SafeguardConfig, SafeguardDecision, SafeguardId, SafeguardKind, SafeguardRequest,
};
pub use step::{BarrierId, BarrierInfo, Protection, StepId, StepInfo, StepKind, Timestamp};
