//! A kernel that lies: arbitrary FUSE requests.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod forge;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use codeagent_fs::{FsConfig, InterceptedFs};
use codeagent_interceptor::{EngineConfig, RollbackOptions, UndoEngine};
use codeagent_test_support::{TempWorkspace, TreeSnapshot, assert_tree_eq};
use forge::Kernel;
use proptest::test_runner::{Config, TestRunner};

fn fixture(root: &Path) {
    fs::create_dir(root.join("dir")).unwrap();
    fs::write(root.join("file"), "file").unwrap();
    fs::write(root.join("dir/inner"), vec![1; 100_000]).unwrap();
    fs::hard_link(root.join("file"), root.join("dir/other")).unwrap();
    std::os::unix::fs::symlink("../outside", root.join("away")).unwrap();
    std::os::unix::fs::symlink("/etc", root.join("link")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
}

/// Nothing outside changes, nobody panics or hangs, and what happened inside is undone exactly.
#[test]
fn whatever_a_kernel_asks_for_stays_inside_and_is_undone() {
    let cases = if std::env::var_os("CODEAGENT_LONG").is_some() { 5_000 } else { 200 };
    let mut runner = TestRunner::new(Config {
        cases,
        max_shrink_iters: 8,
        failure_persistence: None,
        ..Config::default()
    });
    let bytes = proptest::collection::vec(proptest::num::u8::ANY, 0..3000);
    runner
        .run(&bytes, |bytes| {
            let workspace = TempWorkspace::with_fixture(fixture);
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
            kernel.play(&bytes).unwrap();
            drop(kernel);
            let _ = session.join(); // the connection was cut, which is an error to it

            assert_tree_eq(&outside, &TreeSnapshot::capture(&beside));
            engine.end_ambient_step().unwrap();
            let steps = engine.steps().len();
            if steps > 0 {
                engine.rollback(steps, RollbackOptions::default()).unwrap();
            }
            assert_tree_eq(&before, &workspace.snapshot());
            Ok(())
        })
        .unwrap();
}
