//! What undo costs. One run measures everything a row compares, on the same machine, at the same
//! time: ratios mean something even where absolute times do not.

mod driver;
mod engine;
mod fs;
mod groups;
mod mcp;
mod namespace;
mod noise;
mod one_core;
mod place;
mod sample;
mod shadow_git;
mod table;
mod tree;
mod vm;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::groups::Group;
use crate::place::Place;
use crate::table::Report;

/// Measure what undo costs
///
/// Ends with 1 if a bar is missed on tmpfs; figures of the disk are information only.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// The undo engine against bare operations, `cp -a` and a shadow git repository
    Engine(Options),
    /// The mount against the same mount without interception, and the bare filesystem
    Fs {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        settings: fs::Settings,
    },
    /// Commands in namespaces against bare ones, bubblewrap, and a shadow git repository
    Namespace(Options),
    /// The MCP server: how long calls take, and how many there are a second
    Mcp(Options),
    /// A folder in a guest against virtiofsd without interception
    Vm(Options),
    /// Started by `fs`
    #[command(hide = true)]
    Serve(fs::serve::Args),
    /// Started by `vm`
    #[command(hide = true)]
    ServeGuest(vm::upstream::Args),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Print one JSON object a row
    #[arg(long)]
    json: bool,
    /// Measure only groups whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Leave the disk out
    #[arg(long)]
    no_disk: bool,
    /// Measure everything this often, and report the median
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
}

fn main() -> ExitCode {
    let asked = codeagent_sandbox::run_if_asked().or_else(namespace::run_if_asked);
    if let Some(code) = asked.or_else(vm::run_if_asked) {
        return code;
    }
    let met = match Args::parse().benchmark {
        Benchmark::Engine(options) => run(&options, &engine::groups(), !options.no_disk),
        Benchmark::Fs { options, settings } => run(&options, &fs::groups(&settings), false),
        Benchmark::Namespace(options) => run(&options, &namespace::groups(), false),
        Benchmark::Mcp(options) => run(&options, &mcp::groups(), false),
        Benchmark::Vm(options) => run(&options, &vm::groups(), false),
        Benchmark::ServeGuest(args) => vm::upstream::run(&args).map(|()| true),
        Benchmark::Serve(args) => fs::serve::run(&args).map(|()| true),
    };
    match met {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every bar that counts was met.
fn run(options: &Options, groups: &[Group<'_>], disk: bool) -> Result<bool> {
    place::clean_up_when_interrupted()?;
    let mut met = true;
    for place in Place::all(disk) {
        let report = match place {
            Ok(place) => groups::measure(&place, groups, options),
            Err(missing) => Report::not_measured(&missing),
        };
        let mut out = io::stdout().lock();
        if options.json {
            report.write_json(&mut out)?;
        } else {
            report.write_table(&mut out)?;
        }
        out.flush()?;
        met &= report.is_met();
    }
    Ok(met)
}
