//! What development tools take, by their own clock: what a sandbox costs before and after is a row
//! of its own.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use codeagent_namespace::View;

use super::session::{Session, Took, Way};
use crate::fs::samples::{make_crate, make_repository, pack_dependency, require};
use crate::place::{Place, Scratch};
use crate::sample::Samples;
use crate::shadow_git::run;
use crate::table::{Bar, Row};
use crate::tree::Tree;

const BAR: Bar = Bar::RatioAtMost(1.15);

/// The same work in every way, each in a folder of its own.
struct Ways {
    sides: Vec<(Way, Session)>,
    _scratch: Scratch,
}

impl Ways {
    fn prepare(
        place: &Place,
        needed_bytes: u64,
        fill: impl Fn(&std::path::Path) -> Result<()>,
    ) -> Result<Self> {
        let scratch = place.scratch(needed_bytes)?;
        let mut sides = Vec::new();
        for (number, way) in Way::all().into_iter().enumerate() {
            let folder = scratch.path(&format!("folder-{number}"));
            fs::create_dir(&folder)?;
            fill(&folder)?;
            sides.push((way, Session::new(&scratch, folder, &number.to_string())?));
        }
        Ok(Self { sides, _scratch: scratch })
    }

    /// Measures `script` in rounds that begin with another way each time; `reset` comes after.
    fn measure(
        &self,
        name: &str,
        rounds: u32,
        script: impl Fn(u32) -> String,
        reset: &str,
    ) -> Result<Vec<Row>> {
        let mut took: Vec<Vec<Took>> = self.sides.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
            for turn in 0..self.sides.len() {
                let next = (round as usize + turn) % self.sides.len();
                let (way, session) = &self.sides[next];
                took[next].push(session.run(*way, &script(round))?);
                run(Command::new("sh").args(["-c", reset]).current_dir(session.folder()))?;
            }
        }
        Ok(self.rows(name, &took))
    }

    /// The transactional view, what of it is the kernel's doing, and the other ways.
    fn rows(&self, name: &str, took: &[Vec<Took>]) -> Vec<Row> {
        let of = |way, part: fn(&Took) -> Duration| -> Option<Samples> {
            let side = self.sides.iter().position(|(side, _)| *side == way)?;
            Some(took[side].iter().map(part).collect())
        };
        let command = |way| of(way, |took| took.command);
        let whole = |way| of(way, |took| took.all);
        let (ours, native) = (Way::Ours(View::Transactional), "native");
        let compare =
            |name: &str, bar, ours: Option<Samples>, against, baseline: Option<Samples>| {
                Some(Row::compare(name, &ours?, bar, against, &baseline?))
            };
        let other =
            |name, way| compare(name, Bar::None, command(way), native, command(Way::Native));
        let kernel = command(Way::OverlayAlone);
        [
            compare(name, BAR, command(ours), native, command(Way::Native)),
            compare("  against an overlay alone", BAR, command(ours), "overlay", kernel),
            compare(
                "  start and commit included",
                Bar::None,
                whole(ours),
                native,
                whole(Way::Native),
            ),
            other("  overlay alone", Way::OverlayAlone),
            other("  live view", Way::Ours(View::Live)),
            other("  bubblewrap", Way::Bubblewrap),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

pub(super) fn git(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    require("git")?;
    let tree = Tree::new(10_000, 2048)?;
    let ways = Ways::prepare(place, 1 << 30, |folder| make_repository(folder, &tree))?;
    // Warm: git has seen the files here, and keeps in its index what it saw.
    let warm = "git -c safe.directory='*' status --porcelain";
    let status = |_| "git --no-optional-locks status --porcelain".to_owned();
    for (_, session) in &ways.sides {
        run(Command::new("sh").args(["-c", warm]).current_dir(session.folder()))?;
    }
    let mut rows = ways.measure("git status of 10,000, warm", repetitions, status, "true")?;
    let checkout = |_| "git checkout --quiet other && git checkout --quiet main".to_owned();
    let name = "git checkout of 1,200 of 10,000, and back";
    rows.extend(ways.measure(name, repetitions, checkout, "true")?);
    Ok(rows)
}

pub(super) fn grep(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let tree = Tree::new(20_000, 4096)?;
    let ways = Ways::prepare(place, 1 << 30, |folder| tree.fill(folder))?;
    let script = |_| "grep -r 'no such text' . ; test $? = 1".to_owned();
    ways.measure("grep -r in 20,000 files", repetitions, script, "true")
}

pub(super) fn cargo(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    require("cargo")?;
    let ways = Ways::prepare(place, 1 << 30, make_crate)?;
    let script = |_| "cargo build --offline --quiet".to_owned();
    ways.measure("cargo build of 20 modules", repetitions, script, "rm -rf target Cargo.lock")
}

pub(super) fn npm(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    require("npm")?;
    let packed = place.scratch(256 << 20)?;
    pack_dependency(&packed.work())?;
    let archive = packed.work().join("dependency-1.0.0.tgz");
    let ways = Ways::prepare(place, 1 << 30, |folder| {
        fs::copy(&archive, folder.join("dependency.tgz"))?;
        let manifest = "{\"name\": \"sample\", \"version\": \"1.0.0\"}";
        Ok(fs::write(folder.join("package.json"), manifest)?)
    })?;
    let script = |_| {
        "npm install --offline --no-audit --no-fund --no-update-notifier --no-save \
         --cache .npm-cache ./dependency.tgz >/dev/null"
            .to_owned()
    };
    let reset = "rm -rf node_modules .npm-cache package-lock.json";
    ways.measure("npm install of 3,000 files", repetitions, script, reset)
}
