//! What the tests of the engine share: a working directory with an engine on it.

#![allow(dead_code, reason = "every test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

pub(crate) mod edits;
pub(crate) mod reversible;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use codeagent_common::{ErrorCode, RelPath, RelPathBuf, StepInfo};
use codeagent_interceptor::{
    Clock, ClosedStep, EngineConfig, EngineEvent, EventSink, RollbackOptions, RollbackReport,
    StepRequest, UndoEngine, UndoError, VerifyReport,
};
use codeagent_test_support::{Applier, CompareOptions, TempWorkspace, TreeSnapshot};

/// An engine on a throw-away working directory.
pub(crate) struct Bench {
    // Before the workspace: it must be closed before its directories are deleted.
    pub(crate) engine: UndoEngine,
    pub(crate) workspace: TempWorkspace,
    pub(crate) events: Arc<EventLog>,
    config: EngineConfig,
}

impl Bench {
    /// A working directory filled by `fixture`, and an engine as it comes.
    pub(crate) fn new(fixture: impl FnOnce(&Path)) -> Self {
        Self::configured(TempWorkspace::with_fixture(fixture), |_| {})
    }

    /// An engine on `workspace`, set up by `configure`.
    pub(crate) fn configured(
        workspace: TempWorkspace,
        configure: impl FnOnce(&mut EngineConfig),
    ) -> Self {
        let events = Arc::new(EventLog::default());
        let mut config = EngineConfig::new(workspace.working(), workspace.undo());
        config.events = events.clone();
        configure(&mut config);
        let engine = UndoEngine::open(config.clone()).expect("open an engine");
        Self { engine, workspace, events, config }
    }

    /// The working directory and how the engine was set up, with the engine gone.
    pub(crate) fn close(self) -> (TempWorkspace, EngineConfig) {
        drop(self.engine);
        (self.workspace, self.config)
    }

    /// Closes the engine, lets `meanwhile` happen, and opens it again.
    pub(crate) fn reopened_after(self, meanwhile: impl FnOnce(&TempWorkspace)) -> Self {
        let events = self.events.clone();
        let (workspace, config) = self.close();
        meanwhile(&workspace);
        let engine = UndoEngine::open(config.clone()).expect("open the engine again");
        Self { engine, workspace, events, config }
    }

    pub(crate) fn reopened(self) -> Self {
        self.reopened_after(|_| {})
    }

    pub(crate) fn applier(&self) -> Applier<'_> {
        Applier::new(&self.engine, self.workspace.working())
    }

    /// Runs `work` in a step of its own, which must end up in the history.
    #[track_caller]
    pub(crate) fn step(&self, work: impl FnOnce(&Applier<'_>)) -> StepInfo {
        match self.try_step(work) {
            ClosedStep::Recorded { step, .. } => step,
            other => panic!("the step was not recorded: {other:?}"),
        }
    }

    /// Runs `work` in a step of its own.
    pub(crate) fn try_step(&self, work: impl FnOnce(&Applier<'_>)) -> ClosedStep {
        self.engine.open_step(StepRequest::command("test")).expect("open a step");
        work(&self.applier());
        self.engine.close_step(Some(0)).expect("close the step")
    }

    #[track_caller]
    pub(crate) fn undo(&self, count: usize) -> RollbackReport {
        self.engine.rollback(count, RollbackOptions::default()).expect("undo")
    }

    #[track_caller]
    pub(crate) fn redo(&self, count: usize) -> RollbackReport {
        self.engine.redo(count, RollbackOptions::default()).expect("redo")
    }

    pub(crate) fn snapshot(&self) -> TreeSnapshot {
        self.workspace.snapshot()
    }

    pub(crate) fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.workspace.path(relative)
    }

    pub(crate) fn verify(&self) -> VerifyReport {
        codeagent_interceptor::verify(self.workspace.undo()).expect("read the undo log")
    }

    #[track_caller]
    pub(crate) fn assert_sound(&self) {
        assert_eq!(self.verify().findings, []);
    }

    /// A directory beside the working directory, on its filesystem, deleted with it.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        beside(&self.workspace, name)
    }
}

pub(crate) fn beside(workspace: &TempWorkspace, name: &str) -> PathBuf {
    let dir = workspace.working().parent().unwrap().join(name);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// All events, in order.
#[derive(Default)]
pub(crate) struct EventLog(Mutex<Vec<EngineEvent>>);

impl EventLog {
    pub(crate) fn all(&self) -> Vec<EngineEvent> {
        self.0.lock().unwrap().clone()
    }
}

impl EventSink for EventLog {
    fn event(&self, event: EngineEvent) {
        self.0.lock().unwrap().push(event);
    }
}

/// A clock that stands still until it is told to go on.
pub(crate) struct ManualClock(AtomicU64);

impl ManualClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(1_700_000_000_000)))
    }

    pub(crate) fn advance(&self, by: Duration) {
        let ms = u64::try_from(by.as_millis()).unwrap();
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}

pub(crate) fn rel(path: &(impl AsRef<[u8]> + ?Sized)) -> RelPath<'_> {
    RelPath::new(path.as_ref()).expect("a relative path")
}

pub(crate) fn rel_buf(path: impl AsRef<[u8]>) -> RelPathBuf {
    rel(path.as_ref()).to_buf()
}

pub(crate) fn rel_bufs(paths: &[&str]) -> Vec<RelPathBuf> {
    paths.iter().map(rel_buf).collect()
}

/// Compares these paths only, with everything about them.
pub(crate) fn only(paths: &'static [&'static str]) -> CompareOptions {
    CompareOptions::default().ignoring(move |path| !paths.iter().any(|p| p.as_bytes() == path))
}

/// Compares everything but these paths.
pub(crate) fn all_but(paths: &'static [&'static str]) -> CompareOptions {
    CompareOptions::default().ignoring(move |path| paths.iter().any(|p| p.as_bytes() == path))
}

/// Whether some file in `dir`, however deep, has this content.
pub(crate) fn has_file_of(dir: &Path, content: &[u8]) -> bool {
    fs::read_dir(dir).is_ok_and(|entries| {
        entries.map(|entry| entry.unwrap().path()).any(|path| match path.is_dir() {
            true => has_file_of(&path, content),
            false => fs::read(&path).unwrap() == content,
        })
    })
}

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::yield_now();
    }
}

/// An error a person can act on: a stable code, a sentence, and what to do.
#[track_caller]
pub(crate) fn assert_helpful(error: &UndoError, code: ErrorCode) {
    assert_eq!(error.code(), code, "{error}");
    let sentence = error.to_string();
    assert!(sentence.contains(' ') && !sentence.contains("{"), "not a sentence: {sentence}");
    assert!(error.hint().is_some_and(|hint| hint.contains(' ')), "no hint: {sentence}");
}

#[track_caller]
pub(crate) fn assert_errno<T: std::fmt::Debug>(
    outcome: std::io::Result<T>,
    errno: rustix::io::Errno,
) {
    let error = outcome.expect_err("it should have failed");
    assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()), "{error}");
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
