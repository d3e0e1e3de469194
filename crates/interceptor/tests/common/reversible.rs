//! Steps that must come out exact, there and back.

use std::path::Path;

use codeagent_common::StepInfo;
use codeagent_test_support::{Applier, TempWorkspace, assert_tree_eq, filesystems, fixtures};

use super::Bench;

/// Undo brings back exactly what was there before `work`, redo what it made of it.
#[track_caller]
pub(crate) fn assert_reversible(bench: &Bench, work: impl FnOnce(&Applier<'_>)) -> StepInfo {
    let before = bench.snapshot();
    let step = bench.step(work);
    let after = bench.snapshot();
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
    bench.redo(1);
    assert_tree_eq(&after, &bench.snapshot());
    bench.assert_sound();
    bench.undo(1);
    assert_tree_eq(&before, &bench.snapshot());
    step
}

/// As `assert_reversible`, in a small tree.
#[track_caller]
pub(crate) fn assert_reversible_in(
    fixture: impl FnOnce(&Path),
    work: impl FnOnce(&Applier<'_>),
) -> StepInfo {
    assert_reversible(&Bench::new(fixture), work)
}

/// A bench whose files can have xattrs, or `None` after saying why not.
pub(crate) fn bench_with_xattrs(test: &str) -> Option<Bench> {
    let workspace = TempWorkspace::new();
    if !filesystems::supports_user_xattrs(workspace.working()) {
        filesystems::skip(test, "no user xattrs here");
        return None;
    }
    Some(Bench::configured(workspace.filled(fixtures::xattr_tree), |_| {}))
}

/// A bench on a real disk, or `None` after saying why not.
pub(crate) fn bench_on_disk(test: &str) -> Option<Bench> {
    let Some(disk) = filesystems::disk_dir() else {
        filesystems::skip(test, "no disk filesystem");
        return None;
    };
    Some(Bench::configured(TempWorkspace::on(&disk).filled(fixtures::small_tree), |_| {}))
}
