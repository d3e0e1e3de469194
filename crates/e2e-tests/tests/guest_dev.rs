//! Work in the image for development: real tools, whose changes come back exactly, and a disk that is
//! kept, thrown away, or begun anew. Needs `cargo xtask build-guest --flavour dev`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use codeagent_test_support::{TempWorkspace, assert_tree_eq, fixtures};
use common::{Ground, Home, Office, text};

fn project(root: &Path) {
    fixtures::small_tree(root);
    for (name, content) in [
        ("origin/Makefile", "all: hello\n\nhello: hello.c\n\tcc -o $@ $<\n"),
        ("origin/hello.c", "#include <stdio.h>\nint main(void) { return puts(\"made\") < 0; }\n"),
        (
            "origin/Cargo.toml",
            "[package]\nname = \"built\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
        ),
        ("origin/src/main.rs", "fn main() { println!(\"built\"); }\n"),
        (
            "origin/package.json",
            "{\"name\": \"top\", \"dependencies\": {\"below\": \"file:below\"}}\n",
        ),
        ("origin/below/package.json", "{\"name\": \"below\", \"version\": \"1.0.0\"}\n"),
        ("origin/below/index.js", "module.exports = 'required';\n"),
        ("origin/below.py", "WORD = 'imported'\n"),
        (
            "origin/wheel/setup.py",
            "from setuptools import setup\nsetup(name='installed', version='1', py_modules=['installed'])\n",
        ),
        ("origin/wheel/installed.py", "WORD = 'installed'\n"),
    ] {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let script = "git init -q && git add . && \
        git -c user.name=a -c user.email=a@b commit -q -m all";
    let made = Command::new("sh").args(["-c", script]).current_dir(root.join("origin")).status();
    assert!(made.unwrap().success());
}

/// A repository is cloned, built, installed and thrown away, in four commands of the program; each
/// is a step, and they come back one by one.
#[test]
fn what_git_compilers_and_package_managers_do_comes_back_exactly() {
    let test = "what_git_compilers_and_package_managers_do_comes_back_exactly";
    let Some(ground) = Ground::dev(test) else { return };
    let home = Home::new(&ground);
    let workspace = TempWorkspace::with_fixture(project);
    let steps = [
        (
            "git clone -q origin clone && cd clone && make && ./hello && \
             cargo build -q --offline && target/debug/built && git status --short",
            "made\nbuilt\n?? Cargo.lock\n?? hello\n?? target/\n",
        ),
        (
            "cd clone && npm install --offline --no-audit --no-fund --silent && \
             node -p 'require(\"below\")' && \
             python3 -c 'import below; print(below.WORD)' && \
             pip install -q --no-index --no-build-isolation --root-user-action=ignore ./wheel && \
             (cd / && python3 -c 'import installed; print(installed.WORD)') && \
             git add below && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m more && \
             git checkout -q -b other HEAD~ && rg -c puts hello.c",
            "required\nimported\ninstalled\n1\n",
        ),
        ("rm -rf ./* ./.[!.]*", ""),
    ];
    let mut boundaries = vec![workspace.snapshot()];
    for (script, said) in steps {
        let run = ["run", "--isolation", "vm", "--", "sh", "-c", script];
        let output = home.sandbox(&workspace, &run).output().unwrap();
        assert!(output.status.success(), "{script}: {}", text(&output));
        assert!(String::from_utf8_lossy(&output.stdout).ends_with(said), "{}", text(&output));
        boundaries.push(workspace.snapshot());
    }
    assert_eq!(fs::read_dir(workspace.working()).unwrap().count(), 0);
    for boundary in boundaries.iter().rev().skip(1) {
        assert!(home.sandbox(&workspace, &["undo"]).status().unwrap().success());
        assert_tree_eq(boundary, &workspace.snapshot());
    }
    for boundary in &boundaries[1..] {
        assert!(home.sandbox(&workspace, &["redo"]).status().unwrap().success());
        assert_tree_eq(boundary, &workspace.snapshot());
    }

    // A new image has no use for the disk of the old one, and nothing of the folder is on it.
    let disks = || descend(home.path()).into_iter().filter(|path| path.ends_with("disk.qcow2"));
    let disk = disks().next().expect("it was kept");
    fs::write(disk.with_file_name("disk.qcow2.image"), "another image").unwrap();
    let run = ["run", "--isolation", "vm", "--", "true"];
    let output = home.sandbox(&workspace, &run).output().unwrap();
    assert!(text(&output).contains("hint: `sandbox guest reset`"), "{}", text(&output));
    assert!(home.sandbox(&workspace, &["guest", "reset"]).status().unwrap().success());
    assert_eq!(disks().count(), 0);
    assert_tree_eq(boundaries.last().unwrap(), &workspace.snapshot());
}

/// All files below a directory.
fn descend(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .flat_map(|entry| match entry.file_type().unwrap().is_dir() {
            true => descend(&entry.path()),
            false => vec![entry.path()],
        })
        .collect()
}

/// SL-03, SL-04, SL-05: what is installed in the guest is there in the next session, unless it was
/// a throw-away one or has been reset. The folder and its history stay.
#[test]
fn the_disk_of_a_guest_is_kept_thrown_away_or_begun_anew() {
    let Some(ground) = Ground::dev("the_disk_of_a_guest_is_kept_thrown_away_or_begun_anew") else {
        return;
    };
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let before = workspace.snapshot();
    let office = Office::new(&ground, workspace);
    office.output("echo kept > /var/lib/kept; echo changed > changed");
    office.session.stop().unwrap();
    assert!(office.state_dir().join("disk.qcow2").exists(), "SL-03");

    office.session.start().unwrap();
    assert_eq!(office.output("cat /var/lib/kept changed"), "kept\nchanged\n");
    office.session.reset().unwrap();
    assert_eq!(office.output("test ! -e /var/lib/kept && cat changed"), "changed\n", "SL-05");
    office.undo();
    assert_tree_eq(&before, &office.workspace.snapshot());
    office.session.stop().unwrap();

    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let office = Office::with(&ground, workspace, |options| options.persistent = false);
    office.output("echo gone > /var/lib/gone; sync");
    let names: Vec<_> =
        fs::read_dir(office.state_dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.is_empty(), "SL-04: {names:?}");
    office.session.stop().unwrap();
    office.session.start().unwrap();
    office.output("test ! -e /var/lib/gone");
}
