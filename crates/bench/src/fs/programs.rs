//! Programs that work in the folders.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::place::NotMeasured;
use crate::shadow_git::run;

pub(super) fn git<const N: usize>(dir: &Path, args: [&str; N]) -> Result<()> {
    run(Command::new("git")
        .args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"])
        // Housekeeping in the background would disturb the other sides.
        .args(["-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "safe.directory=*"])
        .args(args)
        .current_dir(dir))
}

/// Copies what is in a directory into another one.
pub(super) fn copy_into(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg("-a").arg("--").arg(from.join(".")).arg(to))
}

pub(super) fn remove_all(dir: &Path) -> Result<()> {
    run(Command::new("sh").args(["-c", "rm -rf -- *"]).current_dir(dir))
}

/// Without the program there is nothing to measure.
pub(crate) fn require(program: &str) -> Result<()> {
    match Command::new(program).arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(NotMeasured(format!("{program} is not installed")).into()),
    }
}
