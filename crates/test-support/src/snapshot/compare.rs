//! Tells two snapshots apart in words.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::{Entry, EntryKind, TreeSnapshot};

/// A failed assertion shows this many differences; the rest is counted.
const LINES_SHOWN: usize = 100;

type PathPredicate = Box<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// What a comparison overlooks. The default overlooks nothing but link counts.
pub struct CompareOptions {
    /// Paths for which this is true are left out, each for itself: to ignore a directory
    /// with all that is in it, match its prefix.
    pub ignore: PathPredicate,
    /// Differences in mtime up to this are no difference.
    pub mtime_tolerance_ns: u64,
    /// Whether the mtimes of directories count.
    pub directory_mtimes: bool,
    /// Whether xattrs count.
    pub xattrs: bool,
    /// Whether uid and gid count.
    pub ownership: bool,
    /// Whether the number of names of an inode counts, inside and outside the tree: shows
    /// a file that was restored as a link into a store.
    pub link_counts: bool,
}

impl CompareOptions {
    /// The same, with the paths left out for which `ignore` is true.
    #[must_use]
    pub fn ignoring(self, ignore: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Self {
        Self { ignore: Box::new(ignore), ..self }
    }
}

impl Default for CompareOptions {
    fn default() -> Self {
        Self {
            ignore: Box::new(|_| false),
            mtime_tolerance_ns: 0,
            directory_mtimes: true,
            xattrs: true,
            ownership: true,
            link_counts: false,
        }
    }
}

impl fmt::Debug for CompareOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("CompareOptions")
            .field("mtime_tolerance_ns", &self.mtime_tolerance_ns)
            .field("directory_mtimes", &self.directory_mtimes)
            .field("xattrs", &self.xattrs)
            .field("ownership", &self.ownership)
            .field("link_counts", &self.link_counts)
            .finish_non_exhaustive()
    }
}

/// Panics with every difference when `actual` is not exactly `expected`.
#[track_caller]
pub fn assert_tree_eq(expected: &TreeSnapshot, actual: &TreeSnapshot) {
    assert_tree_eq_with(expected, actual, &CompareOptions::default());
}

/// As [`assert_tree_eq`], less strict where `options` say so.
#[track_caller]
pub fn assert_tree_eq_with(
    expected: &TreeSnapshot,
    actual: &TreeSnapshot,
    options: &CompareOptions,
) {
    let differences = diff(expected, actual, options);
    if differences.is_empty() {
        return;
    }
    let shown = differences.len().min(LINES_SHOWN);
    let mut message =
        format!("the trees differ in {} places (expected → actual):", differences.len());
    for line in &differences[..shown] {
        message.push_str("\n  ");
        message.push_str(line);
    }
    if shown < differences.len() {
        message.push_str(&format!("\n  … and {} more", differences.len() - shown));
    }
    panic!("{message}");
}

pub(super) fn diff(
    expected: &TreeSnapshot,
    actual: &TreeSnapshot,
    options: &CompareOptions,
) -> Vec<String> {
    let mut lines = Vec::new();
    let expected_links = LinkGroups::of(expected, options);
    let actual_links = LinkGroups::of(actual, options);
    let mut left = counted(expected, options).peekable();
    let mut right = counted(actual, options).peekable();
    loop {
        // Both are sorted by path: the smaller one is missing on the other side.
        let side = match (left.peek(), right.peek()) {
            (Some((l, _)), Some((r, _))) => l.cmp(r),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (None, None) => return lines,
        };
        let old = if side.is_le() { left.next() } else { None };
        let new = if side.is_ge() { right.next() } else { None };
        match (old, new) {
            (Some((path, old)), Some((_, new))) => {
                let links = (expected_links.first(old), actual_links.first(new));
                changes(path, old, new, links, options, &mut lines);
            }
            (Some((path, old)), None) => lines.push(alone("missing", path, old)),
            (None, Some((path, new))) => lines.push(alone("added", path, new)),
            (None, None) => {}
        }
    }
}

fn counted<'a>(
    snapshot: &'a TreeSnapshot,
    options: &'a CompareOptions,
) -> impl Iterator<Item = (&'a Vec<u8>, &'a Entry)> {
    let entries = snapshot.entries.iter();
    entries.filter(|(path, _)| !(options.ignore)(path))
}

/// The first path of every group of hard links, which names the group in a diff: numbers
/// would all shift with one group more.
struct LinkGroups<'a>(HashMap<usize, (&'a [u8], usize)>);

impl<'a> LinkGroups<'a> {
    fn of(snapshot: &'a TreeSnapshot, options: &CompareOptions) -> Self {
        let mut groups = HashMap::new();
        for (path, entry) in &snapshot.entries {
            if let Some(number) = entry.hard_link_group
                && !(options.ignore)(path)
            {
                groups.entry(number).or_insert((path.as_slice(), 0)).1 += 1;
            }
        }
        Self(groups)
    }

    /// `None` for an entry that shares its inode with no other entry that counts.
    fn first(&self, entry: &Entry) -> Option<&'a [u8]> {
        let (first, members) = self.0.get(&entry.hard_link_group?)?;
        (*members > 1).then_some(first)
    }
}

fn changes(
    path: &[u8],
    old: &Entry,
    new: &Entry,
    links: (Option<&[u8]>, Option<&[u8]>),
    options: &CompareOptions,
    lines: &mut Vec<String>,
) {
    let mut change = |what: &str, old: String, new: String| {
        lines.push(format!("changed: {}: {what} {old} → {new}", shown(path)));
    };
    if old.kind != new.kind {
        let (what, old_kind, new_kind) = kinds(&old.kind, &new.kind);
        change(what, old_kind, new_kind);
    }
    if old.mode != new.mode {
        change("mode", octal(old.mode), octal(new.mode));
    }
    if options.ownership && old.uid != new.uid {
        change("uid", old.uid.to_string(), new.uid.to_string());
    }
    if options.ownership && old.gid != new.gid {
        change("gid", old.gid.to_string(), new.gid.to_string());
    }
    if old.size_bytes != new.size_bytes {
        let (old, new) = (old.size_bytes, new.size_bytes);
        change("size", old.to_string(), new.to_string());
    }
    let directories = old.kind == EntryKind::Directory && new.kind == EntryKind::Directory;
    let tolerance_ns = u128::from(options.mtime_tolerance_ns);
    if (options.directory_mtimes || !directories)
        && old.mtime_ns.abs_diff(new.mtime_ns) > tolerance_ns
    {
        change("mtime", time(old.mtime_ns), time(new.mtime_ns));
    }
    if links.0 != links.1 {
        let name = |first: Option<&[u8]>| first.map_or_else(|| "nothing".to_owned(), shown);
        change("hard-linked with", name(links.0), name(links.1));
    }
    if options.link_counts && old.link_count != new.link_count {
        let (old, new) = (old.link_count, new.link_count);
        change("link count", old.to_string(), new.to_string());
    }
    if options.xattrs && old.xattrs != new.xattrs {
        xattr_changes(&old.xattrs, &new.xattrs, &mut change);
    }
}

fn xattr_changes(
    old: &BTreeMap<Vec<u8>, Vec<u8>>,
    new: &BTreeMap<Vec<u8>, Vec<u8>>,
    change: &mut dyn FnMut(&str, String, String),
) {
    let value = |value: Option<&Vec<u8>>| {
        value.map_or_else(|| "(absent)".to_owned(), |value| format!("\"{}\"", value.escape_ascii()))
    };
    let mut names: Vec<_> = old.keys().chain(new.keys()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let (old, new) = (old.get(name), new.get(name));
        if old != new {
            change(&format!("xattr {}", shown(name)), value(old), value(new));
        }
    }
}

fn kinds(old: &EntryKind, new: &EntryKind) -> (&'static str, String, String) {
    if std::mem::discriminant(old) != std::mem::discriminant(new) {
        return ("type", old.name().to_owned(), new.name().to_owned());
    }
    let what = match old {
        EntryKind::Regular { .. } => "content",
        EntryKind::Symlink { .. } => "target",
        _ => "device",
    };
    (what, detail(old), detail(new))
}

fn detail(kind: &EntryKind) -> String {
    match kind {
        EntryKind::Regular { content } => {
            let hash = blake3::Hash::from_bytes(*content).to_hex();
            format!("blake3:{}", &hash[..12])
        }
        EntryKind::Symlink { target } => shown(target),
        EntryKind::CharDevice { rdev } | EntryKind::BlockDevice { rdev } => {
            let (major, minor) = (rustix::fs::major(*rdev), rustix::fs::minor(*rdev));
            format!("{major}:{minor}")
        }
        EntryKind::Directory | EntryKind::Fifo | EntryKind::Socket => String::new(),
    }
}

fn alone(what: &str, path: &[u8], entry: &Entry) -> String {
    let (kind, size) = (entry.kind.name(), entry.size_bytes);
    match entry.kind {
        EntryKind::Regular { .. } => format!("{what}: {} ({kind}, {size} bytes)", shown(path)),
        _ => format!("{what}: {} ({kind})", shown(path)),
    }
}

/// A path that stays on its line and can be told from every other.
fn shown(path: &[u8]) -> String {
    match std::str::from_utf8(path) {
        Ok("") => ".".to_owned(),
        Ok(text) if !text.contains(|c: char| c.is_control() || c == '\\') => text.to_owned(),
        _ => path.escape_ascii().to_string(),
    }
}

fn octal(mode: u32) -> String {
    format!("{mode:04o}")
}

fn time(ns: i128) -> String {
    let (seconds, rest) = (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    format!("{seconds}s+{rest:09}ns")
}
