//! Writes to a file that the step has captured already: the hook, and nothing but the hook.

use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Result, ensure};
use codeagent_common::RelPath;
use codeagent_interceptor::{FileId, FileRef, Mutation, WriteInterceptor};

use crate::driver::{FrontEnd, Guarded};
use crate::place::Place;
use crate::sample::{Samples, in_turn};
use crate::table::{Bar, Row, Value};

const FILE_BYTES: u64 = 1 << 20;
const WRITE_BYTES: u64 = 4096;
const HOOK_CALLS: u32 = 1_000_000;
const WRITE_CALLS: u32 = 50_000;

pub(super) fn measure(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let scratch = place.scratch(128 << 20)?;
    let path = RelPath::new(b"file")?;
    let content = vec![7; usize::try_from(FILE_BYTES)?];
    std::fs::write(scratch.work().join("file"), &content)?;
    let engine = scratch.engine("undo")?;
    let host = Guarded::open(&engine, &scratch.work())?;
    let file = host.bare.open_file(path)?;
    let id = FileId::of(&file)?;
    let (mut writes, mut hooks) = (Samples::default(), Samples::default());
    host.step(|| {
        host.write(path, 0, &content)?;
        in_turn(
            repetitions,
            || {
                let block = &content[..WRITE_BYTES as usize];
                writes.time(|| {
                    (0..WRITE_CALLS)
                        .try_for_each(|call| Ok(file.write_all_at(block, offset(call))?))
                })
            },
            || {
                // Now and then the engine wants to see a write, to look at the free space.
                let long_way = hooks.time(|| {
                    let mut long_way = 0;
                    for call in 0..HOOK_CALLS {
                        let (offset, length) = (offset(call), WRITE_BYTES);
                        if let Some(permit) = engine.repeat_write(id, offset, length) {
                            black_box(&permit);
                            continue;
                        }
                        let file = FileRef { path, open: Some(&file) };
                        let write = Mutation::Write { file, offset, length };
                        black_box(engine.before(&write)?).done();
                        long_way += 1;
                    }
                    Ok(long_way)
                })?;
                ensure!(long_way < HOOK_CALLS / 100, "{long_way} writes went the long way");
                Ok(())
            },
        )
    })?;
    let bar = Bar::AtMost(Value::PerCall { ns: 100.0 });
    let row = Row::new("hook of a repeated 4 KiB write", per_call(hooks.median(), HOOK_CALLS), bar);
    Ok(vec![row.against("the write", per_call(writes.median(), WRITE_CALLS))])
}

fn offset(call: u32) -> u64 {
    u64::from(call) * WRITE_BYTES % FILE_BYTES
}

fn per_call(time: Duration, calls: u32) -> Value {
    Value::PerCall { ns: time.as_secs_f64() * 1e9 / f64::from(calls) }
}
