//! One large file: what is kept of it must not grow with it.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use codeagent_common::{RelPath, StepInfo};
use codeagent_interceptor::{FileRef, Mutation, RollbackOptions, WriteInterceptor};
use rustix::fs::{Mode, OFlags};

use crate::driver::{FrontEnd, Guarded};
use crate::noise::incompressible;
use crate::place::Place;
use crate::sample::Samples;
use crate::table::{Bar, Row, Value};

const GIB: u64 = 1 << 30;
const MIB: usize = 1 << 20;

pub(super) fn measure(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    // The file, an appended MiB, and what the engine leaves free.
    let scratch = place.scratch(GIB + (256 << 20))?;
    let work = scratch.work();
    let path = RelPath::new(b"large")?;
    make_large(&work.join("large"))?;
    let engine = scratch.engine("undo")?;
    let host = Guarded::open(&engine, &work)?;
    let mut rows = overwrite(&host, path, repetitions)?;
    rows.extend(append(&host, &work, path, repetitions)?);
    rows.extend(unlink(&host, path, repetitions)?);
    Ok(rows)
}

/// Written, not only given a length: holes would make everything cheap.
fn make_large(path: &Path) -> Result<()> {
    let mut file = File::create(path)?;
    let chunk = incompressible(MIB);
    for _ in 0..GIB / MIB as u64 {
        file.write_all(&chunk)?;
    }
    Ok(())
}

fn undo(host: &Guarded<'_>) -> Result<()> {
    host.engine.rollback(1, RollbackOptions::default())?;
    Ok(())
}

fn stored(name: &str, step: Option<&StepInfo>, below: u64) -> Row {
    let bytes = step.map_or(u64::MAX, |step| step.stored_bytes);
    let bar = Bar::Below(Value::Bytes(below));
    Row::new(format!("{name}: stored"), Value::Bytes(bytes), bar)
        .against("a copy", Value::Bytes(GIB))
}

fn overwrite(host: &Guarded<'_>, path: RelPath<'_>, repetitions: u32) -> Result<Vec<Row>> {
    let bytes = [9; 4096];
    let mut last = None;
    for _ in 0..repetitions {
        last = Some(host.step(|| host.write(path, GIB / 2 + 100, &bytes))?);
        undo(host)?;
    }
    Ok(vec![stored("overwrite 4 KiB inside 1 GiB", last.as_ref(), 2 << 20)])
}

fn append(
    host: &Guarded<'_>,
    work: &Path,
    path: RelPath<'_>,
    repetitions: u32,
) -> Result<Vec<Row>> {
    let name = "append 1 MiB to 1 GiB";
    let bytes = vec![9; MIB];
    let (mut capture, mut writes) = (Samples::default(), Samples::default());
    let mut last = None;
    for _ in 0..repetitions {
        let step = host.step(|| {
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
            let mut file = File::from(rustix::fs::open(work.join("large"), flags, Mode::empty())?);
            let file_ref = FileRef { path, open: Some(&file) };
            let mutation = Mutation::Append { file: file_ref };
            let permit = capture.time(|| Ok(host.engine.before(&mutation)?))?;
            writes.time(|| Ok(file.write_all(&bytes)?))?;
            permit.done();
            Ok(())
        })?;
        last = Some(step);
        undo(host)?;
    }
    let bar = Bar::Below(Value::Time(Duration::from_millis(1)));
    let captured = Row::time(format!("{name}: capture"), capture.median(), bar);
    Ok(vec![
        captured.against_time("the write", writes.median()),
        stored(name, last.as_ref(), 64 << 10),
    ])
}

fn unlink(host: &Guarded<'_>, path: RelPath<'_>, repetitions: u32) -> Result<Vec<Row>> {
    let name = "unlink 1 GiB";
    let mut guarded = Samples::default();
    let mut last = None;
    for _ in 0..repetitions {
        last = Some(guarded.time(|| host.step(|| host.unlink(path)))?);
        undo(host)?;
    }
    // Only once: then it is gone.
    let mut bare = Samples::default();
    bare.time(|| host.bare.unlink(path))?;
    let bar = Bar::AtMost(Value::Time(Duration::from_millis(5)));
    Ok(vec![
        Row::time(name, guarded.median(), bar).against_time("bare", bare.median()),
        stored(name, last.as_ref(), 64 << 10),
    ])
}
