use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::process::{find_program, program, root, run as run_program, run_silently};
use crate::tools::CARGO_FUZZ;

/// Fuzz every target, or one, for a while
///
/// Needs a nightly toolchain and a C++ compiler; without them it says so and skips. An input that
/// breaks a target is kept in fuzz/artifacts.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The target, a file in fuzz/fuzz_targets; all of them if not given
    target: Option<String>,
    /// How long to fuzz each target
    #[arg(long, value_name = "N", default_value_t = 30)]
    seconds: u32,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(obstacle) = obstacle() {
        println!("fuzz: skipped ({obstacle})");
        return Ok(ExitCode::SUCCESS);
    }
    let cargo_fuzz = CARGO_FUZZ.ensure()?;
    let folder = cargo_fuzz.parent().context("cargo-fuzz has no directory")?.to_path_buf();

    let targets = run_silently(nightly_cargo(&folder)?.args(["fuzz", "list"]))?;
    let mut targets: Vec<&str> = targets.lines().map(str::trim).filter(|t| !t.is_empty()).collect();
    if let Some(wanted) = &args.target {
        if !targets.contains(&wanted.as_str()) {
            bail!("there is no fuzz target `{wanted}`; there are: {}", targets.join(", "));
        }
        targets.retain(|target| target == wanted);
    }
    if targets.is_empty() {
        println!("fuzz: skipped (there are no targets in fuzz/fuzz_targets)");
        return Ok(ExitCode::SUCCESS);
    }
    for target in &targets {
        println!("fuzz: {target}, {} s", args.seconds);
        fuzz(target, args.seconds, &folder)?;
    }
    println!("fuzz: {} target(s) held for {} s each", targets.len(), args.seconds);
    Ok(ExitCode::SUCCESS)
}

fn fuzz(target: &str, seconds: u32, tools: &Path) -> Result<()> {
    let fuzz = root().join("fuzz");
    // The fuzzer writes what it finds to the first directory and only reads the others.
    let corpus = fuzz.join("corpus").join(target);
    fs::create_dir_all(&corpus).with_context(|| format!("cannot create {}", corpus.display()))?;
    let seeds = fuzz.join("seeds").join(target);

    let mut command = nightly_cargo(tools)?;
    command.args(["fuzz", "run", target]).arg(&corpus);
    if seeds.is_dir() {
        command.arg(&seeds);
    }
    command.arg("--").arg(format!("-max_total_time={seconds}"));
    run_program(&mut command)
        .with_context(|| format!("`{target}` broke; the input is in fuzz/artifacts/{target}"))
}

/// What keeps this machine from fuzzing.
fn obstacle() -> Option<&'static str> {
    let nightly = run_silently(
        program("cargo").args(["+nightly", "--version"]).env("RUSTUP_AUTO_INSTALL", "0"),
    );
    if nightly.is_err() {
        return Some("no nightly toolchain; install one with `rustup toolchain install nightly`");
    }
    if find_program("c++").is_none() {
        return Some("no C++ compiler; install one, on Debian with `apt-get install g++`");
    }
    None
}

/// The nightly cargo, with our cargo-fuzz among its commands.
fn nightly_cargo(tools: &Path) -> Result<Command> {
    let mut folders = vec![tools.to_path_buf()];
    folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let path = env::join_paths(folders).context("PATH cannot be extended")?;

    // By name, not through the variable `CARGO`: rustup's `cargo` understands `+nightly`.
    let mut command = program("cargo");
    command.arg("+nightly").env("PATH", path);
    Ok(command)
}
