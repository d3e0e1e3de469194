//! `npm install` of a package with many files, without a network.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::Bench;
use super::programs::require;
use super::side::Side;
use super::times::{Times, WRITES, rounds};
use crate::shadow_git::run;
use crate::table::Row;
use crate::tree::Tree;

pub(super) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    require("npm")?;
    let packed = bench.place.scratch(256 << 20)?;
    pack_dependency(&packed.work())?;
    let archive = packed.work().join("dependency-1.0.0.tgz");
    let mut sides = Side::prepare(bench, 512 << 20, |work| {
        (0..bench.repetitions).try_for_each(|round| {
            let dir = work.join(round.to_string());
            fs::create_dir(&dir)?;
            let manifest = "{\"name\": \"sample\", \"version\": \"1.0.0\"}";
            Ok(fs::write(dir.join("package.json"), manifest)?)
        })
    })?;
    let mut install = Times::default();
    rounds(&mut sides, bench.repetitions, |side, round| {
        let cache = side.beside(&format!("npm-cache-{round}"));
        let time = side.step(|dir| npm_install(&dir.join(round.to_string()), &cache, &archive))?;
        install.push(side.kind(), time);
        Ok(())
    })?;
    Ok(install.rows("npm install of 3,000 files", WRITES).into())
}

fn npm_install(dir: &Path, cache: &Path, archive: &Path) -> Result<()> {
    run(Command::new("npm")
        .args(["install", "--offline", "--no-audit", "--no-fund", "--no-update-notifier"])
        .arg("--cache")
        .arg(cache)
        .arg(archive)
        .current_dir(dir))
}

pub(crate) fn pack_dependency(work: &Path) -> Result<()> {
    let dependency = work.join("dependency");
    Tree::new(3_000, 2048)?.fill(&dependency)?;
    let manifest = "{\"name\": \"dependency\", \"version\": \"1.0.0\"}";
    fs::write(dependency.join("package.json"), manifest)?;
    run(Command::new("npm")
        .args(["pack", "--offline", "--no-update-notifier", "--cache"])
        .arg(work.join("npm-cache"))
        .arg(&dependency)
        .current_dir(work))
}
