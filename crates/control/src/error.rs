//! What can go wrong on the control channel.

use std::sync::Arc;

use thiserror::Error;

use crate::CommandId;

pub type Result<T, E = ControlError> = std::result::Result<T, E>;

/// A line that was no message. It was skipped; the channel goes on. Never holds what the line said:
/// output of commands does not belong in logs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LineFault {
    #[error("a line of more than {limit_bytes} bytes was skipped")]
    TooLong { limit_bytes: usize },
    #[error("a line is not JSON (byte {column})")]
    MalformedJson { column: usize },
    #[error("a line is JSON, but has no `type`")]
    MissingType,
    #[error("a message is of the unknown type `{name}`")]
    UnknownType { name: String },
    #[error("a message of the type `{name}` does not have the fields of one")]
    InvalidFields { name: &'static str },
}

/// Why the host cannot do what it was asked to.
#[derive(Debug, Clone, Error)]
pub enum ControlError {
    #[error("a message is {size_bytes} bytes long; the limit is {limit_bytes}")]
    MessageTooLong { size_bytes: usize, limit_bytes: usize },
    #[error("the message cannot be written as JSON")]
    Encode(#[source] Arc<serde_json::Error>),
    #[error("the shim has not said hello yet")]
    NotReady,
    #[error("the shim is gone")]
    Disconnected,
    #[error("the shim does not read what it is sent")]
    Unread,
    #[error("the shim speaks version {shim} of the control protocol, this host version {host}")]
    VersionMismatch { host: u32, shim: u32 },
    #[error("there is no running command {id}")]
    UnknownCommand { id: CommandId },
    #[error("command {id} takes {room_bytes} more bytes of input now, not {size_bytes}")]
    StdinFull { id: CommandId, room_bytes: usize, size_bytes: usize },
}

impl From<serde_json::Error> for ControlError {
    fn from(error: serde_json::Error) -> Self {
        Self::Encode(Arc::new(error))
    }
}

impl ControlError {
    /// What a person can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::VersionMismatch { .. } => {
                Some("use the shim that was built with this host; rebuild the guest image")
            }
            _ => None,
        }
    }
}
