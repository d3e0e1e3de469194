use std::process::ExitCode;

use anyhow::Result;

use crate::clients;
use crate::filesystems::{Filesystems, Kind};
use crate::packages;
use crate::process::{cargo, run as run_program};

/// Room for the larger workloads. The image is sparse and removed afterwards.
const DISK_SIZE_BYTES: u64 = 4 << 30;

/// Run a benchmark and print its figures
///
/// The disk part runs on an ext4 image mounted below target/test-fs (needs root).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The benchmark: `engine`, `fs`, `namespace`, `mcp`, `vm`, or `micro` for the microbenchmarks of all crates
    name: String,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.name == "micro" {
        run_program(cargo().args(["bench", "--workspace"]))?;
        return Ok(ExitCode::SUCCESS);
    }

    packages::install_missing(packages::FOR_BENCHMARKS);
    // Mounts and sandboxes are measured in memory only: there, nothing hides what they cost.
    let disks: &[Kind] = if args.name == "engine" { &[Kind::Ext4] } else { &[] };
    let filesystems = Filesystems::prepare(disks, DISK_SIZE_BYTES)?;
    // Stdout is the benchmark's alone.
    for line in filesystems.describe() {
        eprintln!("{line}");
    }
    let mut command = cargo();
    command.args(["run", "--release", "--quiet", "--package", "codeagent-bench", "--", &args.name]);
    if args.json {
        command.arg("--json");
    }
    filesystems.announce(&mut command);
    if args.name == "mcp" {
        let mut notes = Vec::new();
        command.envs(clients::install(&mut notes));
        notes.iter().for_each(|note| eprintln!("{note}"));
    }
    #[cfg(target_os = "linux")]
    if args.name == "vm" {
        let (image, note) = crate::build_guest::for_tests(codeagent_vm::image::Flavour::Minimal)?;
        note.iter().for_each(|note| eprintln!("{note}"));
        command.env(crate::build_guest::TESTED_IMAGE, image.dir());
    }
    run_program(&mut command)?;
    Ok(ExitCode::SUCCESS)
}
