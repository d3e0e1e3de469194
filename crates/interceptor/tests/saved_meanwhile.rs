//! The user works in the file that a step changes, in every moment of the commit, the undo and the
//! redo in turn: whatever he wrote and whatever was there before is in the folder or kept.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use codeagent_interceptor::{
    Fault, FaultInjector, Point, RollbackOptions, StagedChange, StepRequest,
};
use codeagent_test_support::{Applier, TempWorkspace};
use common::{Bench, has_file_of, rel_buf};

const ORIGINAL: &str = "original\n";
const BY_THE_USER: &str = "by the user\n";

/// What the user does with the file.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Doing {
    SavesByRename,
    SavesInPlace,
    Appends,
    MakesADirectory,
}

impl Doing {
    const ALL: [Self; 4] =
        [Self::SavesByRename, Self::SavesInPlace, Self::Appends, Self::MakesADirectory];

    /// What was there is gone then, and nobody else has done that.
    fn replaces(self) -> bool {
        matches!(self, Self::SavesByRename | Self::SavesInPlace)
    }

    /// Fails where what is there does not allow it.
    fn happen(self, file: &Path) -> io::Result<()> {
        match self {
            Self::SavesByRename => {
                let new = file.with_file_name("new");
                fs::write(&new, BY_THE_USER)?;
                fs::rename(&new, file).inspect_err(|_| fs::remove_file(&new).unwrap())
            }
            Self::SavesInPlace => fs::write(file, BY_THE_USER),
            Self::Appends => OpenOptions::new()
                .append(true)
                .create(true)
                .open(file)?
                .write_all(BY_THE_USER.as_bytes()),
            Self::MakesADirectory => {
                fs::create_dir(file)?;
                fs::write(file.join("in"), BY_THE_USER)
            }
        }
    }
}

/// He does it when the engine gets to `point` for the `left`-th time from now on.
struct User {
    file: PathBuf,
    doing: Doing,
    point: Point,
    left: AtomicUsize,
    /// How often he has tried, and how often he could.
    tried: AtomicUsize,
    done: AtomicUsize,
}

impl FaultInjector for User {
    fn reach(&self, point: Point) -> Fault {
        let is_counting = point == self.point && self.left.load(Ordering::SeqCst) > 0;
        if is_counting && self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.tried.fetch_add(1, Ordering::SeqCst);
            let done = usize::from(self.doing.happen(&self.file).is_ok());
            self.done.fetch_add(done, Ordering::SeqCst);
        }
        Fault::None
    }
}

type Work = fn(&Applier<'_>, &Path);

fn adopt(fs: &Applier<'_>, staging: &Path, change: StagedChange) {
    fs.engine().adopt(staging, &[change]).unwrap();
}

fn place(fs: &Applier<'_>, staging: &Path, staged: &str) {
    let (path, staged) = (rel_buf("saved"), rel_buf(staged));
    adopt(fs, staging, StagedChange::Place { path, staged });
}

const OVER: &str = "another one is renamed over it";

/// What a step does. What is refused because of what the user has made there is none of it.
const WORK: [(&str, Work); 7] = [
    ("a commit replaces the file", |fs, staging| place(fs, staging, "file")),
    ("a commit replaces it with a directory", |fs, staging| place(fs, staging, "dir")),
    ("a commit removes it", |fs, staging| {
        adopt(fs, staging, StagedChange::Remove { path: rel_buf("saved") });
    }),
    ("it is removed", |fs, _| drop(fs.unlink("saved"))),
    (OVER, |fs, _| drop(fs.rename("other", "saved"))),
    ("it is renamed", |fs, _| drop(fs.rename("saved", "moved"))),
    ("it is overwritten", |fs, _| drop(fs.overwrite("saved", b"by the step\n"))),
];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Commit,
    Undo,
    Redo,
}

struct Trial {
    bench: Bench,
    user: Arc<User>,
}

impl Trial {
    fn new(doing: Doing, point: Point) -> Self {
        let workspace = TempWorkspace::with_fixture(|root| {
            fs::write(root.join("saved"), ORIGINAL).unwrap();
            fs::write(root.join("other"), "other\n").unwrap();
        });
        let user = Arc::new(User {
            file: workspace.path("saved"),
            doing,
            point,
            left: AtomicUsize::new(0),
            tried: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
        });
        let bench = Bench::configured(workspace, |config| config.faults = Some(user.clone()));
        Self { bench, user }
    }

    /// Runs a phase; in the one that is meant, the user is at work.
    fn run<T>(&self, is_meant: bool, time: usize, phase: impl FnOnce() -> T) -> T {
        self.user.left.store(if is_meant { time } else { 0 }, Ordering::SeqCst);
        let outcome = phase();
        self.user.left.store(0, Ordering::SeqCst);
        outcome
    }

    /// Whether some file of the folder, or of what undo, redo and people can get at, holds a text.
    fn has(&self, text: &str) -> bool {
        let undo = self.bench.workspace.undo();
        let kept = ["steps", "redo", "quarantine"].map(|dir| undo.join(dir));
        let dirs = kept.iter().map(PathBuf::as_path).chain([self.bench.workspace.working()]);
        dirs.filter(|dir| dir.is_dir()).any(|dir| holds(dir, text))
    }
}

fn holds(dir: &Path, text: &str) -> bool {
    fs::read_dir(dir).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => holds(&path, text),
            false => {
                let content = fs::read(path).unwrap_or_default();
                content.windows(text.len()).any(|part| part == text.as_bytes())
            }
        }
    })
}

/// `false`: the user was not reached any more.
fn try_once(
    (name, work): (&str, Work),
    (doing, phase): (Doing, Phase),
    (point, time): (Point, usize),
    lost: &mut Vec<String>,
) -> bool {
    let trial = Trial::new(doing, point);
    let (bench, staging) = (&trial.bench, trial.bench.beside("staging"));
    fs::write(staging.join("file"), "staged\n").unwrap();
    fs::create_dir(staging.join("dir")).unwrap();
    fs::write(staging.join("dir/file"), "staged\n").unwrap();
    bench.engine.open_step(StepRequest::command("works")).unwrap();
    bench.applier().mkdir("so that the directory has been touched").unwrap();
    trial.run(phase == Phase::Commit, time, || work(&bench.applier(), &staging));
    bench.engine.close_step(Some(0)).unwrap();
    let options = RollbackOptions::default;
    let mut told = trial.run(phase == Phase::Undo, time, || bench.engine.rollback(1, options()));
    if phase == Phase::Redo && told.is_ok() {
        told = trial.run(true, time, || bench.engine.redo(1, options()));
    }
    let context = format!("{name}; {doing:?} in {phase:?}, {point:?} {time}: {told:?}");
    let user_was_there = trial.user.done.load(Ordering::SeqCst) > 0;
    // Exception: between the second name that a file gets in the store and the rename over it.
    let is_between =
        name == OVER && phase == Phase::Commit && (point, time) == (Point::StoreWrite, 2);
    if user_was_there && !trial.has(BY_THE_USER) && !is_between {
        lost.push(format!("lost by the user: {context}"));
    }
    if !trial.has(ORIGINAL) && !doing.replaces() {
        lost.push(format!("lost what was there: {context}"));
    }
    // Nothing of what was done without a word is out of sight.
    let quarantine = bench.workspace.undo().join("quarantine");
    if told.is_ok() && quarantine.is_dir() && has_file_of(&quarantine, BY_THE_USER.as_bytes()) {
        lost.push(format!("set aside without a word: {context}"));
    }
    trial.user.tried.load(Ordering::SeqCst) > 0
}

#[test]
fn whatever_somebody_does_in_whatever_moment_is_kept() {
    let mut lost = Vec::new();
    let mut tries = 0;
    for work in WORK {
        for doing in Doing::ALL {
            // Nobody can tell two who write to one file at the same time from each other.
            let is_commit_alone = work.0 != "it is overwritten";
            let phases = [Phase::Commit, Phase::Undo, Phase::Redo];
            for phase in phases.into_iter().skip(usize::from(!is_commit_alone)) {
                for point in
                    [Point::StoreOpen, Point::StoreWrite, Point::HostMutation, Point::Promotion]
                {
                    let reached =
                        |time: &usize| try_once(work, (doing, phase), (point, *time), &mut lost);
                    tries += (1..100).take_while(reached).count();
                }
            }
        }
    }
    assert!(tries > 500, "{tries}");
    assert!(lost.is_empty(), "{} of {tries}:\n{}", lost.len(), lost.join("\n"));
}
