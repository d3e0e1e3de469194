//! A damaged store: what restore and extract give is what was there, or nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the wanted failure")]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use codeagent_common::{RelPath, StepId};
use codeagent_interceptor::{EngineConfig, RollbackOptions, StepRequest, UndoEngine};
use codeagent_test_support::{Applier, TempWorkspace, TreeSnapshot, fixtures};

const CONTENTS: [(&str, &str); 3] = [
    ("d/moved", "moved into the store"),
    ("packed", "packed, packed, packed and packed again"),
    ("renamed", "renamed"),
];

fn fixture(root: &Path) {
    fs::create_dir(root.join("d")).unwrap();
    for (path, content) in CONTENTS {
        fs::write(root.join(path), content).unwrap();
    }
    fixtures::set_distinct_mtimes(root);
}

/// Two closed steps and one undone; the tree at each boundary.
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
            |fs| fs.save_by_rename("packed", b"saved").unwrap(),
        ];
        let engine = UndoEngine::open(Self::config(&workspace)).unwrap();
        for step in steps {
            engine.open_step(StepRequest::command("sample")).unwrap();
            step(&Applier::new(&engine, workspace.working()));
            engine.close_step(Some(0)).unwrap();
            boundaries.push(workspace.snapshot());
        }
        engine.rollback(1, RollbackOptions::default()).unwrap();
        Self { workspace, boundaries }
    }

    fn config(workspace: &TempWorkspace) -> EngineConfig {
        EngineConfig::new(workspace.working(), workspace.undo())
    }

    /// Every file whose content means something. The lock's text is for people only.
    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut dirs = vec![self.workspace.undo().to_path_buf()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    dirs.push(entry.path());
                } else if entry.file_name() != "lock" && entry.file_name() != "reserve" {
                    found.push(entry.path());
                }
            }
        }
        found.sort();
        found
    }

    fn relative(&self, file: &Path) -> PathBuf {
        file.strip_prefix(self.workspace.undo()).unwrap().to_path_buf()
    }

    /// Whatever restore and extract say, what they give is what was there, or nothing.
    fn assert_no_wrong_paths(&self, what: &str) {
        let workspace = &self.workspace;
        let before = workspace.snapshot();
        let Ok(engine) = UndoEngine::open(Self::config(workspace)) else { return };
        let target = workspace.undo().with_file_name("extracted");
        for (path, content) in CONTENTS {
            let path = RelPath::new(path.as_bytes()).unwrap();
            match engine.extract(StepId(1), path, &target) {
                Ok(existed) => {
                    assert!(existed, "{what}: {path} is said not to have been there");
                    assert_eq!(fs::read(&target).unwrap(), content.as_bytes(), "{what}: {path}");
                    fs::remove_file(&target).unwrap();
                }
                Err(_) => assert!(!target.exists(), "{what}: half of {path} was extracted"),
            }
        }
        for (step, wanted) in [(2, &self.boundaries[1]), (1, &self.boundaries[0])] {
            let restored = engine.restore(StepId(step), &[RelPath::ROOT.to_buf()]);
            let wanted = if restored.is_ok() { wanted } else { &before };
            let difference = wanted.diff(&workspace.snapshot());
            assert!(difference.is_empty(), "{what}: {restored:?}: {difference:?}");
            if restored.is_ok_and(|report| report.step.is_some()) {
                engine.rollback(1, RollbackOptions::default()).unwrap();
            }
        }
    }
}

fn file_size(file: &Path) -> u64 {
    file.metadata().map_or(0, |metadata| metadata.len())
}

fn flip(file: &Path, at: u64) {
    let open = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    open.read_exact_at(&mut byte, at).unwrap();
    open.write_all_at(&[byte[0] ^ 0x11], at).unwrap();
}

/// The two steps' own files, byte by byte; what else is damaged does not concern single paths.
#[test]
fn no_damaged_path_is_restored_or_extracted() {
    let first = Sample::new();
    let files = first.files();
    let of_steps = files
        .iter()
        .enumerate()
        .filter(|(_, file)| file.components().any(|part| part.as_os_str() == "steps"));
    for (nth, file) in of_steps {
        // Every third byte, to end before the reader's patience does.
        for at in (0..file_size(file)).step_by(3) {
            for cut in [false, true] {
                let sample = Sample::new();
                let file = &sample.files()[nth];
                let what = format!("byte {at} of {} (cut: {cut})", sample.relative(file).display());
                if at >= file_size(file) {
                    continue; // numbers of another length, in another run
                }
                if cut {
                    fs::OpenOptions::new().write(true).open(file).unwrap().set_len(at).unwrap();
                } else {
                    flip(file, at);
                }
                sample.assert_no_wrong_paths(&what);
            }
        }
    }
}
