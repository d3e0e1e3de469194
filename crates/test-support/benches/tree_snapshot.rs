//! How long a picture of a tree takes.
#![allow(missing_docs)]

use std::time::Duration;

use codeagent_test_support::fixtures::large_flat;
use codeagent_test_support::{TempWorkspace, TreeSnapshot};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn tree_snapshot(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tree_snapshot");
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    for files in [100, 1_000, 10_000] {
        let workspace = TempWorkspace::with_fixture(|root| large_flat(root, files, 1024));
        group.throughput(Throughput::Elements(files as u64));
        group.bench_function(BenchmarkId::from_parameter(format!("{files} files")), |bencher| {
            bencher.iter(|| TreeSnapshot::capture(workspace.working()));
        });
    }
    group.finish();
}

criterion_group!(benches, tree_snapshot);
criterion_main!(benches);
