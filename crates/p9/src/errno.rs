//! Errors as the protocol carries them: the numbers of Linux, whatever the host is.

use std::fmt;
use std::io;

/// A Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub u32);

macro_rules! numbers {
    ($($name:ident = $number:literal,)*) => {
        #[allow(missing_docs, reason = "they are called as everywhere")]
        impl Errno {
            $(pub const $name: Self = Self($number);)*

            fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

numbers! {
    EPERM = 1,
    ENOENT = 2,
    EINTR = 4,
    EIO = 5,
    ENXIO = 6,
    E2BIG = 7,
    EBADF = 9,
    EAGAIN = 11,
    ENOMEM = 12,
    EACCES = 13,
    EBUSY = 16,
    EEXIST = 17,
    EXDEV = 18,
    ENODEV = 19,
    ENOTDIR = 20,
    EISDIR = 21,
    EINVAL = 22,
    ENFILE = 23,
    EMFILE = 24,
    EFBIG = 27,
    ENOSPC = 28,
    EROFS = 30,
    EMLINK = 31,
    ERANGE = 34,
    EDEADLK = 35,
    ENAMETOOLONG = 36,
    ENOLCK = 37,
    ENOSYS = 38,
    ENOTEMPTY = 39,
    ELOOP = 40,
    ENODATA = 61,
    EPROTO = 71,
    EOVERFLOW = 75,
    EMSGSIZE = 90,
    EOPNOTSUPP = 95,
    ESTALE = 116,
    EDQUOT = 122,
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Errno {}

/// On Linux the number itself; elsewhere, what the kind of the error comes closest to.
impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        #[cfg(target_os = "linux")]
        if let Some(number) = error.raw_os_error() {
            return Self(number.unsigned_abs());
        }
        Self::from(error.kind())
    }
}

impl From<io::ErrorKind> for Errno {
    fn from(kind: io::ErrorKind) -> Self {
        use io::ErrorKind as K;
        match kind {
            K::NotFound => Self::ENOENT,
            K::PermissionDenied => Self::EACCES,
            K::AlreadyExists => Self::EEXIST,
            K::InvalidInput | K::InvalidData => Self::EINVAL,
            K::NotADirectory => Self::ENOTDIR,
            K::IsADirectory => Self::EISDIR,
            K::DirectoryNotEmpty => Self::ENOTEMPTY,
            K::ReadOnlyFilesystem => Self::EROFS,
            K::StorageFull => Self::ENOSPC,
            K::QuotaExceeded => Self::EDQUOT,
            K::FileTooLarge => Self::EFBIG,
            K::ResourceBusy | K::ExecutableFileBusy => Self::EBUSY,
            K::CrossesDevices => Self::EXDEV,
            K::TooManyLinks => Self::EMLINK,
            K::InvalidFilename => Self::EINVAL,
            K::Interrupted => Self::EINTR,
            K::WouldBlock => Self::EAGAIN,
            K::Unsupported => Self::EOPNOTSUPP,
            K::OutOfMemory => Self::ENOMEM,
            K::StaleNetworkFileHandle => Self::ESTALE,
            _ => Self::EIO,
        }
    }
}
