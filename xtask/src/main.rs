//! The tasks of this repository, one file each: `cargo xtask --help`.

mod bench;
#[cfg(target_os = "linux")]
mod build_guest;
mod check;
mod check_cross;
mod clients;
mod counts;
mod filesystems;
mod fuzz;
mod packages;
mod process;
mod schema;
mod test;
mod test_cross;
mod tools;
mod tracked;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The tasks of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    Check(check::Args),
    CheckCross(check_cross::Args),
    Test(test::Args),
    TestCross(test_cross::Args),
    Bench(bench::Args),
    #[cfg(target_os = "linux")]
    BuildGuest(build_guest::Args),
    Fuzz(fuzz::Args),
    Schema(schema::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = process::survive_interrupts().and_then(|()| match cli.task {
        Task::Check(args) => check::run(&args),
        Task::CheckCross(args) => check_cross::run(&args),
        Task::Test(args) => test::run(&args),
        Task::TestCross(args) => test_cross::run(&args),
        Task::Bench(args) => bench::run(&args),
        #[cfg(target_os = "linux")]
        Task::BuildGuest(args) => build_guest::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Schema(args) => schema::run(&args),
    });
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
