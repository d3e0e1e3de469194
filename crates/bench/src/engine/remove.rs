//! `rm -rf` of a tree, and its way back.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use codeagent_interceptor::RollbackOptions;

use crate::driver::{Bare, FrontEnd, Guarded};
use crate::place::{NotMeasured, Place};
use crate::sample::{Samples, in_turn};
use crate::shadow_git::{ShadowGit, cp_a};
use crate::table::{Bar, Row};
use crate::tree::Tree;

/// One way to protect a tree: what it costs up to the end of `rm -rf`, and to bring it back.
#[derive(Default)]
struct Times {
    removed: Samples,
    restored: Samples,
}

pub(super) fn measure(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let tree = Tree::new(20_000, 4096)?;
    let (mut engine, mut copy, mut git) = <(Times, Times, Times)>::default();
    in_turn(
        repetitions,
        || with_engine(place, &tree, &mut engine),
        || with_copy(place, &tree, &mut copy),
    )?;
    let (removed, restored) = (engine.removed.median(), engine.restored.median());
    let mut rows = vec![
        Row::time("rollback of rm -rf of 20,000", restored, Bar::RatioBelow(1.0))
            .against_time("cp -a", copy.restored.median()),
        Row::time("rm -rf of 20,000, protected", removed, Bar::None)
            .against_time("cp -a first", copy.removed.median()),
    ];
    // Slow enough that fewer repetitions will do.
    let with_git = (0..repetitions.min(3)).try_for_each(|_| with_git(place, &tree, &mut git));
    match with_git {
        Ok(()) => rows.extend([
            Row::time("rollback of rm -rf of 20,000", restored, Bar::None)
                .against_time("git checkout", git.restored.median()),
            Row::time("rm -rf of 20,000, protected", removed, Bar::None)
                .against_time("git commit first", git.removed.median()),
        ]),
        Err(error) if error.is::<NotMeasured>() => {}
        Err(error) => return Err(error),
    }
    Ok(rows)
}

fn remove_all(host: &impl FrontEnd, tree: &Tree) -> Result<()> {
    tree.files.iter().try_for_each(|file| host.unlink(file.as_path()))?;
    tree.dirs.iter().try_for_each(|dir| host.rmdir(dir.as_path()))
}

fn with_engine(place: &Place, tree: &Tree, times: &mut Times) -> Result<()> {
    let scratch = place.scratch(512 << 20)?;
    tree.fill(&scratch.work())?;
    let engine = scratch.engine("undo")?;
    let host = Guarded::open(&engine, &scratch.work())?;
    times.removed.time(|| host.step(|| remove_all(&host, tree)))?;
    times.restored.time(|| Ok(engine.rollback(1, RollbackOptions::default())?))?;
    check_restored(&scratch.work(), tree)
}

fn with_copy(place: &Place, tree: &Tree, times: &mut Times) -> Result<()> {
    let scratch = place.scratch(512 << 20)?;
    let (work, copy) = (scratch.work(), scratch.path("copy"));
    tree.fill(&work)?;
    let host = Bare::open(&work)?;
    times.removed.time(|| {
        cp_a(&work, &copy)?;
        remove_all(&host, tree)
    })?;
    fs::remove_dir(&work)?;
    times.restored.time(|| cp_a(&copy, &work))?;
    check_restored(&work, tree)
}

fn with_git(place: &Place, tree: &Tree, times: &mut Times) -> Result<()> {
    let scratch = place.scratch(512 << 20)?;
    tree.fill(&scratch.work())?;
    let git = ShadowGit::create(scratch.path("shadow.git"), scratch.work())?;
    git.checkpoint()?; // the first one has to read everything; later ones only look
    let host = Bare::open(&scratch.work())?;
    times.removed.time(|| {
        git.checkpoint()?;
        remove_all(&host, tree)
    })?;
    times.restored.time(|| git.restore())?;
    check_restored(&scratch.work(), tree)
}

fn check_restored(work: &Path, tree: &Tree) -> Result<()> {
    let last = tree.files.len() - 1;
    let content = fs::read(crate::tree::host_path(work, tree.files[last].as_path()))?;
    ensure!(content == tree.content(last), "the tree was not restored");
    Ok(())
}
