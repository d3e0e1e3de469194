//! What the microbenchmarks share.
#![allow(dead_code)] // each benchmark uses its part

use std::time::Duration;

use codeagent_interceptor::{EngineConfig, UndoEngine};
use codeagent_test_support::TempWorkspace;
use codeagent_test_support::fixtures::varied_bytes;
use criterion::BenchmarkGroup;
use criterion::measurement::WallTime;

pub(crate) const SIZES: [(&str, usize); 3] =
    [("4KB", 4 << 10), ("1MB", 1 << 20), ("100MB", 100 << 20)];

pub(crate) fn workspace() -> (TempWorkspace, UndoEngine) {
    let workspace = TempWorkspace::new();
    let config = EngineConfig::new(workspace.working(), workspace.undo());
    let engine = UndoEngine::open(config).unwrap();
    (workspace, engine)
}

pub(crate) fn bytes(count: usize) -> Vec<u8> {
    varied_bytes(count)
}

/// A benchmark is run on every change: seconds, not minutes.
pub(crate) fn short(mut group: BenchmarkGroup<'_, WallTime>) -> BenchmarkGroup<'_, WallTime> {
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    group
}
