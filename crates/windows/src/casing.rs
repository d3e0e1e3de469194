//! Names that differ in case only: two files to a guest, one to Windows.
//!
//! The host itself is the index of how names are spelled: whatever name is asked for, it opens the
//! file that it takes it for and says by handle what that is called. So nothing can be out of date,
//! also when somebody else makes and renames files, and short names (`PROGRA~1`) are seen through
//! in the same way. What follows from the answer is decided here.

/// What the host found under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// How it spells the name.
    pub spelled: &'a [u16],
    /// Whether it is the very file that is to be renamed.
    pub is_source: bool,
}

/// Whether a guest that looks for `wanted` is told of what the host takes it for.
pub fn is_visible(wanted: &[u16], spelled: &[u16]) -> bool {
    wanted == spelled
}

/// What a rename amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rename {
    /// The name is free, or the file's own in another case.
    Move,
    /// What has the name is replaced.
    Replace,
    /// Both are names of one file, which keeps both.
    Nothing,
    /// The name is taken, and what has it must not be replaced: it is spelled otherwise, so to the
    /// guest it is another file than the one it wants to replace.
    Taken,
}

/// Judges the rename of `from` to `to`; `same_dir` if that is within one directory.
pub fn judge_rename(
    from: &[u16],
    to: &[u16],
    same_dir: bool,
    found: Option<Found<'_>>,
    may_replace: bool,
) -> Rename {
    match found {
        None => Rename::Move,
        Some(found) if found.is_source && found.spelled == to => match may_replace {
            true => Rename::Nothing,
            false => Rename::Taken,
        },
        // Its own name, not that of a further link to it.
        Some(found) if found.is_source && same_dir && found.spelled == from => Rename::Move,
        Some(found) if found.spelled == to && may_replace => Rename::Replace,
        Some(_) => Rename::Taken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(text: &str) -> Vec<u16> {
        text.encode_utf16().collect()
    }

    /// WN-01
    #[test]
    fn a_guest_finds_names_only_as_they_are_spelled() {
        assert!(is_visible(&wide("Foo"), &wide("Foo")));
        assert!(!is_visible(&wide("foo"), &wide("Foo")));
        assert!(!is_visible(&wide("LONGNA~1.TXT"), &wide("Long name.txt")));
    }

    /// WN-01
    #[test]
    fn renames_follow_what_the_host_found() {
        let other = |spelled| Some((spelled, false));
        let source = |spelled| Some((spelled, true));
        // from, to, within one directory, found, may replace, what it amounts to
        type Case = (&'static str, &'static str, bool, Option<(&'static str, bool)>, bool, Rename);
        let table: &[Case] = &[
            ("a", "b", true, None, true, Rename::Move),
            ("a", "b", true, None, false, Rename::Move),
            ("a", "b", true, other("b"), true, Rename::Replace),
            ("a", "b", true, other("b"), false, Rename::Taken),
            ("a", "b", true, other("B"), true, Rename::Taken),
            ("a", "b", false, other("B"), true, Rename::Taken),
            // Only the case changes.
            ("Foo", "foo", true, source("Foo"), true, Rename::Move),
            ("Foo", "foo", true, source("Foo"), false, Rename::Move),
            // To itself.
            ("a", "a", true, source("a"), true, Rename::Nothing),
            ("a", "a", true, source("a"), false, Rename::Taken),
            // A further link of the same file.
            ("a", "b", true, source("b"), true, Rename::Nothing),
            ("a", "b", true, source("b"), false, Rename::Taken),
            ("a", "b", true, source("B"), true, Rename::Taken),
            // In another directory a link with the same name, spelled otherwise, is not its own.
            ("Foo", "foo", false, source("Foo"), true, Rename::Taken),
            ("Foo", "Foo", false, source("Foo"), true, Rename::Nothing),
        ];
        for (from, to, same_dir, found, may_replace, wanted) in table {
            let spelled = found.map(|(spelled, _)| wide(spelled));
            let found = found
                .zip(spelled.as_deref())
                .map(|((_, is_source), spelled)| Found { spelled, is_source });
            let judged = judge_rename(&wide(from), &wide(to), *same_dir, found, *may_replace);
            assert_eq!(judged, *wanted, "{from} to {to}, found {found:?}");
        }
    }
}
