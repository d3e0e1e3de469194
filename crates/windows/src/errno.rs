//! Errors of Windows, as a Linux guest knows them.
//!
//! Numbers, not names of this system's constants: the guest is a Linux whatever the host is, and
//! the tables can be tested anywhere.

/// An error number of Linux.
pub type Errno = u32;

pub const EPERM: Errno = 1;
pub const ENOENT: Errno = 2;
pub const EINTR: Errno = 4;
pub const EIO: Errno = 5;
pub const EBADF: Errno = 9;
pub const EAGAIN: Errno = 11;
pub const ENOMEM: Errno = 12;
pub const EACCES: Errno = 13;
pub const EBUSY: Errno = 16;
pub const EEXIST: Errno = 17;
pub const EXDEV: Errno = 18;
pub const ENODEV: Errno = 19;
pub const ENOTDIR: Errno = 20;
pub const EISDIR: Errno = 21;
pub const EINVAL: Errno = 22;
pub const EMFILE: Errno = 24;
pub const ETXTBSY: Errno = 26;
pub const EFBIG: Errno = 27;
pub const ENOSPC: Errno = 28;
pub const EROFS: Errno = 30;
pub const EMLINK: Errno = 31;
pub const ERANGE: Errno = 34;
pub const ENAMETOOLONG: Errno = 36;
pub const ENOLCK: Errno = 37;
pub const ENOTEMPTY: Errno = 39;
pub const ELOOP: Errno = 40;
pub const ENODATA: Errno = 61;
pub const EILSEQ: Errno = 84;
pub const EOPNOTSUPP: Errno = 95;
pub const ETIMEDOUT: Errno = 110;
pub const ESTALE: Errno = 116;
pub const EREMOTEIO: Errno = 121;
pub const EDQUOT: Errno = 122;

/// What `GetLastError` says.
const WIN32: &[(u32, Errno)] = &[
    (1, EOPNOTSUPP),     // ERROR_INVALID_FUNCTION
    (2, ENOENT),         // ERROR_FILE_NOT_FOUND
    (3, ENOENT),         // ERROR_PATH_NOT_FOUND
    (4, EMFILE),         // ERROR_TOO_MANY_OPEN_FILES
    (5, EACCES),         // ERROR_ACCESS_DENIED
    (6, EBADF),          // ERROR_INVALID_HANDLE
    (8, ENOMEM),         // ERROR_NOT_ENOUGH_MEMORY
    (14, ENOMEM),        // ERROR_OUTOFMEMORY
    (15, ENODEV),        // ERROR_INVALID_DRIVE
    (16, EBUSY),         // ERROR_CURRENT_DIRECTORY
    (17, EXDEV),         // ERROR_NOT_SAME_DEVICE
    (19, EROFS),         // ERROR_WRITE_PROTECT
    (21, EBUSY),         // ERROR_NOT_READY
    (23, EIO),           // ERROR_CRC
    (29, EIO),           // ERROR_WRITE_FAULT
    (30, EIO),           // ERROR_READ_FAULT
    (32, EBUSY),         // ERROR_SHARING_VIOLATION
    (33, EAGAIN),        // ERROR_LOCK_VIOLATION
    (36, EMFILE),        // ERROR_SHARING_BUFFER_EXCEEDED
    (39, ENOSPC),        // ERROR_HANDLE_DISK_FULL
    (50, EOPNOTSUPP),    // ERROR_NOT_SUPPORTED
    (53, ENOENT),        // ERROR_BAD_NETPATH
    (65, EACCES),        // ERROR_NETWORK_ACCESS_DENIED
    (80, EEXIST),        // ERROR_FILE_EXISTS
    (82, EACCES),        // ERROR_CANNOT_MAKE
    (87, EINVAL),        // ERROR_INVALID_PARAMETER
    (108, EBUSY),        // ERROR_DRIVE_LOCKED
    (111, ENAMETOOLONG), // ERROR_BUFFER_OVERFLOW
    (112, ENOSPC),       // ERROR_DISK_FULL
    (120, EOPNOTSUPP),   // ERROR_CALL_NOT_IMPLEMENTED
    (122, ERANGE),       // ERROR_INSUFFICIENT_BUFFER
    (123, EINVAL),       // ERROR_INVALID_NAME
    (131, EINVAL),       // ERROR_NEGATIVE_SEEK
    (145, ENOTEMPTY),    // ERROR_DIR_NOT_EMPTY
    (158, ENOLCK),       // ERROR_NOT_LOCKED
    (161, ENOENT),       // ERROR_BAD_PATHNAME
    (167, ENOLCK),       // ERROR_LOCK_FAILED
    (170, EBUSY),        // ERROR_BUSY
    (183, EEXIST),       // ERROR_ALREADY_EXISTS
    (206, ENAMETOOLONG), // ERROR_FILENAME_EXCED_RANGE
    (223, EFBIG),        // ERROR_FILE_TOO_LARGE
    (225, EPERM),        // ERROR_VIRUS_INFECTED
    (267, ENOTDIR),      // ERROR_DIRECTORY
    (303, ENOENT),       // ERROR_DELETE_PENDING
    (336, EISDIR),       // ERROR_DIRECTORY_NOT_SUPPORTED
    (362, EREMOTEIO),    // ERROR_CLOUD_FILE_PROVIDER_NOT_RUNNING
    (995, EINTR),        // ERROR_OPERATION_ABORTED
    (1006, ESTALE),      // ERROR_FILE_INVALID
    (1117, EIO),         // ERROR_IO_DEVICE
    (1142, EMLINK),      // ERROR_TOO_MANY_LINKS
    (1224, ETXTBSY),     // ERROR_USER_MAPPED_FILE
    (1295, EDQUOT),      // ERROR_DISK_QUOTA_EXCEEDED
    (1314, EPERM),       // ERROR_PRIVILEGE_NOT_HELD
    (1392, EIO),         // ERROR_FILE_CORRUPT
    (1393, EIO),         // ERROR_DISK_CORRUPT
    (1450, ENOMEM),      // ERROR_NO_SYSTEM_RESOURCES
    (1460, ETIMEDOUT),   // ERROR_TIMEOUT
    (1816, EDQUOT),      // ERROR_NOT_ENOUGH_QUOTA
    (1920, EACCES),      // ERROR_CANT_ACCESS_FILE
    (1921, ELOOP),       // ERROR_CANT_RESOLVE_FILENAME
    (4390, EINVAL),      // ERROR_NOT_A_REPARSE_POINT
    (4392, EINVAL),      // ERROR_INVALID_REPARSE_DATA
    (4393, EINVAL),      // ERROR_REPARSE_TAG_INVALID
    (4395, ELOOP),       // ERROR_REPARSE_POINT_ENCOUNTERED
    (6009, EACCES),      // ERROR_FILE_ENCRYPTED (cannot be decrypted)
];

/// What the kernel says.
const NT: &[(u32, Errno)] = &[
    (0xc000_0002, EOPNOTSUPP),   // STATUS_NOT_IMPLEMENTED
    (0xc000_0008, EBADF),        // STATUS_INVALID_HANDLE
    (0xc000_000d, EINVAL),       // STATUS_INVALID_PARAMETER
    (0xc000_000e, ENODEV),       // STATUS_NO_SUCH_DEVICE
    (0xc000_000f, ENOENT),       // STATUS_NO_SUCH_FILE
    (0xc000_0010, EOPNOTSUPP),   // STATUS_INVALID_DEVICE_REQUEST
    (0xc000_0017, ENOMEM),       // STATUS_NO_MEMORY
    (0xc000_0022, EACCES),       // STATUS_ACCESS_DENIED
    (0xc000_0024, ENOTDIR),      // STATUS_OBJECT_TYPE_MISMATCH
    (0xc000_0033, EINVAL),       // STATUS_OBJECT_NAME_INVALID
    (0xc000_0034, ENOENT),       // STATUS_OBJECT_NAME_NOT_FOUND
    (0xc000_0035, EEXIST),       // STATUS_OBJECT_NAME_COLLISION
    (0xc000_0039, ENOENT),       // STATUS_OBJECT_PATH_INVALID
    (0xc000_003a, ENOENT),       // STATUS_OBJECT_PATH_NOT_FOUND
    (0xc000_003b, ENOENT),       // STATUS_OBJECT_PATH_SYNTAX_BAD
    (0xc000_0043, EBUSY),        // STATUS_SHARING_VIOLATION
    (0xc000_0044, EDQUOT),       // STATUS_QUOTA_EXCEEDED
    (0xc000_0054, EAGAIN),       // STATUS_FILE_LOCK_CONFLICT
    (0xc000_0055, EAGAIN),       // STATUS_LOCK_NOT_GRANTED
    (0xc000_0056, ENOENT),       // STATUS_DELETE_PENDING: gone for whoever looks
    (0xc000_0061, EPERM),        // STATUS_PRIVILEGE_NOT_HELD
    (0xc000_007f, ENOSPC),       // STATUS_DISK_FULL
    (0xc000_009a, ENOMEM),       // STATUS_INSUFFICIENT_RESOURCES
    (0xc000_00a2, EROFS),        // STATUS_MEDIA_WRITE_PROTECTED
    (0xc000_00ba, EISDIR),       // STATUS_FILE_IS_A_DIRECTORY
    (0xc000_00bb, EOPNOTSUPP),   // STATUS_NOT_SUPPORTED
    (0xc000_00d4, EXDEV),        // STATUS_NOT_SAME_DEVICE
    (0xc000_0101, ENOTEMPTY),    // STATUS_DIRECTORY_NOT_EMPTY
    (0xc000_0102, EIO),          // STATUS_FILE_CORRUPT_ERROR
    (0xc000_0103, ENOTDIR),      // STATUS_NOT_A_DIRECTORY
    (0xc000_0106, ENAMETOOLONG), // STATUS_NAME_TOO_LONG
    (0xc000_011f, EMFILE),       // STATUS_TOO_MANY_OPENED_FILES
    (0xc000_0120, EINTR),        // STATUS_CANCELLED
    (0xc000_0121, EPERM),        // STATUS_CANNOT_DELETE
    (0xc000_0123, ENOENT),       // STATUS_FILE_DELETED
    (0xc000_0128, EBADF),        // STATUS_FILE_CLOSED
    (0xc000_0185, EIO),          // STATUS_IO_DEVICE_ERROR
    (0xc000_0243, ETXTBSY),      // STATUS_USER_MAPPED_FILE
    (0xc000_0265, EMLINK),       // STATUS_TOO_MANY_LINKS
    (0xc000_0275, EINVAL),       // STATUS_NOT_A_REPARSE_POINT
    (0xc000_0276, EINVAL),       // STATUS_IO_REPARSE_TAG_INVALID
    (0xc000_0279, EACCES),       // STATUS_IO_REPARSE_TAG_NOT_HANDLED
    (0xc000_0280, ELOOP),        // STATUS_REPARSE_POINT_NOT_RESOLVED
    (0xc000_0904, EFBIG),        // STATUS_FILE_TOO_LARGE
    (0xc000_050b, ELOOP),        // STATUS_REPARSE_POINT_ENCOUNTERED
    (0xc000_cf00, EREMOTEIO),    // STATUS_CLOUD_FILE_PROVIDER_NOT_RUNNING
];

/// A Win32 error within an NTSTATUS.
const FACILITY_NTWIN32: u32 = 0xc007_0000;

/// Of `GetLastError`, which is what errors of the standard library carry.
pub fn of_win32(code: u32) -> Errno {
    found(WIN32, code)
}

/// Of an NTSTATUS that is an error.
pub fn of_status(status: i32) -> Errno {
    let status = status as u32;
    match status & 0xffff_0000 {
        FACILITY_NTWIN32 => of_win32(status & 0xffff),
        _ => found(NT, status),
    }
}

/// What no table has is an input/output error: it is wrong to guess that something can be repeated,
/// or is not there.
fn found(table: &[(u32, Errno)], code: u32) -> Errno {
    table.iter().find(|(known, _)| *known == code).map_or(EIO, |(_, errno)| *errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_decide_by_is_told_exactly() {
        let table = [
            (2, 0xc000_0034_u32, ENOENT),
            (5, 0xc000_0022, EACCES),
            (17, 0xc000_00d4, EXDEV),
            (19, 0xc000_00a2, EROFS),
            (32, 0xc000_0043, EBUSY),
            (112, 0xc000_007f, ENOSPC),
            (145, 0xc000_0101, ENOTEMPTY),
            (183, 0xc000_0035, EEXIST),
            (206, 0xc000_0106, ENAMETOOLONG),
            (267, 0xc000_0103, ENOTDIR),
            (1142, 0xc000_0265, EMLINK),
            (4395, 0xc000_050b, ELOOP),
        ];
        for (win32, status, errno) in table {
            assert_eq!(of_win32(win32), errno, "{win32}");
            assert_eq!(of_status(status as i32), errno, "{status:#x}");
            assert_eq!(of_status((FACILITY_NTWIN32 | win32) as i32), errno, "{win32}");
        }
    }

    #[test]
    fn what_nobody_knows_is_an_input_output_error() {
        assert_eq!(of_win32(0xdead), EIO);
        assert_eq!(of_status(0xc0de_0001_u32 as i32), EIO);
    }

    #[test]
    fn no_code_is_in_a_table_twice() {
        for table in [WIN32, NT] {
            let mut codes: Vec<u32> = table.iter().map(|(code, _)| *code).collect();
            codes.sort_unstable();
            let all = codes.len();
            codes.dedup();
            assert_eq!(codes.len(), all);
        }
    }
}
