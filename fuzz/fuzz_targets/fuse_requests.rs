//! A kernel that lies: whatever it asks for, nothing outside the folder changes, nobody panics or
//! hangs, and what happened inside is undone exactly.
#![no_main]

#[path = "../../crates/mount/tests/forge/mod.rs"]
mod forge;

use std::fs;
use std::sync::Arc;

use codeagent_fs::{FsConfig, InterceptedFs};
use codeagent_interceptor::{EngineConfig, RollbackOptions, UndoEngine};
use codeagent_test_support::{TempWorkspace, TreeSnapshot, assert_tree_eq};
use forge::Kernel;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let workspace = TempWorkspace::with_fixture(|root| {
        fs::create_dir(root.join("dir")).unwrap();
        fs::write(root.join("file"), "file").unwrap();
        fs::write(root.join("dir/inner"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink("../outside", root.join("away")).unwrap();
    });
    let beside = workspace.working().with_file_name("outside");
    fs::create_dir(&beside).unwrap();
    fs::write(beside.join("victim"), "untouched").unwrap();
    let outside = TreeSnapshot::capture(&beside);
    let before = workspace.snapshot();
    let config = EngineConfig::new(workspace.working(), workspace.undo());
    let engine = Arc::new(UndoEngine::open(config).unwrap());
    let fs_config = FsConfig::new(workspace.working());
    let fs = Arc::new(InterceptedFs::new(&fs_config, Arc::clone(&engine)).unwrap());
    let (mut kernel, channel) = Kernel::new();
    let session = codeagent_mount::serve(fs, channel, 1).unwrap();
    kernel.play(bytes).unwrap();
    drop(kernel);
    let _ = session.join(); // the connection was cut, which is an error to it
    assert_tree_eq(&outside, &TreeSnapshot::capture(&beside));
    engine.end_ambient_step().unwrap();
    let steps = engine.steps().len();
    if steps > 0 {
        engine.rollback(steps, RollbackOptions::default()).unwrap();
    }
    assert_tree_eq(&before, &workspace.snapshot());
});
