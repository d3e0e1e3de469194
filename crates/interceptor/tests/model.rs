//! Random operations, grouped into steps, undone and redone in random order: whatever happened,
//! the tree must be exactly what it was at the step boundary.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the wanted failure")]

use std::fs::File;
use std::path::Path;

use codeagent_interceptor::{
    Allocation, ClosedStep, EngineConfig, OnConflict, RollbackOptions, StepRequest, UndoEngine,
};
use codeagent_test_support::{
    Applier, TempWorkspace, TreeSnapshot, as_ordinary_user, filesystems, fixtures,
};
use proptest::prelude::*;

/// Bytes that print as a word, so that a failing case can be read.
#[derive(Clone, PartialEq, Eq)]
struct Bytes(Vec<u8>);

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = String::from_utf8_lossy(&self.0[..self.0.len().min(16)]).into_owned();
        write!(f, "{shown:?}")?;
        if self.0.len() > 16 { write!(f, "[{}]", self.0.len()) } else { Ok(()) }
    }
}

#[derive(Debug, Clone)]
enum Op {
    Create(Bytes, Bytes),
    Write(Bytes, u64, Bytes),
    WriteFar(Bytes, u64),
    Append(Bytes, Bytes),
    Truncate(Bytes, u64),
    Overwrite(Bytes, Bytes),
    SaveByRename(Bytes, Bytes),
    Unlink(Bytes),
    RemoveAll(Bytes),
    Mkdir(Bytes),
    MkdirDeep(Bytes),
    Rmdir(Bytes),
    Symlink(Bytes, Bytes),
    Link(Bytes, Bytes),
    Mkfifo(Bytes),
    TmpfileLink(Bytes, Bytes),
    Rename(Bytes, Bytes),
    RenameNoReplace(Bytes, Bytes),
    Exchange(Bytes, Bytes),
    Chmod(Bytes, u32),
    Chown(Bytes, u32),
    SetMtime(Bytes, i64, u32),
    SetXattr(Bytes, u8, Bytes),
    RemoveXattr(Bytes, u8),
    Allocate(Bytes, u8, u64, u64),
    CopyRange(Bytes, Bytes, u64, usize),
    WriteUnseen(Bytes, Bytes),
    FileBecomesDir(Bytes),
    DirBecomesFile(Bytes, Bytes),
    Hold(Bytes),
    WriteHeld(u64, Bytes),
}

#[derive(Debug, Clone)]
enum Action {
    Step(Vec<Op>),
    Transaction(Vec<Vec<Op>>),
    Aborted(Vec<Op>),
    RolledBackTransaction(Vec<Op>),
    Undo(usize),
    Redo(usize),
    Reopen,
}

fn path() -> impl Strategy<Value = Bytes> {
    let name = prop_oneof![
        3 => Just(b"a".to_vec()),
        3 => Just(b"b".to_vec()),
        2 => Just(b"dir".to_vec()),
        1 => Just(b"\xff\xfe \n".to_vec()),
        1 => Just(vec![b'n'; 255]),
    ];
    prop::collection::vec(name, 1..=3).prop_map(|names| Bytes(names.join(&b'/')))
}

fn content() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        8 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes),
        1 => (any::<u8>(), 60_000..150_000_usize).prop_map(|(byte, length)| {
            Bytes((0..length).map(|n| byte.wrapping_add((n / 777) as u8)).collect())
        }),
    ]
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..64_u64, 1 => 65_000..140_000_u64]
}

fn op() -> impl Strategy<Value = Op> {
    let mode = prop_oneof![Just(0o644), Just(0o755), Just(0o4755), Just(0o1700), Just(0o000)];
    prop_oneof![
        5 => (path(), content()).prop_map(|(p, c)| Op::Create(p, c)),
        4 => (path(), offset(), content()).prop_map(|(p, o, c)| Op::Write(p, o, c)),
        1 => (path(), 1_u64 << 20..1 << 24).prop_map(|(p, o)| Op::WriteFar(p, o)),
        2 => (path(), content()).prop_map(|(p, c)| Op::Append(p, c)),
        2 => (path(), offset()).prop_map(|(p, n)| Op::Truncate(p, n)),
        2 => (path(), content()).prop_map(|(p, c)| Op::Overwrite(p, c)),
        2 => (path(), content()).prop_map(|(p, c)| Op::SaveByRename(p, c)),
        3 => path().prop_map(Op::Unlink),
        2 => path().prop_map(Op::RemoveAll),
        4 => path().prop_map(Op::Mkdir),
        1 => path().prop_map(Op::MkdirDeep),
        2 => path().prop_map(Op::Rmdir),
        2 => (path(), path()).prop_map(|(t, p)| Op::Symlink(t, p)),
        3 => (path(), path()).prop_map(|(e, p)| Op::Link(e, p)),
        1 => path().prop_map(Op::Mkfifo),
        1 => (path(), content()).prop_map(|(p, c)| Op::TmpfileLink(p, c)),
        5 => (path(), path()).prop_map(|(f, t)| Op::Rename(f, t)),
        1 => (path(), path()).prop_map(|(f, t)| Op::RenameNoReplace(f, t)),
        3 => (path(), path()).prop_map(|(a, b)| Op::Exchange(a, b)),
        2 => (path(), mode).prop_map(|(p, m)| Op::Chmod(p, m)),
        1 => (path(), 0..3_u32).prop_map(|(p, u)| Op::Chown(p, u)),
        1 => (path(), -5..2_000_000_000_i64, 0..1_000_000_000_u32)
            .prop_map(|(p, s, n)| Op::SetMtime(p, s, n)),
        2 => (path(), 0..3_u8, content()).prop_map(|(p, n, mut c)| {
            c.0.truncate(200);
            Op::SetXattr(p, n, c)
        }),
        1 => (path(), 0..3_u8).prop_map(|(p, n)| Op::RemoveXattr(p, n)),
        2 => (path(), 0..6_u8, offset(), 1..200_000_u64)
            .prop_map(|(p, h, o, l)| Op::Allocate(p, h, o, l)),
        1 => (path(), path(), offset(), 1..70_000_usize)
            .prop_map(|(f, t, o, l)| Op::CopyRange(f, t, o, l)),
        1 => (path(), content()).prop_map(|(p, c)| Op::WriteUnseen(p, c)),
        1 => path().prop_map(Op::FileBecomesDir),
        1 => (path(), content()).prop_map(|(p, c)| Op::DirBecomesFile(p, c)),
        2 => path().prop_map(Op::Hold),
        2 => (offset(), content()).prop_map(|(o, c)| Op::WriteHeld(o, c)),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 1..12)
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        8 => ops().prop_map(Action::Step),
        1 => prop::collection::vec(ops(), 1..3).prop_map(Action::Transaction),
        1 => ops().prop_map(Action::Aborted),
        1 => ops().prop_map(Action::RolledBackTransaction),
        4 => (1..4_usize).prop_map(Action::Undo),
        3 => (1..3_usize).prop_map(Action::Redo),
        1 => Just(Action::Reopen),
    ];
    prop::collection::vec(action, 1..12)
}

/// Applies an operation; that the system refuses it is as good an outcome as any.
fn apply(fs: &Applier<'_>, held: &mut Vec<(Bytes, File)>, op: &Op) {
    let attribute = |n: u8| format!("user.test{n}");
    let outcome = match op {
        Op::Create(path, content) => fs.create(path, &content.0),
        Op::Write(path, offset, content) => fs.write(path, *offset, &content.0),
        Op::WriteFar(path, offset) => fs.write(path, *offset, b"far"),
        Op::Append(path, content) => fs.append(path, &content.0),
        Op::Truncate(path, length) => fs.truncate(path, *length),
        Op::Overwrite(path, content) => fs.overwrite(path, &content.0),
        Op::SaveByRename(path, content) => fs.save_by_rename(path, &content.0),
        Op::Unlink(path) => fs.unlink(path),
        Op::RemoveAll(path) => fs.remove_all(path),
        Op::Mkdir(path) => fs.mkdir(path),
        Op::MkdirDeep(path) => (0..12).try_for_each(|depth| {
            let mut deep = path.0.clone();
            (0..depth).for_each(|_| deep.extend_from_slice(b"/deep"));
            fs.mkdir(deep)
        }),
        Op::Rmdir(path) => fs.rmdir(path),
        Op::Symlink(target, path) => fs.symlink(target, path),
        Op::Link(existing, path) => fs.link(existing, path),
        Op::Mkfifo(path) => fs.mkfifo(path),
        Op::TmpfileLink(path, content) => fs.link_tmpfile(path, &content.0),
        Op::Rename(from, to) => fs.rename(from, to),
        Op::RenameNoReplace(from, to) => fs.rename_noreplace(from, to),
        Op::Exchange(a, b) => fs.exchange(a, b),
        Op::Chmod(path, mode) => fs.chmod(path, possible_mode(fs, path, *mode)),
        Op::Chown(path, uid) => fs.chown(path, *uid, *uid),
        Op::SetMtime(path, seconds, ns) => fs.set_mtime(path, *seconds, *ns),
        Op::SetXattr(path, n, value) => fs.set_xattr(path, &attribute(*n), &value.0),
        Op::RemoveXattr(path, n) => fs.remove_xattr(path, &attribute(*n)),
        Op::Allocate(path, how, offset, length) => {
            let (how, round) = match how {
                0 => (Allocation::Extend, false),
                1 => (Allocation::KeepSize, false),
                2 => (Allocation::PunchHole, false),
                3 => (Allocation::ZeroRange, false),
                4 => (Allocation::CollapseRange, true),
                _ => (Allocation::InsertRange, true),
            };
            let page = |n: u64| if round { n / 4096 * 4096 } else { n };
            fs.allocate(path, how, page(*offset), page(*length).max(1))
        }
        Op::CopyRange(from, to, offset, length) => fs.copy_range(from, to, *offset, *length),
        Op::WriteUnseen(path, content) => fs.write_unseen(path, &content.0),
        Op::FileBecomesDir(path) => fs.unlink(path).and_then(|()| fs.mkdir(path)),
        Op::DirBecomesFile(path, content) => {
            fs.remove_all(path).and_then(|()| fs.create(path, &content.0))
        }
        Op::Hold(path) => is_file(fs, path).map(|file| held.push((path.clone(), file))),
        Op::WriteHeld(offset, content) => match held.last() {
            Some((path, file)) => fs.write_open(file, path, *offset, &content.0),
            None => Ok(()),
        },
    };
    if let Err(error) = outcome {
        // A refusal has an errno; anything else would be the engine failing.
        assert!(error.raw_os_error().is_some(), "{op:?}: {error}");
    }
}

/// To compare a file that an ordinary user cannot read, its mode would have to change, and with
/// it the ctime: the engine would find that somebody has been there.
fn possible_mode(fs: &Applier<'_>, path: &Bytes, mode: u32) -> u32 {
    let is_file = fs.full_path(path).symlink_metadata().is_ok_and(|found| found.is_file());
    let ordinary = !rustix::process::geteuid().is_root();
    if is_file && ordinary { mode | 0o400 } else { mode }
}

fn is_file(fs: &Applier<'_>, path: &Bytes) -> std::io::Result<File> {
    // Opening a FIFO would wait for its other end.
    let full = fs.full_path(path);
    if full.symlink_metadata()?.is_file() {
        fs.open(path)
    } else {
        Err(std::io::Error::from_raw_os_error(22))
    }
}

/// What the history should hold, and the tree at each boundary.
struct Expected {
    /// Tree before the first step, after the first, and so on.
    boundaries: Vec<TreeSnapshot>,
    /// Trees that redo would bring back, next one last.
    redo: Vec<TreeSnapshot>,
}

impl Expected {
    fn closed(&mut self, outcome: &ClosedStep, now: TreeSnapshot) {
        match outcome {
            ClosedStep::Recorded { .. } => {
                self.boundaries.push(now);
                self.redo.clear();
            }
            _ => assert_same(self.boundaries.last().unwrap(), &now, "a step without records"),
        }
    }
}

fn assert_same(expected: &TreeSnapshot, actual: &TreeSnapshot, when: &str) {
    let difference = expected.diff(actual);
    assert!(difference.is_empty(), "{when}:\n{}", difference.join("\n"));
}

fn run(workspace: &TempWorkspace, actions: &[Action]) {
    let config = || EngineConfig::new(workspace.working(), workspace.undo());
    let mut engine = UndoEngine::open(config()).unwrap();
    let mut expected = Expected { boundaries: vec![workspace.snapshot()], redo: Vec::new() };
    let mut held = Vec::new();
    for action in actions {
        match action {
            Action::Step(ops) => {
                engine.open_step(StepRequest::command("random")).unwrap();
                let fs = Applier::new(&engine, workspace.working());
                ops.iter().for_each(|op| apply(&fs, &mut held, op));
                let closed = engine.close_step(Some(0)).unwrap();
                expected.closed(&closed, workspace.snapshot());
            }
            Action::Transaction(groups) => {
                engine.begin_transaction("several").unwrap();
                for ops in groups {
                    engine.open_step(StepRequest::command("part")).unwrap();
                    let fs = Applier::new(&engine, workspace.working());
                    ops.iter().for_each(|op| apply(&fs, &mut held, op));
                    engine.close_step(Some(0)).unwrap();
                }
                let closed = engine.commit_transaction().unwrap();
                expected.closed(&closed, workspace.snapshot());
            }
            Action::Aborted(ops) | Action::RolledBackTransaction(ops) => {
                let transaction = matches!(action, Action::RolledBackTransaction(_));
                if transaction {
                    engine.begin_transaction("dropped").unwrap();
                } else {
                    engine.open_step(StepRequest::command("dropped")).unwrap();
                }
                let fs = Applier::new(&engine, workspace.working());
                ops.iter().for_each(|op| apply(&fs, &mut held, op));
                if transaction {
                    engine.rollback_transaction().unwrap();
                } else {
                    engine.abort_step().unwrap();
                }
                let now = workspace.snapshot();
                assert_same(expected.boundaries.last().unwrap(), &now, "after an abort");
                if engine.redoable().is_empty() {
                    expected.redo.clear();
                }
            }
            Action::Undo(count) => {
                let available = expected.boundaries.len() - 1;
                assert_eq!(engine.steps().len(), available);
                let count = *count.min(&available);
                if count > 0 {
                    engine.rollback(count, RollbackOptions::default()).unwrap();
                    for _ in 0..count {
                        expected.redo.push(expected.boundaries.pop().unwrap());
                    }
                    let now = workspace.snapshot();
                    assert_same(expected.boundaries.last().unwrap(), &now, "after undo");
                }
            }
            Action::Redo(count) => {
                assert_eq!(engine.redoable().len(), expected.redo.len());
                let count = *count.min(&expected.redo.len());
                if count > 0 {
                    let options = RollbackOptions { on_conflict: OnConflict::Refuse };
                    engine.redo(count, options).unwrap();
                    for _ in 0..count {
                        expected.boundaries.push(expected.redo.pop().unwrap());
                    }
                    let now = workspace.snapshot();
                    assert_same(expected.boundaries.last().unwrap(), &now, "after redo");
                }
            }
            Action::Reopen => {
                held.clear(); // handles do not outlive the process that holds them
                drop(engine);
                engine = UndoEngine::open(config()).unwrap();
                assert!(engine.recovery().is_none());
            }
        }
        let report = codeagent_interceptor::verify(workspace.undo()).unwrap();
        assert!(report.is_sound(), "{action:?}: {:?}", report.findings);
    }
    let all = expected.boundaries.len() - 1;
    if all > 0 {
        engine.rollback(all, RollbackOptions::default()).unwrap();
        assert_same(&expected.boundaries[0], &workspace.snapshot(), "after undoing everything");
    }
}

fn cases(usual: u32) -> ProptestConfig {
    let long = std::env::var_os("CODEAGENT_LONG").is_some();
    let cases = if long { 10_000 } else { usual };
    ProptestConfig {
        cases,
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..Default::default()
    }
}

fn small_start(root: &Path) {
    fixtures::rename_tree(root);
    std::fs::create_dir_all(root.join("dir/a")).unwrap();
    std::fs::write(root.join("dir/b"), vec![7; 100_000]).unwrap();
    std::fs::write(root.join("a"), b"first").unwrap();
    std::fs::hard_link(root.join("a"), root.join("dir/a/b")).unwrap();
    fixtures::set_distinct_mtimes(root);
}

proptest! {
    #![proptest_config(cases(300))]

    /// INV-1, INV-2: the store beside the working directory, files move.
    #[test]
    fn undo_and_redo_are_exact(actions in actions()) {
        run(&TempWorkspace::with_fixture(small_start), &actions);
    }
}

proptest! {
    #![proptest_config(cases(100))]

    /// As above with the store on another filesystem: nothing can be moved, all is copied.
    #[test]
    fn undo_and_redo_are_exact_across_filesystems(actions in actions()) {
        let Some(disk) = filesystems::disk_dir() else {
            filesystems::skip("undo_and_redo_are_exact_across_filesystems", "no disk filesystem");
            return Ok(());
        };
        let memory = Path::new("/dev/shm");
        run(&TempWorkspace::across(memory, &disk).filled(small_start), &actions);
    }
}

/// As above for somebody whom permissions bind, and who locks himself out now and then.
#[test]
fn undo_and_redo_are_exact_for_an_ordinary_user() {
    as_ordinary_user("undo_and_redo_are_exact_for_an_ordinary_user", || {
        proptest!(cases(60), |(actions in actions())| {
            run(&TempWorkspace::with_fixture(small_start), &actions);
        });
    });
}
