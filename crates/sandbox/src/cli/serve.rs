//! Without a subcommand: a server.

use std::io::{IsTerminal, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, ValueEnum};

use super::output::complain;
use super::session_arguments::SessionArguments;
use crate::config;
use crate::error::{Result, SandboxError};
use crate::server::hub::Hub;
use crate::server::{logging, mcp, stdio};

/// Where Claude Code says which project it works in.
const PROJECT_DIR: &str = "CLAUDE_PROJECT_DIR";

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Without a command: what is spoken on stdin and stdout
    #[arg(long, value_enum, default_value_t)]
    protocol: Protocol,
    /// Serve agents (MCP) on this socket, too; its token is in PATH.token
    #[arg(long, value_name = "PATH")]
    mcp_socket: Option<PathBuf>,
    #[command(flatten)]
    session: SessionArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Protocol {
    /// One JSON object a line, for frontends: docs/stdio-api.md
    #[default]
    Stdio,
    /// The Model Context Protocol, for agents; the session starts at once
    Mcp,
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

    fn serve(mut self) -> Result<()> {
        let _log = logging::start();
        let is_mcp = self.protocol == Protocol::Mcp;
        let project = std::env::var_os(PROJECT_DIR).filter(|_| is_mcp);
        if self.session.working_dir.is_empty()
            && let Some(project) = project
        {
            self.session.working_dir.push(project.into());
        }
        let options = self.session.options()?;
        if let Some(folder) = self.session.folder_above(&options).filter(|_| is_mcp) {
            let folder = folder.display();
            tracing::warn!(component = "server", %folder, "the nearest one upwards with a history");
        }
        let hub = Hub::new(options);
        tracing::info!(component = "server", version = env!("CARGO_PKG_VERSION"), "serving");
        let socket = self.mcp_socket.as_ref().map(|path| mcp::Socket::open(&hub, path));
        let socket = socket.transpose()?;
        let served = if is_mcp { serve_agent(&hub) } else { serve_frontend(&hub) };
        drop(socket);
        tracing::info!(component = "server", "the client has gone");
        served
    }
}

/// A flag of servers that was given.
pub(super) fn flag_in(matches: &ArgMatches) -> Option<String> {
    let server = Serve::augment_args(clap::Command::new("server"));
    let is_given = |flag: &&clap::Arg| {
        matches.value_source(flag.get_id().as_str()) == Some(ValueSource::CommandLine)
    };
    server.get_arguments().find(is_given)?.get_long().map(str::to_owned)
}

fn serve_frontend(hub: &Arc<Hub>) -> Result<()> {
    let served = stdio::serve(hub, stdin(), stdout());
    served.map_err(|error| SandboxError::Io(std::io::Error::other(error)))
}

/// An agent starts no session itself: it is there from the beginning.
fn serve_agent(hub: &Arc<Hub>) -> Result<()> {
    let mut options = hub.defaults().clone();
    for ignored in config::tighten_for_projects(&mut options)? {
        tracing::warn!(component = "config", "{ignored}");
    }
    hub.start(options)?;
    mcp::serve(hub)
}
