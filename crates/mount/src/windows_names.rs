//! Which names of Windows may reach the host, and what the engine calls them.
//!
//! Plain functions on UTF-16, so that they can be tested anywhere. The host is asked by handle and
//! by NT path, where Windows itself checks little: `CON` or `a.` would become files that no
//! ordinary program can open or remove, and `a:b` a stream that nobody recorded.

use codeagent_common::RelPathBuf;

const BACKSLASH: u16 = b'\\' as u16;
const MAX_NAME_UNITS: usize = 255;

/// A path below the root of a volume: what the driver says, `\dir\name`, without its first
/// separator, and the same in the engine's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumePath {
    /// Relative, for the host; empty for the root.
    pub(crate) units: Vec<u16>,
    pub(crate) path: RelPathBuf,
}

impl VolumePath {
    /// `None` if a component is not a name.
    pub(crate) fn new(full: &[u16]) -> Option<Self> {
        let units = full.strip_prefix(&[BACKSLASH]).unwrap_or(full);
        if units.is_empty() {
            return Some(Self { units: Vec::new(), path: RelPathBuf::default() });
        }
        let mut text = String::with_capacity(units.len());
        for name in units.split(|unit| *unit == BACKSLASH) {
            if !text.is_empty() {
                text.push('/');
            }
            text.push_str(&checked_name(name)?);
        }
        let path = RelPathBuf::new(text).ok()?;
        Some(Self { units: units.to_vec(), path })
    }

    /// The directory and the last name; `None` for the root.
    pub(crate) fn split(&self) -> Option<(&[u16], &[u16])> {
        if self.units.is_empty() {
            return None;
        }
        Some(match self.units.iter().rposition(|unit| *unit == BACKSLASH) {
            Some(at) => (&self.units[..at], &self.units[at + 1..]),
            None => (&[], &self.units),
        })
    }
}

/// What follows `root` in `full`, both as the host spells them; `None` if it lies elsewhere.
pub(crate) fn below<'a>(root: &[u16], full: &'a [u16]) -> Option<&'a [u16]> {
    let root = root.strip_suffix(&[BACKSLASH]).unwrap_or(root);
    match full.strip_prefix(root)? {
        [] => Some(&[]),
        [BACKSLASH, rest @ ..] => Some(rest),
        _ => None,
    }
}

/// The name as text, if an ordinary program could use it as well.
pub(crate) fn checked_name(units: &[u16]) -> Option<String> {
    if units.is_empty() || units.len() > MAX_NAME_UNITS {
        return None;
    }
    let name = String::from_utf16(units).ok()?; // halves of characters have no name for the engine
    let forbidden = |c: char| c < ' ' || r#"<>:"/\|?*"#.contains(c);
    let ordinary = !name.contains(forbidden) && !name.ends_with(['.', ' ']);
    (ordinary && !is_device(&name)).then_some(name)
}

/// Names that mean a device in every directory, with any extension.
fn is_device(name: &str) -> bool {
    let stem = name.split(['.', ':']).next().unwrap_or(name).trim_end_matches(' ');
    let stem = stem.to_ascii_uppercase();
    if ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"].contains(&stem.as_str()) {
        return true;
    }
    let port = stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT"));
    let mut digits = port.unwrap_or_default().chars();
    matches!((digits.next(), digits.next()), (Some('0'..='9' | '¹' | '²' | '³'), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(text: &str) -> Vec<u16> {
        text.encode_utf16().collect()
    }

    #[test]
    fn ordinary_names_pass_as_they_are() {
        for name in ["a", ".git", "a b", "CONSOLE", "COM", "COM10", "lpt", "nul_", "ä€😀", "...a"]
        {
            assert_eq!(checked_name(&wide(name)).as_deref(), Some(name));
        }
    }

    #[test]
    fn names_that_mean_something_else_are_refused() {
        for name in [
            "", ".", "..", "a.", "a ", "a/b", "a\\b", "a:b", "a*", "a?", "a|b", "<a>", "\"a\"",
            "a\n", "a\0", "CON", "con", "Nul.txt", "aux .c", "COM1", "lpt9.log", "COM¹", "CONIN$",
        ] {
            assert_eq!(checked_name(&wide(name)), None, "{name:?}");
        }
        assert_eq!(checked_name(&[0xd800]), None);
        assert_eq!(checked_name(&wide(&"a".repeat(256))), None);
    }

    #[test]
    fn a_volume_path_is_the_engines_path_with_other_separators() {
        let path = VolumePath::new(&wide(r"\src\main.rs")).unwrap();
        assert_eq!(path.path.as_path().as_bytes(), b"src/main.rs");
        assert_eq!(path.split(), Some((&wide("src")[..], &wide("main.rs")[..])));
        let root = VolumePath::new(&wide(r"\")).unwrap();
        assert!(root.path.as_path().is_root() && root.split().is_none());
        for bad in [r"\..\a", r"\a\..\b", r"\a\\b", r"\\a", r"\a\", r"\a:stream", r"\a/b"] {
            assert_eq!(VolumePath::new(&wide(bad)), None, "{bad}");
        }
    }

    #[test]
    fn containment_is_by_component() {
        let root = wide(r"\\?\C:\work");
        let rest = |full: &str| below(&root, &wide(full)).map(<[u16]>::to_vec);
        assert_eq!(rest(r"\\?\C:\work\a\b"), Some(wide(r"a\b")));
        assert_eq!(rest(r"\\?\C:\work"), Some(vec![]));
        assert_eq!(rest(r"\\?\C:\workshop\a"), None);
        assert_eq!(rest(r"\\?\D:\work\a"), None);
        assert_eq!(below(&wide(r"\\?\C:\"), &wide(r"\\?\C:\a")), Some(&wide("a")[..]));
    }
}
