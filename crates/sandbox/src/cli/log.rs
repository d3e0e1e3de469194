//! Which history a command is about.

use std::path::{Path, PathBuf};

use clap::Args;
use codeagent_worker::Client;

use super::undo_log;
use crate::error::{Result, SandboxError};
use crate::places;

#[derive(Debug, Clone, Args)]
pub(crate) struct Log {
    /// The folder; the nearest one from here upwards that has a history, if not given
    #[arg(long, value_name = "DIR")]
    pub(crate) working_dir: Option<PathBuf>,
    /// Where undo data is kept, if it was put elsewhere
    #[arg(long, value_name = "DIR", conflicts_with = "working_dir")]
    pub(crate) undo_dir: Option<PathBuf>,
}

impl Log {
    pub(crate) fn undo_dir(&self) -> Result<PathBuf> {
        if let Some(dir) = &self.undo_dir {
            return Ok(dir.clone());
        }
        let start = self.working_dir.as_deref().unwrap_or(Path::new("."));
        let start = places::canonical(start)?;
        let found = match &self.working_dir {
            Some(_) => Some(places::undo_dir_of(&start)?).filter(|dir| dir.is_dir()),
            None => places::nearest_with_history(&start).map(|(_, undo_dir)| undo_dir),
        };
        found.ok_or(SandboxError::NoHistory(start))
    }

    /// Whoever holds the log; this process, if nobody does.
    pub(crate) fn holder(&self) -> Result<Client> {
        undo_log::holder(&self.undo_dir()?)
    }

    /// The process that serves the folder.
    pub(crate) fn served(&self) -> Result<Client> {
        undo_log::served(&self.undo_dir()?)
    }
}
