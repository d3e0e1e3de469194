use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::process::{cargo, run as run_program};

/// Write the JSON Schemas of the wire protocol into docs/schema
///
/// They are made from the types; a test fails while they differ.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    run_program(
        cargo()
            .args(["test", "--quiet", "--package", "codeagent-stdio", "--test", "schema"])
            .env("CODEAGENT_WRITE_SCHEMAS", "1"),
    )
    .context("the schemas could not be made")?;
    Ok(ExitCode::SUCCESS)
}
