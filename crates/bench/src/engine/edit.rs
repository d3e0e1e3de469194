//! A small edit in a large tree: what is paid for should be the edit, not the tree.

use std::fs;

use anyhow::{Result, ensure};
use codeagent_interceptor::RollbackOptions;

use crate::driver::{Bare, FrontEnd, Guarded};
use crate::place::Place;
use crate::sample::{Samples, in_turn};
use crate::shadow_git::ShadowGit;
use crate::table::{Bar, Row};
use crate::tree::{Tree, host_path};

const EDITED: usize = 10;

pub(super) fn measure(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    // One tree for both sides: each leaves it as it was.
    let tree = Tree::new(50_000, 1024)?;
    let scratch = place.scratch(1 << 30)?;
    let work = scratch.work();
    tree.fill(&work)?;
    let git = ShadowGit::create(scratch.path("shadow.git"), work.clone())?;
    git.checkpoint()?; // the first one has to read everything; later ones only look
    git.checkpoint()?;
    let host = Bare::open(&work)?;
    let (mut with_git, mut with_engine) = (Samples::default(), Samples::default());
    let mut history = 0;
    in_turn(
        repetitions,
        || {
            with_git.time(|| {
                git.checkpoint()?;
                edit(&host, &tree)?;
                git.restore()
            })?;
            check_restored(&work, &tree)
        },
        || {
            // git has made the files anew: that is not this engine's history.
            history += 1;
            let engine = scratch.engine(&format!("undo-{history}"))?;
            let host = Guarded::open(&engine, &work)?;
            with_engine.time(|| {
                host.step(|| edit(&host, &tree))?;
                Ok(engine.rollback(1, RollbackOptions::default())?)
            })?;
            check_restored(&work, &tree)
        },
    )?;
    let name = "protect and undo an edit of 10 of 50,000";
    let row = Row::time(name, with_engine.median(), Bar::FasterTimes(50.0));
    Ok(vec![row.against_time("shadow git", with_git.median())])
}

fn edit(host: &impl FrontEnd, tree: &Tree) -> Result<()> {
    tree.spread(EDITED).try_for_each(|file| host.write(file, 100, b"/* edited */"))
}

fn check_restored(work: &std::path::Path, tree: &Tree) -> Result<()> {
    let edited = tree.spread(EDITED).nth(1).map(|file| host_path(work, file));
    let number = tree.files.len() / EDITED;
    let content = edited.map(fs::read).transpose()?;
    ensure!(content == Some(tree.content(number)), "the edit was not undone");
    Ok(())
}
