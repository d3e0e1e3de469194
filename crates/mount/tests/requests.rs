//! A kernel that lies: arbitrary FUSE requests.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod forge;

use proptest::test_runner::{Config, TestRunner};

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
            forge::round(&bytes);
            Ok(())
        })
        .unwrap();
}
