//! Checkpoints in a git repository beside the tree, as many tools of today keep them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::place::NotMeasured;

/// A repository outside its working tree.
#[derive(Debug)]
pub(crate) struct ShadowGit {
    git_dir: PathBuf,
    work_tree: PathBuf,
}

impl ShadowGit {
    pub(crate) fn create(git_dir: PathBuf, work_tree: PathBuf) -> Result<Self> {
        let found = Command::new("git").arg("--version").stdout(Stdio::null()).status();
        if found.is_err() {
            bail!(NotMeasured("git is not installed".to_owned()));
        }
        let git = Self { git_dir, work_tree };
        run(Command::new("git").args(["init", "--quiet", "--bare"]).arg(&git.git_dir))?;
        Ok(git)
    }

    /// Commits everything in the working tree.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.git(["add", "-A"])?;
        self.git(["commit", "--quiet", "--allow-empty", "--no-verify", "-m", "checkpoint"])
    }

    /// Brings the last checkpoint's files back.
    pub(crate) fn restore(&self) -> Result<()> {
        self.git(["checkout", "--quiet", "HEAD", "--", "."])
    }

    fn git<const N: usize>(&self, args: [&str; N]) -> Result<()> {
        run(Command::new("git")
            .args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"])
            // Housekeeping in the background would disturb the other side.
            .args(["-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.bare=false"])
            .arg("--git-dir")
            .arg(&self.git_dir)
            .arg("--work-tree")
            .arg(&self.work_tree)
            .args(args)
            .current_dir(&self.work_tree))
    }
}

/// Copies a tree as a person would.
pub(crate) fn cp_a(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg("-a").arg("--").arg(from).arg(to))
}

pub(crate) fn run(command: &mut Command) -> Result<()> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line = words.collect::<Vec<_>>().join(OsStr::new(" ")).to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .with_context(|| format!("cannot run {line}"))?;
    if !output.status.success() {
        bail!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
