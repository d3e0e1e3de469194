use std::fs;

use codeagent_common::{RelPathBuf, StepId};
use tempfile::TempDir;

use super::*;

const ONE: StepId = StepId(1);
const TWO: StepId = StepId(2);

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join(FILE_NAME)
    }

    fn open(&self) -> Overlay {
        Overlay::open(&self.file(), Limits::default()).unwrap()
    }

    fn limited(&self, limits: Limits) -> Overlay {
        Overlay::open(&self.file(), limits).unwrap()
    }
}

fn path(text: &str) -> RelPathBuf {
    RelPathBuf::new(text).unwrap()
}

fn chmod(overlay: &Overlay, name: &str, mode: u32) {
    let change = Change { mode: Some(mode), ..Change::default() };
    overlay.set(path(name).as_path(), Kind::File, change).unwrap();
}

fn mode(overlay: &Overlay, name: &str) -> Option<u32> {
    overlay.get(path(name).as_path(), Kind::File).unwrap().mode
}

/// WN-03
#[test]
fn a_mode_is_there_in_the_next_session() {
    let place = Place::new();
    let overlay = place.open();
    chmod(&overlay, "bin/tool", 0o100_755);
    let owner = Change { uid: Some(7), gid: Some(8), ..Change::default() };
    overlay.set(path("bin/tool").as_path(), Kind::File, owner).unwrap();
    drop(overlay);

    let known = place.open().get(path("bin/tool").as_path(), Kind::File).unwrap();
    assert_eq!(known, Posix { mode: Some(0o755), uid: Some(7), gid: Some(8), target: None });
}

/// WN-04
#[test]
fn nothing_is_known_of_what_nobody_changed() {
    let overlay = Place::new().open();
    assert_eq!(overlay.get(RelPath::ROOT, Kind::Directory).unwrap(), Posix::default());
    assert_eq!(overlay.get(path("a").as_path(), Kind::File).unwrap(), Posix::default());
}

/// WN-05
#[test]
fn a_step_that_changed_a_mode_is_rolled_back_and_redone() {
    let place = Place::new();
    let overlay = place.open();
    overlay.begin_step(ONE).unwrap();
    chmod(&overlay, "a", 0o755);
    overlay.end_step(ONE).unwrap();
    overlay.begin_step(TWO).unwrap();
    chmod(&overlay, "a", 0o600);
    chmod(&overlay, "a", 0o640);
    chmod(&overlay, "b", 0o600);
    overlay.end_step(TWO).unwrap();

    overlay.rollback(TWO).unwrap();
    assert_eq!((mode(&overlay, "a"), mode(&overlay, "b")), (Some(0o755), None));
    drop(overlay);
    let overlay = place.open();
    overlay.rollback(ONE).unwrap();
    assert_eq!(mode(&overlay, "a"), None);
    overlay.redo(ONE).unwrap();
    overlay.redo(TWO).unwrap();
    assert_eq!((mode(&overlay, "a"), mode(&overlay, "b")), (Some(0o640), Some(0o600)));
}

/// WN-05
#[test]
fn a_step_that_was_open_when_the_process_died_is_known_and_taken_back() {
    let place = Place::new();
    let overlay = place.open();
    chmod(&overlay, "a", 0o600);
    overlay.begin_step(ONE).unwrap();
    chmod(&overlay, "a", 0o755);
    overlay.renamed(path("a").as_path(), path("b").as_path()).unwrap();
    drop(overlay);

    let overlay = place.open();
    assert_eq!(overlay.open_step(), Some(ONE));
    overlay.rollback(ONE).unwrap();
    assert_eq!((mode(&overlay, "a"), mode(&overlay, "b")), (Some(0o600), None));
    assert_eq!(overlay.open_step(), None);
    overlay.redo(ONE).unwrap(); // nothing is kept of it
    assert_eq!(mode(&overlay, "a"), Some(0o600));
}

#[test]
fn steps_have_their_turns() {
    let overlay = Place::new().open();
    for step in [ONE, TWO] {
        overlay.begin_step(step).unwrap();
        assert!(matches!(overlay.begin_step(StepId(9)), Err(OverlayError::StepOpen(_))));
        chmod(&overlay, "a", step.0 as u32);
        overlay.end_step(step).unwrap();
    }
    assert!(matches!(overlay.begin_step(ONE), Err(OverlayError::StepKnown(ONE))));
    assert!(matches!(overlay.rollback(ONE), Err(OverlayError::NotItsTurn(ONE))));
    assert!(matches!(overlay.redo(ONE), Err(OverlayError::NotItsTurn(ONE))));
    let change = Change { mode: Some(0), ..Change::default() };
    let outside = overlay.set(path("a").as_path(), Kind::File, change);
    assert!(matches!(outside, Err(OverlayError::NoStepOpen)));
    overlay.removed(path("nothing").as_path()).unwrap(); // changes nothing
    overlay.rollback(TWO).unwrap();
    overlay.rollback(ONE).unwrap();
    assert!(matches!(overlay.redo(TWO), Err(OverlayError::NotItsTurn(TWO))));
    overlay.redo(ONE).unwrap();
    assert_eq!(mode(&overlay, "a"), Some(1));
}

#[test]
fn a_step_that_changes_something_ends_what_could_be_redone_and_an_empty_one_does_not() {
    let overlay = Place::new().open();
    overlay.begin_step(ONE).unwrap();
    chmod(&overlay, "a", 1);
    overlay.end_step(ONE).unwrap();
    overlay.rollback(ONE).unwrap();
    overlay.begin_step(TWO).unwrap();
    overlay.end_step(TWO).unwrap();
    overlay.redo(ONE).unwrap();
    assert_eq!(mode(&overlay, "a"), Some(1));

    overlay.rollback(ONE).unwrap();
    overlay.begin_step(StepId(3)).unwrap();
    chmod(&overlay, "b", 2);
    overlay.end_step(StepId(3)).unwrap();
    overlay.redo(ONE).unwrap(); // nothing is kept of it
    assert_eq!(mode(&overlay, "a"), None);
}

#[test]
fn forgotten_steps_keep_what_they_changed() {
    let overlay = Place::new().open();
    for step in [ONE, TWO, StepId(3)] {
        overlay.begin_step(step).unwrap();
        chmod(&overlay, "a", step.0 as u32);
        overlay.end_step(step).unwrap();
    }
    overlay.forget(TWO).unwrap();
    overlay.rollback(StepId(3)).unwrap();
    assert_eq!(mode(&overlay, "a"), Some(2));
    assert!(matches!(overlay.forget(StepId(3)), Err(OverlayError::NotItsTurn(_))));
    overlay.forget_undone().unwrap();
    chmod(&overlay, "a", 7); // no step is kept, so none is needed
    assert_eq!(mode(&overlay, "a"), Some(7));
}

#[test]
fn names_take_what_is_known_with_them() {
    let overlay = Place::new().open();
    for name in ["dir/a", "dir/sub/b", "dir.txt", "dir0", "other"] {
        chmod(&overlay, name, 0o700);
    }
    overlay.renamed(path("dir").as_path(), path("new").as_path()).unwrap();
    for (name, known) in [
        ("dir/a", None),
        ("new/a", Some(0o700)),
        ("new/sub/b", Some(0o700)),
        ("dir.txt", Some(0o700)),
        ("dir0", Some(0o700)),
    ] {
        assert_eq!(mode(&overlay, name), known, "{name}");
    }
    // Replaced: what was known of the target is gone.
    chmod(&overlay, "plain", 0o111);
    overlay.renamed(path("plain").as_path(), path("other").as_path()).unwrap();
    assert_eq!((mode(&overlay, "plain"), mode(&overlay, "other")), (None, Some(0o111)));
    overlay.renamed(path("nobody").as_path(), path("other").as_path()).unwrap();
    assert_eq!(mode(&overlay, "other"), None);
    overlay.removed(path("new").as_path()).unwrap();
    assert_eq!(mode(&overlay, "new/sub/b"), None);
}

#[test]
fn hard_links_share_what_is_known() {
    let overlay = Place::new().open();
    overlay.linked(path("a").as_path(), path("b").as_path(), Kind::File).unwrap();
    chmod(&overlay, "b", 0o755);
    assert_eq!(mode(&overlay, "a"), Some(0o755));
    overlay.removed(path("a").as_path()).unwrap();
    assert_eq!((mode(&overlay, "a"), mode(&overlay, "b")), (None, Some(0o755)));
    overlay.renamed(path("b").as_path(), path("c").as_path()).unwrap();
    assert_eq!(mode(&overlay, "c"), Some(0o755));
}

#[test]
fn what_was_known_of_another_kind_of_thing_does_not_count() {
    let overlay = Place::new().open();
    chmod(&overlay, "a", 0o600);
    chmod(&overlay, "a/stale", 0o600);
    assert_eq!(overlay.get(path("a").as_path(), Kind::Directory).unwrap(), Posix::default());
    let change = Change { mode: Some(0o700), ..Change::default() };
    overlay.set(path("a").as_path(), Kind::Directory, change).unwrap();
    assert_eq!((mode(&overlay, "a"), mode(&overlay, "a/stale")), (None, None));
}

#[test]
fn targets_of_links_are_kept() {
    let overlay = Place::new().open();
    overlay.set_target(path("a").as_path(), b"/usr/bin/\xff").unwrap();
    let known = overlay.get(path("a").as_path(), Kind::File).unwrap();
    assert_eq!(known.target.as_deref(), Some(&b"/usr/bin/\xff"[..]));
    overlay.created(path("a").as_path()).unwrap();
    assert_eq!(overlay.get(path("a").as_path(), Kind::File).unwrap().target, None);
}

#[test]
fn extended_attributes_are_set_listed_and_removed() {
    let overlay = Place::new().open();
    let (a, file) = (path("a"), Kind::File);
    let set = |name: &[u8], how| overlay.set_xattr(a.as_path(), file, name, b"1", how);
    assert!(matches!(set(b"user.a", SetXattr::Replace), Err(OverlayError::NoXattr)));
    set(b"user.b", SetXattr::Create).unwrap();
    set(b"user.a", SetXattr::Always).unwrap();
    assert!(matches!(set(b"user.a", SetXattr::Create), Err(OverlayError::XattrExists)));
    set(b"user.a", SetXattr::Replace).unwrap();
    assert!(matches!(set(b"", SetXattr::Always), Err(OverlayError::XattrName)));
    assert!(matches!(set(&[b'a'; 256], SetXattr::Always), Err(OverlayError::XattrName)));
    assert_eq!(overlay.xattrs(a.as_path(), file).unwrap(), [b"user.a", b"user.b"]);
    overlay.remove_xattr(a.as_path(), file, b"user.a").unwrap();
    let gone = overlay.remove_xattr(a.as_path(), file, b"user.a");
    assert!(matches!(gone, Err(OverlayError::NoXattr)));
    assert_eq!(overlay.xattr(a.as_path(), file, b"user.b").unwrap(), b"1");
    let missing = overlay.xattr(a.as_path(), Kind::Directory, b"user.b").unwrap_err();
    assert_eq!(missing.errno(), ENODATA);
}

#[test]
fn a_guest_cannot_fill_it() {
    let limits = Limits { names: 2, changes_in_step: 6, xattr_bytes: 10 };
    let overlay = Place::new().limited(limits);
    chmod(&overlay, "a", 1);
    chmod(&overlay, "b", 1);
    let change = Change { mode: Some(1), ..Change::default() };
    let third = overlay.set(path("c").as_path(), Kind::File, change).unwrap_err();
    assert_eq!(third.errno(), ENOSPC);
    let linked = overlay.linked(path("a").as_path(), path("c").as_path(), Kind::File);
    assert_eq!(linked.unwrap_err().errno(), ENOSPC);
    let (a, file) = (path("a"), Kind::File);
    let set = |name: &[u8], value: &[u8]| {
        overlay.set_xattr(a.as_path(), file, name, value, SetXattr::Always)
    };
    set(b"name", b"123456").unwrap();
    assert_eq!(set(b"n", b"").unwrap_err().errno(), ENOSPC);
    assert_eq!(set(b"name", b"1234567").unwrap_err().errno(), ENOSPC);
    // What was refused has left nothing: there is room for what goes where something went.
    overlay.removed(path("b").as_path()).unwrap();
    chmod(&overlay, "c", 1);
    overlay.begin_step(ONE).unwrap();
    overlay.removed(path("a").as_path()).unwrap(); // a name, a file, an attribute
    overlay.renamed(path("c").as_path(), path("d").as_path()).unwrap(); // two names
    chmod(&overlay, "d", 2);
    let more = overlay.renamed(path("d").as_path(), path("e").as_path()).unwrap_err();
    assert_eq!((more.errno(), mode(&overlay, "d")), (ENOSPC, Some(2)));
}

#[test]
fn one_process_has_it() {
    let place = Place::new();
    let overlay = place.open();
    chmod(&overlay, "a", 1);
    let second = Overlay::open(&place.file(), Limits::default());
    assert!(matches!(second, Err(OverlayError::InUse(_))), "{second:?}");
}

#[test]
fn what_is_not_ours_or_of_another_format_is_refused_and_left_as_it_is() {
    let place = Place::new();
    let other = rusqlite::Connection::open(place.file()).unwrap();
    other.execute_batch("CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1)").unwrap();
    drop(other);
    let before = fs::read(place.file()).unwrap();
    let refused = Overlay::open(&place.file(), Limits::default());
    assert!(matches!(refused, Err(OverlayError::NotOurs(_))), "{refused:?}");
    assert_eq!(fs::read(place.file()).unwrap(), before);

    let place = Place::new();
    drop(place.open());
    let later = rusqlite::Connection::open(place.file()).unwrap();
    later.pragma_update(None, "user_version", 9).unwrap();
    drop(later);
    let refused = Overlay::open(&place.file(), Limits::default());
    assert!(matches!(refused, Err(OverlayError::Version { found: 9, .. })), "{refused:?}");
}

#[test]
fn a_file_that_is_no_database_is_said_to_be_damaged() {
    let place = Place::new();
    fs::write(place.file(), "not a database, and longer than a header of one ".repeat(100))
        .unwrap();
    let refused = Overlay::open(&place.file(), Limits::default()).unwrap_err();
    assert!(matches!(refused, OverlayError::Damaged(_)), "{refused}");
    assert_eq!(refused.errno(), EIO);
}

/// Whatever byte is wrong, there is an answer or an error, and no end of the process.
#[test]
fn whatever_is_wrong_in_the_file_nothing_panics() {
    let place = Place::new();
    let overlay = place.open();
    for number in 0..200 {
        chmod(&overlay, &format!("dir/{number}"), number);
    }
    drop(overlay);
    let whole = fs::read(place.file()).unwrap();
    let mut damaged = 0;
    for at in (0..whole.len()).step_by(97) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        fs::write(place.file(), &bytes).unwrap();
        let _ = fs::remove_file(place.dir.path().join(format!("{FILE_NAME}-wal")));
        let outcome = Overlay::open(&place.file(), Limits::default()).and_then(|overlay| {
            overlay.renamed(path("dir").as_path(), path("new").as_path())?;
            overlay.get(path("new/7").as_path(), Kind::File)
        });
        damaged += u32::from(outcome.is_err());
    }
    assert!(damaged > 0);
    for cut in [0, 1, 100, 4096, whole.len() / 2] {
        fs::write(place.file(), &whole[..cut]).unwrap();
        let _ = fs::remove_file(place.dir.path().join(format!("{FILE_NAME}-wal")));
        let outcome = Overlay::open(&place.file(), Limits::default());
        assert!(outcome.is_err() || cut == 0, "{cut} bytes of a database are none");
    }
}
