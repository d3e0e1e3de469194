//! Real programs at work in the mount, each as one step that is undone and redone.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{for_each_workload, workloads};
use common::{Mounted, WITHOUT_AND_WITH_PASSTHROUGH, can_mount, has};

/// How often each workload is done, in a new folder each time.
fn repetitions() -> usize {
    if std::env::var_os("CODEAGENT_LONG").is_some() { 20 } else { 1 }
}

/// Declares a test that needs a mount and maybe some programs.
macro_rules! workload {
    ($name:ident, $($tool:literal)*, $script:expr) => {
        workload!($name, project, $($tool)*, $script);
    };
    ($name:ident, $fixture:ident, $($tool:literal)*, $script:expr) => {
        #[test]
        fn $name() {
            if !can_mount(stringify!($name)) {
                return;
            }
            for tool in [$($tool as &str),*] {
                if !has(tool) {
                    return skip(stringify!($name), &format!("{tool} is not installed"));
                }
            }
            for from in (0..repetitions()).flat_map(|_| WITHOUT_AND_WITH_PASSTHROUGH) {
                let mounted = Mounted::with(workloads::$fixture, |options| options.passthrough_from = from);
                mounted.there_and_back($script);
            }
        }
    };
}

for_each_workload!(workload);

#[test]
fn nameless_temporary_files_are_refused() {
    if !can_mount("nameless_temporary_files_are_refused") {
        return;
    }
    let mounted = Mounted::new(workloads::project);
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    let opened = rustix::fs::open(mounted.path(""), flags, rustix::fs::Mode::RWXU);
    assert_eq!(opened.err(), Some(rustix::io::Errno::OPNOTSUPP), "if it works, say so");
}
