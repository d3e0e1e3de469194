//! MCP clients that no one here wrote, below `target/tools/`, for the tests that use them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::{program, run_silently, scratch};

const PYTHON_CLIENT: &str = "2.3.0";
const INSPECTOR: &str = "2.12.0";
/// The Inspector needs a newer one than systems have.
const NODE: &str = "24";

/// The variables that tell the tests where clients are, for those that can be had. One that cannot
/// is no error: its test is skipped and says so.
pub(crate) fn install(notes: &mut Vec<String>) -> Vec<(&'static str, PathBuf)> {
    let mut installed = Vec::new();
    for (variable, name, outcome) in [
        ("CODEAGENT_TEST_MCP_PYTHON", "the Python client of MCP", python()),
        ("CODEAGENT_TEST_MCP_INSPECTOR", "the MCP Inspector", inspector()),
    ] {
        match outcome {
            Ok(path) => installed.push((variable, path)),
            Err(error) => notes.push(format!("{name}: not available, {error:#}")),
        }
    }
    installed
}

/// A Python that has the package.
fn python() -> Result<PathBuf> {
    let home = scratch("tools").join(format!("mcp-python-{PYTHON_CLIENT}"));
    let python = home.join("bin/python");
    if !is_complete(&home) {
        eprintln!("Installing the Python package mcp {PYTHON_CLIENT} into target/tools …");
        run_silently(program("python3").args(["-m", "venv", "--clear"]).arg(&home))?;
        run_silently(
            program(&python)
                .args(["-m", "pip", "install", "--quiet"])
                .arg(format!("mcp=={PYTHON_CLIENT}")),
        )?;
        complete(&home)?;
    }
    Ok(python)
}

/// A directory with the Inspector and a Node that runs it.
fn inspector() -> Result<PathBuf> {
    let home = scratch("tools").join(format!("mcp-inspector-{INSPECTOR}"));
    if !is_complete(&home) {
        eprintln!("Installing the MCP Inspector {INSPECTOR} into target/tools …");
        std::fs::create_dir_all(&home).context("cannot make its directory")?;
        run_silently(
            program("npm")
                .args(["install", "--no-audit", "--no-fund", "--no-save", "--prefix"])
                .arg(&home)
                .arg(format!("node@{NODE}"))
                .arg(format!("@modelcontextprotocol/inspector@{INSPECTOR}")),
        )?;
        complete(&home)?;
    }
    Ok(home.join("node_modules/.bin"))
}

/// An installation that was interrupted is made anew.
fn is_complete(home: &Path) -> bool {
    home.join("complete").is_file()
}

fn complete(home: &Path) -> Result<()> {
    std::fs::write(home.join("complete"), "").context("cannot note that it is complete")
}
