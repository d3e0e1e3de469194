//! How quickly old content gets into the store: the hook before a whole file is overwritten.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use codeagent_common::RelPath;
use codeagent_interceptor::{FileRef, Mutation, StepRequest, WriteInterceptor};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use common::{SIZES, bytes, short, workspace};

fn preimage_capture(criterion: &mut Criterion) {
    let mut group = short(criterion.benchmark_group("preimage_capture"));
    for (name, size_bytes) in SIZES {
        let (workspace, engine) = workspace();
        std::fs::write(workspace.working().join("file"), bytes(size_bytes)).unwrap();
        std::fs::write(workspace.working().join("other"), b"other").unwrap();
        let file = FileRef::at(RelPath::new(b"file").unwrap());
        let other = FileRef::at(RelPath::new(b"other").unwrap());
        let overwrite = Mutation::Write { file, offset: 0, length: size_bytes as u64 };
        group.throughput(Throughput::Bytes(size_bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter_custom(|rounds| {
                let mut total = Duration::ZERO;
                for _ in 0..rounds {
                    engine.open_step(StepRequest::command("capture")).unwrap();
                    // The first capture of a step also makes its directory.
                    engine.before(&Mutation::SetAttributes { file: other }).unwrap().done();
                    let started = Instant::now();
                    engine.before(&overwrite).unwrap().done();
                    total += started.elapsed();
                    engine.abort_step().unwrap();
                }
                total
            });
        });
    }
    group.finish();
}

criterion_group!(benches, preimage_capture);
criterion_main!(benches);
