//! Many small files, removed one by one.

use anyhow::Result;

use crate::driver::{Bare, FrontEnd, Guarded};
use crate::place::Place;
use crate::sample::{Samples, in_turn};
use crate::table::{Bar, Row};
use crate::tree::Tree;

pub(super) fn measure(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let tree = Tree::new(20_000, 4096)?;
    let (mut bare, mut guarded) = (Samples::default(), Samples::default());
    in_turn(
        repetitions,
        || {
            let scratch = place.scratch(256 << 20)?;
            tree.fill(&scratch.work())?;
            let host = Bare::open(&scratch.work())?;
            bare.time(|| unlink_all(&host, &tree))
        },
        || {
            let scratch = place.scratch(256 << 20)?;
            tree.fill(&scratch.work())?;
            let engine = scratch.engine("undo")?;
            let host = Guarded::open(&engine, &scratch.work())?;
            guarded.time(|| host.step(|| unlink_all(&host, &tree)).map(drop))
        },
    )?;
    let row = Row::time("unlink 20,000 × 4 KiB", guarded.median(), Bar::RatioAtMost(2.0));
    Ok(vec![row.against_time("bare", bare.median())])
}

fn unlink_all(host: &impl FrontEnd, tree: &Tree) -> Result<()> {
    tree.files.iter().try_for_each(|file| host.unlink(file.as_path()))
}
