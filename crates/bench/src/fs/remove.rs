//! `rm -rf`, and its way back.

use std::fs;

use anyhow::{Result, ensure};

use super::Bench;
use super::programs::{copy_into, remove_all};
use super::side::{Kind, Side};
use super::times::{Times, rounds};
use crate::sample::Samples;
use crate::table::{Bar, Row};
use crate::tree::{Tree, host_path};

pub(super) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let tree = Tree::new(20_000, 4096)?;
    let (mut removed, mut copied, mut undone) = <(Times, Samples, Samples)>::default();
    rounds(bench.repetitions, |kind| {
        let mut side =
            Side::prepare(bench.place, bench.settings, kind, 512 << 20, |work| tree.fill(work))?;
        let copy = side.beside("copy");
        if kind == Kind::Native {
            fs::create_dir(&copy)?;
            copy_into(&side.host_dir(), &copy)?;
        }
        removed.push(kind, side.step(remove_all)?);
        ensure!(fs::read_dir(side.host_dir())?.next().is_none(), "something was left");
        match kind {
            Kind::Native => copied.time(|| copy_into(&copy, &side.host_dir()))?,
            Kind::Plain => return Ok(()),
            Kind::Ours => undone.push(side.undo()?),
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
