//! Many small files, made one by one.

use anyhow::Result;

use crate::driver::{Bare, FrontEnd, Guarded};
use crate::place::Place;
use crate::sample::{Samples, in_turn};
use crate::table::{Bar, Row};
use crate::tree::Tree;

pub(super) fn measure(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let tree = Tree::new(20_000, 4096)?;
    let content = tree.content(1);
    let (mut bare, mut guarded) = (Samples::default(), Samples::default());
    in_turn(
        repetitions,
        || {
            let scratch = place.scratch(256 << 20)?;
            tree.make_dirs(&scratch.work())?;
            let host = Bare::open(&scratch.work())?;
            bare.time(|| create_all(&host, &tree, &content))
        },
        || {
            let scratch = place.scratch(256 << 20)?;
            tree.make_dirs(&scratch.work())?;
            let engine = scratch.engine("undo")?;
            let host = Guarded::open(&engine, &scratch.work())?;
            guarded.time(|| host.step(|| create_all(&host, &tree, &content)).map(drop))
        },
    )?;
    let row = Row::time("create 20,000 × 4 KiB", guarded.median(), Bar::RatioAtMost(1.5));
    Ok(vec![row.against_time("bare", bare.median())])
}

fn create_all(host: &impl FrontEnd, tree: &Tree, content: &[u8]) -> Result<()> {
    tree.files.iter().try_for_each(|file| host.create(file.as_path(), content))
}
