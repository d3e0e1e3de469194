//! What a command did in an overlay over the working directory becomes a step: the tree is what
//! the command would have made of it without one, and undo and redo are exact.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]
#![allow(clippy::print_stdout, reason = "shown when it fails")]

mod common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use codeagent_common::{PathUse, PathVerdict, RelPath, SafeguardConfig};
use codeagent_interceptor::{ClosedStep, OverlayReport, PathPolicy, StepRequest};
use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{
    CompareOptions, TempWorkspace, TreeSnapshot, assert_tree_eq, assert_tree_eq_with,
};
use common::Bench;

/// Makes what the scripts work on.
const FIXTURE: &str = r#"
    mkdir -p src/deep/er node_modules/a/b empty locked
    echo one > src/one; echo two > src/two; echo deep > src/deep/er/file
    ln src/one src/linked; ln -s one src/symlink; ln -s /nowhere dangling
    for i in 1 2 3 4 5; do echo $i > node_modules/a/$i; echo $i > node_modules/a/b/$i; done
    head -c 300000 /dev/zero | tr '\0' x > large
    truncate -s 1M sparse; echo end >> sparse
    mkfifo pipe; echo secret > locked/file; chmod 0500 locked; chmod 0640 src/two
    python3 -c 'import os; os.setxattr("src/two", "user.kept", b"yes")'
    touch -d '2001-02-03 04:05:06' src/one src empty
    printf x > "$(printf 'odd\nname\377')"
"#;

/// What commands do, and what it is called when it fails.
const SCRIPTS: &[(&str, &str)] = &[
    ("nothing", "true"),
    ("new entries", "echo x > new; mkdir -p d/e/f; echo y > d/e/f/g; ln -s g d/e/f/l; mkfifo d/p"),
    ("changed content", "echo more >> src/two; echo other > src/deep/er/file; echo x >> large"),
    ("removed", "rm src/two; rm -r node_modules; rm dangling pipe; rmdir empty"),
    ("everything removed", "chmod 0700 locked; rm -rf ./* ; ls -A"),
    (
        "replaced by another kind",
        "rm -r src/deep; echo f > src/deep; rm large; mkdir large; echo i > large/i",
    ),
    ("made anew", "rm -r src; mkdir src; echo new > src/one"),
    ("made anew, deeper", "rm -r src/deep; mkdir -p src/deep/er; echo other > src/deep/er/other"),
    ("renamed file", "mv src/two src/renamed; mv large node_modules/large"),
    (
        "moved into a new directory",
        "mkdir fresh; mv src/two fresh/; mv node_modules/a/1 fresh/one; ln fresh/two fresh/again",
    ),
    (
        "renamed directory",
        "mv node_modules modules || { cp -a node_modules modules && rm -rf node_modules; }",
    ),
    ("renamed over", "mv src/two src/deep/er/file; echo z > z; mv z dangling"),
    ("mode", "chmod 0755 src/two; chmod 0700 src; chmod 0555 empty"),
    ("mode of a directory only", "chmod 0711 src/deep/er"),
    ("times", "touch -d '2010-01-01' src/two src/deep empty; touch -d '2011-01-01' ."),
    (
        "attributes",
        r#"python3 -c 'import os
os.setxattr("src/two", "user.new", b"v"); os.removexattr("src/two", "user.kept")
os.setxattr("src", "user.d", b"v")
assert os.listxattr("src/two") == ["user.new"] and os.listxattr("src") == ["user.d"]'"#,
    ),
    (
        "attributes that look like the overlay's",
        r#"python3 -c 'import os
os.mkdir("n")
for path, name in ("src", "opaque"), ("src/two", "mine"), ("n", "opaque"):
    os.setxattr(path, "user.overlay." + name, b"y")
    assert os.getxattr(path, "user.overlay." + name) == b"y"'"#,
    ),
    // Of other users than its own, a user namespace knows nothing.
    (
        "acl",
        r#"python3 -c 'import os, struct
entries = [(1, 6, -1), (2, 6, os.getuid()), (4, 4, -1), (16, 6, -1), (32, 4, -1)]
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
ACL, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
os.setxattr("src/two", ACL, acl); os.setxattr("src", DEFAULT, acl)
os.mkdir("src/inherits"); open("src/inherits/file", "w").close()
assert os.getxattr("src/two", ACL) == acl and os.getxattr("src/inherits", DEFAULT) == acl
assert ACL in os.listxattr("src/inherits/file")'"#,
    ),
    (
        "sockets",
        r#"python3 -c 'import os, socket
for path in "socket", "src/socket", "empty/socket":
    socket.socket(socket.AF_UNIX).bind(path)
os.chmod("socket", 0o600); os.unlink("pipe"); socket.socket(socket.AF_UNIX).bind("pipe")'"#,
    ),
    ("links made inside", "echo l > l1; ln l1 l2; mkdir ld; ln l1 ld/l3; ln -s l1 ld/sym"),
    ("a further name", "ln src/two src/deep/second; mkdir ld2; ln large ld2/large"),
    ("sparse", "truncate -s 5M sparse; truncate -s 3M hole; echo x >> hole"),
    ("truncated", ": > large; truncate -s 10 src/two"),
    (
        "no permission",
        "mkdir dark; echo x > dark/x; mkdir dark/er; echo y > dark/er/y; chmod 0 dark/er/y dark/er dark; echo q > q; chmod 0 q",
    ),
    (
        "odd names",
        r#"echo y > "$(printf 'new\n\377')"; rm "$(printf 'odd\nname\377')"; mkdir -- '-d' ' '; echo x > ' /a b'"#,
    ),
    ("made and removed", "echo x > gone; mkdir gd; echo y > gd/y; rm -r gone gd"),
    ("removed and put back", "cp -a src /tmp/$$; rm -r src; cp -a /tmp/$$ src; rm -r /tmp/$$"),
    (
        "opened for writing, unchanged",
        "python3 -c \"open('src/two','r+').close(); open('large','a').close()\"",
    ),
    (
        "long path",
        "d=$(printf 'd%.0s' $(seq 200)); for i in $(seq 19); do mkdir $d && cd $d; done; echo deep > file",
    ),
    ("root", "chmod 0750 ."),
    ("backup and save", "cp src/two src/two~; echo saved > src/two.tmp; mv src/two.tmp src/two"),
    ("swap", "mv src/two t; mv src/deep/er/file src/two; mv t src/deep/er/file"),
];

fn sh(script: &str, dir: &Path) {
    let done = Command::new("sh").args(["-ec", script]).current_dir(dir).output().unwrap();
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Runs a script in an overlay over the working directory.
fn run(bench: &Bench, script: &str) -> (u64, std::process::Output) {
    let staging = bench.engine.stage().unwrap();
    let mount = r#"mount -t overlay o -o "lowerdir=$1,upperdir=$2/up,workdir=$2/work,userxattr" "$1"
        cd "$1"; exec sh -c "$3""#;
    let output = Command::new("unshare")
        .args(["-Urm", "sh", "-ec", mount, "sh"])
        .args([bench.workspace.working(), &staging.path])
        .arg(script)
        .output()
        .unwrap();
    (staging.number, output)
}

fn adopt(bench: &Bench, number: u64) -> (OverlayReport, ClosedStep) {
    bench.engine.open_step(StepRequest::command("overlay")).unwrap();
    let report = bench.engine.adopt_overlay(number).unwrap();
    (report, bench.engine.close_step(Some(0)).unwrap())
}

/// Times differ between two runs of a script, and directories know when they were made.
fn but_for_times() -> CompareOptions {
    CompareOptions {
        mtime_tolerance_ns: u64::MAX,
        directory_mtimes: false,
        link_counts: true,
        ..CompareOptions::default()
    }
}

#[test]
fn every_script_ends_as_without_an_overlay_and_is_undone_and_redone() {
    for (name, script) in SCRIPTS {
        let bench = Bench::new(|dir| sh(FIXTURE, dir));
        let before = bench.snapshot();
        let native = TempWorkspace::with_fixture(|dir| sh(FIXTURE, dir));
        let expected = Command::new("unshare")
            .args(["-Ur", "sh", "-c", script])
            .current_dir(native.working())
            .output()
            .unwrap();
        let (number, output) = run(&bench, script);
        assert_eq!(output.status, expected.status, "{name}: {output:?} {expected:?}");
        assert!(expected.status.success(), "{name} did not do what it is for: {expected:?}");
        assert_tree_eq(&before, &bench.snapshot());

        let (report, closed) = adopt(&bench, number);
        println!("{name}: {report:?}");
        let after = bench.snapshot();
        assert_tree_eq_with(&native.snapshot(), &after, &but_for_times());
        assert_no_marks(&after);
        assert!(report.changed_meanwhile.is_empty(), "{name}: {report:?}");
        let ClosedStep::Recorded { .. } = closed else {
            assert_tree_eq(&before, &after);
            continue;
        };
        bench.undo(1);
        assert_tree_eq(&before, &bench.snapshot());
        bench.redo(1);
        assert_tree_eq(&after, &bench.snapshot());
        bench.undo(1);
        assert_tree_eq(&before, &bench.snapshot());
        assert!(bench.workspace.undo().join("staging").read_dir().unwrap().next().is_none());
    }
}

/// Only the one script that makes them may leave attributes with such names.
fn assert_no_marks(tree: &TreeSnapshot) {
    let text = format!("{tree:?}");
    for mark in ["user.overlay.impure", "user.overlay.origin", "user.overlay.uuid"] {
        assert!(!text.contains(mark), "{mark} is left");
    }
}

#[test]
fn what_somebody_changed_meanwhile_is_told_and_comes_back_with_undo() {
    let bench = Bench::new(|dir| sh(FIXTURE, dir));
    let (number, output) = run(&bench, "echo theirs > src/two; rm large; echo x > src/one");
    assert!(output.status.success(), "{output:?}");
    std::thread::sleep(Duration::from_millis(10));
    sh("echo mine > src/two; echo mine >> large", bench.workspace.working());
    let edited = bench.snapshot();
    let (report, _) = adopt(&bench, number);
    let told: Vec<String> = report.changed_meanwhile.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["large", "src/two"]);
    bench.undo(1);
    assert_tree_eq(&edited, &bench.snapshot());
}

/// The clock of a filesystem may tick more slowly than commands follow each other.
#[test]
fn what_was_done_just_before_a_command_is_not_told_as_done_meanwhile() {
    let bench = Bench::new(|dir| sh(FIXTURE, dir));
    for nth in 0..20 {
        std::fs::write(bench.workspace.path("src/two"), nth.to_string()).unwrap();
        let (number, output) = run(&bench, "echo more >> src/two; rm -rf made; mkdir made");
        assert!(output.status.success(), "{output:?}");
        let (report, _) = adopt(&bench, number);
        assert_eq!(report.changed_meanwhile, [], "round {nth}");
    }
}

#[test]
fn a_directory_keeps_its_time_when_a_file_in_it_is_changed_in_place() {
    let bench = Bench::new(|dir| sh(FIXTURE, dir));
    let time_of = |name| bench.workspace.path(name).metadata().unwrap().modified().unwrap();
    let before = bench.snapshot();
    let (kept, changed) = (time_of("src"), time_of("empty"));
    let (number, output) = run(&bench, "echo more >> src/two; echo new > empty/new");
    assert!(output.status.success(), "{output:?}");
    adopt(&bench, number);
    assert_eq!(time_of("src"), kept);
    assert!(time_of("empty") > changed, "it has one more entry");
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn of_a_directory_that_somebody_removed_meanwhile_only_what_the_command_made_comes_back() {
    let bench =
        Bench::new(|dir| sh("mkdir -p d/e; echo x > d/x; echo y > d/e/y; echo z > d/z", dir));
    let (number, output) = run(&bench, "rm d/x d/e/y; echo new > d/e/new");
    assert!(output.status.success(), "{output:?}");
    std::thread::sleep(Duration::from_millis(10));
    sh("rm -r d", bench.workspace.working());
    let before = bench.snapshot();
    adopt(&bench, number);
    let found = Command::new("find").arg(".").current_dir(bench.workspace.working()).output();
    let mut found: Vec<String> =
        String::from_utf8(found.unwrap().stdout).unwrap().lines().map(str::to_owned).collect();
    found.sort();
    assert_eq!(found, [".", "./d", "./d/e", "./d/e/new"]);
    assert_no_marks(&bench.snapshot());
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

#[test]
fn safeguards_ask_before_anything_of_the_command_reaches_the_folder() {
    let off = SafeguardConfig { timeout: Duration::from_millis(1), ..SafeguardConfig::default() };
    let cases = [
        (SafeguardConfig { delete_threshold: Some(3), ..off }, "rm -r node_modules", true),
        (SafeguardConfig { delete_threshold: Some(3), ..off }, "rm src/one src/two", false),
        (SafeguardConfig { overwrite_threshold_bytes: Some(1000), ..off }, "echo >> large", true),
        (
            SafeguardConfig { overwrite_threshold_bytes: Some(1000), ..off },
            "echo >> src/two",
            false,
        ),
        (SafeguardConfig { rename_over_existing: true, ..off }, "echo > t; mv t src/two", true),
        (SafeguardConfig { rename_over_existing: true, ..off }, "mv src/one src/two", true),
        (
            SafeguardConfig { rename_over_existing: true, ..off },
            "echo >> src/two; mv src/one n",
            false,
        ),
    ];
    for (config, script, asks) in cases {
        let bench = Bench::new(|dir| sh(FIXTURE, dir));
        let before = bench.snapshot();
        let (number, output) = run(&bench, script);
        assert!(output.status.success(), "{output:?}");
        bench.engine.set_safeguards(config);
        bench.engine.open_step(StepRequest::command("overlay")).unwrap();
        // Nobody answers: that is a denial.
        let adopted = bench.engine.adopt_overlay(number);
        assert_eq!(adopted.is_err(), asks, "{script}: {adopted:?}");
        bench.engine.close_step(Some(0)).unwrap();
        if asks {
            assert_tree_eq(&before, &bench.snapshot());
        }
    }
}

#[test]
fn what_the_policy_denies_is_left_out_and_the_rest_is_adopted() {
    #[derive(Debug)]
    struct NoHooks;
    impl PathPolicy for NoHooks {
        fn judge(&self, path: RelPath<'_>, _: PathUse) -> PathVerdict {
            match path.as_bytes().ends_with(b"hooks/pre-commit") {
                true => PathVerdict::Deny("hooks".into()),
                false => PathVerdict::Allow,
            }
        }
        fn guards_below(&self, _: RelPath<'_>, _usage: PathUse) -> bool {
            true
        }
    }
    let workspace = TempWorkspace::with_fixture(|dir| sh("mkdir old; echo x > old/x", dir));
    let bench = Bench::configured(workspace, |config| config.paths = std::sync::Arc::new(NoHooks));
    let script = "mkdir -p new/hooks old/hooks; echo h > new/hooks/pre-commit; echo r > new/rest
        echo h > old/hooks/pre-commit; echo r > old/hooks/other";
    let (number, output) = run(&bench, script);
    assert!(output.status.success(), "{output:?}");
    let (report, _) = adopt(&bench, number);
    let mut left_out: Vec<String> =
        report.adopted.protected.iter().map(|(path, _)| path.to_string()).collect();
    left_out.sort();
    assert_eq!(left_out, ["new/hooks/pre-commit", "old/hooks/pre-commit"]);
    let is_there = |path: &str| bench.workspace.path(path).exists();
    assert!(is_there("new/rest") && is_there("old/hooks/other"));
    assert!(!is_there("new/hooks/pre-commit") && !is_there("old/hooks/pre-commit"));
}

/// No command can make one in a sandbox. Somebody may put one into the staging area all the same.
#[test]
fn devices_are_left_out_and_told() {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let test = "devices_are_left_out_and_told";
    let bench = Bench::new(|dir| sh("mkdir old; echo x > old/x; echo x > replaced", dir));
    let before = bench.snapshot();
    let staging = bench.engine.stage().unwrap();
    let up = staging.path.join("up");
    sh("mkdir -p new/deep old; echo y > new/deep/file; echo y > old/y", &up);
    let devices = [
        ("disk", FileType::BlockDevice, makedev(8, 0)),
        ("old/memory", FileType::CharacterDevice, makedev(1, 1)),
        ("replaced", FileType::CharacterDevice, makedev(1, 3)),
        ("new/null", FileType::CharacterDevice, makedev(1, 3)),
        ("new/deep/disk", FileType::BlockDevice, makedev(8, 1)),
    ];
    for (path, kind, number) in devices {
        let made = mknodat(CWD, up.join(path), kind, Mode::from_raw_mode(0o666), number);
        if made == Err(rustix::io::Errno::PERM) {
            return skip(test, "devices cannot be made");
        }
        made.unwrap();
    }
    let (report, closed) = adopt(&bench, staging.number);
    let after = bench.snapshot();
    let names: Vec<_> = after.entries.keys().map(|path| String::from_utf8_lossy(path)).collect();
    assert_eq!(
        names,
        ["", "new", "new/deep", "new/deep/file", "old", "old/x", "old/y", "replaced"]
    );
    assert!(matches!(closed, ClosedStep::Recorded { .. }), "{closed:?}");
    let mut refused: Vec<String> = report.refused.iter().map(ToString::to_string).collect();
    let protected = report.adopted.protected.iter().map(|(path, _)| path.to_string());
    refused.extend(protected);
    refused.sort();
    assert_eq!(refused, ["disk", "new/deep/disk", "new/null", "old/memory", "replaced"]);
    assert_eq!(std::fs::read_to_string(bench.workspace.path("replaced")).unwrap(), "x\n");
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(1);
    assert_tree_eq(&after, &bench.snapshot());
}

#[test]
fn what_is_dropped_or_left_by_a_crash_leaves_nothing() {
    let bench = Bench::new(|dir| sh(FIXTURE, dir));
    let before = bench.snapshot();
    let (number, _) = run(&bench, "chmod 0700 locked; rm -rf ./*; mkdir n; chmod 0 n");
    bench.engine.drop_staged(number).unwrap();
    let (_, output) = run(&bench, "echo x > left");
    assert!(output.status.success());
    let bench = bench.reopened();
    assert_tree_eq(&before, &bench.snapshot());
    assert!(bench.workspace.undo().join("staging").read_dir().unwrap().next().is_none());
    assert!(bench.engine.adopt_overlay(number).is_err());
}
