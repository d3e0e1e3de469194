//! Closing a step: folding its journal, writing summary and changes, promotion.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use codeagent_interceptor::{RollbackOptions, StepRequest};
use codeagent_test_support::Applier;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use common::{short, workspace};

fn step_close(criterion: &mut Criterion) {
    let mut group = short(criterion.benchmark_group("step_close"));
    for paths in [10_u64, 100, 1000] {
        let (workspace, engine) = workspace();
        let applier = Applier::new(&engine, workspace.working());
        group.throughput(Throughput::Elements(paths));
        group.bench_function(BenchmarkId::from_parameter(format!("{paths} paths")), |bencher| {
            bencher.iter_custom(|rounds| {
                let mut total = Duration::ZERO;
                for _ in 0..rounds {
                    engine.open_step(StepRequest::command("create")).unwrap();
                    for path in 0..paths {
                        applier.create(format!("file_{path}"), b"content").unwrap();
                    }
                    let started = Instant::now();
                    engine.close_step(Some(0)).unwrap();
                    total += started.elapsed();
                    engine.rollback(1, RollbackOptions::default()).unwrap();
                }
                total
            });
        });
    }
    group.finish();
}

criterion_group!(benches, step_close);
criterion_main!(benches);
