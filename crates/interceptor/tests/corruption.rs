//! A damaged store: every byte flipped, every file cut at every length, every file missing.
//! `verify` notices, nothing panics, and no wrong bytes ever reach the working directory.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the wanted failure")]

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use codeagent_common::RelPathBuf;
use codeagent_interceptor::{EngineConfig, RollbackOptions, StepRequest, UndoEngine, dump, verify};
use codeagent_test_support::snapshot::EntryKind;
use codeagent_test_support::{Applier, TempWorkspace, TreeSnapshot, fixtures};

/// Their content means nothing to the engine.
const FOR_PEOPLE: [&str; 2] = ["lock", "reserve"];
/// May be missing: nobody can tell whether they were ever there. Without them a pin is forgotten,
/// an undo is refused that could be done, a directory is counted again.
const OPTIONAL: [&str; 3] = ["pinned", "refreshed", "held"];

fn fixture(root: &Path) {
    fs::create_dir_all(root.join("d/empty")).unwrap();
    fs::write(root.join("d/moved"), b"moved into the store").unwrap();
    fs::write(root.join("packed"), b"packed, packed, packed and packed again").unwrap();
    fs::write(root.join("renamed"), b"renamed").unwrap();
    fs::write(root.join("by hand"), b"somebody else's").unwrap();
    fixtures::set_distinct_mtimes(root);
}

/// Two closed steps and one undone, a barrier, a directory made anew; the tree at each boundary.
struct Sample {
    workspace: TempWorkspace,
    boundaries: Vec<TreeSnapshot>,
}

impl Sample {
    fn new() -> Self {
        let workspace = TempWorkspace::with_fixture(fixture);
        let mut boundaries = vec![workspace.snapshot()];
        let steps: [fn(&Applier<'_>); 3] = [
            |fs| {
                fs.write("packed", 0, b"PACKED").unwrap();
                fs.rename("renamed", "d/renamed").unwrap();
            },
            |fs| {
                fs.unlink("d/moved").unwrap();
                fs.chmod("d", 0o700).unwrap();
            },
            |fs| {
                fs.save_by_rename("packed", b"saved").unwrap();
                fs.rmdir("d/empty").unwrap();
            },
        ];
        let engine = UndoEngine::open(Self::config(&workspace)).unwrap();
        for step in steps {
            engine.open_step(StepRequest::command("sample")).unwrap();
            step(&Applier::new(&engine, workspace.working()));
            engine.close_step(Some(0)).unwrap();
            boundaries.push(workspace.snapshot());
        }
        engine.rollback(1, RollbackOptions::default()).unwrap();
        engine.external_modification(&[RelPathBuf::new(&b"by hand"[..]).unwrap()]).unwrap();
        Self { workspace, boundaries }
    }

    /// As [`Sample::new`], and then a process died in the middle of a step. The last of the
    /// boundaries is what it left.
    fn interrupted() -> Self {
        let Self { workspace, mut boundaries } = Self::new();
        let engine = UndoEngine::open(Self::config(&workspace)).unwrap();
        engine.open_step(StepRequest::command("dies")).unwrap();
        let fs = Applier::new(&engine, workspace.working());
        fs.write("packed", 8, b"INTERRUPTED").unwrap();
        fs.unlink("d/renamed").unwrap();
        fs.create("new", b"made").unwrap();
        drop(engine);
        boundaries.push(workspace.snapshot());
        Self { workspace, boundaries }
    }

    fn config(workspace: &TempWorkspace) -> EngineConfig {
        EngineConfig::new(workspace.working(), workspace.undo())
    }

    /// Every file of the store whose content means something, by its place in it.
    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut dirs = vec![self.workspace.undo().to_path_buf()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    dirs.push(entry.path());
                } else if !FOR_PEOPLE.iter().any(|name| entry.file_name() == *name) {
                    found.push(entry.path().strip_prefix(self.workspace.undo()).unwrap().into());
                }
            }
        }
        found.sort();
        found
    }

    fn at(&self, file: &Path) -> PathBuf {
        self.workspace.undo().join(file)
    }

    fn size(&self, file: &Path) -> u64 {
        self.at(file).metadata().unwrap().len()
    }

    fn is_noticed(&self) -> bool {
        match verify(self.workspace.undo()) {
            Ok(report) => !report.is_sound(),
            Err(_) => true,
        }
    }

    fn assert_noticed(&self, what: &str) {
        assert!(self.is_noticed(), "verify does not notice: {what}");
    }

    /// Whatever undo says, the tree is at a boundary: the right one, or the one it was at.
    fn assert_no_wrong_bytes(&self, what: &str) {
        let workspace = &self.workspace;
        let before = workspace.snapshot();
        let is_at = |expected: &TreeSnapshot| expected.diff(&workspace.snapshot()).is_empty();
        let Ok(engine) = UndoEngine::open(Self::config(workspace)) else {
            assert!(is_at(&before), "{what}: opening changed the tree");
            return;
        };
        for wanted in [1, 0] {
            let at = workspace.snapshot();
            match engine.rollback(1, RollbackOptions::default()) {
                Ok(_) => assert!(is_at(&self.boundaries[wanted]), "{what}: wrong undo"),
                Err(_) => {
                    assert!(is_at(&at), "{what}: a failed undo changed the tree");
                    break;
                }
            }
        }
        for entry in ["steps/1", "steps/2"] {
            let _ = dump(workspace.undo(), entry);
        }
    }

    /// Where recovery cannot know all that happened, it still brings nothing back that never was.
    /// A file that was moved goes back as it is: whoever had it open may have gone on writing.
    fn assert_nothing_made_up(&self, damaged: &Path, what: &str) {
        let contents = |tree: &TreeSnapshot| -> HashSet<[u8; 32]> {
            let content = |kind: &EntryKind| match kind {
                EntryKind::Regular { content } => Some(*content),
                _ => None,
            };
            tree.entries.values().filter_map(|entry| content(&entry.kind)).collect()
        };
        let known: HashSet<[u8; 32]> = self.boundaries.iter().flat_map(contents).collect();
        let engine = UndoEngine::open(Self::config(&self.workspace));
        let _ = engine.map(|engine| engine.rollback(1, RollbackOptions::default()));
        let now = contents(&self.workspace.snapshot());
        let moved = damaged.starts_with("wal/in_progress/objects");
        assert!(moved || now.is_subset(&known), "{what}: content that nobody wrote");
        let _ = dump(self.workspace.undo(), "wal/in_progress");
    }
}

fn flip(file: &Path, at: u64) {
    let open = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    open.read_exact_at(&mut byte, at).unwrap();
    open.write_all_at(&[byte[0] ^ 0x11], at).unwrap();
}

fn cut(file: &Path, length: u64) {
    fs::OpenOptions::new().write(true).open(file).unwrap().set_len(length).unwrap();
}

/// Where the frames of a file begin, and where the last one ends.
fn frame_boundaries(file: &Path) -> Vec<u64> {
    let bytes = fs::read(file).unwrap();
    let mut boundaries = vec![8];
    while let Some(length) =
        bytes.get(boundaries[boundaries.len() - 1] as usize..).and_then(|b| b.get(..4))
    {
        let length = u32::from_le_bytes(length.try_into().unwrap());
        boundaries.push(boundaries[boundaries.len() - 1] + 8 + u64::from(length));
    }
    boundaries
}

#[test]
fn an_undamaged_sample_is_sound_and_can_be_undone() {
    let sample = Sample::new();
    assert!(verify(sample.workspace.undo()).unwrap().is_sound());
    let names = sample.files();
    for name in ["barriers", "remade", "steps/2/journal", "steps/1/pack", "redo/4/changes"] {
        assert!(names.contains(&PathBuf::from(name)), "{name} is missing from {names:?}");
    }
    assert!(sample.size(Path::new("remade")) > 8, "no directory was made anew");
    let engine = UndoEngine::open(Sample::config(&sample.workspace)).unwrap();
    assert_eq!(engine.barriers().len(), 1);
    engine.rollback(2, RollbackOptions::default()).unwrap();
    assert!(sample.boundaries[0].diff(&sample.workspace.snapshot()).is_empty());
}

#[test]
fn an_undamaged_interrupted_sample_is_sound_and_is_recovered() {
    let sample = Sample::interrupted();
    assert!(verify(sample.workspace.undo()).unwrap().is_sound());
    let engine = UndoEngine::open(Sample::config(&sample.workspace)).unwrap();
    assert!(engine.recovery().unwrap().rolled_back);
    assert!(sample.boundaries[2].diff(&sample.workspace.snapshot()).is_empty());
}

#[test]
fn every_flipped_byte_is_noticed_and_never_restored() {
    let first = Sample::new();
    let files = first.files();
    assert!(files.len() > 14, "{files:?}");
    for file in files {
        for at in 0..first.size(&file) {
            let sample = Sample::new();
            if at >= sample.size(&file) {
                continue; // numbers of another length, in another run
            }
            flip(&sample.at(&file), at);
            let what = format!("byte {at} of {}", file.display());
            sample.assert_noticed(&what);
            sample.assert_no_wrong_bytes(&what);
        }
    }
}

/// Except for `remade` at a frame boundary: entries are added to it one by one.
#[test]
fn every_truncation_is_noticed_and_never_restored() {
    let first = Sample::new();
    for file in first.files() {
        for length in 0..first.size(&file) {
            let sample = Sample::new();
            if length >= sample.size(&file) {
                continue;
            }
            let what = format!("{} cut at {length}", file.display());
            let shortened = file == Path::new("remade")
                && frame_boundaries(&sample.at(&file)).contains(&length);
            cut(&sample.at(&file), length);
            assert!(shortened || sample.is_noticed(), "verify does not notice: {what}");
            sample.assert_no_wrong_bytes(&what);
        }
    }
}

/// UL-07: every file of the store removed in turn.
#[test]
fn every_missing_file_is_noticed_and_nothing_wrong_is_restored() {
    for file in Sample::new().files() {
        let sample = Sample::new();
        fs::remove_file(sample.at(&file)).unwrap();
        let what = format!("{} removed", file.display());
        let optional = OPTIONAL.iter().any(|name| file.ends_with(name));
        assert!(optional || sample.is_noticed(), "verify does not notice: {what}");
        sample.assert_no_wrong_bytes(&what);
    }
}

fn unfinished(sample: &Sample) -> Vec<PathBuf> {
    let mut files = sample.files();
    files.retain(|file| file.starts_with("wal"));
    assert!(files.len() >= 3, "journal, pack and an object: {files:?}");
    files
}

/// Except for the length of the last record: that is how an append looks that did not finish.
#[test]
fn every_flipped_byte_of_an_unfinished_step_is_noticed_and_nothing_is_made_up() {
    let first = Sample::interrupted();
    for file in unfinished(&first) {
        for at in 0..first.size(&file) {
            let sample = Sample::interrupted();
            if at >= sample.size(&file) {
                continue;
            }
            let what = format!("byte {at} of {}", file.display());
            let torn = file.ends_with("journal") && {
                let boundaries = frame_boundaries(&sample.at(&file));
                let last = boundaries[boundaries.len() - 2];
                (last..last + 4).contains(&at)
            };
            flip(&sample.at(&file), at);
            assert!(torn || sample.is_noticed(), "verify does not notice: {what}");
            sample.assert_nothing_made_up(&file, &what);
        }
    }
}

/// An unfinished journal may end anywhere; whatever it ends in, nothing is made up.
#[test]
fn no_truncation_of_an_unfinished_step_makes_anything_up() {
    let first = Sample::interrupted();
    for file in unfinished(&first) {
        for length in 0..first.size(&file) {
            let sample = Sample::interrupted();
            if length >= sample.size(&file) {
                continue;
            }
            cut(&sample.at(&file), length);
            let what = format!("{} cut at {length}", file.display());
            if !file.ends_with("journal") {
                sample.assert_noticed(&what);
            }
            sample.assert_nothing_made_up(&file, &what);
        }
    }
}

#[test]
fn every_missing_file_of_an_unfinished_step_is_noticed_and_nothing_is_made_up() {
    for file in unfinished(&Sample::interrupted()) {
        let sample = Sample::interrupted();
        fs::remove_file(sample.at(&file)).unwrap();
        let what = format!("{} removed", file.display());
        sample.assert_noticed(&what);
        sample.assert_nothing_made_up(&file, &what);
    }
}
