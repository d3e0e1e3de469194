//! `rm -rf`, and its way back.

use std::fs;

use anyhow::{Result, ensure};

use super::Bench;
use super::programs::{copy_into, remove_all};
use super::side::{Kind, Side};
use super::times::{Times, rounds};
use crate::one_core::OneCore;
use crate::sample::Samples;
use crate::table::{Bar, Row};
use crate::tree::{Tree, host_path};

pub(super) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let tree = Tree::new(20_000, 4096)?;
    let _one_core = OneCore::keep()?;
    let original = bench.place.scratch(256 << 20)?;
    tree.fill(&original.work())?;
    let original_dir = original.work();
    let mut sides = Side::prepare(bench, 512 << 20, |work| copy_into(&original_dir, work))?;
    let (mut removed, mut copied, mut undone) = <(Times, Samples, Samples)>::default();
    rounds(&mut sides, bench.repetitions, |side, _| {
        let host = side.host_dir();
        removed.push(side.kind(), side.step(remove_all)?);
        ensure!(fs::read_dir(&host)?.next().is_none(), "something was left");
        match side.kind() {
            Kind::Native => copied.time(|| copy_into(&original_dir, &host))?,
            Kind::Plain => copy_into(&original_dir, &host)?,
            Kind::Ours | Kind::Passthrough => undone.push(side.undo()?),
        }
        let last = tree.files.len() - 1;
        let content = fs::read(host_path(&side.dir(), tree.files[last].as_path()))?;
        ensure!(content == tree.content(last), "the tree was not restored");
        Ok(())
    })?;
    let mut rows = Vec::from(removed.rows("rm -rf of 20,000 files", Bar::RatioAtMost(1.2)));
    let bar = Bar::RatioAtMost(2.0);
    rows.push(Row::compare("undo of rm -rf of 20,000 files", &undone, bar, "cp -a", &copied));
    Ok(rows)
}
