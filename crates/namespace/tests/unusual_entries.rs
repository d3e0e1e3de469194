//! What folders hold beside files with contents: sockets, holes, times, extended attributes and
//! access control lists. The folder ends as after the same command without a sandbox, and undo and
//! redo are exact.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

use codeagent_interceptor::{ClosedStep, OnConflict};
use codeagent_namespace::View;
use codeagent_test_support::filesystems::{disk_dir, skip, supports_acls, supports_user_xattrs};
use codeagent_test_support::{TempWorkspace, TreeSnapshot, assert_tree_eq};
use common::{Session, as_ordinary_user_with_fuse, sh};

const VIEWS: [View; 2] = [View::Transactional, View::Live];

/// Runs a script, undoes and redoes it twice, and looks at what is there each time.
fn there_and_back(session: &Session, script: &str, look: impl Fn(&TreeSnapshot, &Path)) {
    let before = session.snapshot();
    let ran = session.run(script);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert!(matches!(ran.step().closed, ClosedStep::Recorded { .. }), "{ran:?}");
    assert!(ran.step().report.refused.is_empty(), "{ran:?}");
    let after = session.snapshot();
    look(&after, session.workspace.working());
    for _ in 0..2 {
        session.worker().undo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&before, &session.snapshot());
        session.worker().redo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&after, &session.snapshot());
        look(&session.snapshot(), session.workspace.working());
    }
}

/// A program whose text is Python.
fn python(script: &str) -> String {
    format!("python3 - <<'EOF'\nimport os, socket, struct\n{script}\nEOF")
}

#[test]
fn sockets_that_a_command_makes_are_there_afterwards() {
    make_sockets();
}

#[test]
fn those_that_one_of_an_ordinary_user_makes_are_too() {
    as_ordinary_user_with_fuse("those_that_one_of_an_ordinary_user_makes_are_too", make_sockets);
}

fn make_sockets() {
    for view in VIEWS {
        let session = Session::new(|dir| {
            sh("mkdir old gone; echo x > replaced", dir);
            for path in ["removed", "old/kept", "gone/with-directory", "moved"] {
                drop(UnixListener::bind(dir.join(path)).unwrap());
            }
        })
        .seen(view);
        let script = python(
            "
def bind(path):
    server = socket.socket(socket.AF_UNIX)
    server.bind(path); server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    client.sendall(b'hello')
    assert server.accept()[0].recv(5) == b'hello'
bind('stream')
os.makedirs('new/deep')
bind('new/deep/stream')
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).bind('old/datagrams')
os.unlink('replaced'); bind('replaced')
os.chmod('stream', 0o600); os.utime('stream', ns=(0, 1234567890_123456789))
os.unlink('removed')
os.unlink('gone/with-directory'); os.rmdir('gone')
os.rename('moved', 'new/moved')
os.link('old/kept', 'old/further-name')",
        );
        there_and_back(&session, &script, |_, dir| {
            let made = [
                "stream",
                "new/deep/stream",
                "old/datagrams",
                "replaced",
                "old/kept",
                "new/moved",
                "old/further-name",
            ];
            for path in made {
                let kind = dir.join(path).symlink_metadata().unwrap().file_type();
                assert!(kind.is_socket(), "{path} ({view:?})");
            }
            assert!(!dir.join("removed").exists() && !dir.join("moved").exists());
            let stream = dir.join("stream").symlink_metadata().unwrap();
            assert_eq!(stream.mode() & 0o7777, 0o600, "{view:?}");
            assert_eq!((stream.mtime(), stream.mtime_nsec()), (1_234_567_890, 123_456_789));
        });
    }
}

/// As images of disks and databases are, which would fill the disk otherwise.
#[test]
fn files_with_holes_keep_them() {
    let test = "files_with_holes_keep_them";
    let Some(disk) = disk_dir() else { return skip(test, "there is no directory on a disk") };
    for place in [None, Some(disk)] {
        for view in VIEWS {
            keep_holes(place.as_deref(), view);
        }
    }
}

fn keep_holes(place: Option<&Path>, view: View) {
    const SIZE: u64 = 64 << 20;
    let workspace = place.map_or_else(TempWorkspace::new, TempWorkspace::on);
    let fixture = "for f in edited renamed removed copied-up; do
        truncate -s 32M $f; echo start | dd of=$f conv=notrunc status=none; truncate -s 64M $f; done";
    let workspace = workspace.filled(|dir| sh(fixture, dir));
    let session = Session::with(workspace, |_| {}).seen(view);
    let script = "
        truncate -s 64M made; echo in the middle | dd of=made bs=1M seek=32 conv=notrunc status=none
        mkdir new; cp --sparse=always made new/copy
        echo in the middle | dd of=edited bs=1M seek=32 conv=notrunc status=none
        mv renamed new/renamed; chmod 600 copied-up; rm removed";
    let is_sparse = |dir: &Path, name: &str| {
        let metadata = dir.join(name).metadata().unwrap();
        assert_eq!(metadata.len(), SIZE, "{name} ({view:?})");
        let used = metadata.blocks() * 512;
        assert!(used <= SIZE / 16, "{name} ({view:?}) takes {used} bytes");
        assert!(used > 0, "{name} ({view:?}) has content");
    };
    let dir = session.workspace.working().to_owned();
    there_and_back(&session, script, |_, dir| {
        for name in ["made", "new/copy", "edited", "new/renamed", "copied-up"] {
            is_sparse(dir, name);
        }
    });
    session.worker().undo(1, OnConflict::Refuse).unwrap();
    for name in ["edited", "renamed", "removed", "copied-up"] {
        is_sparse(&dir, name);
    }
}

#[test]
fn times_that_a_command_sets_are_those_that_it_would_have_set_without_a_sandbox() {
    set_times();
}

#[test]
fn so_are_those_that_one_of_an_ordinary_user_sets() {
    as_ordinary_user_with_fuse("so_are_those_that_one_of_an_ordinary_user_sets", set_times);
}

fn set_times() {
    const FIXTURE: &str = "mkdir -p dir/inner full kept/inner; ln -s file link
        for f in file edited dir/file dir/inner/file full/1 full/2 kept/inner/file moved; do echo x > $f; done
        mkfifo pipe
        find . -exec touch -hd '2001-02-03 04:05:06.123456789 UTC' {} +";
    // Every entry is given its time last: nothing that is compared depends on when the script ran.
    const SCRIPT: &str = "
        touch -d '1969-12-31 23:59:59.999999999 UTC' file
        echo more >> edited; touch -d '2010-01-01 00:00:00.000000001 UTC' edited
        touch -d '2038-01-20 00:00:00.5 UTC' dir/inner/file pipe; touch -hd '2012-01-01 UTC' link
        touch -md '2013-01-01 UTC' dir/file
        mkdir -p new/deep; echo x > new/deep/file; cp -a full new/copy; mv moved new/moved
        touch -d '2014-01-01 UTC' new/deep/file new/deep
        rm full/1; echo x > full/3; touch -d '2015-01-01 00:00:00.25 UTC' full/3 full
        touch -d '2016-01-01 UTC' dir/inner; touch -d '2017-01-01 UTC' dir
        touch -d '2018-01-01 UTC' new; touch -d '2019-01-01 00:00:00.000001 UTC' .";
    for view in VIEWS {
        let native = TempWorkspace::with_fixture(|dir| sh(FIXTURE, dir));
        sh(SCRIPT, native.working());
        let native = native.snapshot();
        let session = Session::new(|dir| sh(FIXTURE, dir)).seen(view);
        there_and_back(&session, SCRIPT, |after, _| assert_tree_eq(&native, after));
    }
}

/// What no clock shows, but every program may set.
#[test]
fn the_most_distant_times_harm_nothing() {
    for view in VIEWS {
        let session = Session::new(|dir| sh("echo x > file; echo y > other", dir)).seen(view);
        let before = session.snapshot();
        let script = python(
            "
for seconds in -2**63 + 1, 2**63 - 1, -2**62, 2**62, 2**34, -2**32:
    try: os.utime('file', (seconds, seconds))
    except OverflowError: pass
    except OSError as error: print(seconds, error)
    os.stat('file')
open('other', 'a').write('more')",
        );
        let ran = session.run(&script);
        assert_eq!((ran.code(), &*ran.stdout), (Some(0), ""), "{view:?}: {ran:?}");
        session.worker().undo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&before, &session.snapshot());
    }
}

/// An access control list that names its own user: of others, a user namespace knows nothing.
const ATTRIBUTES: &str = "
import sys
def acl(user_permissions):
    entries = [(1, 6, -1), (2, user_permissions, os.getuid()), (4, 4, -1), (16, 6, -1), (32, 4, -1)]
    return struct.pack('<I', 2) + b''.join(struct.pack('<HHi', *entry) for entry in entries)
ACL, DEFAULT = 'system.posix_acl_access', 'system.posix_acl_default'
def bare(path): return {name: os.getxattr(path, name) for name in os.listxattr(path)}
";

#[test]
fn extended_attributes_are_as_the_command_leaves_them() {
    set_attributes();
}

#[test]
fn those_of_an_ordinary_user_are_too() {
    as_ordinary_user_with_fuse("those_of_an_ordinary_user_are_too", set_attributes);
}

fn set_attributes() {
    for view in VIEWS {
        let session = Session::new(|dir| {
            sh("mkdir dir; for f in file other dir/file moved; do echo x > $f; done", dir);
            let script = format!(
                "{ATTRIBUTES}
for path in 'file', 'dir', 'dir/file', 'moved':
    os.setxattr(path, 'user.old', b'old'); os.setxattr(path, 'user.gone', b'gone')"
            );
            sh(&python(&script), dir);
        })
        .seen(view);
        if !supports_user_xattrs(session.workspace.working()) {
            return skip(
                "extended_attributes_are_as_the_command_leaves_them",
                "no user xattrs here",
            );
        }
        let script = format!(
            "{ATTRIBUTES}
for path in 'file', 'dir':
    os.setxattr(path, 'user.old', b'new'); os.removexattr(path, 'user.gone')
    os.setxattr(path, 'user.bytes', bytes(range(256))); os.setxattr(path, 'user.empty', b'')
os.setxattr('other', 'user.long', b'l' * 3000)
os.makedirs('new/deep'); open('new/deep/file', 'w').close()
os.setxattr('new/deep', 'user.of', b'directory'); os.setxattr('new/deep/file', 'user.of', b'file')
os.rename('moved', 'new/moved')
assert bare('new/moved') == {{'user.old': b'old', 'user.gone': b'gone'}}, bare('new/moved')"
        );
        there_and_back(&session, &python(&script), |after, _| {
            let of = |path: &str| {
                let xattrs = &after.get(path).unwrap().xattrs;
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let long = |value: &[u8]| {
                    if value.len() > 20 { value.len().to_string() } else { text(value) }
                };
                xattrs.iter().map(|(name, value)| (text(name), long(value))).collect::<Vec<_>>()
            };
            let expect = |expected: &[(&str, &str)]| {
                expected.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Vec<_>>()
            };
            let changed = expect(&[("user.bytes", "256"), ("user.empty", ""), ("user.old", "new")]);
            assert_eq!((of("file"), of("dir")), (changed.clone(), changed), "{view:?}");
            assert_eq!(of("other"), expect(&[("user.long", "3000")]), "{view:?}");
            assert_eq!(of("new/deep"), expect(&[("user.of", "directory")]), "{view:?}");
            assert_eq!(of("new/deep/file"), expect(&[("user.of", "file")]), "{view:?}");
            let kept = expect(&[("user.gone", "gone"), ("user.old", "old")]);
            assert_eq!((of("dir/file"), of("new/moved")), (kept.clone(), kept), "{view:?}");
        });
    }
}

#[test]
fn access_control_lists_are_as_the_command_leaves_them() {
    let test = "access_control_lists_are_as_the_command_leaves_them";
    for view in VIEWS {
        let session = Session::new(|dir| {
            sh("mkdir dir; for f in file other dir/file; do echo x > $f; done", dir);
        })
        .seen(view);
        if !supports_acls(session.workspace.working()) {
            return skip(test, "there are no ACLs here");
        }
        let fixture = "os.setxattr('other', ACL, acl(6)); os.setxattr('dir/file', ACL, acl(7))";
        sh(&python(&format!("{ATTRIBUTES}{fixture}")), session.workspace.working());
        let script = format!(
            "{ATTRIBUTES}
os.setxattr('file', ACL, acl(5)); os.removexattr('other', ACL)
os.setxattr('dir', DEFAULT, acl(7))
open('dir/inherits', 'w').close(); os.mkdir('dir/inner')
assert os.getxattr('file', ACL) == acl(5)
assert ACL in bare('dir/inherits') and DEFAULT in bare('dir/inner'), bare('dir/inherits')"
        );
        there_and_back(&session, &python(&script), |after, _| {
            let has = |path: &str, name: &str| {
                let entry = after.get(path).unwrap();
                entry.xattrs.contains_key(format!("system.posix_acl_{name}").as_bytes())
            };
            assert!(has("file", "access") && has("dir/file", "access"), "{view:?}");
            assert!(!has("other", "access"), "{view:?}");
            assert!(has("dir", "default") && has("dir/inner", "default"), "{view:?}");
            assert!(has("dir/inherits", "access") && !has("dir/inherits", "default"), "{view:?}");
        });
    }
}
