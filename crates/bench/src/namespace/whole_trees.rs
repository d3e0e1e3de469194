//! Trees that come or go as a whole.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use codeagent_namespace::View;

use super::session::{Session, Way};
use crate::place::Place;
use crate::sample::Samples;
use crate::shadow_git::ShadowGit;
use crate::table::{Bar, Row, Value};
use crate::tree::Tree;

const FILES: usize = 50_000;
const BAR: Bar = Bar::AtMost(Value::Time(Duration::from_millis(50)));

pub(super) fn remove(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let scratch = place.scratch(1 << 30)?;
    let modules = scratch.work().join("node_modules");
    Tree::new(FILES, 512)?.fill(&modules)?;
    let session = Session::new(&scratch, scratch.work(), "remove")?;
    let git = ShadowGit::create(scratch.path("shadow.git"), scratch.work())?;
    git.checkpoint()?;
    let (mut ours, mut shadow) = (Samples::default(), Samples::default());
    for _ in 0..repetitions {
        let took = session.run(Way::Ours(View::Transactional), "rm -rf node_modules")?;
        ensure!(!modules.exists(), "nothing was removed");
        ours.push(took.commit + session.undo()?);
        ensure!(modules.join("dir_0499").is_dir(), "not everything is back");
        shadow.time(|| git.checkpoint())?;
    }
    let name = "rm -rf of 50,000: commit and undo";
    let row = Row::time(name, ours.median(), BAR);
    Ok(vec![row.against_time("a git checkpoint alone", shadow.median())])
}

pub(super) fn create(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let scratch = place.scratch(2 << 30)?;
    // Ten to a directory, as packages have them.
    let script =
        "for i in $(seq 5000); do echo node_modules/p$((i / 50))/lib$i; done | xargs mkdir -p
        for i in $(seq 5000); do d=node_modules/p$((i / 50))/lib$i
        for j in 0 1 2 3 4 5 6 7 8 9; do echo $i > $d/f$j.js; done; done";
    let session = Session::new(&scratch, scratch.work(), "create")?;
    let (mut both, mut commit) = (Samples::default(), Samples::default());
    for _ in 0..repetitions {
        let took = session.run(Way::Ours(View::Transactional), script)?;
        let made = fs::read_dir(scratch.work().join("node_modules"))?.count();
        ensure!(made == 101, "{made} packages were made");
        commit.push(took.commit);
        both.push(took.commit + session.undo()?);
        ensure!(!scratch.work().join("node_modules").exists(), "not everything is gone");
    }
    Ok(vec![
        Row::time("creation of 50,000: commit and undo", both.median(), BAR),
        Row::time("  commit alone", commit.median(), Bar::None),
    ])
}
