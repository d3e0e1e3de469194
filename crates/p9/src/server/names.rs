//! Names that clients send. Whatever could lead somewhere else ends here.

use crate::errno::Errno;
use crate::share::Result;

/// What filesystems bear.
const LONGEST: usize = 255;

/// A name of exactly one entry of a directory.
pub(super) fn check(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Errno::EINVAL),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Errno::EINVAL),
        _ if name.len() > LONGEST => Err(Errno::ENAMETOOLONG),
        _ => Ok(()),
    }
}

/// The name of an extended attribute: leads nowhere.
pub(super) fn check_attribute(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Errno::EINVAL),
        _ if name.contains(&0) => Err(Errno::EINVAL),
        _ if name.len() > LONGEST => Err(Errno::ERANGE),
        _ => Ok(()),
    }
}

/// Where a link leads is anybody's business, as long as a kernel could say it.
pub(super) fn check_target(target: &[u8]) -> Result<()> {
    match target {
        b"" => Err(Errno::ENOENT),
        _ if target.contains(&0) => Err(Errno::EINVAL),
        _ if target.len() > 4095 => Err(Errno::ENAMETOOLONG),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_of_any_bytes_pass() {
        for name in
            [&b"a"[..], b"a b\n", b"...", b"..a", b".git", b"\xff\xfe", b"-rf", &[b'x'; 255]]
        {
            assert_eq!(check(name), Ok(()), "{name:?}");
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_invalid() {
        for name in [&b""[..], b".", b"..", b"/", b"/etc", b"../x", b"a/b", b"a/", b"a\0b", b"\0"] {
            assert_eq!(check(name), Err(Errno::EINVAL), "{name:?}");
        }
        assert_eq!(check(&[b'x'; 256]), Err(Errno::ENAMETOOLONG));
    }
}
