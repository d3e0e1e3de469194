//! Errors, as the driver wants them.

use codeagent_common::ErrorCode;
use codeagent_interceptor::UndoError;
use windows_sys::Win32::Foundation::{
    NTSTATUS, STATUS_ACCESS_DENIED, STATUS_DISK_FULL, STATUS_MEDIA_WRITE_PROTECTED,
    STATUS_OBJECT_NAME_INVALID, STATUS_UNEXPECTED_IO_ERROR,
};

pub(super) use codeagent_windows::host::{Outcome, of_io};

pub(super) fn of_refusal(error: UndoError) -> NTSTATUS {
    match error {
        UndoError::Io { source, .. } => of_io(source),
        other => match other.code() {
            ErrorCode::ReadOnly => STATUS_MEDIA_WRITE_PROTECTED,
            ErrorCode::SafeguardDenied | ErrorCode::PathProtected => STATUS_ACCESS_DENIED,
            ErrorCode::HeldQueueFull | ErrorCode::LimitExceeded | ErrorCode::LowDiskSpace => {
                STATUS_DISK_FULL
            }
            ErrorCode::InvalidPath => STATUS_OBJECT_NAME_INVALID,
            _ => STATUS_UNEXPECTED_IO_ERROR,
        },
    }
}
