//! How quickly old content comes back: undo of a step that overwrote a whole file.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use codeagent_interceptor::{RollbackOptions, StepRequest};
use codeagent_test_support::Applier;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use common::{SIZES, bytes, short, workspace};

fn rollback_restore(criterion: &mut Criterion) {
    let mut group = short(criterion.benchmark_group("rollback_restore"));
    for (name, size_bytes) in SIZES {
        let (workspace, engine) = workspace();
        std::fs::write(workspace.working().join("file"), bytes(size_bytes)).unwrap();
        let applier = Applier::new(&engine, workspace.working());
        let replacement = vec![b'x'; size_bytes];
        group.throughput(Throughput::Bytes(size_bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter_custom(|rounds| {
                let mut total = Duration::ZERO;
                for _ in 0..rounds {
                    engine.open_step(StepRequest::command("overwrite")).unwrap();
                    applier.write("file", 0, &replacement).unwrap();
                    engine.close_step(Some(0)).unwrap();
                    let started = Instant::now();
                    engine.rollback(1, RollbackOptions::default()).unwrap();
                    total += started.elapsed();
                }
                total
            });
        });
    }
    group.finish();
}

criterion_group!(benches, rollback_restore);
criterion_main!(benches);
