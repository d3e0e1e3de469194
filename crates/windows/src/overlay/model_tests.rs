//! Random operations, steps, undo, redo and crashes, against a model that copies everything.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use codeagent_common::{RelPathBuf, StepId};
use proptest::prelude::*;

use super::*;

/// Few names, so that they meet; deep enough for directories.
const NAMES: [&str; 8] = ["a", "a/b", "a/b/c", "a/d", "a.b", "e", "e/b", "e/b/c"];
const XATTRS: [&[u8]; 2] = [b"user.x", b"user.y"];

#[derive(Debug, Clone)]
enum Op {
    Chmod(usize, u32),
    Target(usize, u8),
    SetXattr(usize, usize, u8),
    RemoveXattr(usize, usize),
    Link(usize, usize),
    Rename(usize, usize),
    Remove(usize),
    Begin,
    End,
    Rollback,
    Redo,
    /// The process dies; another one has what it has left.
    Crash,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let name = 0..NAMES.len();
    let xattr = 0..XATTRS.len();
    let op = prop_oneof![
        4 => (name.clone(), 0..8_u32).prop_map(|(name, mode)| Op::Chmod(name, mode)),
        1 => (name.clone(), 0..3_u8).prop_map(|(name, target)| Op::Target(name, target)),
        2 => (name.clone(), xattr.clone(), 0..3_u8).prop_map(|(name, x, v)| Op::SetXattr(name, x, v)),
        1 => (name.clone(), xattr).prop_map(|(name, x)| Op::RemoveXattr(name, x)),
        2 => (name.clone(), name.clone()).prop_map(|(from, to)| Op::Link(from, to)),
        3 => (name.clone(), name.clone()).prop_map(|(from, to)| Op::Rename(from, to)),
        2 => name.prop_map(Op::Remove),
        4 => Just(Op::Begin),
        4 => Just(Op::End),
        3 => Just(Op::Rollback),
        2 => Just(Op::Redo),
        1 => Just(Op::Crash),
    ];
    prop::collection::vec(op, 1..60)
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct File {
    mode: Option<u32>,
    target: Option<Vec<u8>>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Everything that is known, as plain maps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct State {
    names: BTreeMap<String, usize>,
    files: BTreeMap<usize, File>,
}

impl State {
    fn file(&mut self, name: &str, next: &mut usize) -> &mut File {
        let id = *self.names.entry(name.to_owned()).or_insert_with(|| {
            *next += 1;
            *next
        });
        self.files.entry(id).or_default()
    }

    fn within(&self, name: &str) -> Vec<String> {
        let below = format!("{name}/");
        let is_within = |other: &&String| *other == name || other.starts_with(&below);
        self.names.keys().filter(is_within).cloned().collect()
    }

    fn drop_tree(&mut self, name: &str) {
        for name in self.within(name) {
            self.names.remove(&name);
        }
        let names = &self.names;
        self.files.retain(|id, _| names.values().any(|other| other == id));
    }

    fn rename(&mut self, from: &str, to: &str) {
        let moved: Vec<_> = self
            .within(from)
            .into_iter()
            .filter_map(|name| self.names.get(&name).map(|id| (name, *id)))
            .collect();
        self.drop_tree(to);
        for (name, id) in &moved {
            self.names.remove(name);
            self.names.insert(format!("{to}{}", &name[from.len()..]), *id);
        }
        let names = &self.names;
        self.files.retain(|id, _| names.values().any(|other| other == id));
    }

    fn known(&self, name: &str) -> File {
        let id = self.names.get(name);
        id.and_then(|id| self.files.get(id)).cloned().unwrap_or_default()
    }
}

/// The model: the state now, and copies of what it was.
#[derive(Debug, Default)]
struct Model {
    now: State,
    /// Steps that ended: which, and what was before.
    ended: Vec<(StepId, State)>,
    /// Steps that were rolled back, and what was after each; the next to be redone is the last.
    undone: Vec<(StepId, State)>,
    open: Option<(StepId, State)>,
    next_file: usize,
    next_step: i64,
}

impl Model {
    fn may_change(&self) -> bool {
        self.open.is_some() || (self.ended.is_empty() && self.undone.is_empty())
    }
}

/// One database after the other, each where the last one's process left its files.
struct Real {
    dir: tempfile::TempDir,
    generation: usize,
    overlay: Overlay,
}

impl Real {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let overlay = Overlay::open(&at(dir.path(), 0), Limits::default()).unwrap();
        Self { dir, generation: 0, overlay }
    }

    /// The files as they are while the process still has them open: nothing has been tidied up.
    fn crash(&mut self) {
        let (old, new) =
            (at(self.dir.path(), self.generation), at(self.dir.path(), self.generation + 1));
        fs::copy(&old, &new).unwrap();
        fs::copy(with(&old, "-wal"), with(&new, "-wal")).unwrap();
        self.overlay = Overlay::open(&new, Limits::default()).unwrap();
        self.generation += 1;
    }
}

fn at(dir: &Path, generation: usize) -> PathBuf {
    dir.join(format!("{generation}.sqlite"))
}

fn with(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn path(name: &str) -> RelPathBuf {
    RelPathBuf::new(name).unwrap()
}

/// Neither below the other: what the host would refuse never comes here.
fn are_apart(one: &str, other: &str) -> bool {
    let (one, other) = (path(one), path(other));
    !one.as_path().is_within(other.as_path()) && !other.as_path().is_within(one.as_path())
}

fn apply(op: &Op, model: &mut Model, real: &mut Real) {
    let overlay = &real.overlay;
    let file = Kind::File;
    match *op {
        Op::Begin if model.open.is_none() => {
            model.next_step += 1;
            let step = StepId(model.next_step);
            model.open = Some((step, model.now.clone()));
            overlay.begin_step(step).unwrap();
        }
        Op::End => {
            let Some((step, before)) = model.open.take() else { return };
            overlay.end_step(step).unwrap();
            // The model cannot know of changes that were taken back within the step; asking the
            // database whether it has kept the step is not what is being tested.
            model.undone.clear();
            overlay.forget_undone().unwrap();
            model.ended.push((step, before));
        }
        Op::Rollback => {
            if let Some((step, before)) = model.open.take() {
                overlay.rollback(step).unwrap();
                model.now = before;
            } else if let Some((step, before)) = model.ended.pop() {
                overlay.rollback(step).unwrap();
                let after = std::mem::replace(&mut model.now, before);
                model.undone.push((step, after));
            }
        }
        Op::Redo if model.open.is_none() => {
            let Some((step, after)) = model.undone.pop() else { return };
            overlay.redo(step).unwrap();
            let before = std::mem::replace(&mut model.now, after);
            model.ended.push((step, before));
        }
        Op::Crash => {
            real.crash();
            assert_eq!(real.overlay.open_step(), model.open.as_ref().map(|(step, _)| *step));
        }
        Op::Begin | Op::Redo => {}
        _ if !model.may_change() => {}
        Op::Chmod(name, mode) => {
            let name = NAMES[name];
            let change = Change { mode: Some(mode), ..Change::default() };
            overlay.set(path(name).as_path(), file, change).unwrap();
            model.now.file(name, &mut model.next_file).mode = Some(mode);
        }
        Op::Target(name, target) => {
            let name = NAMES[name];
            overlay.set_target(path(name).as_path(), &[target]).unwrap();
            model.now.file(name, &mut model.next_file).target = Some(vec![target]);
        }
        Op::SetXattr(name, xattr, value) => {
            let (name, xattr) = (NAMES[name], XATTRS[xattr]);
            let at = path(name);
            overlay.set_xattr(at.as_path(), file, xattr, &[value], SetXattr::Always).unwrap();
            let known = model.now.file(name, &mut model.next_file);
            known.xattrs.insert(xattr.to_vec(), vec![value]);
        }
        Op::RemoveXattr(name, xattr) => {
            let (name, xattr) = (NAMES[name], XATTRS[xattr]);
            let outcome = overlay.remove_xattr(path(name).as_path(), file, xattr);
            let was_there = model.now.known(name).xattrs.contains_key(xattr);
            assert_eq!(outcome.is_ok(), was_there);
            if was_there {
                model.now.file(name, &mut model.next_file).xattrs.remove(xattr);
            }
        }
        Op::Link(from, to) if are_apart(NAMES[from], NAMES[to]) => {
            let (from, to) = (NAMES[from], NAMES[to]);
            overlay.linked(path(from).as_path(), path(to).as_path(), file).unwrap();
            model.now.drop_tree(to);
            model.now.file(from, &mut model.next_file);
            let id = model.now.names[from];
            model.now.names.insert(to.to_owned(), id);
        }
        Op::Rename(from, to) if are_apart(NAMES[from], NAMES[to]) => {
            let (from, to) = (NAMES[from], NAMES[to]);
            overlay.renamed(path(from).as_path(), path(to).as_path()).unwrap();
            model.now.rename(from, to);
        }
        Op::Link(..) | Op::Rename(..) => {}
        Op::Remove(name) => {
            overlay.removed(path(NAMES[name]).as_path()).unwrap();
            model.now.drop_tree(NAMES[name]);
        }
    }
}

fn known(overlay: &Overlay, name: &str) -> File {
    let at = path(name);
    let posix = overlay.get(at.as_path(), Kind::File).unwrap();
    let names = overlay.xattrs(at.as_path(), Kind::File).unwrap();
    let value = |name: &Vec<u8>| overlay.xattr(at.as_path(), Kind::File, name).unwrap();
    let xattrs = names.iter().map(|name| (name.clone(), value(name))).collect();
    File { mode: posix.mode, target: posix.target, xattrs }
}

/// Whatever names there can be: those of the operations, moved below each other.
fn all_names(model: &Model) -> Vec<String> {
    let of_state = model.now.names.keys().cloned();
    NAMES.iter().map(|name| (*name).to_owned()).chain(of_state).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(windows) { 24 } else { 200 },
        ..ProptestConfig::default()
    })]

    /// WN-05
    #[test]
    fn whatever_is_done_undone_and_redone_is_as_in_the_model(ops in ops()) {
        let (mut model, mut real) = (Model::default(), Real::new());
        for op in &ops {
            let before = all_names(&model);
            apply(op, &mut model, &mut real);
            for name in before.into_iter().chain(all_names(&model)) {
                prop_assert_eq!(
                    known(&real.overlay, &name), model.now.known(&name), "{} after {:?}", name, op);
            }
        }
    }

    /// A crash of the machine can tear the file that is written behind the database. What is read
    /// then is what was there after one of the changes, never a mixture.
    #[test]
    fn a_torn_end_is_an_earlier_moment(cut in 0_usize..400_000, count in 1_u32..12) {
        let real = Real::new();
        for mode in 1..=count {
            // Two facts of one change, and a third that refers to them.
            real.overlay.begin_step(StepId(mode.into())).unwrap();
            let change = Change { mode: Some(mode), uid: Some(mode), ..Change::default() };
            real.overlay.set(path("a").as_path(), Kind::File, change).unwrap();
            real.overlay.end_step(StepId(mode.into())).unwrap();
        }
        let (old, new) = (at(real.dir.path(), 0), at(real.dir.path(), 1));
        fs::copy(&old, &new).unwrap();
        let mut wal = fs::read(with(&old, "-wal")).unwrap();
        wal.truncate(cut);
        fs::write(with(&new, "-wal"), wal).unwrap();
        let torn = Overlay::open(&new, Limits::default()).unwrap();
        let posix = torn.get(path("a").as_path(), Kind::File).unwrap();
        prop_assert_eq!(posix.mode, posix.uid);
        prop_assert!(posix.mode.unwrap_or(0) <= count);
        if let Some(open) = torn.open_step() {
            torn.rollback(open).unwrap();
            let wanted = u32::try_from(open.0).unwrap() - 1;
            let mode = torn.get(path("a").as_path(), Kind::File).unwrap().mode;
            prop_assert_eq!(mode.unwrap_or(0), wanted);
        }
    }
}
