//! Random scripts: the folder ends as after the same script without a sandbox, and undo and redo
//! are exact.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]
#![allow(clippy::print_stdout, reason = "shown when it fails")]

mod common;

use std::process::Command;

use codeagent_interceptor::{ClosedStep, OnConflict};
use codeagent_namespace::View;
use codeagent_test_support::{CompareOptions, TempWorkspace, assert_tree_eq, assert_tree_eq_with};
use common::{Session, sh};

const FIXTURE: &str = "
    mkdir -p a/b/c d/e f; for p in a/1 a/b/2 a/b/c/3 d/4 d/e/5 6; do echo $p > $p; done
    ln -s a/1 7; mkfifo f/8; head -c 100000 /dev/urandom > 9; chmod 0600 d/4; chmod 0700 f";

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
}

const KINDS: [Kind; 3] = [
    Kind { view: View::Transactional, links: true, renamed_directories: false, set_group_id: true },
    Kind { view: View::Transactional, links: false, renamed_directories: true, set_group_id: true },
    Kind { view: View::Live, links: true, renamed_directories: true, set_group_id: false },
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
        const LAST: [&str; 11] = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "n1", "n\u{e9}"];
        let depth = self.roll(4);
        let mut path: Vec<&str> = (0..depth).map(|_| self.one_of(&PARTS)).collect();
        path.push(if self.roll(3) == 0 { self.one_of(&PARTS) } else { self.one_of(&LAST) });
        format!("'{}'", path.join("/"))
    }

    fn line(&mut self, kind: Kind) -> String {
        let (one, other) = (self.path(), self.path());
        let number = self.roll(150_000);
        match self.roll(18) {
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
            15 => format!("setfattr -n user.n{} -v {number} {one}", number % 3),
            16 => format!("mkfifo {one}"),
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

fn scripts(kind: Kind, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let lines = 1 + dice.roll(25);
        let script: Vec<String> = (0..lines).map(|_| dice.line(kind)).collect();
        let script = format!("set +e; exec 2>/dev/null\n{}\ntrue", script.join("\n"));
        let native = TempWorkspace::with_fixture(|dir| sh(FIXTURE, dir));
        let copy = native.working().to_owned();
        let session = Session::new(|dir| {
            let from = copy.join(".");
            assert!(Command::new("cp").arg("-a").arg(from).arg(dir).status().unwrap().success());
        })
        .seen(kind.view);
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
        for _ in 0..2 {
            session.worker().undo(1, OnConflict::Refuse).unwrap();
            assert_tree_eq(&before, &session.snapshot());
            session.worker().redo(1, OnConflict::Refuse).unwrap();
            assert_tree_eq(&after, &session.snapshot());
        }
    }
}

#[test]
fn scripts_with_links() {
    scripts(KINDS[0], 0..350);
}

#[test]
fn scripts_that_rename_directories() {
    scripts(KINDS[1], 1_000..1_350);
}

#[test]
fn scripts_in_the_live_view() {
    scripts(KINDS[2], 2_000..2_300);
}
