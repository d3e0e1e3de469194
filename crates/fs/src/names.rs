//! Names that clients send. The filesystem below hands them to the host as they are, so whatever
//! could lead somewhere else ends here.

use std::ffi::CStr;
use std::io;

/// A name of exactly one entry of a directory.
pub(crate) fn check_name(name: &CStr) -> io::Result<()> {
    match name.to_bytes() {
        b"" | b"." | b".." => Err(invalid()),
        bytes if bytes.contains(&b'/') => Err(invalid()),
        _ => Ok(()),
    }
}

/// Names of extended attributes lead nowhere.
pub(crate) fn check_attribute_name(name: &CStr) -> io::Result<()> {
    if name.is_empty() { Err(invalid()) } else { Ok(()) }
}

/// Where the host keeps POSIX ACLs.
pub(crate) fn is_acl(attribute: &CStr) -> bool {
    [c"system.posix_acl_access", c"system.posix_acl_default"].contains(&attribute)
}

pub(crate) fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

pub(crate) fn bad_descriptor() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_of_any_bytes_pass() {
        for name in [c"a", c"a b\n", c"...", c"..a", c".git", c"\xff\xfe", c"~", c"-rf"] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_invalid() {
        for name in [c"", c".", c"..", c"/", c"/etc", c"../x", c"a/b", c"a/", c"./a"] {
            let error = check_name(name).err();
            assert_eq!(
                error.and_then(|error| error.raw_os_error()),
                Some(libc::EINVAL),
                "{name:?}"
            );
        }
    }
}
