//! zstd at the level the store uses. The store leaves larger stretches than 64 KiB as they are;
//! the larger sizes here show what that saves.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use common::{SIZES, short};

/// `ZSTD_LEVEL` in `store/pack.rs`.
const LEVEL: i32 = 1;

fn compression(criterion: &mut Criterion) {
    let mut group = short(criterion.benchmark_group("zstd_compression"));
    for (name, size_bytes) in SIZES {
        let text = text(size_bytes);
        let mut compressor = zstd::bulk::Compressor::new(LEVEL).unwrap();
        group.throughput(Throughput::Bytes(size_bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| compressor.compress(&text).unwrap());
        });
    }
    group.finish();
}

/// Compresses about as well as source code.
fn text(size_bytes: usize) -> Vec<u8> {
    let lines = (0_u64..).flat_map(|line| {
        let value = line.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        format!("    let value_{line} = compute({value:08x}, \"{}\");\n", line % 97).into_bytes()
    });
    lines.take(size_bytes).collect()
}

criterion_group!(benches, compression);
criterion_main!(benches);
