//! Paths below the root of a folder, as the host spells them and as the engine does.

use codeagent_common::RelPathBuf;

use crate::names::{checked_units, guest_name};

const BACKSLASH: u16 = b'\\' as u16;

/// As long as a path can be, `\\?\` and the NUL behind it included. The system counts its bytes in
/// 16 bits.
pub const MAX_PATH_UNITS: usize = 32_767;

/// A path below the root of a volume: what the host says, `\dir\name`, without its first
/// separator, and the same in the engine's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePath {
    /// Relative, for the host; empty for the root.
    pub units: Vec<u16>,
    pub path: RelPathBuf,
}

impl VolumePath {
    /// `None` if a component is not a name that ordinary programs could use.
    pub fn new(full: &[u16]) -> Option<Self> {
        Self::of(full, |name| checked_units(name).map(String::into_bytes))
    }

    /// What the host says that is there, with whatever names it has. `None` if a component is no
    /// name at all.
    pub fn existing(full: &[u16]) -> Option<Self> {
        Self::of(full, |name| Some(guest_name(name)))
    }

    fn of(full: &[u16], told: impl Fn(&[u16]) -> Option<Vec<u8>>) -> Option<Self> {
        let units = full.strip_prefix(&[BACKSLASH]).unwrap_or(full);
        if units.is_empty() {
            return Some(Self { units: Vec::new(), path: RelPathBuf::default() });
        }
        let mut bytes = Vec::with_capacity(units.len());
        for name in units.split(|unit| *unit == BACKSLASH) {
            if !bytes.is_empty() {
                bytes.push(b'/');
            }
            let told = told(name)?;
            if told.contains(&b'/') {
                return None;
            }
            bytes.extend(told);
        }
        let path = RelPathBuf::new(bytes).ok()?;
        Some(Self { units: units.to_vec(), path })
    }

    /// The path with one more component. `None` if that is no name.
    pub fn join(&self, name: &[u16]) -> Option<Self> {
        let path = self.path.as_path().join(&guest_name(name)).ok()?;
        let mut units = self.units.clone();
        if !units.is_empty() {
            units.push(BACKSLASH);
        }
        units.extend_from_slice(name);
        Some(Self { units, path })
    }

    /// The directory and the last name; `None` for the root.
    pub fn split(&self) -> Option<(&[u16], &[u16])> {
        if self.units.is_empty() {
            return None;
        }
        Some(match self.units.iter().rposition(|unit| *unit == BACKSLASH) {
            Some(at) => (&self.units[..at], &self.units[at + 1..]),
            None => (&[], &self.units),
        })
    }

    /// Whether the host can have it below `root`, whose path it spells with `root_units` units.
    pub fn fits(&self, root_units: usize) -> bool {
        const SEPARATOR_AND_NUL: usize = 2;
        root_units + self.units.len() + SEPARATOR_AND_NUL <= MAX_PATH_UNITS
    }
}

/// What follows `root` in `full`, both as the host spells them; `None` if it lies elsewhere.
pub fn below<'a>(root: &[u16], full: &'a [u16]) -> Option<&'a [u16]> {
    let root = root.strip_suffix(&[BACKSLASH]).unwrap_or(root);
    match full.strip_prefix(root)? {
        [] => Some(&[]),
        [BACKSLASH, rest @ ..] => Some(rest),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(text: &str) -> Vec<u16> {
        text.encode_utf16().collect()
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
    fn what_is_there_has_a_path_whatever_its_names_are() {
        let path = VolumePath::existing(&wide(r"nul\a. \con.txt")).unwrap();
        assert_eq!(path.path.as_path().as_bytes(), b"nul/a. /con.txt");
        let half = VolumePath::existing(&[b'a'.into(), BACKSLASH, 0xd800]).unwrap();
        assert_eq!(half.path.as_path().as_bytes(), b"a/\xed\xa0\x80");
        for bad in [r"a\..\b", r"a\\b", r"a\", "a/b"] {
            assert_eq!(VolumePath::existing(&wide(bad)), None, "{bad}");
        }
    }

    #[test]
    fn a_joined_path_is_the_same_on_both_sides() {
        let root = VolumePath::existing(&[]).unwrap();
        let file = root.join(&wide("a")).unwrap().join(&wide("b")).unwrap();
        assert_eq!(Some(file), VolumePath::existing(&wide(r"a\b")));
        assert_eq!(root.join(&wide("..")), None);
        assert_eq!(root.join(&wide("a/b")), None);
    }

    #[test]
    fn long_paths_end_where_windows_says() {
        let name = "a".repeat(200);
        let path = VolumePath::existing(&wide(&[&*name; 160].join("\\"))).unwrap();
        assert_eq!(path.units.len(), 32_159);
        assert!(path.fits(600) && path.fits(606));
        assert!(!path.fits(607));
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
