//! Other people's edits, and undo that meets them.

use std::fs;

use codeagent_common::{ErrorCode, ExternalModificationPolicy};
use codeagent_interceptor::{Conflict, ConflictKind, RollbackOptions, RollbackReport, UndoError};
use codeagent_test_support::{TempWorkspace, assert_tree_eq, fixtures};

use super::{Bench, assert_helpful};

pub(crate) fn bench_with(policy: ExternalModificationPolicy) -> Bench {
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    Bench::configured(workspace, |config| config.external_modifications = policy)
}

/// The conflicts that keep the newest `count` steps from being undone.
#[track_caller]
pub(crate) fn blocked(bench: &Bench, count: usize) -> Vec<Conflict> {
    let before = bench.snapshot();
    let error = bench.engine.rollback(count, RollbackOptions::default()).unwrap_err();
    assert_helpful(&error, ErrorCode::RollbackBlocked);
    assert_tree_eq(&before, &bench.snapshot());
    match error {
        UndoError::RollbackBlocked(conflicts) => conflicts,
        other => panic!("{other}"),
    }
}

#[track_caller]
pub(crate) fn assert_blocked_by(bench: &Bench, count: usize, expected: &[(&str, ConflictKind)]) {
    let found = blocked(bench, count);
    let found: Vec<_> =
        found.iter().map(|conflict| (conflict.path.to_string(), conflict.kind)).collect();
    let expected: Vec<_> =
        expected.iter().map(|(path, kind)| ((*path).to_owned(), *kind)).collect();
    assert_eq!(found, expected);
}

pub(crate) fn force(bench: &Bench, count: usize) -> RollbackReport {
    bench.engine.rollback(count, RollbackOptions::force()).expect("forced undo")
}

pub(crate) fn skip(bench: &Bench, count: usize) -> RollbackReport {
    bench.engine.rollback(count, RollbackOptions::skip_conflicts()).expect("undo of the rest")
}

pub(crate) fn write(bench: &Bench, path: &str, content: &[u8]) {
    fs::write(bench.path(path), content).unwrap();
}

pub(crate) fn read(bench: &Bench, path: &str) -> Vec<u8> {
    fs::read(bench.path(path)).unwrap()
}
