//! What front ends, listeners and agents do that they should not, and what they may do.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use codeagent_common::{
    OverLimitPolicy, PathUse, PathVerdict, RelPath, ResourceLimits, SafeguardConfig,
    SafeguardDecision,
};
use codeagent_interceptor::{
    EngineEvent, EventSink, Mutation, PathPolicy, RenameMode, StagedChange, StepRequest,
    WriteInterceptor,
};
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use common::{Bench, ManualClock, has_file_of, rel, rel_buf};

fn text(bench: &Bench, path: &str) -> String {
    fs::read_to_string(bench.path(path)).unwrap_or_else(|error| format!("<{path}: {error}>"))
}

#[derive(Default)]
struct Asked {
    count: AtomicU64,
    sender: std::sync::Mutex<Option<mpsc::Sender<codeagent_common::SafeguardRequest>>>,
}

impl EventSink for Asked {
    fn event(&self, event: EngineEvent) {
        if let EngineEvent::SafeguardTriggered(request) = event {
            self.count.fetch_add(1, Ordering::SeqCst);
            if let Some(sender) = &*self.sender.lock().unwrap() {
                let _ = sender.send(request);
            }
        }
    }
}

struct NoHooks;

impl PathPolicy for NoHooks {
    fn judge(&self, path: RelPath<'_>, _usage: PathUse) -> PathVerdict {
        let names: Vec<&[u8]> = path.components().collect();
        let hook = names.windows(3).any(|names| names[..2] == [&b".git"[..], b"hooks"]);
        if hook { PathVerdict::Deny("hooks".into()) } else { PathVerdict::Allow }
    }

    fn guards_below(&self, _path: RelPath<'_>, _usage: PathUse) -> bool {
        true
    }
}

struct Panics(AtomicBool);

impl EventSink for Panics {
    fn event(&self, event: EngineEvent) {
        if matches!(event, EngineEvent::SafeguardTriggered(_))
            && !self.0.swap(true, Ordering::SeqCst)
        {
            panic!("a bug in the listener");
        }
    }
}

fn noise(length: usize) -> Vec<u8> {
    let mut seed = 1_u64;
    (0..length)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        })
        .collect()
}

/// A front end that fails between permit and host operation (a `?`, a panic) exchanged nothing.
#[test]
fn a_dropped_permit_is_not_proof_that_an_exchange_happened() {
    let bench = Bench::new(|root| {
        fs::write(root.join("a"), "a").unwrap();
        fs::write(root.join("b"), "b").unwrap();
    });
    let before = bench.snapshot();
    bench.step(|fs| {
        let mode = RenameMode::Exchange;
        let exchange = Mutation::Rename { from: rel("a"), to: rel("b"), mode };
        drop(fs.engine().before(&exchange).unwrap());
    });
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
}

/// A sparse file of an exbibyte costs nothing; the map of its blocks must not cost two tebibytes.
#[test]
fn a_write_into_a_huge_sparse_file_does_not_end_the_process() {
    if std::env::var_os("CODEAGENT_CHILD").is_none() {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_write_into_a_huge_sparse_file_does_not_end_the_process"])
            .env("CODEAGENT_CHILD", "1")
            .status()
            .unwrap();
        assert!(status.success(), "the process died: {status}");
        return;
    }
    let bench = Bench::new(|root| {
        fs::File::create(root.join("huge")).unwrap().set_len(1 << 62).unwrap();
    });
    bench.step(|fs| fs.write("huge", 0, b"x").unwrap());
    bench.undo(1);
}

/// A staged file may have another name already: then it is not new.
#[test]
fn an_adopted_file_with_another_name_in_the_working_directory_is_not_new() {
    let bench = Bench::new(|root| fs::write(root.join("keep"), "original").unwrap());
    let staging = bench.beside("staging");
    fs::hard_link(bench.path("keep"), staging.join("f")).unwrap();
    bench.step(|fs| {
        let place = StagedChange::Place { path: rel_buf("new"), staged: rel_buf("f") };
        fs.engine().adopt(&staging, &[place]).unwrap();
        fs.overwrite("keep", b"changed").unwrap();
    });
    bench.undo(1);
    assert_eq!(text(&bench, "keep"), "original");
}

/// The commit of a removed directory counts as one deletion, however much is below it.
#[test]
fn the_delete_safeguard_counts_what_a_commit_removes_below_a_directory() {
    let asked = Arc::new(Asked::default());
    let workspace = TempWorkspace::with_fixture(|root| {
        fs::create_dir(root.join("d")).unwrap();
        for n in 0..500 {
            fs::write(root.join(format!("d/{n}")), "x").unwrap();
        }
    });
    let bench = Bench::configured(workspace, |config| {
        config.safeguards = SafeguardConfig {
            delete_threshold: Some(100),
            timeout: Duration::from_millis(50),
            ..SafeguardConfig::default()
        };
        config.events = asked.clone();
    });
    let staging = bench.beside("staging");
    bench.engine.open_step(StepRequest::command("rm -rf d")).unwrap();
    let _ = bench.engine.adopt(&staging, &[StagedChange::Remove { path: rel_buf("d") }]);
    assert_eq!(asked.count.load(Ordering::SeqCst), 1, "500 files went unasked");
}

/// A thread that waits for an answer must not keep others from changing the configuration.
#[test]
fn set_safeguards_does_not_wait_for_an_open_question() {
    let asked = Arc::new(Asked::default());
    let (sender, questions) = mpsc::channel();
    *asked.sender.lock().unwrap() = Some(sender);
    let workspace = TempWorkspace::with_fixture(|root| {
        for n in 0..3 {
            fs::write(root.join(n.to_string()), "x").unwrap();
        }
    });
    let bench = Bench::configured(workspace, |config| {
        config.safeguards = SafeguardConfig {
            delete_threshold: Some(1),
            timeout: Duration::from_secs(5),
            ..SafeguardConfig::default()
        };
        config.events = asked.clone();
    });
    bench.engine.open_step(StepRequest::command("rm")).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| bench.applier().unlink("0"));
        let question = questions.recv_timeout(Duration::from_secs(5)).unwrap();
        let second = scope.spawn(|| bench.applier().unlink("1"));
        std::thread::sleep(Duration::from_millis(300));
        // The user says: stop asking; and yes.
        bench.engine.set_safeguards(SafeguardConfig::default());
        let answered = bench.engine.confirm(question.id, SafeguardDecision::Allow);
        assert!(answered.is_ok(), "the question had timed out meanwhile: {answered:?}");
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
}

/// A denied ambient step is kept alive by the very attempts that it refuses.
#[test]
fn a_denied_ambient_step_ends_although_somebody_keeps_trying() {
    let clock = ManualClock::new();
    let workspace = TempWorkspace::with_fixture(|root| {
        fs::write(root.join("f"), "x").unwrap();
    });
    let bench = Bench::configured(workspace, |config| {
        config.clock = clock.clone();
        config.safeguards = SafeguardConfig {
            delete_threshold: Some(1),
            timeout: Duration::from_millis(20),
            ..SafeguardConfig::default()
        };
    });
    bench.applier().unlink("f").unwrap_err();
    for _ in 0..100 {
        clock.advance(Duration::from_secs(3));
        let _ = bench.engine.tick();
        if bench.applier().create("innocent", b"x").is_ok() {
            return;
        }
    }
    panic!("five minutes later every write is still refused");
}

/// A listener that panics while a question is put must not hold all writes for ever.
#[test]
fn a_question_whose_listener_panicked_does_not_stay_open() {
    let workspace = TempWorkspace::with_fixture(|root| fs::write(root.join("f"), "x").unwrap());
    let bench = Arc::new(Bench::configured(workspace, |config| {
        config.safeguards = SafeguardConfig {
            delete_threshold: Some(1),
            timeout: Duration::from_millis(100),
            ..SafeguardConfig::default()
        };
        config.events = Arc::new(Panics(AtomicBool::new(false)));
    }));
    bench.engine.open_step(StepRequest::command("rm")).unwrap();
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bench.applier().unlink("f")));
    let (done, waiting) = mpsc::channel();
    let other = Arc::clone(&bench);
    std::thread::spawn(move || done.send(other.applier().create("new", b"x").is_ok()));
    let outcome = waiting.recv_timeout(Duration::from_secs(3));
    assert!(outcome.is_ok(), "every write waits for an answer nobody can give");
}

/// Removing `.git` by a commit is refused because of the hook in it; renaming it away is not.
#[test]
fn a_directory_with_a_denied_path_below_it_cannot_be_renamed_away() {
    let workspace = TempWorkspace::with_fixture(|root| {
        fs::create_dir_all(root.join(".git/hooks")).unwrap();
        fs::write(root.join(".git/hooks/pre-commit"), "scan for secrets").unwrap();
    });
    let bench = Bench::configured(workspace, |config| config.paths = Arc::new(NoHooks));
    bench.try_step(|fs| {
        let _ = fs.rename(".git/hooks", ".git/hooks-off");
    });
    assert!(bench.path(".git/hooks/pre-commit").exists(), "the hook was switched off");
}

/// Files that a step removed are kept in the store, until it loses its protection and is aborted.
#[test]
fn aborting_an_unprotected_step_does_not_destroy_what_it_had_removed() {
    let workspace = TempWorkspace::with_fixture(|root| {
        fs::write(root.join("precious"), "precious").unwrap();
        fs::write(root.join("large"), noise(1 << 20)).unwrap();
    });
    let bench = Bench::configured(workspace, |config| {
        config.limits = ResourceLimits {
            max_step_bytes: 64 << 10,
            over_step_limit: OverLimitPolicy::Unprotect,
            ..ResourceLimits::default()
        };
    });
    bench.engine.open_step(StepRequest::command("rm")).unwrap();
    bench.applier().unlink("precious").unwrap();
    bench.applier().overwrite("large", b"small").unwrap();
    let _ = bench.engine.abort_step();
    let bench = bench.reopened();
    let found = bench.path("precious").exists()
        || has_file_of(&bench.workspace.undo().join("steps"), b"precious")
        || has_file_of(&bench.workspace.undo().join("quarantine"), b"precious");
    assert!(found, "the only copy is gone");
}

/// The same when the process dies.
#[test]
fn recovery_of_an_unprotected_step_does_not_destroy_what_it_had_removed() {
    let workspace = TempWorkspace::with_fixture(|root| {
        fs::write(root.join("precious"), "precious").unwrap();
        fs::write(root.join("large"), noise(1 << 20)).unwrap();
    });
    let bench = Bench::configured(workspace, |config| {
        config.limits = ResourceLimits { max_step_bytes: 64 << 10, ..ResourceLimits::default() };
    });
    bench.engine.open_step(StepRequest::command("rm")).unwrap();
    bench.applier().unlink("precious").unwrap();
    bench.applier().overwrite("large", b"small").unwrap();
    let bench = bench.reopened().reopened();
    let found = bench.path("precious").exists()
        || has_file_of(&bench.workspace.undo().join("steps"), b"precious")
        || has_file_of(&bench.workspace.undo().join("quarantine"), b"precious");
    assert!(found, "the only copy is gone");
}
