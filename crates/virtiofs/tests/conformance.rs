//! A filesystem test suite inside a guest, in the folder and in the guest's own memory: what fails
//! only in the folder is ours. And whatever the suite does there is undone.
#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use codeagent_interceptor::{OnConflict, StepRequest};
use codeagent_test_guest::Guest;
use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use codeagent_virtiofs::GuestOptions;
use common::{boot_with, parts, start_worker};

/// A run of the suite has this many cases; fewer would mean that it was not understood.
const CASES: usize = 398;

/// Skipped on every FUSE filesystem: the C library knows how many names a file can have from the
/// kind of filesystem, and of FUSE it knows nothing.
const SKIPPED_IN_THE_FOLDER: &str = "link::link_count_max";

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
fn a_posix_test_suite_finds_no_fault_that_the_guest_has_not_by_itself() {
    let test = "a_posix_test_suite_finds_no_fault_that_the_guest_has_not_by_itself";
    let Some(suite) = std::env::var_os("CODEAGENT_TEST_PJDFSTEST").map(PathBuf::from) else {
        return skip(test, "pjdfstest is not here; `cargo xtask test` installs it, as root");
    };
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root makes files that belong to others");
    }
    let Some(parts) = parts(test) else { return };
    let workspace = TempWorkspace::new();
    let (worker, _events) = start_worker(&workspace, |_| {});
    // Owners as the guest has them: the suite changes them.
    let options = GuestOptions { owners: None };
    let (mut guest, _) = boot_with(&parts, worker.client(), options, &[&suite]);
    let before = workspace.snapshot();
    guest.sh(&format!("mkdir /tmp/below /tmp/other; cat > /tmp/toml <<'EOF'\n{CONFIGURATION}EOF"));
    let below = run(&mut guest, "/tmp/below");
    worker.client().open_step(StepRequest::command("pjdfstest")).unwrap();
    let mut folder = run(&mut guest, "/mnt");
    // Some cases give another process a moment, which is too short where processors are emulated.
    for case in worse(&below, &folder) {
        if (0..3).any(|_| play(&mut guest, "/mnt", &case).0.get(&case).is_some_and(|o| o == "ok")) {
            folder.insert(case, "ok".into());
        }
    }
    guest.sh("sync");
    worker.client().close_step(Some(0)).unwrap();
    assert_as_below(&below, &folder);
    if workspace.snapshot() != before {
        worker.client().undo(1, OnConflict::Refuse).unwrap();
    }
    assert_tree_eq(&before, &workspace.snapshot());
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
fn worse(below: &Results, folder: &Results) -> Vec<String> {
    folder
        .iter()
        .filter(|(case, outcome)| *outcome != "ok" && below.get(*case) != Some(*outcome))
        .filter(|(case, outcome)| *case != SKIPPED_IN_THE_FOLDER || *outcome != "skipped")
        .map(|(case, _)| case.clone())
        .collect()
}

#[expect(clippy::print_stderr, reason = "the figures are for whoever reads the log")]
fn assert_as_below(below: &Results, folder: &Results) {
    let count = |results: &Results, outcome| results.values().filter(|o| *o == outcome).count();
    for (side, results) in [("in the guest's memory", below), ("in the folder", folder)] {
        let [passed, failed, skipped] = ["ok", "FAILED", "skipped"].map(|o| count(results, o));
        eprintln!("{side}: {passed} passed, {failed} failed, {skipped} skipped");
    }
    let worse = worse(below, folder);
    assert!(worse.is_empty(), "in the folder only: {worse:?}");
}
