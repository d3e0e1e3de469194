//! Patterns of paths, as people write them.

use std::fmt;

/// `.envrc`, `.git/hooks/*`, `/codeagent.toml`, `.cursor/`.
///
/// Matches at any depth, unless it begins with `/`. `*` stands for anything within a name, `**` for
/// any number of names; a `/` at the end includes everything below. Case does not matter: a
/// folder may be used from a system where it does not.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern {
    text: String,
    anchored: bool,
    names: Vec<Name>,
    with_everything_below: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    Exactly(Vec<u8>),
    /// Has a `*`.
    Like(Vec<u8>),
    /// `**`
    AnyNumber,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a pattern for paths")]
pub struct BadPattern(String);

impl Pattern {
    pub fn new(text: &str) -> Result<Self, BadPattern> {
        let bad = || BadPattern(text.into());
        let (anchored, rest) = match text.strip_prefix('/') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (with_everything_below, rest) = match rest.strip_suffix('/') {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let names: Vec<Name> = rest
            .split('/')
            .map(|name| match name {
                "" | "." | ".." => Err(bad()),
                "**" => Ok(Name::AnyNumber),
                name if name.contains('*') => Ok(Name::Like(name.to_ascii_lowercase().into())),
                name => Ok(Name::Exactly(name.as_bytes().into())),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { text: text.into(), anchored, names, with_everything_below })
    }

    /// The name that a path must have in it to match.
    fn first_name(&self) -> Option<&Name> {
        self.names.iter().find(|first| !matches!(first, Name::AnyNumber))
    }

    /// Whether something below this path could match.
    pub(super) fn leads_on_from(&self, path: &[&[u8]]) -> bool {
        let starts = if self.anchored { 1 } else { path.len() };
        (0..starts).any(|start| begins(&self.names, &path[start..]))
    }

    pub fn matches(&self, path: &[&[u8]]) -> bool {
        let starts = if self.anchored { 1 } else { path.len() };
        (0..starts).any(|start| matches(&self.names, &path[start..], self.with_everything_below))
    }
}

/// The names that a path must have one of to match one of many patterns. Asked about every name of
/// a tree that comes as a whole.
#[derive(Debug, Default)]
pub(super) struct FirstNames {
    /// By their length: nearly every name is told from them by that.
    exactly: Vec<Vec<Vec<u8>>>,
    like: Vec<Name>,
    /// One of the patterns has no such name.
    any: bool,
}

impl FirstNames {
    pub(super) fn of<'p>(patterns: impl Iterator<Item = &'p Pattern>) -> Self {
        let mut names = Self::default();
        for pattern in patterns {
            match pattern.first_name() {
                None => names.any = true,
                Some(Name::Exactly(text)) => {
                    let length = text.len();
                    names.exactly.resize_with(names.exactly.len().max(length + 1), Vec::new);
                    let alike = &mut names.exactly[length];
                    if !alike.iter().any(|other| other.eq_ignore_ascii_case(text)) {
                        alike.push(text.clone());
                    }
                }
                Some(like) => names.like.push(like.clone()),
            }
        }
        names
    }

    pub(super) fn has(&self, name: &[u8]) -> bool {
        let alike = self.exactly.get(name.len()).map_or(&[][..], Vec::as_slice);
        self.any
            || alike.iter().any(|first| first.eq_ignore_ascii_case(name))
            || self.like.iter().any(|first| first.fits(name))
    }
}

/// Whether all of the path fits the first names of the pattern, and there are more.
fn begins(pattern: &[Name], path: &[&[u8]]) -> bool {
    match (pattern, path) {
        ([], _) => false,
        (_, []) => true,
        ([Name::AnyNumber, ..], _) => true,
        ([first, rest @ ..], [name, below @ ..]) => first.fits(name) && begins(rest, below),
    }
}

fn matches(pattern: &[Name], path: &[&[u8]], open_end: bool) -> bool {
    match pattern {
        [] => path.is_empty() || open_end,
        [Name::AnyNumber, rest @ ..] => {
            (0..=path.len()).any(|skipped| matches(rest, &path[skipped..], open_end))
        }
        [first, rest @ ..] => {
            path.first().is_some_and(|name| first.fits(name)) && matches(rest, &path[1..], open_end)
        }
    }
}

impl Name {
    fn fits(&self, name: &[u8]) -> bool {
        match self {
            Self::Exactly(text) => text.eq_ignore_ascii_case(name),
            Self::Like(text) => fits_wildcard(text, &name.to_ascii_lowercase()),
            Self::AnyNumber => true,
        }
    }
}

fn fits_wildcard(pattern: &[u8], name: &[u8]) -> bool {
    match pattern {
        [] => name.is_empty(),
        [b'*', rest @ ..] => (0..=name.len()).any(|skipped| fits_wildcard(rest, &name[skipped..])),
        [byte, rest @ ..] => name.first() == Some(byte) && fits_wildcard(rest, &name[1..]),
    }
}

impl TryFrom<String> for Pattern {
    type Error = BadPattern;

    fn try_from(text: String) -> Result<Self, BadPattern> {
        Self::new(&text)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
