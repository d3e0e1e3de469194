//! Programs the tasks run, in pinned versions, below `target/tools/`: nothing outside the
//! repository is touched.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::process::{cargo, find_program, program, run, run_silently, scratch};

/// A tool in one exact version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool {
    /// The name of its binary.
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// The crate that builds it.
    krate: &'static str,
    /// The Python package that carries the same version as a binary, if there is one.
    pypi: Option<&'static str>,
}

pub(crate) const TYPOS: Tool =
    Tool { name: "typos", version: "1.51.1", krate: "typos-cli", pypi: Some("typos") };

// The Python package `cargo-deny` ended at 0.14.2, which cannot read the metadata of today's cargo.
pub(crate) const CARGO_DENY: Tool =
    Tool { name: "cargo-deny", version: "0.20.2", krate: "cargo-deny", pypi: None };

pub(crate) const CARGO_FUZZ: Tool =
    Tool { name: "cargo-fuzz", version: "0.13.2", krate: "cargo-fuzz", pypi: None };

pub(crate) const PJDFSTEST: Tool =
    Tool { name: "pjdfstest", version: "0.2.2", krate: "pjdfstest", pypi: None };

pub(crate) const FSX: Tool = Tool { name: "fsx", version: "0.3.2", krate: "fsx", pypi: None };

impl Tool {
    /// The tool's binary; installs it first unless this version is here already.
    pub(crate) fn ensure(&self) -> Result<PathBuf> {
        let installed = self.home().join("bin").join(self.name);
        if installed.is_file() {
            return Ok(installed);
        }
        if let Some(present) = find_program(self.name)
            && self.is_version_of(&present)
        {
            return Ok(present);
        }
        self.install()?;
        if !self.is_version_of(&installed) {
            bail!("{} {} was installed but does not run", self.name, self.version);
        }
        Ok(installed)
    }

    fn home(&self) -> PathBuf {
        scratch("tools").join(format!("{}-{}", self.name, self.version))
    }

    fn is_version_of(&self, binary: &PathBuf) -> bool {
        run_silently(program(binary).arg("--version"))
            .is_ok_and(|text| text.split_whitespace().any(|word| word == self.version))
    }

    fn install(&self) -> Result<()> {
        eprintln!("Installing {} {} into target/tools …", self.name, self.version);
        if let Some(package) = self.pypi {
            match self.install_with_pip(package) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    eprintln!("Not from a Python package: {error:#}. Building it instead.");
                }
            }
        }
        self.build().with_context(|| format!("cannot build {} {}", self.name, self.version))
    }

    fn install_with_pip(&self, package: &str) -> Result<()> {
        run_silently(
            program("python3")
                .args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"])
                .arg(self.home())
                .arg(format!("{package}=={}", self.version)),
        )?;
        Ok(())
    }

    /// Builds without optimisation: that halves the time, and a tool that runs for a second does
    /// not need it.
    fn build(&self) -> Result<()> {
        let objects = scratch("tools").join("build");
        run(cargo()
            .args(["install", "--quiet", "--locked", "--profile", "dev"])
            .args(["--config", "profile.dev.debug=0"])
            .arg("--root")
            .arg(self.home())
            .arg("--target-dir")
            .arg(&objects)
            .arg(format!("{}@{}", self.krate, self.version)))?;
        fs::remove_dir_all(&objects).context("cannot remove the tool's build directory")
    }
}
