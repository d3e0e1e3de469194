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
const CRATES: [&str; 6] = [
    "codeagent-common",
    "codeagent-interceptor",
    "codeagent-mount",
    "codeagent-p9",
    "codeagent-sandbox",
    "codeagent-windows",
];

/// Those with tests that other systems can run.
const TESTED: [&str; 2] = ["codeagent-p9", "codeagent-windows"];

/// Without what needs a driver to build, and with it.
const FEATURES: [&[&str]; 2] = [&[], &["--all-features"]];

/// Where Debian's toolchain is, whatever other toolchain comes first in `PATH`.
const TOOLCHAIN: &str = "/usr/bin";

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    lint()?;
    Ok(ExitCode::SUCCESS)
}

/// As the task does, for other tasks.
pub(crate) fn lint() -> Result<()> {
    install_missing(FOR_CROSS_CHECKS);
    if let Some(obstacle) = obstacle() {
        println!("check-cross: skipped, nothing was checked ({obstacle})");
        return Ok(());
    }
    let libraries = stand_ins().context("cannot write what stands in for libraries")?;
    for target in TARGETS {
        println!("check-cross: {target}");
        let context = || format!("see the errors above, all for {target}");
        for features in FEATURES {
            let mut clippy = clippy(target, &CRATES, &libraries);
            run_program(clippy.args(features).args(["--", "-D", "warnings"]))
                .with_context(context)?;
        }
        let mut clippy = clippy(target, &TESTED, &libraries);
        run_program(clippy.args(["--tests", "--", "-D", "warnings"])).with_context(context)?;
    }
    println!(
        "check-cross: {} compile for {}; none of it ran",
        CRATES.join(", "),
        TARGETS.join(", ")
    );
    Ok(())
}

/// What keeps this machine from checking.
fn obstacle() -> Option<String> {
    let missing = missing(FOR_CROSS_CHECKS);
    (!missing.is_empty()).then(|| format!("missing: {}, packages of Debian", missing.join(" ")))
}

/// Debian's cargo, which has the source of the standard library beside it.
pub(crate) fn cargo() -> Command {
    // `cargo clippy` takes the first `cargo-clippy` it finds.
    let mut folders = vec![PathBuf::from(TOOLCHAIN)];
    folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let mut command = program(Path::new(TOOLCHAIN).join("cargo"));
    if let Ok(path) = env::join_paths(folders) {
        command.env("PATH", path);
    }
    command.env("RUSTC", Path::new(TOOLCHAIN).join("rustc")).env("RUSTC_BOOTSTRAP", "1"); // `-Zbuild-std` on a toolchain that is not a nightly one
    // Both belong to the toolchain that runs this task.
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    command
}

fn clippy(target: &str, crates: &[&str], libraries: &Path) -> Command {
    let mut command = cargo();
    command
        .args(["clippy", "--quiet", "-Zbuild-std=std,panic_abort", "--target", target])
        .arg("--target-dir")
        .arg(scratch("cross"));
    for name in crates {
        command.args(["--package", name]);
    }
    command.env("PKG_CONFIG_ALLOW_CROSS", "1").env("PKG_CONFIG_PATH", libraries);
    // Nothing is linked, so what is written in C (SQLite) need not be compiled.
    let target = target.replace('-', "_");
    command
        .env(format!("CC_{target}"), "true")
        .env(format!("AR_{target}"), libraries.join(ARCHIVER))
        .env("SDKROOT", libraries); // which nobody looks into
    command
}

/// Makes an empty archive, in whichever way it is told its name.
const ARCHIVER: &str = "archiver.sh";

/// fuser's build script asks pkg-config for macFUSE, and that of SQLite makes an archive. Nothing is
/// linked, so a description and an empty file will do.
fn stand_ins() -> Result<PathBuf> {
    let folder = scratch("cross").join("stand-ins");
    fs::create_dir_all(&folder)?;
    let description = "Name: fuse\nDescription: stands in for macFUSE\nVersion: 2.9.9\n";
    fs::write(folder.join("fuse.pc"), description)?;
    let archiver = folder.join(ARCHIVER);
    let script = "#!/bin/sh\nfor argument; do case $argument in\n\
                  [-/]out:*) : > \"${argument#*:}\";;\n*.a|*.lib) : > \"$argument\";;\n\
                  esac; done\n";
    fs::write(&archiver, script)?;
    #[cfg(unix)]
    fs::set_permissions(&archiver, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(folder)
}
