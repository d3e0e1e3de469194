//! git at work in a repository of ordinary size.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::Bench;
use super::programs::{copy_into, git, require};
use super::side::Side;
use super::times::{READS, Times, WRITES, rounds};
use crate::one_core::OneCore;
use crate::table::Row;
use crate::tree::{Tree, host_path};

pub(super) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    require("git")?;
    let _one_core = OneCore::keep()?;
    let tree = Tree::new(10_000, 2048)?;
    let original = bench.place.scratch(256 << 20)?;
    make_repository(&original.work(), &tree)?;
    let mut sides = Side::prepare(bench, 256 << 20, |work| copy_into(&original.work(), work))?;
    let (mut status, mut checkout) = <(Times, Times)>::default();
    rounds(&mut sides, bench.repetitions, |side, _| {
        let (kind, dir) = (side.kind(), side.dir());
        // Warm: git has seen the files here, and keeps in its index what it saw.
        side.step(|dir| git(dir, ["status", "--porcelain"]))?;
        let started = Instant::now();
        git(&dir, ["--no-optional-locks", "status", "--porcelain"])?;
        status.push(kind, started.elapsed());
        let time = side.step(|dir| {
            git(dir, ["checkout", "--quiet", "other"])?;
            git(dir, ["checkout", "--quiet", "main"])
        })?;
        checkout.push(kind, time);
        Ok(())
    })?;
    let mut rows = Vec::new();
    rows.extend(status.rows("git status of 10,000, warm", READS));
    rows.extend(checkout.rows("git checkout of 1,200 of 10,000, and back", WRITES));
    Ok(rows)
}

/// Two branches: the other one has 1,000 files changed, 100 added and 100 removed.
pub(crate) fn make_repository(work: &Path, tree: &Tree) -> Result<()> {
    tree.fill(work)?;
    git(work, ["init", "--quiet", "--initial-branch=main"])?;
    git(work, ["add", "--all"])?;
    git(work, ["commit", "--quiet", "--message=main"])?;
    git(work, ["checkout", "--quiet", "-b", "other"])?;
    for (number, file) in tree.spread(1100).enumerate() {
        let path = host_path(work, file);
        if number % 11 == 0 {
            fs::remove_file(path)?;
        } else {
            fs::write(path, format!("changed {number}\n").repeat(100))?;
        }
    }
    for number in 0..100 {
        fs::write(work.join(format!("added_{number}.txt")), format!("added {number}\n"))?;
    }
    git(work, ["add", "--all"])?;
    git(work, ["commit", "--quiet", "--message=other"])?;
    git(work, ["checkout", "--quiet", "main"])?;
    git(work, ["gc", "--quiet"])
}
