//! What the crash and fault tests do to a tree: every kind of operation, alone and mixed.

use std::io;
use std::path::Path;

use codeagent_common::{RelPathBuf, StepId};
use codeagent_interceptor::{
    Allocation, EngineConfig, Result, RollbackOptions, StagedChange, StepRequest, UndoEngine,
    UndoError,
};
use codeagent_test_support::{Applier, fixtures};

pub(crate) type Op = fn(&Applier<'_>) -> io::Result<()>;

/// What a scenario does, once the history is prepared.
#[derive(Clone, Copy)]
pub(crate) enum Act {
    /// These operations, as one step.
    Step(&'static [Op]),
    /// As above, without opening a step.
    Ambient(&'static [Op]),
    /// As above, in two commands of one transaction.
    Transaction(&'static [Op]),
    /// Something else.
    Engine(fn(&UndoEngine, &Path) -> Result<()>),
}

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Steps that are in the history before the scenario begins.
    pub(crate) history: &'static [&'static [Op]],
    /// How many of them are undone again before it begins.
    pub(crate) undone: usize,
    pub(crate) act: Act,
    pub(crate) configure: fn(&mut EngineConfig),
}

const fn step(name: &'static str, ops: &'static [Op]) -> Scenario {
    Scenario { name, history: &[BEFORE], undone: 0, act: Act::Step(ops), configure: |_| {} }
}

/// The tree every scenario starts from.
pub(crate) fn fixture(root: &Path) {
    fixtures::small_tree(root);
    std::fs::create_dir_all(root.join("d/sub")).unwrap();
    std::fs::write(root.join("d/one"), b"one").unwrap();
    std::fs::write(root.join("d/sub/two"), vec![2; 70_000]).unwrap();
    std::fs::hard_link(root.join("d/one"), root.join("d/sub/one again")).unwrap();
    std::os::unix::fs::symlink("one", root.join("d/link")).unwrap();
    std::fs::create_dir(root.join("empty")).unwrap();
    fixtures::set_distinct_mtimes(root);
}

pub(crate) const BEFORE: &[Op] = &[
    |fs| fs.create("earlier", b"from an earlier step"),
    |fs| fs.write("small.txt", 3, b"EARLIER"),
];
const REMOVE_TREE: &[Op] = &[|fs| fs.remove_all("d")];
pub(crate) const MIXED: &[Op] = &[
    |fs| fs.mkdir("new"),
    |fs| fs.create("new/file", &[9; 5000]),
    |fs| fs.rename("d/sub", "new/sub"),
    |fs| fs.write("new/sub/two", 66_000, b"changed"),
    |fs| fs.save_by_rename("d/one", b"saved"),
    |fs| fs.unlink("earlier"),
    |fs| fs.chmod("small.txt", 0o600),
    |fs| fs.exchange("small.txt", "medium.txt"),
    |fs| fs.link("run.sh", "new/run"),
    |fs| fs.append("run.sh", b"# more\n"),
    |fs| fs.unlink("d/link").and_then(|()| fs.mkdir("d/link")),
];

/// Directories and files change places and contents, one with another inside it.
const SHUFFLE: &[Op] = &[
    |fs| fs.exchange("d", "src"),
    |fs| fs.exchange("src/link", "run.sh"),
    |fs| fs.write("large.bin", 100_000, b"changed"),
    |fs| fs.rename("src", "d/inner"),
    |fs| fs.exchange("empty", "d"),
];
const REMOVE_SHUFFLED: &[Op] = &[|fs| fs.unlink("large.bin"), |fs| fs.chmod("empty", 0o700)];

pub(crate) fn all() -> Vec<Scenario> {
    let mut scenarios = vec![
        step("create", &[|fs| fs.create("new", b"content")]),
        step("write", &[|fs| fs.write("small.txt", 2, b"xyz")]),
        step(
            "write twice",
            &[|fs| fs.write("small.txt", 2, b"xyz"), |fs| fs.write("small.txt", 4, b"abc")],
        ),
        step(
            "write blocks",
            &[
                |fs| fs.write("large.bin", 70_000, b"xyz"),
                |fs| fs.write("large.bin", 500_000, b"xyz"),
            ],
        ),
        step("append", &[|fs| fs.append("small.txt", b" and more")]),
        step("truncate", &[|fs| fs.truncate("large.bin", 100_000)]),
        step("extend", &[|fs| fs.truncate("small.txt", 200_000)]),
        step("open with O_TRUNC", &[|fs| fs.overwrite("medium.txt", b"short")]),
        step("save by rename", &[|fs| fs.save_by_rename("src/main.rs", b"fn main() { }")]),
        step("unlink", &[|fs| fs.unlink("small.txt")]),
        step(
            "unlink a link",
            &[|fs| fs.unlink("d/one"), |fs| fs.write("d/sub/one again", 0, b"O")],
        ),
        step("remove a tree", REMOVE_TREE),
        step("mkdir", &[|fs| fs.mkdir("x"), |fs| fs.mkdir("x/y"), |fs| fs.create("x/y/z", b"z")]),
        step("rmdir", &[|fs| fs.rmdir("empty")]),
        step("rename", &[|fs| fs.rename("small.txt", "src/renamed")]),
        step("rename over", &[|fs| fs.rename("small.txt", "medium.txt")]),
        step(
            "rename a directory",
            &[|fs| fs.rename("d", "src/d2"), |fs| fs.create("src/d2/n", b"")],
        ),
        step("rename over an empty directory", &[|fs| fs.rename("d", "empty")]),
        step("exchange", &[|fs| fs.exchange("d", "small.txt"), |fs| fs.unlink("d")]),
        step("hard link", &[|fs| fs.link("small.txt", "linked"), |fs| fs.write("linked", 0, b"L")]),
        step("symlink", &[|fs| fs.symlink("../outside", "s"), |fs| fs.unlink("d/link")]),
        step("fifo", &[|fs| fs.mkfifo("pipe"), |fs| fs.rename("pipe", "small.txt")]),
        step(
            "attributes",
            &[
                |fs| fs.chmod("src", 0o700),
                |fs| fs.chown("small.txt", 1, 2),
                |fs| fs.set_mtime("medium.txt", 5, 6),
            ],
        ),
        step(
            "extended attributes",
            &[
                |fs| fs.set_xattr("small.txt", "user.a", b"1"),
                |fs| fs.set_xattr("src", "user.b", b"2"),
            ],
        ),
        step(
            "punch a hole",
            &[|fs| fs.allocate("large.bin", Allocation::PunchHole, 4096, 300_000)],
        ),
        step("link a temporary file", &[|fs| fs.link_tmpfile("from-tmp", b"unnamed first")]),
        step(
            "file becomes directory",
            &[
                |fs| fs.unlink("small.txt"),
                |fs| fs.mkdir("small.txt"),
                |fs| fs.create("small.txt/inside", b"!"),
            ],
        ),
        step("directory becomes file", &[|fs| fs.remove_all("d"), |fs| fs.create("d", b"file")]),
        step(
            "made and dropped",
            &[|fs| fs.create("t", b"t"), |fs| fs.rename("t", "u"), |fs| fs.unlink("u")],
        ),
        step("mixed", MIXED),
        Scenario { act: Act::Ambient(MIXED), ..step("ambient", &[]) },
        Scenario { act: Act::Transaction(MIXED), ..step("transaction", &[]) },
        Scenario { history: &[BEFORE, MIXED], act: Act::Engine(undo), ..step("undo", &[]) },
        Scenario {
            history: &[BEFORE, MIXED, &[|fs| fs.remove_all("new")]],
            act: Act::Engine(|engine, _| engine.rollback(3, RollbackOptions::default()).map(drop)),
            ..step("undo three steps", &[])
        },
        Scenario {
            history: &[BEFORE, MIXED, REMOVE_TREE],
            undone: 2,
            act: Act::Engine(|engine, _| engine.redo(2, RollbackOptions::default()).map(drop)),
            ..step("redo two steps", &[])
        },
        Scenario {
            history: &[BEFORE, MIXED],
            act: Act::Engine(|engine, _| {
                let path = |bytes: &str| RelPathBuf::new(bytes.as_bytes().to_vec());
                engine.restore(StepId(2), &[path("earlier")?, path("d/one")?]).map(drop)
            }),
            ..step("restore", &[])
        },
        Scenario {
            history: &[BEFORE, MIXED, SHUFFLE],
            act: Act::Engine(|engine, _| {
                engine.restore(StepId(2), &[RelPathBuf::default()]).map(drop)
            }),
            ..step("restore everything", &[])
        },
        Scenario {
            history: &[BEFORE, SHUFFLE, REMOVE_SHUFFLED],
            act: Act::Engine(|engine, _| {
                let path = |bytes: &str| RelPathBuf::new(bytes.as_bytes().to_vec());
                engine.restore(StepId(2), &[path("d")?, path("large.bin")?]).map(drop)
            }),
            ..step("restore what changed places", &[])
        },
        step("adopt", ADOPT),
        Scenario {
            history: &[BEFORE, ADOPT],
            act: Act::Engine(undo),
            ..step("undo what was adopted", &[])
        },
        Scenario {
            history: &[BEFORE, ADOPT],
            undone: 1,
            act: Act::Engine(redo),
            ..step("redo what was adopted", &[])
        },
        Scenario {
            act: Act::Engine(|engine, root| {
                engine.open_step(StepRequest::command("aborted"))?;
                let fs = Applier::new(engine, root);
                let _ = MIXED.iter().try_for_each(|op| op(&fs));
                engine.abort_step().map(drop)
            }),
            ..step("abort", &[])
        },
    ];
    scenarios
        .push(Scenario { configure: |config| config.durable = true, ..step("durable", MIXED) });
    scenarios.push(Scenario {
        history: &[BEFORE, MIXED],
        act: Act::Engine(undo),
        configure: |config| config.durable = true,
        ..step("durable undo", &[])
    });
    scenarios
}

fn undo(engine: &UndoEngine, _: &Path) -> Result<()> {
    engine.rollback(1, RollbackOptions::default()).map(drop)
}

fn redo(engine: &UndoEngine, _: &Path) -> Result<()> {
    engine.redo(1, RollbackOptions::default()).map(drop)
}

const LOCK: &[Op] =
    &[|fs| fs.chmod("d/sub", 0o555), |fs| fs.chmod("d", 0o555), |fs| fs.chmod("empty", 0o000)];
const WORK_LOCKED: &[Op] = &[
    |fs| fs.chmod("d", 0o755),
    |fs| fs.chmod("d/sub", 0o755),
    |fs| fs.unlink("d/one"),
    |fs| fs.rename("d/sub", "src/sub"),
    |fs| fs.write("src/sub/two", 66_000, b"changed"),
    |fs| fs.chmod("src/sub", 0o555),
    |fs| fs.chmod("d", 0o555),
    |fs| fs.set_xattr("medium.txt", "user.a", b"1"),
    |fs| fs.chmod("medium.txt", 0o444),
    |fs| fs.rmdir("empty"),
    |fs| fs.mkdir("shut"),
    |fs| fs.create("shut/in", b"nobody gets in"),
    |fs| fs.chmod("shut", 0o000),
];

/// What an ordinary user does to directories that he locks against himself. Permission has to be
/// lent again and again.
#[allow(dead_code, reason = "the fault tests do without")]
pub(crate) fn locked() -> Vec<Scenario> {
    vec![
        Scenario { history: &[LOCK], ..step("work in locked directories", WORK_LOCKED) },
        Scenario {
            history: &[LOCK, WORK_LOCKED],
            act: Act::Engine(undo),
            ..step("undo in locked directories", &[])
        },
        Scenario {
            history: &[LOCK, WORK_LOCKED],
            undone: 1,
            act: Act::Engine(redo),
            ..step("redo in locked directories", &[])
        },
        Scenario { history: &[LOCK], ..step("adopt locked", ADOPT) },
    ]
}

/// A staged directory replaces one, staged entries replace files, another directory goes.
const ADOPT: &[Op] = &[|fs| {
    let staging = fs.full_path("../staging");
    let _ = std::fs::remove_dir_all(&staging);
    std::fs::create_dir_all(staging.join("sub/deep"))?;
    std::fs::write(staging.join("sub/deep/file"), b"staged")?;
    std::fs::write(staging.join("file"), b"staged file")?;
    std::os::unix::fs::symlink("target", staging.join("link"))?;
    let path = |bytes: &str| RelPathBuf::new(bytes.as_bytes().to_vec()).unwrap();
    let place =
        |at: &str, staged: &str| StagedChange::Place { path: path(at), staged: path(staged) };
    let changes = [
        StagedChange::Remove { path: path("d") },
        place("src", "sub"),
        place("small.txt", "file"),
        place("medium.txt", "link"),
        StagedChange::Attributes { path: path("empty"), staged: path("") },
    ];
    match fs.engine().adopt(&staging, &changes) {
        Ok(_) => Ok(()),
        Err(UndoError::Io { source, .. }) => Err(source),
        Err(error) => Err(io::Error::from_raw_os_error(error.errno())),
    }
}];

impl Scenario {
    pub(crate) fn config(&self, working: &Path, undo: &Path) -> EngineConfig {
        let mut config = EngineConfig::new(working, undo);
        (self.configure)(&mut config);
        config
    }

    /// Builds the history the scenario starts from.
    pub(crate) fn prepare(&self, engine: &UndoEngine, working: &Path, mut boundary: impl FnMut()) {
        boundary();
        for ops in self.history {
            engine.open_step(StepRequest::command("earlier")).unwrap();
            let fs = Applier::new(engine, working);
            ops.iter().for_each(|op| op(&fs).unwrap());
            engine.close_step(Some(0)).unwrap();
            boundary();
        }
        if self.undone > 0 {
            engine.rollback(self.undone, RollbackOptions::default()).unwrap();
        }
    }

    /// Runs it to the end.
    pub(crate) fn run(&self, engine: &UndoEngine, working: &Path, fs: &Applier<'_>) -> Result<()> {
        let apply = |ops: &[Op]| {
            let refused =
                |source| UndoError::Io { context: "an operation was refused".into(), source };
            ops.iter().try_for_each(|op| op(fs).map_err(refused))
        };
        match self.act {
            Act::Step(ops) => {
                engine.open_step(StepRequest::command(self.name))?;
                apply(ops)?;
                engine.close_step(Some(0)).map(drop)
            }
            Act::Ambient(ops) => {
                apply(ops)?;
                engine.open_step(StepRequest::command("ends the ambient step"))?;
                engine.close_step(None).map(drop)
            }
            Act::Transaction(ops) => {
                engine.begin_transaction(self.name)?;
                for half in ops.chunks(ops.len() / 2 + 1) {
                    engine.open_step(StepRequest::command("half"))?;
                    apply(half)?;
                    engine.close_step(Some(0))?;
                }
                engine.commit_transaction().map(drop)
            }
            Act::Engine(act) => act(engine, working),
        }
    }
}
