//! The snapshot is what other tests trust: here each attribute is changed alone, and the
//! snapshot has to say exactly that.

#![allow(clippy::unwrap_used)] // A test that cannot set up its tree has failed.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use codeagent_test_support::filesystems::{skip, supports_acls, supports_user_xattrs};
use codeagent_test_support::fixtures::{
    self, awkward_tree, hardlink_tree, make_fifo, sample_acl, set_mtime, small_tree, symlink_tree,
};
use codeagent_test_support::{CompareOptions, TempWorkspace, assert_tree_eq, assert_tree_eq_with};
use rustix::fs::{CWD, FileType, Mode, XattrFlags};

/// The differences that `change` makes to a small tree, its mtimes put back afterwards.
fn seen(prepare: impl FnOnce(&Path), change: impl FnOnce(&Path)) -> Vec<String> {
    let workspace = TempWorkspace::new();
    prepare(workspace.working());
    set_all_mtimes(workspace.working());
    let before = workspace.snapshot();
    change(workspace.working());
    before.diff(&workspace.snapshot())
}

fn file(root: &Path) {
    fs::write(root.join("f"), "content").unwrap();
}

/// The same mtime for all, so that adding an entry does not shift those of others.
fn set_all_mtimes(root: &Path) {
    for entry in fs::read_dir(root).unwrap() {
        set_mtime(&entry.unwrap().path(), 1_000_000_000, 5);
    }
    set_mtime(root, 1_000_000_000, 5);
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

#[test]
fn an_untouched_tree_equals_itself() {
    for fixture in [
        small_tree,
        fixtures::rename_tree,
        symlink_tree,
        hardlink_tree,
        fixtures::deep_tree,
        awkward_tree,
    ] {
        let workspace = TempWorkspace::with_fixture(fixture);
        let snapshot = workspace.snapshot();
        assert_tree_eq(&snapshot, &workspace.snapshot());
        assert!(snapshot == workspace.snapshot());
    }
}

#[test]
fn content_of_the_same_size_and_mtime() {
    let lines = seen(file, |root| {
        fs::write(root.join("f"), "CONTENT").unwrap();
        set_all_mtimes(root);
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("changed: f: content blake3:"));
}

#[test]
fn one_byte_in_the_middle_of_a_large_file() {
    let mut bytes = fixtures::varied_bytes(1_000_003);
    let before = bytes.clone();
    bytes[600_000] ^= 1;
    let lines = seen(
        |root| fs::write(root.join("f"), before).unwrap(),
        |root| {
            fs::write(root.join("f"), bytes).unwrap();
            set_all_mtimes(root);
        },
    );
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("changed: f: content "));
}

#[test]
fn size() {
    let lines = seen(file, |root| {
        fs::write(root.join("f"), "content\0").unwrap();
        set_all_mtimes(root);
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[1], "changed: f: size 7 → 8");
}

#[test]
fn each_of_the_twelve_mode_bits() {
    // Without the owner's read bit, the file can be read by root only.
    let is_root = rustix::process::geteuid().is_root();
    let bits = (0..12).map(|shift| 1 << shift);
    for bit in bits.filter(|bit| is_root || *bit != 0o400) {
        let lines = seen(
            |root| {
                file(root);
                chmod(&root.join("f"), 0o600);
            },
            |root| chmod(&root.join("f"), 0o600 ^ bit),
        );
        let expected = format!("changed: f: mode 0600 → {:04o}", 0o600 ^ bit);
        assert_eq!(lines, [expected]);
    }
}

#[test]
fn mode_of_a_directory_and_of_the_root() {
    let lines = seen(
        |root| {
            fs::create_dir(root.join("d")).unwrap();
            chmod(&root.join("d"), 0o755);
        },
        |root| {
            chmod(root, 0o1700);
            chmod(&root.join("d"), 0o2711);
        },
    );
    assert_eq!(lines, ["changed: .: mode 0755 → 1700", "changed: d: mode 0755 → 2711",]);
}

#[test]
fn owner_and_group() {
    if !rustix::process::geteuid().is_root() {
        return skip("owner_and_group", "only root may give files away");
    }
    let lines = seen(file, |root| {
        std::os::unix::fs::chown(root.join("f"), Some(12), Some(34)).unwrap();
    });
    assert_eq!(lines, ["changed: f: uid 0 → 12", "changed: f: gid 0 → 34"]);
}

#[test]
fn mtime_by_one_nanosecond_of_every_type() {
    let lines = seen(
        |root| {
            file(root);
            fs::create_dir(root.join("d")).unwrap();
            symlink("f", root.join("l")).unwrap();
            make_fifo(&root.join("p"));
        },
        |root| {
            for name in ["", "d", "f", "l", "p"] {
                set_mtime(&root.join(name), 1_000_000_000, 6);
            }
        },
    );
    let change = "mtime 1000000000s+000000005ns → 1000000000s+000000006ns";
    let expected = [".", "d", "f", "l", "p"].map(|name| format!("changed: {name}: {change}"));
    assert_eq!(lines, expected);
}

#[test]
fn xattr_added_changed_and_removed() {
    if !supports_user_xattrs(TempWorkspace::new().working()) {
        return skip("xattr_added_changed_and_removed", "no user xattrs here");
    }
    let lines = seen(
        |root| {
            file(root);
            fs::create_dir(root.join("d")).unwrap();
            set_xattr(&root.join("f"), "user.changed", b"old");
            set_xattr(&root.join("f"), "user.kept", b"");
            set_xattr(&root.join("f"), "user.removed", b"gone");
        },
        |root| {
            set_xattr(&root.join("d"), "user.added", b"");
            set_xattr(&root.join("f"), "user.added", b"\xff");
            set_xattr(&root.join("f"), "user.changed", b"new");
            rustix::fs::lremovexattr(root.join("f"), "user.removed").unwrap();
        },
    );
    assert_eq!(
        lines,
        [
            r#"changed: d: xattr user.added (absent) → """#,
            r#"changed: f: xattr user.added (absent) → "\xff""#,
            r#"changed: f: xattr user.changed "old" → "new""#,
            r#"changed: f: xattr user.removed "gone" → (absent)"#,
        ]
    );
}

#[test]
fn xattr_of_a_symlink_itself() {
    if !rustix::process::geteuid().is_root() {
        return skip("xattr_of_a_symlink_itself", "only root may set trusted.*");
    }
    let lines = seen(
        |root| symlink("nowhere", root.join("l")).unwrap(),
        |root| set_xattr(&root.join("l"), "trusted.note", b"1"),
    );
    assert_eq!(lines, [r#"changed: l: xattr trusted.note (absent) → "1""#]);
}

#[test]
fn more_xattrs_than_fit_a_small_buffer() {
    if !supports_user_xattrs(TempWorkspace::new().working()) {
        return skip("more_xattrs_than_fit_a_small_buffer", "no user xattrs here");
    }
    let workspace = TempWorkspace::with_fixture(file);
    for number in 0..50 {
        let name = format!("user.{number:03}-{}", "x".repeat(20));
        set_xattr(&workspace.path("f"), &name, b"v");
    }
    assert_eq!(workspace.snapshot().get("f").unwrap().xattrs.len(), 50);
}

#[test]
fn acl() {
    if !supports_acls(TempWorkspace::new().working()) {
        return skip("acl", "no ACLs here");
    }
    let lines = seen(
        |root| {
            file(root);
            chmod(&root.join("f"), 0o664); // what the mode says with this ACL
        },
        |root| set_xattr(&root.join("f"), "system.posix_acl_access", &sample_acl()),
    );
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("changed: f: xattr system.posix_acl_access (absent) →"));
}

#[test]
fn symlink_target_of_the_same_length() {
    let lines = seen(
        |root| symlink("one", root.join("l")).unwrap(),
        |root| {
            fs::remove_file(root.join("l")).unwrap();
            symlink(OsStr::from_bytes(b"tw\xff"), root.join("l")).unwrap();
            set_all_mtimes(root);
        },
    );
    assert_eq!(lines, [r"changed: l: target one → tw\xff"]);
}

#[test]
fn an_empty_file_that_became_a_fifo() {
    let lines = seen(
        |root| {
            fs::write(root.join("f"), "").unwrap();
            chmod(&root.join("f"), 0o600);
        },
        |root| {
            fs::remove_file(root.join("f")).unwrap();
            make_fifo(&root.join("f"));
            chmod(&root.join("f"), 0o600);
            set_all_mtimes(root);
        },
    );
    assert_eq!(lines, ["changed: f: type regular file → fifo"]);
}

#[test]
fn a_fifo_that_became_a_socket() {
    let mode = Mode::from(0o600);
    let lines = seen(
        |root| {
            make_fifo(&root.join("p"));
            chmod(&root.join("p"), 0o600);
        },
        |root| {
            fs::remove_file(root.join("p")).unwrap();
            rustix::fs::mknodat(CWD, root.join("p"), FileType::Socket, mode, 0).unwrap();
            set_all_mtimes(root);
        },
    );
    assert_eq!(lines, ["changed: p: type fifo → socket"]);
}

#[test]
fn the_number_of_a_device() {
    let make = |root: &Path, minor| {
        let device = rustix::fs::makedev(1, minor);
        let (kind, mode) = (FileType::CharacterDevice, Mode::from(0o600));
        rustix::fs::mknodat(CWD, root.join("c"), kind, mode, device)
    };
    if make(TempWorkspace::new().working(), 3).is_err() {
        return skip("the_number_of_a_device", "devices cannot be made here");
    }
    let lines = seen(
        |root| make(root, 3).unwrap(),
        |root| {
            fs::remove_file(root.join("c")).unwrap();
            make(root, 5).unwrap();
            set_all_mtimes(root);
        },
    );
    assert_eq!(lines, ["changed: c: device 1:3 → 1:5"]);
}

#[test]
fn a_hard_link_broken_into_two_equal_files() {
    let lines = seen(
        |root| {
            file(root);
            fs::hard_link(root.join("f"), root.join("g")).unwrap();
        },
        |root| {
            fs::remove_file(root.join("g")).unwrap();
            fs::copy(root.join("f"), root.join("g")).unwrap();
            set_all_mtimes(root);
        },
    );
    assert_eq!(
        lines,
        ["changed: f: hard-linked with f → nothing", "changed: g: hard-linked with f → nothing",]
    );
}

#[test]
fn a_hard_link_moved_to_another_group() {
    let lines = seen(
        |root| {
            for (first, second) in [("a", "b"), ("c", "d")] {
                fs::write(root.join(first), "same").unwrap();
                fs::hard_link(root.join(first), root.join(second)).unwrap();
            }
            fs::hard_link(root.join("a"), root.join("x")).unwrap();
        },
        |root| {
            fs::remove_file(root.join("x")).unwrap();
            fs::hard_link(root.join("c"), root.join("x")).unwrap();
            set_all_mtimes(root);
        },
    );
    assert_eq!(lines, ["changed: x: hard-linked with a → c"]);
}

#[test]
fn a_link_from_outside_shows_when_asked_for() {
    let workspace = TempWorkspace::with_fixture(file);
    let before = workspace.snapshot();
    fs::hard_link(workspace.path("f"), workspace.undo()).unwrap();
    let after = workspace.snapshot();
    assert_tree_eq(&before, &after);
    let options = CompareOptions { link_counts: true, ..CompareOptions::default() };
    assert_eq!(before.diff_with(&after, &options), ["changed: f: link count 1 → 2"]);
}

#[test]
fn missing_and_added_entries() {
    let lines = seen(
        |root| {
            file(root);
            fs::create_dir(root.join("d")).unwrap();
        },
        |root| {
            fs::rename(root.join("f"), root.join("g\n")).unwrap();
            fs::remove_dir(root.join("d")).unwrap();
            set_mtime(root, 1_000_000_000, 5);
        },
    );
    assert_eq!(
        lines,
        [
            "missing: d (directory)",
            "missing: f (regular file, 7 bytes)",
            r"added: g\n (regular file, 7 bytes)",
        ]
    );
}

#[test]
fn options_overlook_what_they_say() {
    let workspace = TempWorkspace::with_fixture(file);
    set_all_mtimes(workspace.working());
    let before = workspace.snapshot();
    set_mtime(&workspace.path("f"), 1_000_000_000, 1005);
    fs::write(workspace.path("noise"), "").unwrap();
    let after = workspace.snapshot();
    let options = |mtime_tolerance_ns| {
        CompareOptions { mtime_tolerance_ns, directory_mtimes: false, ..CompareOptions::default() }
            .ignoring(|path| path == b"noise")
    };
    assert_tree_eq_with(&before, &after, &options(1000));
    assert_eq!(before.diff_with(&after, &options(999)).len(), 1);
    assert_eq!(before.diff(&after).len(), 3);
}

#[test]
fn a_link_to_an_ignored_name_is_no_link() {
    let workspace = TempWorkspace::with_fixture(file);
    let alone = workspace.snapshot();
    fs::hard_link(workspace.path("f"), workspace.path("ignored")).unwrap();
    let linked = workspace.snapshot();
    let options = CompareOptions { directory_mtimes: false, ..CompareOptions::default() };
    assert_eq!(alone.diff_with(&linked, &options).len(), 2);
    let options = options.ignoring(|path| path == b"ignored");
    assert_tree_eq_with(&alone, &linked, &options);
}

#[test]
#[should_panic(expected = "changed: f: mode 0644 → 0600")]
fn the_assertion_tells_what_changed() {
    let workspace = TempWorkspace::with_fixture(file);
    chmod(&workspace.path("f"), 0o644);
    let before = workspace.snapshot();
    chmod(&workspace.path("f"), 0o600);
    assert_tree_eq(&before, &workspace.snapshot());
}
