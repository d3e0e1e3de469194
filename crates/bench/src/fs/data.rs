//! The content of one large file.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use rustix::fs::Advice;

use super::Bench;
use super::side::Side;
use super::times::{READS, Times, WRITES, rounds};
use crate::noise::{Noise, incompressible};
use crate::one_core::OneCore;
use crate::table::Row;

const MIB: u64 = 1 << 20;
pub(super) const SIZE: u64 = 256 * MIB;
const OVERWRITES: usize = 2_000;
const OVERWRITTEN: u64 = 4096;
const READINGS: usize = 4;

pub(super) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let _one_core = OneCore::keep()?;
    let chunk = incompressible(MIB as usize);
    let mut sides = Side::prepare(bench, 4 * SIZE, |work| write_all(&work.join("old"), &chunk))?;
    let (mut write, mut overwrite) = <(Times, Times)>::default();
    let (mut uncached, mut cached) = <(Times, Times)>::default();
    // By themselves: what the engine clears away after a removal, it does while others read.
    rounds(&mut sides, bench.repetitions, |side, _| {
        let kind = side.kind();
        let old = File::open(side.dir().join("old"))?;
        // Natively on tmpfs this changes nothing: there is no other place for the bytes.
        rustix::fs::fadvise(&old, 0, None, Advice::DontNeed)?;
        let started = Instant::now();
        read_all(&old)?;
        uncached.push(kind, started.elapsed());
        let started = Instant::now();
        (0..READINGS).try_for_each(|_| read_all(&old))?;
        cached.push(kind, started.elapsed());
        Ok(())
    })?;
    // By themselves, too: FUSE alone frees what was removed after the call has returned.
    rounds(&mut sides, bench.repetitions, |side, _| {
        let kind = side.kind();
        overwrite.push(kind, side.step(|dir| overwrite_some(&dir.join("old"), &chunk))?);
        Ok(())
    })?;
    rounds(&mut sides, bench.repetitions, |side, _| {
        let kind = side.kind();
        write.push(kind, side.step(|dir| write_all(&dir.join("new"), &chunk))?);
        side.step(|dir| Ok(fs::remove_file(dir.join("new"))?))?;
        Ok(())
    })?;
    let mut rows = Vec::new();
    rows.extend(write.rows("write 256 MiB", WRITES));
    rows.extend(overwrite.rows("overwrite 2,000 × 4 KiB of 256 MiB", WRITES));
    rows.extend(uncached.rows("read 256 MiB, not cached", READS));
    rows.extend(cached.rows("read 256 MiB 4 times, cached", READS));
    Ok(rows)
}

pub(super) fn write_all(path: &Path, chunk: &[u8]) -> Result<()> {
    let mut file = File::create_new(path)?;
    (0..SIZE / MIB).try_for_each(|_| Ok(file.write_all(chunk)?))
}

pub(super) fn overwrite_some(path: &Path, chunk: &[u8]) -> Result<()> {
    let file = File::options().write(true).open(path)?;
    let mut noise = Noise::default();
    for _ in 0..OVERWRITES {
        let block = noise.next_number() % (SIZE / OVERWRITTEN);
        file.write_all_at(&chunk[..OVERWRITTEN as usize], block * OVERWRITTEN)?;
    }
    Ok(())
}

pub(super) fn read_all(file: &File) -> Result<()> {
    let mut chunk = vec![0; MIB as usize];
    let mut length = 0;
    while length < SIZE {
        match file.read_at(&mut chunk, length)? {
            0 => break,
            more => length += more as u64,
        }
    }
    ensure!(length == SIZE, "the file ends after {length} bytes");
    Ok(())
}
