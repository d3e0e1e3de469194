//! What development tools take, by their own clock: what a sandbox costs before and after is a row
//! of its own.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use codeagent_namespace::View;
use codeagent_sandbox::classify::ReadingJudge;

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

    /// Measures `script` in rounds that begin with another way each time; `reset` comes after. What
    /// counts is the view that a session chooses for it.
    fn measure(&self, name: &str, rounds: u32, script: &str, reset: &str) -> Result<Vec<Row>> {
        let mut sides: Vec<(Way, &Session)> =
            self.sides.iter().map(|(way, session)| (*way, session)).collect();
        let view = chosen_view(script);
        if view == View::ReadOnly {
            // It leaves no trace in a folder, and needs none of its own.
            let shared = sides.iter().find(|(way, _)| *way == Way::Ours(View::Transactional));
            sides.extend(shared.map(|(_, session)| (Way::Ours(view), *session)));
        }
        let mut took: Vec<(Way, Vec<Took>)> =
            sides.iter().map(|(way, _)| (*way, Vec::new())).collect();
        for round in 0..rounds {
            for turn in 0..sides.len() {
                let next = (round as usize + turn) % sides.len();
                let (way, session) = sides[next];
                took[next].1.push(session.run(way, script)?);
                run(Command::new("sh").args(["-c", reset]).current_dir(session.folder()))?;
            }
        }
        Ok(rows(name, view, &took))
    }
}

/// As a session does, if nobody names one.
fn chosen_view(script: &str) -> View {
    match ReadingJudge::default().line_only_reads(script) {
        true => View::ReadOnly,
        false => View::Transactional,
    }
}

/// The view that is chosen, the transactional one, what of that is the kernel's doing, and the other
/// ways.
fn rows(name: &str, chosen: View, took: &[(Way, Vec<Took>)]) -> Vec<Row> {
    let of = |way, part: fn(&Took) -> Duration| -> Option<Samples> {
        let (_, took) = took.iter().find(|(side, _)| *side == way)?;
        Some(took.iter().map(part).collect())
    };
    let command = |way| of(way, |took| took.command);
    let whole = |way| of(way, |took| took.all);
    let (ours, transactional) = (Way::Ours(chosen), Way::Ours(View::Transactional));
    let native = "native";
    let compare = |name: &str, bar, ours: Option<Samples>, against, baseline: Option<Samples>| {
        Some(Row::compare(name, &ours?, bar, against, &baseline?))
    };
    let other = |name, way| compare(name, Bar::None, command(way), native, command(Way::Native));
    let kernel = command(Way::OverlayAlone);
    [
        compare(name, BAR, command(ours), native, command(Way::Native)),
        compare("  start and commit included", Bar::None, whole(ours), native, whole(Way::Native)),
        (chosen != View::Transactional)
            .then(|| {
                let (ours, alone) = (command(transactional), command(Way::Native));
                compare("  in the transactional view", BAR, ours, native, alone)
            })
            .flatten(),
        compare("  against an overlay alone", BAR, command(transactional), "overlay", kernel),
        other("  overlay alone", Way::OverlayAlone),
        other("  live view", Way::Ours(View::Live)),
        other("  bubblewrap", Way::Bubblewrap),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub(super) fn git(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    require("git")?;
    let tree = Tree::new(10_000, 2048)?;
    let ways = Ways::prepare(place, 1 << 30, |folder| make_repository(folder, &tree))?;
    // Warm: git has seen the files here, and keeps in its index what it saw.
    let warm = "git -c safe.directory='*' status --porcelain";
    let status = "git --no-optional-locks status --porcelain";
    ensure!(chosen_view(status) == View::ReadOnly, "{status} is not known to only read");
    for (_, session) in &ways.sides {
        run(Command::new("sh").args(["-c", warm]).current_dir(session.folder()))?;
    }
    let mut rows = ways.measure("git status of 10,000, warm", repetitions, status, "true")?;
    let checkout = "git checkout --quiet other && git checkout --quiet main";
    let name = "git checkout of 1,200 of 10,000, and back";
    rows.extend(ways.measure(name, repetitions, checkout, "true")?);
    Ok(rows)
}

pub(super) fn grep(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let tree = Tree::new(20_000, 4096)?;
    let ways = Ways::prepare(place, 1 << 30, |folder| tree.fill(folder))?;
    let script = "grep -r 'no such text' . ; test $? = 1";
    ensure!(chosen_view(script) == View::ReadOnly, "{script} is not known to only read");
    ways.measure("grep -r in 20,000 files", repetitions, script, "true")
}

pub(super) fn cargo(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    require("cargo")?;
    let ways = Ways::prepare(place, 1 << 30, make_crate)?;
    let script = "cargo build --offline --quiet";
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
    let script = "npm install --offline --no-audit --no-fund --no-update-notifier --no-save \
                  --cache .npm-cache ./dependency.tgz >/dev/null";
    let reset = "rm -rf node_modules .npm-cache package-lock.json";
    ways.measure("npm install of 3,000 files", repetitions, script, reset)
}
