use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::check_cross;
use crate::counts::Counts;
use crate::packages::{FOR_CROSS_TESTS, install_missing, missing};
use crate::process::{program, root, run_silently, run_watching, scratch};
use crate::test::Skips;

/// Run what is meant for Windows, under Wine, then lint it as check-cross does
///
/// Installs what it needs (as root, with apt); without that it says what is missing, and runs
/// nothing. What Wine cannot show is listed by name and never counts as passed. The last line is
/// `N passed, N failed, N skipped`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Leave the lints for Windows and macOS out
    #[arg(long)]
    only_tests: bool,
}

const TARGET: &str = "x86_64-pc-windows-gnu";

/// The crates whose unit tests are for every system.
const CRATES: [&str; 5] = [
    "codeagent-common",
    "codeagent-interceptor",
    "codeagent-mount",
    "codeagent-p9",
    "codeagent-windows",
];

/// Those with further tests that Windows can run. Those of the others are for Linux.
const FOR_WINDOWS: [&str; 2] = ["codeagent-p9", "codeagent-windows"];

const WINE: &str = "/usr/lib/wine/wine64";

/// What Wine leaves out and no test asks about. What tests do ask about, they say themselves.
const NOT_SHOWN: [&str; 4] = [
    "AF_UNIX sockets",
    "enforcement of access control lists",
    "mandatory locks",
    "mounting (WinFsp is a driver of Windows)",
];

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let started = Instant::now();
    install_missing(FOR_CROSS_TESTS);
    let missing = missing(FOR_CROSS_TESTS);
    if !missing.is_empty() {
        let names = missing.join(" ");
        println!("test-cross: skipped, nothing was run (missing: {names}, packages of Debian)");
        println!("{}", Counts { skipped: 1, ..Counts::default() });
        return Ok(ExitCode::SUCCESS);
    }
    let prefix = prepare_wine().context("cannot prepare Wine")?;
    let skips = Skips::collect_in(scratch("cross-skips.txt"))?;
    let mut counts = Counts::default();
    let runs: [(&[&str], &[&str]); 2] = [(&CRATES, &["--lib"]), (&FOR_WINDOWS, &["--test", "*"])];
    for (crates, which) in runs {
        let mut part = Counts::default();
        let status = run_watching(&mut tests(crates, which, &prefix, skips.file()), |line| {
            part += Counts::from_libtest_line(line).unwrap_or_default();
        })?;
        if part.passed + part.failed == 0 || (!status.success() && part.failed == 0) {
            bail!("tests for {TARGET} did not build or did not start: {}", crates.join(", "));
        }
        counts += part;
    }
    let not_shown = skips.read()?;
    counts.move_to_skipped(not_shown.len() as u64);

    println!();
    for line in &not_shown {
        println!("not shown by Wine: {line}");
    }
    for what in NOT_SHOWN {
        println!("not shown by Wine, and not tested anywhere: {what}");
    }
    let seconds = started.elapsed().as_secs();
    println!("{} ran under Wine, in {seconds} s altogether", CRATES.join(", "));
    let mut succeeded = counts.failed == 0;
    if !args.only_tests
        && let Err(error) = check_cross::lint()
    {
        println!("check-cross: FAILED, {error:#}");
        counts.failed += 1;
        succeeded = false;
    }
    println!("{counts}");
    Ok(if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tests(crates: &[&str], which: &[&str], prefix: &Path, skips: &Path) -> Command {
    let mut command = check_cross::cargo();
    command
        .args(["test", "--quiet", "-Zbuild-std=std,panic_abort", "--target", TARGET])
        .arg("--no-fail-fast")
        .args(which)
        .arg("--target-dir")
        .arg(scratch("cross"));
    for name in crates {
        command.args(["--package", name]);
    }
    command
        .env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER", WINE)
        // Nobody steps through these programs, and linking them takes less without.
        .env("CARGO_PROFILE_TEST_DEBUG", "0")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CODEAGENT_SKIPS", as_windows_path(skips));
    in_prefix(&mut command, prefix);
    command
}

/// How a program under Wine finds a file of this machine.
fn as_windows_path(path: &Path) -> String {
    format!("Z:{}", path.display()).replace('/', "\\")
}

fn in_prefix(command: &mut Command, prefix: &Path) {
    command
        .env("WINEPREFIX", prefix)
        .env("WINEARCH", "win64")
        .env("WINEDEBUG", "-all")
        .env("WINEDLLOVERRIDES", "mscoree=;mshtml=") // it would offer to install them
        .env_remove("DISPLAY");
}

/// A directory that Wine takes for a Windows, with the one library in it that Wine lacks.
fn prepare_wine() -> Result<PathBuf> {
    let prefix = scratch("wine");
    let system = prefix.join("drive_c/windows/system32");
    if !system.join("kernel32.dll").exists() {
        // What an interrupted run has left would be taken for whole.
        let _ = fs::remove_dir_all(&prefix);
        fs::create_dir_all(&prefix)?;
        let mut boot = program(WINE);
        in_prefix(boot.args(["wineboot", "--init"]), &prefix);
        run_silently(&mut boot)?;
        // It goes on in the background, and what it has not written yet is not there.
        let mut server = program(wineserver());
        in_prefix(server.arg("-w"), &prefix);
        run_silently(&mut server)?;
    }
    let source = root().join("xtask/src/wine/bcryptprimitives.c");
    run_silently(
        program("x86_64-w64-mingw32-gcc")
            .args(["-O2", "-shared", "-o"])
            .arg(system.join("bcryptprimitives.dll"))
            .arg(source)
            .arg("-ladvapi32"),
    )
    .context("cannot build the library that Wine lacks")?;
    Ok(prefix)
}

fn wineserver() -> PathBuf {
    env::var_os("WINESERVER")
        .map_or_else(|| Path::new(WINE).with_file_name("wineserver"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_this_machine_are_on_a_drive_of_their_own_under_wine() {
        assert_eq!(as_windows_path(Path::new("/a/b c")), r"Z:\a\b c");
    }
}
