//! Whole directories: the cost must not grow with what lies below them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use codeagent_common::{RelPath, RelPathBuf};
use codeagent_interceptor::{RollbackOptions, StagedChange};

use crate::driver::{FrontEnd, Guarded};
use crate::place::{Place, Scratch};
use crate::sample::{Samples, in_turn};
use crate::shadow_git::cp_a;
use crate::table::{Bar, Row, Value};
use crate::tree::Tree;

const FILES: usize = 50_000;

pub(super) fn measure(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    // Small files: 50,000 of a page each, and a copy of them.
    let scratch = place.scratch(768 << 20)?;
    Tree::new(FILES, 100)?.fill(&scratch.work().join("big"))?;
    let mut rows = rename(&scratch, repetitions)?;
    let mut copy = Samples::default();
    copy.time(|| cp_a(&scratch.work().join("big"), &scratch.path("copy")))?;
    fs::remove_dir_all(scratch.path("copy"))?;
    rows.extend(adopt(&scratch, repetitions, copy.median())?);
    Ok(rows)
}

fn rename(scratch: &Scratch, repetitions: u32) -> Result<Vec<Row>> {
    let (from, to) = (RelPath::new(b"big")?, RelPath::new(b"renamed")?);
    let engine = scratch.engine("undo-rename")?;
    let host = Guarded::open(&engine, &scratch.work())?;
    let (mut bare, mut guarded) = (Samples::default(), Samples::default());
    let mut records = 0;
    in_turn(
        repetitions,
        || {
            bare.time(|| host.bare.rename(from, to))?;
            host.bare.rename(to, from)
        },
        || {
            let step = guarded.time(|| host.step(|| host.rename(from, to)))?;
            let entry = format!("steps/{}", step.id.0);
            let journal = codeagent_interceptor::dump(&scratch.path("undo-rename"), &entry)?;
            records = journal.lines().filter(|line| line.contains("Rename {")).count() as u64;
            engine.rollback(1, RollbackOptions::default())?;
            Ok(())
        },
    )?;
    let name = "rename a directory of 50,000";
    let bar = Bar::AtMost(Value::Time(Duration::from_millis(2)));
    let one = Bar::Exactly(Value::Records(1));
    Ok(vec![
        Row::time(name, guarded.median(), bar).against_time("bare", bare.median()),
        Row::new(format!("{name}: Rename records"), Value::Records(records), one),
    ])
}

#[derive(Default)]
struct Times {
    done: Samples,
    undone: Samples,
    redone: Samples,
}

fn adopt(scratch: &Scratch, repetitions: u32, copy: Duration) -> Result<Vec<Row>> {
    let staging = scratch.path("staging");
    fs::create_dir(&staging)?;
    let path = RelPathBuf::new(b"big")?;
    let place = StagedChange::Place { path: path.clone(), staged: path.clone() };
    let remove = StagedChange::Remove { path };
    let (mut adopted, mut removed) = (Times::default(), Times::default());
    for repetition in 0..repetitions {
        // A new history each time, so that the directory can go back to the staging area.
        let undo = format!("undo-adopt-{repetition}");
        fs::rename(scratch.work().join("big"), staging.join("big"))?;
        let engine = scratch.engine(&undo)?;
        let host = Guarded::open(&engine, &scratch.work())?;
        adopted.measure(&host, &staging, &place)?;
        removed.measure(&host, &staging, &remove)?;
        engine.rollback(1, RollbackOptions::default())?;
        ensure!(scratch.work().join("big").is_dir(), "undo did not bring the directory back");
    }
    let mut rows = adopted.rows("adopt a directory of 50,000", copy);
    rows.extend(removed.rows("remove a directory of 50,000 by moving", copy));
    Ok(rows)
}

impl Times {
    fn measure(&mut self, host: &Guarded<'_>, staging: &Path, change: &StagedChange) -> Result<()> {
        let changes = std::slice::from_ref(change);
        let options = RollbackOptions::default();
        self.done.time(|| host.step(|| Ok(host.engine.adopt(staging, changes).map(drop)?)))?;
        self.undone.time(|| Ok(host.engine.rollback(1, options)?))?;
        self.redone.time(|| Ok(host.engine.redo(1, options)?))?;
        Ok(())
    }

    fn rows(&self, name: &str, copy: Duration) -> Vec<Row> {
        let bar = Bar::AtMost(Value::Time(Duration::from_millis(5)));
        let parts = [("", &self.done), (": undo", &self.undone), (": redo", &self.redone)];
        let row = |(part, samples): (&str, &Samples)| {
            Row::time(format!("{name}{part}"), samples.median(), bar).against_time("cp -a", copy)
        };
        parts.into_iter().map(row).collect()
    }
}
