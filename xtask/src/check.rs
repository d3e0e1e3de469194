use std::fmt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::process::{cargo, program, root, run as run_program};
use crate::tools::{CARGO_DENY, TYPOS};
use crate::tracked;

/// Check format, lints, spelling, dependencies and what git tracks
///
/// Runs every check even when one fails, and lists the outcomes at the end.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// The workspace, and the fuzz targets, which are a workspace of their own.
const MANIFESTS: [&str; 2] = ["Cargo.toml", "fuzz/Cargo.toml"];

/// How a check ended without finding fault.
#[derive(Debug)]
enum Outcome {
    Passed,
    Skipped(&'static str),
}

type Check = (&'static str, fn() -> Result<Outcome>);

/// The quick ones first.
const CHECKS: &[Check] = &[
    ("tracked files", tracked_files),
    ("fmt", fmt),
    ("typos", typos),
    ("clippy", clippy),
    ("dependencies", dependencies),
    ("advisories", advisories),
];

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let mut report = Vec::new();
    let mut failed = false;
    for (name, check) in CHECKS {
        let started = Instant::now();
        let outcome = check();
        failed |= outcome.is_err();
        let outcome = match outcome {
            Ok(outcome) => outcome.to_string(),
            Err(error) => format!("FAILED, {error:#}"),
        };
        report.push(format!("{name}: {outcome} ({:.1} s)", started.elapsed().as_secs_f32()));
    }
    println!();
    for line in report {
        println!("{line}");
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn tracked_files() -> Result<Outcome> {
    Ok(match tracked::check()? {
        Some(()) => Outcome::Passed,
        None => Outcome::Skipped("no git checkout"),
    })
}

fn fmt() -> Result<Outcome> {
    for manifest in MANIFESTS {
        run_program(cargo().args(["fmt", "--all", "--check", "--manifest-path", manifest]))
            .context("run `cargo fmt` (if it is missing: `rustup component add rustfmt`)")?;
    }
    Ok(Outcome::Passed)
}

fn typos() -> Result<Outcome> {
    run_program(&mut program(TYPOS.ensure()?))
        .context("correct the words above, or allow them in typos.toml")?;
    Ok(Outcome::Passed)
}

fn clippy() -> Result<Outcome> {
    run_program(
        cargo()
            .args(["clippy", "--quiet", "--workspace", "--all-targets", "--all-features"])
            .args(["--", "-D", "warnings"]),
    )
    .context("see the lints above (if clippy is missing: `rustup component add clippy`)")?;
    Ok(Outcome::Passed)
}

fn dependencies() -> Result<Outcome> {
    for manifest in MANIFESTS {
        run_program(deny(manifest)?.args(["licenses", "bans", "sources"]))
            .with_context(|| format!("{manifest} breaks the rules of deny.toml"))?;
    }
    Ok(Outcome::Passed)
}

/// Known vulnerabilities. Their database is a git repository on the network; no package carries it,
/// so a machine that cannot reach it cannot know.
fn advisories() -> Result<Outcome> {
    let output = deny("Cargo.toml")?
        .arg("advisories")
        .stdout(Stdio::inherit())
        .output()
        .context("cannot start cargo-deny")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("failed to fetch advisory database") {
        return Ok(Outcome::Skipped("database unreachable"));
    }
    eprint!("{stderr}");
    if !output.status.success() {
        bail!("a dependency has a known vulnerability or was withdrawn");
    }
    Ok(Outcome::Passed)
}

fn deny(manifest: &str) -> Result<Command> {
    let mut command = program(CARGO_DENY.ensure()?);
    command
        .arg("--manifest-path")
        .arg(root().join(manifest))
        .arg("--config")
        .arg(root().join("deny.toml"))
        .args(["check", "--hide-inclusion-graph"]);
    Ok(command)
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("ok"),
            Self::Skipped(why) => write!(f, "skipped ({why})"),
        }
    }
}
