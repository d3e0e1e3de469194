//! Random scripts: the folder ends as after the same script without a sandbox, and undo and redo
//! are exact.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]
#![allow(clippy::print_stdout, reason = "shown when it fails")]

mod common;

use std::path::Path;
use std::process::Command;

use codeagent_interceptor::{ClosedStep, OnConflict};
use codeagent_namespace::View;
use codeagent_test_support::filesystems::{disk_dir, reflink_dirs, skip};
use codeagent_test_support::{
    CompareOptions, EntryKind, TempWorkspace, assert_tree_eq, assert_tree_eq_with,
};
use common::{Session, as_ordinary_user_with_fuse, sh};

const FIXTURE: &str = "
    mkdir -p a/b/c d/e f; for p in a/1 a/b/2 a/b/c/3 d/4 d/e/5 6; do echo $p > $p; done
    ln -s a/1 7; mkfifo f/8; head -c 100000 /dev/urandom > 9; chmod 0600 d/4; chmod 0700 f";

/// What the shell has no command for. Perl starts quickly, and is part of every Debian.
const TOOL: &str = r#"
ODD=$(printf 'odd\377')
tool() { perl -MSocket -e '
    my $task = shift;
    if ($task eq "attribute") { exit(syscall(SETXATTR, $ARGV[2], $ARGV[0], $ARGV[1], length $ARGV[1], 0) < 0) }
    if ($task eq "socket") { socket(S, PF_UNIX, SOCK_STREAM, 0); exit !bind(S, pack_sockaddr_un($ARGV[0])) }
    my ($size, $path) = @ARGV;
    -p $path or open(F, ">>", $path) && unlink($path) && print F "x" x $size' -- "$@"; }"#;

/// What a script does not do, because a view does it otherwise than the bare folder.
#[derive(Clone, Copy)]
struct Kind {
    view: View,
    /// An overlay renames no directory of its lower layer, so `mv` copies it: names of one file
    /// that lie outside become a file of their own.
    links: bool,
    renamed_directories: bool,
    /// FUSE in a user namespace takes the bit away with each write, also from root.
    set_group_id: bool,
    /// Whoever may not look into a directory cannot copy it.
    locked_directories: bool,
    /// To look into a file that is locked against himself, an ordinary user has to unlock it: the
    /// picture that is taken of the folder would be a change from outside.
    locked_files: bool,
}

const KINDS: [Kind; 3] = [
    Kind {
        view: View::Transactional,
        links: true,
        renamed_directories: false,
        set_group_id: true,
        locked_directories: true,
        locked_files: true,
    },
    Kind {
        view: View::Transactional,
        links: false,
        renamed_directories: true,
        set_group_id: true,
        locked_directories: true,
        locked_files: true,
    },
    Kind {
        view: View::Live,
        links: true,
        renamed_directories: true,
        set_group_id: false,
        locked_directories: true,
        locked_files: true,
    },
];

/// Numbers that are the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    fn one_of<'a>(&mut self, choice: &[&'a str]) -> &'a str {
        choice[self.roll(choice.len())]
    }

    fn path(&mut self) -> String {
        const PARTS: [&str; 9] = ["a", "b", "c", "d", "e", "f", "new", "x y", "9"];
        // The last one is not text: the shell makes two bytes of it that are no UTF-8.
        const LAST: [&str; 12] =
            ["1", "2", "3", "4", "5", "6", "7", "8", "9", "n1", "n\u{e9}", "'\"$ODD\"'"];
        let depth = self.roll(4);
        let mut path: Vec<&str> = (0..depth).map(|_| self.one_of(&PARTS)).collect();
        path.push(if self.roll(3) == 0 { self.one_of(&PARTS) } else { self.one_of(&LAST) });
        format!("'{}'", path.join("/"))
    }

    fn line(&mut self, kind: Kind) -> String {
        let (one, other) = (self.path(), self.path());
        let number = self.roll(150_000);
        match self.roll(22) {
            0 | 1 => format!("mkdir -p {one}"),
            2 | 3 => format!("test -p {one} || echo {number} > {one}"),
            4 => format!("test -p {one} || echo {number} >> {one}"),
            5 => format!("rm -rf {one}"),
            6 => format!("rm -f {one}"),
            7 => format!("rmdir {one}"),
            8 if kind.renamed_directories => format!("mv -T {one} {other}"),
            8 => format!("test -d {one} || mv -T {one} {other}"),
            9 if kind.links => format!("test -p {one} || ln {one} {other}"),
            9 => format!("mv {one} {one}~"),
            10 => format!("ln -s {other} {one}"),
            11 => {
                let modes = ["0755", "0700", "0644", "0600", "2750"];
                let known = if kind.set_group_id { &modes[..] } else { &modes[..4] };
                format!("chmod {} {one}", self.one_of(known))
            }
            12 => format!("test -f {one} && truncate -s {number} {one}"),
            13 => format!("cp -a {one} {other}"),
            14 => format!("touch -d @{number} {one}"),
            15 => format!("tool attribute user.n{} {number} {one}", number % 3),
            16 => format!("mkfifo {one}"),
            17 => format!("tool socket {one}"),
            // Locked, and locked with something in it.
            18 => {
                let directory = if kind.locked_directories { "0" } else { "0500" };
                let file = if kind.locked_files { "0" } else { "0400" };
                format!(
                    "if test -d {one}; then chmod {directory} {one}; else chmod {file} {one}; fi"
                )
            }
            19 => format!("tool unlinked {number} {one}"),
            20 if kind.locked_directories => {
                format!("mkdir -p {one} && echo {number} > {one}/in && chmod 0 {one}")
            }
            _ => format!(
                "test -f {one} && dd if=/dev/zero of={one} bs=1 seek={number} count=9 conv=notrunc"
            ),
        }
    }
}

/// Times differ between two runs.
fn but_for_times(kind: Kind) -> CompareOptions {
    CompareOptions {
        mtime_tolerance_ns: u64::MAX,
        directory_mtimes: false,
        link_counts: kind.links,
        ..CompareOptions::default()
    }
}

/// Where none is given, the folder is where tests are quickest.
fn scripts(kind: Kind, place: Option<&Path>, seeds: std::ops::Range<u64>) {
    let (all, mut recorded) = (seeds.clone().count(), 0);
    let tool = TOOL.replace("SETXATTR", &libc::SYS_setxattr.to_string());
    let workspace = || place.map_or_else(TempWorkspace::new, TempWorkspace::on);
    for seed in seeds {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let lines = 1 + dice.roll(25);
        let script: Vec<String> = (0..lines).map(|_| dice.line(kind)).collect();
        let script = format!("set +e; exec 2>/dev/null{tool}\n{}\ntrue", script.join("\n"));
        let native = workspace().filled(|dir| sh(FIXTURE, dir));
        let copy = native.working().to_owned();
        let folder = workspace().filled(|dir| {
            let from = copy.join(".");
            assert!(Command::new("cp").arg("-a").arg(from).arg(dir).status().unwrap().success());
        });
        let session = Session::with(folder, |_| {}).seen(kind.view);
        let before = session.snapshot();
        sh(&script, native.working());
        let ran = session.run(&script);
        assert_eq!(ran.code(), Some(0), "seed {seed}: {ran:?}");
        let after = session.snapshot();
        println!("seed {seed}\n{script}");
        assert_tree_eq_with(&native.snapshot(), &after, &but_for_times(kind));
        let ClosedStep::Recorded { .. } = ran.step().closed else {
            assert_tree_eq(&before, &after);
            continue;
        };
        recorded += 1;
        for _ in 0..2 {
            session.worker().undo(1, OnConflict::Refuse).unwrap();
            assert_tree_eq(&before, &session.snapshot());
            session.worker().redo(1, OnConflict::Refuse).unwrap();
            assert_tree_eq(&after, &session.snapshot());
        }
    }
    assert!(recorded * 5 >= all * 4, "only {recorded} of {all} scripts did something");
}

#[test]
fn a_script_does_what_it_says() {
    let workspace = TempWorkspace::new();
    let tool = TOOL.replace("SETXATTR", &libc::SYS_setxattr.to_string());
    let script =
        "echo x > file; tool attribute user.n1 7 file; tool socket \"$ODD\"; tool unlinked 5 gone";
    sh(&format!("{tool}\n{script}"), workspace.working());
    let made = workspace.snapshot();
    let names: Vec<_> = made.entries.keys().map(|name| name.escape_ascii().to_string()).collect();
    assert_eq!(names, ["", "file", r"odd\xff"]);
    assert_eq!(made.get("file").unwrap().xattrs[&b"user.n1"[..]], b"7");
    assert_eq!(made.get(b"odd\xff").unwrap().kind, EntryKind::Socket);
}

#[test]
fn scripts_with_links() {
    scripts(KINDS[0], None, 0..350);
}

#[test]
fn scripts_that_rename_directories() {
    scripts(KINDS[1], None, 1_000..1_350);
}

#[test]
fn scripts_in_the_live_view() {
    scripts(KINDS[2], None, 2_000..2_300);
}

fn of_an_ordinary_user(kind: Kind) -> Kind {
    Kind { locked_files: false, ..kind }
}

#[test]
fn scripts_of_an_ordinary_user_with_links() {
    let test = "scripts_of_an_ordinary_user_with_links";
    as_ordinary_user_with_fuse(test, || scripts(of_an_ordinary_user(KINDS[0]), None, 3_000..3_060));
}

#[test]
fn scripts_of_an_ordinary_user_that_rename_directories() {
    let test = "scripts_of_an_ordinary_user_that_rename_directories";
    // Where the bare folder renames a directory, an overlay has it copied.
    let kind = Kind { locked_directories: false, ..of_an_ordinary_user(KINDS[1]) };
    as_ordinary_user_with_fuse(test, || scripts(kind, None, 4_000..4_060));
}

#[test]
fn scripts_of_an_ordinary_user_in_the_live_view() {
    let test = "scripts_of_an_ordinary_user_in_the_live_view";
    as_ordinary_user_with_fuse(test, || scripts(of_an_ordinary_user(KINDS[2]), None, 5_000..5_060));
}

#[test]
fn scripts_on_a_disk() {
    let Some(disk) = disk_dir() else {
        return skip("scripts_on_a_disk", "there is no directory on a disk");
    };
    KINDS.into_iter().zip([6_000, 6_100, 6_200]).for_each(|(kind, first)| {
        scripts(kind, Some(&disk), first..first + 30);
    });
}

#[test]
fn scripts_on_filesystems_with_clones() {
    let filesystems = reflink_dirs();
    if filesystems.is_empty() {
        return skip("scripts_on_filesystems_with_clones", "there is no btrfs and no XFS");
    }
    for (name, dir) in filesystems {
        println!("on {name}");
        KINDS.into_iter().zip([7_000, 7_100, 7_200]).for_each(|(kind, first)| {
            scripts(kind, Some(&dir), first..first + 30);
        });
    }
}
