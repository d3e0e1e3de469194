//! Set-user-id files that ordinary users change through a mount that root serves.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use codeagent_test_support::filesystems::skip;
use common::{Mounted, can_mount, has};

const NOBODY: u32 = 65_534;

/// Each is Python, with the file's name in `p`.
const CHANGES: &[(&str, &str)] = &[
    ("write", "f = os.open(p, os.O_WRONLY); os.write(f, b'x')"),
    ("append", "f = os.open(p, os.O_WRONLY | os.O_APPEND); os.write(f, b'x')"),
    ("truncate", "os.truncate(p, 3)"),
    ("truncate to the same size", "os.truncate(p, 7)"),
    ("ftruncate", "f = os.open(p, os.O_WRONLY); os.ftruncate(f, 3)"),
    ("fallocate", "f = os.open(p, os.O_WRONLY); os.posix_fallocate(f, 0, 9000)"),
    (
        "punch",
        "import ctypes; f = os.open(p, os.O_RDWR); \
      assert ctypes.CDLL(None).fallocate(f, 3, ctypes.c_long(0), ctypes.c_long(3)) == 0",
    ),
    ("open to truncate", "os.close(os.open(p, os.O_WRONLY | os.O_TRUNC))"),
    ("create to truncate", "os.close(os.open(p, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))"),
    ("open only", "os.close(os.open(p, os.O_RDWR))"),
    ("chown", "os.chown(p, -1, os.getgid())"),
    ("chmod", "os.chmod(p, os.stat(p).st_mode & 0o7777)"),
    ("times", "os.utime(p)"),
    (
        "mmap",
        "import mmap; f = os.open(p, os.O_RDWR); m = mmap.mmap(f, 7); m[0:1] = b'x'; m.flush()",
    ),
    (
        "copy_file_range",
        "g = os.open('source', os.O_RDONLY); f = os.open(p, os.O_WRONLY); \
      os.copy_file_range(g, f, 3)",
    ),
    (
        "sendfile",
        "g = os.open('source', os.O_RDONLY); f = os.open(p, os.O_WRONLY); \
      os.sendfile(f, g, 0, 3)",
    ),
];

/// Without set-group-id files that the group may not run: that bit is no privilege.
const MODES: [u32; 3] = [0o4777, 0o2777, 0o6777];

fn make(file: &Path, mode: u32, owner: u32) {
    fs::write(file, "content").unwrap();
    std::os::unix::fs::chown(file, Some(owner), Some(owner)).unwrap();
    fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
}

fn change(folder: &Path, script: &str, user: u32) -> (bool, u32) {
    let status = Command::new("python3")
        .args(["-c", &format!("import os; p = 'file'; {script}")])
        .current_dir(folder)
        .uid(user)
        .gid(user)
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    (status.success(), fs::metadata(folder.join("file")).unwrap().mode() & 0o7777)
}

#[test]
fn privileges_are_lost_through_the_mount_as_without_it() {
    let test = "privileges_are_lost_through_the_mount_as_without_it";
    if !can_mount(test) {
        return;
    }
    if !rustix::process::geteuid().is_root() || !has("python3") {
        skip(test, "acting as somebody else needs root, and this python3");
        return;
    }
    let mounted = Mounted::new(|root| fs::write(root.join("source"), "source").unwrap());
    let (bare, through) = (
        tempfile::tempdir_in(mounted.workspace.working().parent().unwrap()).unwrap(),
        mounted.mount.mount_point(),
    );
    fs::write(bare.path().join("source"), "source").unwrap();
    let below = mounted.workspace.working();
    for dir in [bare.path(), below, mounted.point.path(), below.parent().unwrap()] {
        fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    }
    let mut different = Vec::new();
    for &(what, script) in CHANGES {
        for mode in MODES {
            for (owner, user) in [(0, NOBODY), (NOBODY, NOBODY), (NOBODY, 0)] {
                let seen = [bare.path(), through].map(|folder| {
                    let _ = fs::remove_file(folder.join("file"));
                    make(&folder.join("file"), mode, owner);
                    let seen = change(folder, script, user);
                    // What is there, not only what the kernel remembers.
                    let host = if folder == through { below } else { folder };
                    let there = fs::metadata(host.join("file")).unwrap().mode() & 0o7777;
                    (seen, there)
                });
                if seen[0] != seen[1] {
                    let [bare, mount] = seen;
                    different.push(format!(
                        "{what}, {mode:o}, file of {owner}, by {user}: bare {:?} {:o}, mount {:?} {:o} (host {:o})",
                        bare.0.0, bare.0.1, mount.0.0, mount.0.1, mount.1
                    ));
                }
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}
