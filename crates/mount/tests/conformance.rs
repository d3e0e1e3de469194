//! Filesystem test suites, on the mount and on the filesystem below it: what fails through the
//! mount and not below is ours.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use codeagent_interceptor::RollbackOptions;
use codeagent_test_support::filesystems::{SmallDisk, disk_dir, skip};
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use common::{
    Mounted, Process, WITHOUT_AND_WITH_PASSTHROUGH, binary, can_mount, is_mount, wait_for,
};

/// A suite that `cargo xtask test` has installed; says so where it has not.
fn suite(test: &str, name: &str) -> Option<PathBuf> {
    let variable = format!("CODEAGENT_TEST_{}", name.to_uppercase());
    let found = std::env::var_os(&variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    if found.is_none() {
        skip(test, &format!("{name} is not here; `cargo xtask test` installs it, as root"));
    }
    found
}

/// A filesystem in memory; says so where none can be mounted.
fn memory(test: &str, at: &Path) -> Option<SmallDisk> {
    let disk = SmallDisk::mount(at, "1G");
    if disk.is_none() {
        skip(test, "mounting a filesystem in memory needs root");
    }
    disk
}

fn disk(test: &str) -> Option<PathBuf> {
    let dir = disk_dir();
    if dir.is_none() {
        skip(test, "there is no directory on a disk");
    }
    dir
}

/// The suite acts as several users, who all have to get there.
fn open_to_everybody(dir: &Path) {
    fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
}

mod pjdfstest {
    use super::*;

    /// The name of each case, and how it went.
    type Results = BTreeMap<String, String>;

    /// A run of the suite has this many cases; fewer would mean that it was not understood.
    const CASES: usize = 398;

    /// Skipped on every FUSE filesystem: the C library knows how many names a file can have from the
    /// kind of filesystem, and of FUSE it knows nothing.
    const SKIPPED_ON_THE_MOUNT: &str = "link::link_count_max";

    /// The features that every filesystem of Linux has, and users that every distribution has. Files have
    /// times of a clock that ticks every 4 ms, later where the machine is a guest that has to wait for
    /// its processor: after 10 ms, one run in 700 found the time unchanged, on tmpfs by itself.
    fn configuration(allow_remount: bool) -> String {
        format!(
            "[features]\n\
             posix_fallocate = {{}}\n\
             rename_ctime = {{}}\n\
             stat_st_birthtime = {{}}\n\
             utime_now = {{}}\n\
             utimensat = {{}}\n\
             [settings]\n\
             naptime = 0.05\n\
             allow_remount = {allow_remount}\n\
             [dummy_auth]\n\
             entries = [[\"daemon\", \"daemon\"], [\"bin\", \"bin\"]]\n"
        )
    }

    fn run(suite: &Path, folder: &Path, allow_remount: bool, cases: &[&str]) -> Results {
        let scratch = tempfile::tempdir().unwrap();
        let config = scratch.path().join("pjdfstest.toml");
        fs::write(&config, configuration(allow_remount)).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        // To change a mount's options, mount's helper for FUSE would start a program named as the
        // filesystem: `-i` does without it.
        let mount = scratch.path().join("mount");
        fs::write(&mount, format!("#!/bin/sh\nPATH='{path}' exec mount -i \"$@\"\n")).unwrap();
        fs::set_permissions(&mount, Permissions::from_mode(0o755)).unwrap();
        let output = Command::new(suite)
            .env("PATH", format!("{}:{path}", scratch.path().display()))
            .arg("-c")
            .arg(&config)
            .arg("-p")
            .arg(folder)
            .args(["-s", "/dev/shm"]) // another filesystem
            .args(cases)
            .env("NO_COLOR", "1")
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        parse(&String::from_utf8_lossy(&output.stdout))
    }

    fn parse(output: &str) -> Results {
        let outcomes = output.lines().filter_map(|line| {
            let (case, outcome) = line.split_once(' ')?;
            let outcome = outcome.trim();
            matches!(outcome, "ok" | "skipped" | "FAILED")
                .then(|| (case.to_owned(), outcome.to_owned()))
        });
        outcomes.collect()
    }

    #[expect(clippy::print_stderr, reason = "the figures are for whoever reads the log")]
    fn assert_as_below(place: &str, below: &Results, mount: &Results) {
        let count = |results: &Results, outcome| results.values().filter(|o| *o == outcome).count();
        for (side, results) in [("below", below), ("on the mount", mount)] {
            let [passed, failed, skipped] = ["ok", "FAILED", "skipped"].map(|o| count(results, o));
            eprintln!("{place}, {side}: {passed} passed, {failed} failed, {skipped} skipped");
        }
        let worse: Vec<_> = mount
            .iter()
            .filter(|(case, outcome)| *outcome != "ok" && below.get(*case) != Some(*outcome))
            .filter(|(case, outcome)| *case != SKIPPED_ON_THE_MOUNT || *outcome != "skipped")
            .collect();
        assert!(worse.is_empty(), "on the mount only: {worse:?}");
        assert!(below.keys().eq(mount.keys()), "both ran the same cases");
    }

    fn compare(suite: &Path, place: &str, workspace: TempWorkspace) {
        let beside = workspace.working().parent().unwrap().to_path_buf();
        let bare = beside.join("bare");
        fs::create_dir(&bare).unwrap();
        open_to_everybody(&beside);
        let below = run(suite, &bare, false, &[]);
        // What people use: the binary, whose worker has given up most of what root may do.
        let point = tempfile::tempdir().unwrap();
        open_to_everybody(point.path());
        let mut process = Process(binary(&workspace, point.path(), &[]).spawn().unwrap());
        wait_for("the mount appears", || is_mount(point.path()));
        let mount = run(suite, point.path(), false, &[]);
        let pid = rustix::process::Pid::from_child(&process.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(process.0.wait().unwrap().success());
        assert_eq!(below.len(), CASES);
        assert_as_below(place, &below, &mount);
    }

    #[test]
    fn pjdfstest_fails_nowhere_but_below_in_memory() {
        let test = "pjdfstest_fails_nowhere_but_below_in_memory";
        let Some(suite) = can_mount(test).then(|| suite(test, "pjdfstest")).flatten() else {
            return;
        };
        let holder = tempfile::tempdir_in("/dev/shm").unwrap();
        open_to_everybody(holder.path());
        let Some(disk) = memory(test, holder.path()) else { return };
        compare(&suite, "tmpfs", TempWorkspace::on(disk.path()));
    }

    #[test]
    fn pjdfstest_fails_nowhere_but_below_on_a_disk() {
        let test = "pjdfstest_fails_nowhere_but_below_on_a_disk";
        let Some(suite) = can_mount(test).then(|| suite(test, "pjdfstest")).flatten() else {
            return;
        };
        let Some(disk) = disk(test) else { return };
        compare(&suite, "disk", TempWorkspace::on(&disk));
    }

    /// Apart from the other cases, which leave files open: then nothing can be made read-only.
    #[test]
    fn pjdfstest_finds_a_mount_made_read_only_as_it_should_be() {
        let test = "pjdfstest_finds_a_mount_made_read_only_as_it_should_be";
        let Some(suite) = can_mount(test).then(|| suite(test, "pjdfstest")).flatten() else {
            return;
        };
        let mounted = Mounted::new(|_| {});
        let results = run(&suite, mounted.mount.mount_point(), true, &["erofs"]);
        assert_eq!(results.len(), 13);
        assert!(results.values().all(|outcome| outcome == "ok"), "{results:?}");
    }

    #[test]
    fn results_are_read_without_what_is_said_about_them() {
        let output = "chmod::a      ok\nopen::b    skipped\n\tneeds something\nlink::c   FAILED\n\
                      \tassertion failed: ok\n\nSummary: 1 failed, 1 skipped, 1 passed, 3 total\n";
        let read = parse(output);
        let expected = [("chmod::a", "ok"), ("link::c", "FAILED"), ("open::b", "skipped")];
        assert!(read.iter().map(|(case, outcome)| (&**case, &**outcome)).eq(expected), "{read:?}");
    }
}

mod fsx {
    use super::*;

    /// Every operation the suite has, mappings included.
    const ALL_OPERATIONS: &str = "\
        flen = 262144\n\
        [weights]\n\
        close_open = 1\n\
        invalidate = 1\n\
        mapread = 10\n\
        mapwrite = 10\n\
        read = 10\n\
        write = 10\n\
        truncate = 10\n\
        fsync = 1\n\
        fdatasync = 1\n\
        posix_fallocate = 5\n\
        punch_hole = 5\n\
        sendfile = 5\n\
        posix_fadvise = 1\n\
        copy_file_range = 5\n";

    /// Never changes the length, and so never begins with a truncation: a file that was there
    /// before is captured piece by piece.
    const IN_PLACE: &str = "\
        blockmode = true\n\
        [opsize]\n\
        max = 20000\n\
        [weights]\n\
        truncate = 0\n\
        punch_hole = 1\n\
        copy_file_range = 1\n";

    const OPERATIONS: u32 = 2_000;

    fn seeds() -> std::ops::Range<u32> {
        if std::env::var_os("CODEAGENT_LONG").is_some() { 0..40 } else { 0..4 }
    }

    /// The suite reads back what it wrote, and says if that is something else.
    fn run(suite: &Path, file: &Path, configuration: &str, seed: u32) {
        let scratch = tempfile::tempdir().unwrap();
        let config = scratch.path().join("fsx.toml");
        fs::write(&config, configuration).unwrap();
        let output = Command::new(suite)
            .arg("-f")
            .arg(&config)
            .arg("-P")
            .arg(scratch.path())
            .args(["-N", &OPERATIONS.to_string(), "-S", &seed.to_string()])
            .arg(file)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "seed {seed} on {}: {said}", file.display());
    }

    fn some_file(folder: &Path) {
        fs::write(folder.join("file"), [5; 300_000]).unwrap();
    }

    /// Two steps of random operations with one seed each, on top of one another.
    fn exercise(suite: &Path, configuration: &str, workspace: impl Fn() -> TempWorkspace) {
        for (seed, from) in seeds().zip(WITHOUT_AND_WITH_PASSTHROUGH.into_iter().cycle()) {
            let bare = workspace().filled(some_file);
            let mounted = Mounted::on(workspace().filled(some_file), |options| {
                options.passthrough_from = from;
            });
            let before = mounted.workspace.snapshot();
            for seed in [seed, seed + 1000] {
                run(suite, &bare.path("file"), configuration, seed);
                let file = mounted.path("file");
                mounted.there_and_back_of("fsx", || run(suite, &file, configuration, seed));
                assert!(
                    fs::read(bare.path("file")).unwrap()
                        == fs::read(mounted.workspace.path("file")).unwrap(),
                    "seed {seed}: the mount has other bytes than the filesystem below"
                );
            }
            mounted.engine().rollback(2, RollbackOptions::default()).unwrap();
            assert_tree_eq(&before, &mounted.workspace.snapshot());
            mounted.assert_seen_through_the_mount(&before);
        }
    }

    #[test]
    fn fsx_finds_what_it_wrote_and_is_undone_in_memory() {
        let test = "fsx_finds_what_it_wrote_and_is_undone_in_memory";
        let Some(suite) = can_mount(test).then(|| suite(test, "fsx")).flatten() else { return };
        exercise(&suite, ALL_OPERATIONS, TempWorkspace::new);
    }

    #[test]
    fn fsx_finds_what_it_wrote_and_is_undone_on_a_disk() {
        let test = "fsx_finds_what_it_wrote_and_is_undone_on_a_disk";
        let Some(suite) = can_mount(test).then(|| suite(test, "fsx")).flatten() else { return };
        let Some(disk) = disk(test) else { return };
        exercise(&suite, ALL_OPERATIONS, || TempWorkspace::on(&disk));
    }

    #[test]
    fn fsx_that_changes_a_file_in_place_is_undone() {
        let test = "fsx_that_changes_a_file_in_place_is_undone";
        let Some(suite) = can_mount(test).then(|| suite(test, "fsx")).flatten() else { return };
        exercise(&suite, IN_PLACE, TempWorkspace::new);
    }
}
