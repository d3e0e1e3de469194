//! Paths inside a working directory: relative, made of ordinary components only, any bytes.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a byte string is not a path inside a working directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPath {
    #[error("the path is absolute and not below the working directory")]
    Absolute,
    #[error("the path leads out of the working directory")]
    Outside,
    #[error("the path has an empty, \".\" or \"..\" component")]
    Component,
    #[error("the path has a NUL byte")]
    Nul,
}

/// A validated path relative to a working directory, borrowed.
///
/// The empty path is the working directory itself. Components are separated by `/` on every
/// platform; a component is never empty, `.` or `..`, and never holds a NUL byte. Whoever has a
/// `RelPath` can therefore not name anything outside, symlinks aside.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelPath<'a>(&'a [u8]);

/// An owned [`RelPath`].
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RelPathBuf(Vec<u8>);

impl<'a> RelPath<'a> {
    /// The working directory itself.
    pub const ROOT: RelPath<'static> = RelPath(b"");

    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPath> {
        if bytes.is_empty() {
            return Ok(Self(bytes));
        }
        if bytes[0] == b'/' {
            return Err(InvalidPath::Absolute);
        }
        for component in bytes.split(|byte| *byte == b'/') {
            check_name(component)?;
        }
        Ok(Self(bytes))
    }

    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    pub fn is_root(self) -> bool {
        self.0.is_empty()
    }

    pub fn to_buf(self) -> RelPathBuf {
        RelPathBuf(self.0.to_vec())
    }

    /// Parent directory and last component; `None` for the root.
    pub fn split(self) -> Option<(RelPath<'a>, &'a [u8])> {
        if self.0.is_empty() {
            return None;
        }
        Some(match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (RelPath(&self.0[..at]), &self.0[at + 1..]),
            None => (RelPath::ROOT, self.0),
        })
    }

    pub fn parent(self) -> Option<RelPath<'a>> {
        self.split().map(|(parent, _)| parent)
    }

    pub fn name(self) -> Option<&'a [u8]> {
        self.split().map(|(_, name)| name)
    }

    pub fn components(self) -> impl Iterator<Item = &'a [u8]> {
        self.0.split(|byte| *byte == b'/').filter(|component| !component.is_empty())
    }

    /// Whether this is `ancestor` or lies below it.
    pub fn is_within(self, ancestor: RelPath<'_>) -> bool {
        ancestor.is_root()
            || self.0 == ancestor.0
            || (self.0.starts_with(ancestor.0) && self.0.get(ancestor.0.len()) == Some(&b'/'))
    }

    /// What follows `ancestor`, if this lies within it.
    pub fn strip(self, ancestor: RelPath<'_>) -> Option<RelPath<'a>> {
        if !self.is_within(ancestor) {
            return None;
        }
        let rest = &self.0[ancestor.0.len()..];
        Some(RelPath(rest.strip_prefix(b"/").unwrap_or(rest)))
    }

    /// This path with one more component.
    pub fn join(self, name: &[u8]) -> Result<RelPathBuf, InvalidPath> {
        check_name(name)?;
        Ok(self.concat(RelPath(name)))
    }

    /// This path followed by another.
    pub fn concat(self, below: RelPath<'_>) -> RelPathBuf {
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + below.0.len());
        bytes.extend_from_slice(self.0);
        if !self.0.is_empty() && !below.0.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(below.0);
        RelPathBuf(bytes)
    }

    /// For people; bytes that are not UTF-8 are replaced.
    pub fn display(self) -> Cow<'a, str> {
        if self.is_root() { Cow::Borrowed(".") } else { String::from_utf8_lossy(self.0) }
    }
}

/// A single component that may be used as a name: no separator, no NUL, not `.` or `..`.
fn check_name(name: &[u8]) -> Result<(), InvalidPath> {
    if name.contains(&0) {
        return Err(InvalidPath::Nul);
    }
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') {
        return Err(InvalidPath::Component);
    }
    Ok(())
}

impl RelPathBuf {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, InvalidPath> {
        let bytes = bytes.into();
        RelPath::new(&bytes)?;
        Ok(Self(bytes))
    }

    /// What somebody means by `path` in the working directory `root`: relative, or absolute and
    /// below it, with `.`, `..` and superfluous separators wherever they like. Nothing is looked
    /// up, so a symlink may still lead anywhere.
    pub fn resolve(root: &[u8], path: &[u8]) -> Result<Self, InvalidPath> {
        if path.contains(&0) {
            return Err(InvalidPath::Nul);
        }
        let relative = if path.first() == Some(&b'/') {
            let path = normal(path).ok_or(InvalidPath::Absolute)?;
            let root = normal(root).ok_or(InvalidPath::Absolute)?;
            let below = path.as_path().strip(root.as_path());
            below.ok_or(InvalidPath::Absolute)?.to_buf()
        } else {
            normal(path).ok_or(InvalidPath::Outside)?
        };
        Ok(relative)
    }

    pub fn as_path(&self) -> RelPath<'_> {
        RelPath(&self.0)
    }
}

/// The components that are left when `.` and `..` have been followed; `None` if they lead above
/// the beginning.
fn normal(path: &[u8]) -> Option<RelPathBuf> {
    let mut components: Vec<&[u8]> = Vec::new();
    for component in path.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => drop(components.pop()?),
            name => components.push(name),
        }
    }
    Some(RelPathBuf(components.join(&b'/')))
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for RelPathBuf {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "RelPath".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

impl fmt::Debug for RelPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.display())
    }
}

impl fmt::Display for RelPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display())
    }
}

impl fmt::Debug for RelPathBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.as_path(), f)
    }
}

impl fmt::Display for RelPathBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.as_path(), f)
    }
}

impl From<RelPath<'_>> for RelPathBuf {
    fn from(path: RelPath<'_>) -> Self {
        path.to_buf()
    }
}

/// JSON gets a string (lossy for names that are not UTF-8), compact codecs get the exact bytes.
impl Serialize for RelPath<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(&String::from_utf8_lossy(self.0))
        } else {
            serializer.serialize_bytes(self.0)
        }
    }
}

impl Serialize for RelPathBuf {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_path().serialize(serializer)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RelPath<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes: &'de [u8] = serde_bytes::deserialize(deserializer)?;
        RelPath::new(bytes).map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for RelPathBuf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Within tagged enums serde forgets which kind of format it reads: bytes and text will do.
        let bytes = serde_bytes::ByteBuf::deserialize(deserializer)?.into_vec();
        RelPathBuf::new(bytes).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_ordinary_relative_paths_of_any_bytes() {
        for good in [&b""[..], b"a", b"a/b", b"a b\n/\xff\xfe", b"...", b".hidden", b"a/..b"] {
            assert_eq!(RelPath::new(good).unwrap().as_bytes(), good);
        }
    }

    #[test]
    fn rejects_whatever_could_leave_the_directory() {
        for bad in [&b"/"[..], b"/etc", b"..", b"a/../b", b"a/..", b"./a", b"a//b", b"a/", b"a\0b"]
        {
            assert!(RelPath::new(bad).is_err(), "{bad:?}");
        }
        assert!(RelPath::ROOT.join(b"a/b").is_err());
        assert!(RelPath::ROOT.join(b"..").is_err());
    }

    #[test]
    fn what_people_write_is_brought_into_order() {
        let resolved = |path: &[u8]| RelPathBuf::resolve(b"/home/me/project/", path);
        for (path, meant) in [
            (&b"src/main.rs"[..], &b"src/main.rs"[..]),
            (b"./src//main.rs/", b"src/main.rs"),
            (b"src/../docs/./a", b"docs/a"),
            (b"", b""),
            (b".", b""),
            (b"/home/me/project", b""),
            (b"/home/me/./project/../project/a", b"a"),
        ] {
            assert_eq!(resolved(path).unwrap().as_path().as_bytes(), meant);
        }
    }

    #[test]
    fn what_leads_out_of_the_directory_is_refused() {
        let resolved = |path: &[u8]| RelPathBuf::resolve(b"/home/me/project", path);
        assert_eq!(resolved(b"../../etc/passwd"), Err(InvalidPath::Outside));
        assert_eq!(resolved(b"a/../../b"), Err(InvalidPath::Outside));
        assert_eq!(resolved(b"/etc/passwd"), Err(InvalidPath::Absolute));
        assert_eq!(resolved(b"/home/me/project2/a"), Err(InvalidPath::Absolute));
        assert_eq!(resolved(b"/home/me/project/../other"), Err(InvalidPath::Absolute));
        assert_eq!(resolved(b"/../.."), Err(InvalidPath::Absolute));
        assert_eq!(resolved(b"a\0b"), Err(InvalidPath::Nul));
    }

    #[test]
    fn containment_is_by_component_not_by_prefix() {
        let path = |bytes| RelPath::new(bytes).unwrap();
        assert!(path(b"src/main.rs").is_within(path(b"src")));
        assert!(path(b"src").is_within(path(b"src")));
        assert!(path(b"src").is_within(RelPath::ROOT));
        assert!(!path(b"src2").is_within(path(b"src")));
        assert_eq!(path(b"a/b/c").strip(path(b"a")), Some(path(b"b/c")));
        assert_eq!(path(b"a").strip(path(b"a")), Some(RelPath::ROOT));
    }
}
