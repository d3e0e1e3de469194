//! Where something is mounted, as this process sees it.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// In the order in which they were made: later ones lie upon earlier ones.
pub fn mount_points() -> io::Result<Vec<PathBuf>> {
    Ok(points_in(&std::fs::read("/proc/self/mountinfo")?))
}

fn points_in(table: &[u8]) -> Vec<PathBuf> {
    let point = |line: &[u8]| {
        line.split(|byte| *byte == b' ').nth(4).map(|point| PathBuf::from(unescape(point)))
    };
    table.split(|byte| *byte == b'\n').filter_map(point).collect()
}

/// Spaces and the like are written as backslashes and three octal digits.
fn unescape(name: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| *first == b'\\');
        let byte = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &behind[3..] } else { behind };
    }
    OsString::from_vec(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_they_were_mounted() {
        let table = b"36 35 98:0 / /work/a\\040b/mnt rw - ext4 /dev/x rw\n\
                      37 35 98:0 / /plain rw - ext4 /dev/x rw\n";
        assert_eq!(points_in(table), ["/work/a b/mnt", "/plain"].map(PathBuf::from));
    }
}
