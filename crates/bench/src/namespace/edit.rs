//! A small edit in a large tree.

use std::time::Instant;

use anyhow::{Result, ensure};
use codeagent_namespace::View;

use super::session::{Session, Way};
use crate::place::Place;
use crate::sample::Samples;
use crate::shadow_git::ShadowGit;
use crate::table::{Bar, Row};
use crate::tree::{Tree, host_path};

const EDITED: usize = 10;

pub(super) fn measure(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let tree = Tree::new(50_000, 1024)?;
    let scratch = place.scratch(1 << 30)?;
    tree.fill(&scratch.work())?;
    let git = ShadowGit::create(scratch.path("shadow.git"), scratch.work())?;
    git.checkpoint()?;
    git.checkpoint()?;
    let session = Session::new(&scratch, scratch.work(), "edit")?;
    let edited: Vec<String> =
        tree.spread(EDITED).map(|file| format!("echo edited >> {file}")).collect();
    let script = edited.join("; ");
    let first = tree.spread(1).next().map(|file| host_path(&scratch.work(), file));
    let (mut ours, mut whole, mut shadow) =
        (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..repetitions {
        shadow.time(|| {
            git.checkpoint()?;
            session.run(Way::Native, &script)?;
            git.restore()
        })?;
        let started = Instant::now();
        let took = session.run(Way::Ours(View::Transactional), &script)?;
        let undo = session.undo()?;
        whole.push(started.elapsed());
        ours.push(took.commit + undo);
        let length = first.as_ref().map(|path| path.metadata()).transpose()?;
        ensure!(length.is_some_and(|file| file.len() == 1024), "the edit was not undone");
    }
    let name = "commit and undo an edit of 10 of 50,000";
    Ok(vec![
        Row::time(name, ours.median(), Bar::FasterTimes(200.0))
            .against_time("shadow git", shadow.median()),
        Row::time("  with the command and its sandbox", whole.median(), Bar::None)
            .against_time("shadow git", shadow.median()),
    ])
}
