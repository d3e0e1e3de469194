//! The view in which commands can look at everything in the folders, and change nothing.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;

use codeagent_common::StepId;
use codeagent_control::{Outcome, Stream};
use codeagent_interceptor::ClosedStep;
use codeagent_namespace::{View, ViewChoice, WorkFolder};
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use common::{Session, as_ordinary_user_with_fuse, sh, shell, start_worker};

fn fill(dir: &Path) {
    sh(
        "echo old > file; mkdir dir empty; echo old > dir/inner; ln -s file link; ln file hard; mkfifo fifo
         chmod 640 file; setfattr -n user.canary -v old file 2>/dev/null || true",
        dir,
    );
}

/// Tries every way to change a folder, and says how the kernel answers.
const ATTEMPTS: &str = r#"
import ctypes, errno, fcntl, mmap, os, socket, struct
def attempt(what, f):
    try: f(); print(what, "DONE")
    except OSError as error: print(what, errno.errorcode[error.errno])
def mapped():
    with open("file", "rb") as file: mmap.mmap(file.fileno(), 4, mmap.MAP_SHARED, mmap.PROT_WRITE)
def bound():
    socket.socket(socket.AF_UNIX).bind("new")
def flagged():
    fcntl.ioctl(os.open("file", os.O_RDONLY), 0x40086602, struct.pack("l", 0x80))
def unnamed():
    os.open(".", os.O_TMPFILE | os.O_WRONLY)
fd = os.open("file", os.O_RDONLY)
again = "/proc/self/fd/%d" % fd
attempt("create", lambda: open("new", "x"))
attempt("write", lambda: open("file", "r+"))
attempt("append", lambda: open("file", "a"))
attempt("overwrite", lambda: open("file", "w"))
attempt("write through a symlink", lambda: open("link", "w"))
attempt("write through a hard link", lambda: open("hard", "r+"))
attempt("open again for writing", lambda: os.open(again, os.O_RDWR))
attempt("a file without a name", unnamed)
attempt("truncate", lambda: os.truncate("file", 0))
attempt("chmod", lambda: os.chmod("file", 0o777))
attempt("chmod by descriptor", lambda: os.fchmod(fd, 0o777))
attempt("chmod the folder", lambda: os.chmod(".", 0o777))
attempt("chown", lambda: os.chown("file", os.getuid(), os.getgid()))
attempt("utime", lambda: os.utime("file"))
attempt("utime by descriptor", lambda: os.utime(fd, (0, 0)))
attempt("setxattr", lambda: os.setxattr("file", "user.canary", b"new"))
attempt("setxattr by descriptor", lambda: os.setxattr(fd, "user.other", b"new"))
attempt("removexattr", lambda: os.removexattr("file", "user.canary"))
attempt("rename", lambda: os.rename("file", "moved"))
attempt("rename over", lambda: os.rename("file", "dir/inner"))
attempt("rename a directory", lambda: os.rename("dir", "moved"))
attempt("unlink", lambda: os.unlink("file"))
attempt("rmdir", lambda: os.rmdir("empty"))
attempt("mkdir", lambda: os.mkdir("new"))
attempt("symlink", lambda: os.symlink("file", "new"))
attempt("link", lambda: os.link("file", "new"))
attempt("mkfifo", lambda: os.mkfifo("new"))
attempt("bind a socket", bound)
attempt("map for writing", mapped)
attempt("set a flag", flagged)
"#;

/// Attempts to be rid of what is in the way.
const ESCAPES: &[&str] = &[
    "mount -o remount,rw .",
    "mount -o remount,bind,rw .",
    "umount .",
    "umount -l .",
    "mount --bind . /tmp",
    "mount -t tmpfs none .",
    "unshare -Urm sh -c 'mount -o remount,bind,rw .'",
    "nsenter -t 1 -m touch new",
    "touch /proc/1/root/$PWD/new",
    "touch /proc/1/cwd/$PWD/new",
];

/// The view that somebody asked for, and the one of commands that are known to only read.
const KINDS: [fn(Session) -> Session; 2] =
    [|session| session.seen(View::ReadOnly), Session::reading];

#[test]
fn nothing_can_be_changed() {
    KINDS.into_iter().for_each(try_to_change);
}

#[test]
fn nothing_can_be_changed_by_an_ordinary_user() {
    as_ordinary_user_with_fuse("nothing_can_be_changed_by_an_ordinary_user", || {
        KINDS.into_iter().for_each(try_to_change);
    });
}

fn try_to_change(kind: fn(Session) -> Session) {
    let session = kind(Session::new(fill));
    let before = session.snapshot();
    let ran = session.run(&format!("python3 - <<'END'\n{ATTEMPTS}\nEND"));
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert_eq!(ran.stdout.lines().count(), 30, "{ran:?}");
    for line in ran.stdout.lines() {
        // Memory that can be written and local sockets are not to be had; and not every filesystem
        // has attributes and flags.
        let expected: &[&str] = match line.rsplit_once(' ').unwrap().0 {
            "map for writing" => &["EACCES"],
            "bind a socket" => &["EROFS", "EPERM"],
            "set a flag" => &["EROFS", "EPERM", "ENOTTY", "EACCES"],
            "removexattr" => &["EROFS", "ENODATA"],
            _ => &["EROFS"],
        };
        assert!(expected.iter().any(|errno| line.ends_with(errno)), "{line}: {ran:?}");
    }
    for script in ESCAPES {
        let ran = session.run(script);
        assert_ne!(ran.code(), Some(0), "{script}: {ran:?}");
    }
    // All attempts are of use only if they are refused because of the view.
    assert_tree_eq(&before, &session.snapshot());
    assert_eq!(session.run("cat file dir/inner link").stdout, "old\nold\nold\n");
}

#[test]
fn there_is_no_step_and_the_next_command_has_the_first() {
    let session = Session::new(fill).seen(View::ReadOnly);
    let ran = session.run("cat file; touch new");
    assert_eq!((ran.code(), ran.stdout.as_str()), (Some(1), "old\n"), "{ran:?}");
    assert!(ran.stderr.contains("Read-only file system"), "{ran:?}");
    assert_eq!((ran.finished.view, ran.finished.other_view), (View::ReadOnly, None));
    assert!(ran.finished.steps.iter().all(Option::is_none) && ran.finished.steps.len() == 1);
    assert!(session.worker().history().unwrap().is_empty());
    assert_eq!(session.worker().status().unwrap().open_step, None);
    let session = session.seen(View::Transactional);
    let ran = session.run("touch new");
    let closed = &ran.step().closed;
    assert!(matches!(closed, ClosedStep::Recorded { step, .. } if step.id == StepId(1)), "{ran:?}");
}

/// The home and `/tmp` of commands are no folders, and theirs.
#[test]
fn what_is_the_sandboxs_own_can_be_written() {
    let session = Session::new(fill).seen(View::ReadOnly);
    let ran = session.run("sort file > /tmp/sorted && cp file ~ && cat /tmp/sorted ~/file");
    assert_eq!(ran.stdout, "old\nold\n", "{ran:?}");
}

#[test]
fn the_undo_directory_cannot_be_seen() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let workspace = TempWorkspace::on(place.path()).filled(fill);
    let undo = workspace.undo().to_owned();
    let hidden = undo.clone();
    let session = Session::with(workspace, |policy| {
        policy.readable.push(place.path().into());
        policy.hidden.push(hidden);
    })
    .seen(View::ReadOnly);
    let before = session.snapshot();
    let script = format!("cat file; ls -A {0}; cat {0}/version; touch {0}/x", undo.display());
    let ran = session.run(&script);
    assert_eq!(ran.stdout, "old\n", "{ran:?}");
    assert!(undo.join("version").exists() && !undo.join("x").exists());
    assert_tree_eq(&before, &session.snapshot());
}

/// Who may only look at a folder talks to nobody through it.
#[test]
fn pipes_of_the_host_are_there_by_name_only() {
    let session = Session::new(fill).seen(View::ReadOnly);
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK;
    let mode = rustix::fs::Mode::empty();
    let pipe = rustix::fs::open(session.workspace.path("fifo"), flags, mode).unwrap();
    rustix::io::write(&pipe, b"host").unwrap();
    let script = "exec 3<>fifo; echo written >&3; cat <&3 & sleep 0.2; kill $!";
    assert_eq!(session.run(script).stdout, "written\n");
    let mut found = [0; 16];
    let length = rustix::io::read(&pipe, &mut found).unwrap();
    assert_eq!(&found[..length], b"host");
}

/// Servers and the like look at them for hours.
#[test]
fn what_others_change_in_a_folder_that_is_read_only_is_seen() {
    let [work, fixed] = [(); 2].map(|()| TempWorkspace::with_fixture(fill));
    let worker = start_worker(work.working(), work.undo());
    let folders = [
        WorkFolder { path: work.working(), worker: Some(worker.client()) },
        WorkFolder { path: fixed.working(), worker: None },
    ];
    let script = format!(
        "cd {}; cat file; test -e signal; echo looking; i=0
         until test -e signal || test $i = 200; do sleep 0.05; i=$((i + 1)); done; cat file",
        fixed.working().display()
    );
    let session = Session::new(|_| {});
    let (_orders, taken) = channel();
    let mut said = Vec::new();
    let mut is_changed = false;
    let collect = |_, data: &[u8]| {
        said.extend_from_slice(data);
        if !is_changed && said.ends_with(b"looking\n") {
            is_changed = true;
            fs::write(fixed.path("new"), "new\n").unwrap();
            fs::rename(fixed.path("new"), fixed.path("file")).unwrap();
            fs::write(fixed.path("signal"), "").unwrap();
        }
    };
    let choice = ViewChoice::default();
    session.executor.run(&folders, shell(&script), choice, taken, collect).unwrap();
    assert_eq!(String::from_utf8_lossy(&said), "old\nlooking\nnew\n");
}

#[test]
fn several_folders_are_all_read_only() {
    let [one, two, fixed] = [(); 3].map(|()| TempWorkspace::with_fixture(fill));
    let workers = [&one, &two].map(|folder| start_worker(folder.working(), folder.undo()));
    let folders = [
        WorkFolder { path: one.working(), worker: Some(workers[0].client()) },
        WorkFolder { path: two.working(), worker: Some(workers[1].client()) },
        WorkFolder { path: fixed.working(), worker: None },
    ];
    let before = [&one, &two, &fixed].map(TempWorkspace::snapshot);
    let others = format!("{} {}", two.working().display(), fixed.working().display());
    let script =
        format!("for d in . {others}; do cat $d/file; touch $d/new || mv $d/file /tmp/; done 2>&1");
    let session = Session::new(|_| {});
    let (_orders, taken) = channel();
    let mut said = Vec::new();
    let collect = |stream, data: &[u8]| {
        if stream == Stream::Stdout {
            said.extend_from_slice(data);
        }
    };
    let choice = ViewChoice::Only(View::ReadOnly);
    let finished = session.executor.run(&folders, shell(&script), choice, taken, collect).unwrap();
    let said = String::from_utf8_lossy(&said);
    assert_eq!(said.matches("old\n").count(), 3, "{said}");
    assert_eq!(said.matches("Read-only file system").count(), 6, "{said}");
    assert!(finished.steps.len() == 3 && finished.steps.iter().all(Option::is_none));
    for (before, folder) in before.iter().zip([&one, &two, &fixed]) {
        assert_tree_eq(before, &folder.snapshot());
    }
}

/// What git would like to write down for the next time, it goes without.
#[test]
fn git_reads_what_it_reads_elsewhere_and_leaves_its_index_alone() {
    let session = Session::new(|dir| {
        sh(
            "git init -q; git config user.name x; git config user.email x@example.org
             echo a > same; echo a > changed; git add .; git commit -qm first
             echo b >> changed; echo c > untracked; touch -d '2001-01-01' same",
            dir,
        );
    })
    .seen(View::ReadOnly);
    let before = session.snapshot();
    let index = fs::read(session.workspace.path(".git/index")).unwrap();
    let lines =
        ["git status", "git diff", "git diff --stat", "git log -p", "git describe --always"];
    let here = lines.map(|line| session.run(line));
    assert_tree_eq(&before, &session.snapshot());
    assert_eq!(index, fs::read(session.workspace.path(".git/index")).unwrap());
    // The host's own git writes it anew.
    for (line, here) in lines.iter().zip(here) {
        let native = Command::new("sh")
            .args(["-c", line])
            .current_dir(session.workspace.working())
            .output()
            .unwrap();
        assert_eq!((here.code(), here.stderr.as_str()), (Some(0), ""), "{line}");
        assert_eq!(here.stdout, String::from_utf8_lossy(&native.stdout), "{line}");
    }
    assert_ne!(index, fs::read(session.workspace.path(".git/index")).unwrap());
}

#[test]
fn a_command_that_is_killed_leaves_nothing_open() {
    let session = Session::new(fill).seen(View::ReadOnly);
    let mut exec = shell("sleep 1000 & sleep 1000");
    (exec.timeout_ms, exec.grace_ms) = (Some(200), 100);
    let ran = session.try_run(exec).unwrap();
    assert!(matches!(ran.finished.outcome, Outcome::Completed { .. }), "{ran:?}");
    let session = session.seen(View::Transactional);
    assert_eq!(session.run("cat file").stdout, "old\n");
}
