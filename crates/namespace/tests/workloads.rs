//! Real programs at work as commands, each a step that is undone and redone.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use codeagent_control::{ByteString, CommandLine, Exec};
use codeagent_interceptor::{ClosedStep, OnConflict};
use codeagent_namespace::View;
use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{assert_tree_eq, for_each_workload, workloads};
use common::Session;

/// An overlay in a user namespace cannot keep the inode number of a file of its lower layer for a
/// further name, nor for a file that has several. Programs that look at it take it for another
/// file: so does git when it clones with hard links, so does vim when it writes in place.
const OTHERWISE_IN_AN_OVERLAY: [(&str, &str); 2] = [
    ("git_clone", "git clone -q --no-hardlinks . copy; git clone -q --no-local . other"),
    (
        "vim_with_rename",
        "vim -Nu NONE -es -c 'set backupskip= writebackup backupcopy=no' -c '%s/return/RETURN/' -c wq src/main.c
         grep -q RETURN src/main.c",
    ),
];

fn script_for(view: View, name: &str, script: &'static str) -> &'static str {
    let otherwise = OTHERWISE_IN_AN_OVERLAY.iter().find(|(known, _)| *known == name);
    otherwise.filter(|_| view == View::Transactional).map_or(script, |(_, other)| other)
}

/// One step, undone and redone twice; the tree is exact each time.
fn there_and_back(session: &Session, script: &str) {
    let mut exec = Exec::new(CommandLine::Shell(format!("set -eu\n{script}").into()));
    // As the toolchain of this test.
    let cargo = std::env::var("CARGO").unwrap_or_default();
    for (name, value) in workloads::ENVIRONMENT.into_iter().chain([("CARGO", cargo.as_str())]) {
        exec.env.insert(name.into(), ByteString::from(value.as_bytes().to_vec()));
    }
    let before = session.snapshot();
    let ran = session.try_run(exec).unwrap();
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert!(matches!(ran.step().closed, ClosedStep::Recorded { .. }), "{ran:?}");
    let after = session.snapshot();
    assert_ne!(before, after);
    for _ in 0..2 {
        session.worker().undo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&before, &session.snapshot());
        session.worker().redo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&after, &session.snapshot());
    }
}

/// Declares a test that may need some programs.
macro_rules! workload {
    ($name:ident, $($tool:literal)*, $script:expr) => {
        workload!($name, project, $($tool)*, $script);
    };
    ($name:ident, $fixture:ident, $($tool:literal)*, $script:expr) => {
        #[test]
        fn $name() {
            for tool in [$($tool as &str),*] {
                if !workloads::has(tool) {
                    return skip(stringify!($name), &format!("{tool} is not installed"));
                }
            }
            for view in [View::Transactional, View::Live] {
                let session = Session::new(workloads::$fixture).seen(view);
                there_and_back(&session, script_for(view, stringify!($name), $script));
            }
        }
    };
}

for_each_workload!(workload);
