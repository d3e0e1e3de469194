//! Without a subcommand: a server.

use std::io::{IsTerminal, stdin, stdout};
use std::process::ExitCode;

use clap::{Args, CommandFactory, ValueEnum};

use super::output::complain;
use super::session_arguments::SessionArguments;
use crate::error::{Result, SandboxError};
use crate::server::hub::Hub;
use crate::server::{logging, stdio};

/// Serve a frontend on stdin and stdout.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// What is spoken on stdin and stdout
    #[arg(long, value_enum, default_value_t)]
    protocol: Protocol,
    #[command(flatten)]
    session: SessionArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Protocol {
    /// One JSON object a line, for frontends; docs/stdio-api.md
    #[default]
    Stdio,
}

impl Serve {
    pub(super) fn execute(self, json: bool) -> ExitCode {
        if stdin().is_terminal() {
            // A person, who wants to know what there is.
            let _ = super::Arguments::command().print_help();
            return ExitCode::from(2);
        }
        match self.serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(json, &error);
                ExitCode::FAILURE
            }
        }
    }

    fn serve(&self) -> Result<()> {
        logging::start();
        let hub = Hub::new(self.session.options()?);
        tracing::info!(component = "server", version = env!("CARGO_PKG_VERSION"), "serving");
        let served = match self.protocol {
            Protocol::Stdio => stdio::serve(&hub, stdin().lock(), stdout()),
        };
        tracing::info!(component = "server", "the client has gone");
        served.map_err(|error| SandboxError::Io(std::io::Error::other(error)))
    }
}
