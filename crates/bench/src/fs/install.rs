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
    let mut install = Times::default();
    rounds(bench.repetitions, |kind| {
        let mut side = Side::prepare(bench.place, bench.settings, kind, 256 << 20, |work| {
            Ok(fs::write(work.join("package.json"), "{\"name\": \"sample\", \"version\": \"1.0.0\"}")?)
        })?;
        let cache = side.beside("npm-cache");
        install.push(kind, side.step(|dir| npm_install(dir, &cache, &archive))?);
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

fn pack_dependency(work: &Path) -> Result<()> {
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
