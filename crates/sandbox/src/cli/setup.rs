use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::output::Outcome;
use super::text::printable;
use crate::error::{Result, SandboxError};
use crate::places;
use crate::setup::{Client, Dirs, Launch, Setup as Clients};

/// Enter the sandbox as an MCP server in an agent client, or take it out again
///
/// Uses the client's own command where there is one. Otherwise its file is changed: a copy is kept
/// beside it, and everything else in it stays as it is. A server of somebody else that is called
/// "sandbox" is left alone.
#[derive(Debug, Args)]
pub(crate) struct Setup {
    #[arg(value_enum)]
    client: Client,
    /// Take it out again; files become what they were
    #[arg(long, conflicts_with = "block_builtin_tools")]
    remove: bool,
    /// Switch the client's own file and shell tools off, so that everything goes through the
    /// sandbox
    #[arg(long)]
    block_builtin_tools: bool,
    /// The folder to work in; the one that the client is started in, if not given
    #[arg(long, value_name = "DIR")]
    working_dir: Option<PathBuf>,
}

impl Setup {
    pub(crate) fn execute(self) -> Result<Outcome> {
        let clients = self.clients()?;
        let done = match self.remove {
            true => clients.remove(self.client)?,
            false => clients.enter(self.client, self.block_builtin_tools)?,
        };
        let lines: Vec<String> =
            done.lines.iter().chain(&done.remarks).map(|line| printable(line)).collect();
        Ok(Outcome::new(json!(done), lines.join("\n")))
    }

    fn clients(&self) -> Result<Clients> {
        let home = places::home().ok_or(SandboxError::NoHome)?;
        let config =
            places::user_config().and_then(|file| Some(file.parent()?.parent()?.to_owned()));
        let project = match std::env::current_dir() {
            Err(source) if self.client.is_of_project() => {
                return Err(SandboxError::WorkingDir { path: ".".into(), source });
            }
            here => here.unwrap_or_default(), // nobody asks for it
        };
        let named = |name| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let program = std::env::current_exe()?;
        let mut arguments = vec!["--protocol".to_owned(), "mcp".to_owned()];
        if let Some(dir) = &self.working_dir {
            let dir = places::canonical(dir)?;
            arguments.extend(["--working-dir".to_owned(), dir.display().to_string()]);
        }
        Ok(Clients {
            dirs: Dirs {
                config: config.unwrap_or_else(|| home.join(".config")),
                claude: named("CLAUDE_CONFIG_DIR"),
                codex: named("CODEX_HOME").unwrap_or_else(|| home.join(".codex")),
                home,
                project,
            },
            notes_dir: places::own_dir().ok_or(SandboxError::NoHome)?.join("setup"),
            launch: Launch { program: program.display().to_string(), arguments },
        })
    }
}
