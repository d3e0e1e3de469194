use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::packages::{FOR_CROSS_CHECKS, install_missing, missing};
use crate::process::{program, run as run_program, scratch};

/// Lint what is meant for Windows and macOS, on this machine
///
/// Types and lints only: nothing is linked, nothing runs. Uses Debian's toolchain for the web
/// browsers, which brings the source of the standard library, and builds that for both systems.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

const TARGETS: [&str; 2] = ["x86_64-pc-windows-msvc", "aarch64-apple-darwin"];

/// The crates that are meant to compile on every system.
const CRATES: [&str; 4] =
    ["codeagent-common", "codeagent-interceptor", "codeagent-mount", "codeagent-sandbox"];

/// Without what needs a driver to build, and with it.
const FEATURES: [&[&str]; 2] = [&[], &["--all-features"]];

/// Where Debian's toolchain is, whatever other toolchain comes first in `PATH`.
const TOOLCHAIN: &str = "/usr/bin";

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    install_missing(FOR_CROSS_CHECKS);
    if let Some(obstacle) = obstacle() {
        println!("check-cross: skipped, nothing was checked ({obstacle})");
        return Ok(ExitCode::SUCCESS);
    }
    let libraries = describe_macfuse().context("cannot describe macFUSE")?;
    for target in TARGETS {
        println!("check-cross: {target}");
        for features in FEATURES {
            run_program(clippy(target, &libraries)?.args(features).args(["--", "-D", "warnings"]))
                .with_context(|| format!("see the errors above, all for {target}"))?;
        }
    }
    println!(
        "check-cross: {} compile for {}; none of it ran",
        CRATES.join(", "),
        TARGETS.join(", ")
    );
    Ok(ExitCode::SUCCESS)
}

/// What keeps this machine from checking.
fn obstacle() -> Option<String> {
    let missing = missing(FOR_CROSS_CHECKS);
    (!missing.is_empty()).then(|| format!("missing: {}, packages of Debian", missing.join(" ")))
}

fn clippy(target: &str, libraries: &Path) -> Result<Command> {
    // `cargo clippy` takes the first `cargo-clippy` it finds.
    let mut folders = vec![PathBuf::from(TOOLCHAIN)];
    folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let path = env::join_paths(folders).context("PATH cannot be extended")?;

    let mut command = program(Path::new(TOOLCHAIN).join("cargo"));
    command
        .args(["clippy", "--quiet", "-Zbuild-std=std,panic_abort", "--target", target])
        .arg("--target-dir")
        .arg(scratch("cross"));
    for name in CRATES {
        command.args(["--package", name]);
    }
    command
        .env("PATH", path)
        .env("RUSTC", Path::new(TOOLCHAIN).join("rustc"))
        .env("RUSTC_BOOTSTRAP", "1") // `-Zbuild-std` on a toolchain that is not a nightly one
        .env("PKG_CONFIG_ALLOW_CROSS", "1")
        .env("PKG_CONFIG_PATH", libraries);
    // Both belong to the toolchain that runs this task.
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    Ok(command)
}

/// fuser's build script asks pkg-config for macFUSE. Nothing is linked, so a description will do.
fn describe_macfuse() -> Result<PathBuf> {
    let folder = scratch("cross").join("pkg-config");
    fs::create_dir_all(&folder)?;
    let description = "Name: fuse\nDescription: stands in for macFUSE\nVersion: 2.9.9\n";
    fs::write(folder.join("fuse.pc"), description)?;
    Ok(folder)
}
