//! A filesystem test suite inside a guest, in the folder and in the guest's own memory: what fails
//! only in the folder is ours. And whatever the suite does there is undone.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use codeagent_interceptor::{OnConflict, StepRequest};
use codeagent_test_guest::Guest;
use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use common::folder::{Carrier, Way, boot_with, over_each_carrier, parts, start_worker};

/// A run of the suite has this many cases; fewer would mean that it was not understood.
const CASES: usize = 398;

/// Cases that go otherwise in the folder than in the guest's own memory, and why that is no fault of
/// whoever serves it.
struct Explained {
    case: &'static str,
    outcome: &'static str,
}

/// The C library knows how many names a file can have from the kind of filesystem, and of these it
/// knows nothing.
const LINK_COUNT: Explained = Explained { case: "link::link_count_max", outcome: "skipped" };

/// The kernel's client says nothing of how finely times are kept, and so they are cut to seconds
/// before they reach the protocol.
const SUBSECOND: Explained = Explained { case: "utimensat::subsecond", outcome: "FAILED" };

const CONFIGURATION: &str = "[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [[\"daemon\", \"daemon\"], [\"bin\", \"bin\"]]
";

/// VF-05, PJ-01 to PJ-05.
#[test]
fn a_posix_test_suite_finds_no_fault_over_virtiofs_that_the_guest_has_not_by_itself() {
    the_suite_finds_no_fault_that_the_guest_has_not_by_itself(Carrier::Virtiofs, &[LINK_COUNT]);
}

/// The same, with what the protocol explains listed by name.
#[test]
fn a_posix_test_suite_finds_no_fault_over_9p_that_the_guest_has_not_by_itself() {
    let explained = [LINK_COUNT, SUBSECOND];
    the_suite_finds_no_fault_that_the_guest_has_not_by_itself(Carrier::NineP, &explained);
}

fn the_suite_finds_no_fault_that_the_guest_has_not_by_itself(
    carrier: Carrier,
    explained: &[Explained],
) {
    let test = "a_posix_test_suite_finds_no_fault_that_the_guest_has_not_by_itself";
    let Some(suite) = suite(test, "CODEAGENT_TEST_PJDFSTEST") else { return };
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root makes files that belong to others");
    }
    let Some(parts) = parts(test) else { return };
    let workspace = TempWorkspace::new();
    let (worker, _events) = start_worker(&workspace, |_| {});
    // Owners as the guest has them: the suite changes them.
    let way = Way { carrier, owners: None };
    let (mut guest, _) = boot_with(&parts, worker.client(), way, &[&suite]);
    let before = workspace.snapshot();
    guest.sh(&format!("mkdir /tmp/below /tmp/other; cat > /tmp/toml <<'EOF'\n{CONFIGURATION}EOF"));
    let below = run(&mut guest, "/tmp/below");
    worker.client().open_step(StepRequest::command("pjdfstest")).unwrap();
    let mut folder = run(&mut guest, "/mnt");
    // Some cases give another process a moment, which is too short where processors are emulated.
    for case in worse(&below, &folder, explained) {
        if (0..3).any(|_| play(&mut guest, "/mnt", &case).0.get(&case).is_some_and(|o| o == "ok")) {
            folder.insert(case, "ok".into());
        }
    }
    guest.sh("sync");
    worker.client().close_step(Some(0)).unwrap();
    assert_as_below(&below, &folder, explained);
    if workspace.snapshot() != before {
        worker.client().undo(1, OnConflict::Refuse).unwrap();
    }
    assert_tree_eq(&before, &workspace.snapshot());
}

/// One of those that `cargo xtask test` installs, as root.
fn suite(test: &str, variable: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).map(PathBuf::from);
    if found.is_none() {
        skip(test, &format!("{variable} is not set; `cargo xtask test` does that, as root"));
    }
    found
}

/// Every operation that suite has.
const FSX_CONFIGURATION: &str = "flen = 131072
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 10
fsync = 1
fdatasync = 1
posix_fallocate = 0
punch_hole = 0
sendfile = 5
posix_fadvise = 1
copy_file_range = 5
";

over_each_carrier! {
    /// Random reads, writes, truncations and mappings of one file: what is read is what was written,
    /// in the guest and outside it, and it is undone and redone. What neither protocol passes on
    /// (`fallocate` over 9P) is left out.
    a_file_that_is_changed_at_random_has_what_was_written_and_is_undone
}

fn a_file_that_is_changed_at_random_has_what_was_written_and_is_undone(carrier: Carrier) {
    let test = "a_file_that_is_changed_at_random_has_what_was_written_and_is_undone";
    let Some(suite) = suite(test, "CODEAGENT_TEST_FSX") else { return };
    let Some(parts) = parts(test) else { return };
    let workspace = TempWorkspace::with_fixture(|root| {
        std::fs::write(root.join("file"), [5; 100_000]).unwrap();
    });
    let (worker, _events) = start_worker(&workspace, |_| {});
    let (mut guest, _) = boot_with(&parts, worker.client(), Way::ours(carrier), &[&suite]);
    guest.sh(&format!(
        "mkdir /tmp/said; cp file /tmp/file; cat > /tmp/toml <<'EOF'\n{FSX_CONFIGURATION}EOF"
    ));
    for seed in [1, 2] {
        let before = workspace.snapshot();
        let fsx = format!("fsx -f /tmp/toml -P /tmp/said -N 300 -S {seed}");
        worker.client().open_step(StepRequest::command("fsx")).unwrap();
        guest.sh(&format!("{fsx} /mnt/file; sync"));
        worker.client().close_step(Some(0)).unwrap();
        guest.sh(&format!("{fsx} /tmp/file; cmp /tmp/file /mnt/file"));
        let after = workspace.snapshot();
        assert_ne!(before, after);
        worker.client().undo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&before, &workspace.snapshot());
        worker.client().redo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&after, &workspace.snapshot());
    }
}

/// The name of each case, and how it went.
type Results = BTreeMap<String, String>;

fn run(guest: &mut Guest, dir: &str) -> Results {
    let (results, output) = play(guest, dir, "");
    assert!(results.len() >= CASES, "{} cases: {output}", results.len());
    results
}

/// All cases, or those with this in their name; and what was said.
fn play(guest: &mut Guest, dir: &str, which: &str) -> (Results, String) {
    let command = format!("NO_COLOR=1 pjdfstest -c /tmp/toml -p {dir} -s /tmp/other {which}");
    let output = guest.run(&command).output;
    let outcomes = output.lines().filter_map(|line| {
        let (case, outcome) = line.split_once(' ')?;
        let outcome = outcome.trim();
        matches!(outcome, "ok" | "skipped" | "FAILED")
            .then(|| (case.to_owned(), outcome.to_owned()))
    });
    (outcomes.collect(), output)
}

/// The cases that go wrong in the folder only.
fn worse(below: &Results, folder: &Results, explained: &[Explained]) -> Vec<String> {
    let is_explained = |case: &str, outcome: &str| {
        explained.iter().any(|known| known.case == case && known.outcome == outcome)
    };
    folder
        .iter()
        .filter(|(case, outcome)| *outcome != "ok" && below.get(*case) != Some(*outcome))
        .filter(|(case, outcome)| !is_explained(case, outcome))
        .map(|(case, _)| case.clone())
        .collect()
}

#[expect(clippy::print_stderr, reason = "the figures are for whoever reads the log")]
fn assert_as_below(below: &Results, folder: &Results, explained: &[Explained]) {
    let count = |results: &Results, outcome| results.values().filter(|o| *o == outcome).count();
    for (side, results) in [("in the guest's memory", below), ("in the folder", folder)] {
        let [passed, failed, skipped] = ["ok", "FAILED", "skipped"].map(|o| count(results, o));
        eprintln!("{side}: {passed} passed, {failed} failed, {skipped} skipped");
    }
    let worse = worse(below, folder, explained);
    assert!(worse.is_empty(), "in the folder only: {worse:?}");
}
