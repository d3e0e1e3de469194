//! What it gains that the kernel reads files itself: the mount with passthrough, and without it.

use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::Bench;
use super::data::{SIZE, overwrite_some, read_all, write_all};
use super::side::Side;
use super::times::{Times, rounds};
use crate::noise::incompressible;
use crate::one_core::OneCore;
use crate::table::{Bar, Row};

const MIB: usize = 1 << 20;

/// Sizes of files, and how many of them are read, each opened for itself.
const MANY: [(&str, usize, usize); 4] = [
    ("16 KiB", 16 << 10, 1_000),
    ("128 KiB", 128 << 10, 500),
    ("1 MiB", MIB, 100),
    ("8 MiB", 8 * MIB, 20),
];

pub(super) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let _one_core = OneCore::keep()?;
    let chunk = incompressible(MIB);
    let mut sides = Side::prepare_passthrough(bench, 3 * SIZE, |work| {
        write_all(&work.join("large"), &chunk)?;
        MANY.iter().try_for_each(|&(name, bytes, count)| fill(&work.join(name), bytes, count))
    })?;
    let (mut first, mut again, mut overwrite) = <(Times, Times, Times)>::default();
    let mut many = [(); MANY.len()].map(|()| Times::default());
    rounds(&mut sides, bench.repetitions, |side, _| {
        let kind = side.kind();
        let large = File::open(side.dir().join("large"))?;
        let started = Instant::now();
        read_all(&large)?;
        first.push(kind, started.elapsed());
        let started = Instant::now();
        (0..4).try_for_each(|_| read_all(&large))?;
        again.push(kind, started.elapsed());
        // While it is open for reading.
        overwrite.push(kind, side.step(|dir| overwrite_some(&dir.join("large"), &chunk))?);
        drop(large);
        for (times, &(name, bytes, count)) in many.iter_mut().zip(&MANY) {
            let dir = side.dir().join(name);
            let started = Instant::now();
            read_files(&dir, bytes, count)?;
            times.push(kind, started.elapsed());
        }
        Ok(())
    })?;
    let mut rows = Vec::new();
    rows.extend(first.passthrough_rows("passthrough: read 256 MiB, opened anew", Bar::None));
    rows.extend(again.passthrough_rows("the same 4 times again", Bar::None));
    rows.extend(overwrite.passthrough_rows("overwrite 2,000 × 4 KiB beside a reader", Bar::None));
    for (times, (name, _, count)) in many.iter().zip(MANY) {
        rows.extend(times.passthrough_rows(&format!("open and read {count} × {name}"), Bar::None));
    }
    Ok(rows)
}

fn fill(dir: &Path, bytes: usize, count: usize) -> Result<()> {
    let content = incompressible(bytes);
    fs::create_dir(dir)?;
    (0..count).try_for_each(|number| Ok(fs::write(dir.join(number.to_string()), &content)?))
}

fn read_files(dir: &Path, bytes: usize, count: usize) -> Result<()> {
    for number in 0..count {
        let length = fs::read(dir.join(number.to_string()))?.len();
        ensure!(length == bytes, "a file has {length} bytes");
    }
    Ok(())
}
