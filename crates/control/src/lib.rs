//! The control channel between the host and the shim that runs commands.
//!
//! [`HostMessage`] and [`ShimMessage`] are what travels, one JSON object a line
//! (`docs/control-protocol.md`). [`MessageReader`] and [`MessageWriter`] carry them over any byte
//! stream. [`ControlHost`] is the host's side of the conversation, without any I/O; [`Line`]
//! does it.

mod error;
mod framing;
mod host;
mod line;
mod message;

pub use codeagent_common::ByteString;
pub use error::{ControlError, LineFault, Result};
pub use framing::{LineDecoder, MAX_LINE_BYTES, Message, MessageReader, MessageWriter, encode};
pub use host::{ControlHost, Event, Outcome, PATIENCE, Violation};
pub use line::{Line, LineError, Order};
pub use message::{
    Cause, CommandId, CommandLine, Exec, ExitStatus, HostMessage, Leftovers, PROTOCOL_VERSION,
    PtySize, STDIN_WINDOW_BYTES, ShimErrorCode, ShimMessage, Stdin, Stream, User,
};
