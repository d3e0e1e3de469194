//! Which history a command is about.

use std::path::{Path, PathBuf};

use clap::Args;
use codeagent_interceptor::working_dir_of;
use codeagent_worker::Client;

use super::output::notice;
use super::{text, undo_log};
use crate::error::Result;
use crate::error::SandboxError::{NoHistory, NoLog};
use crate::places;

#[derive(Debug, Clone, Args)]
pub(crate) struct Log {
    /// The folder; the nearest one from here upwards that has a history, if not given
    #[arg(long, value_name = "DIR")]
    pub(crate) working_dir: Option<PathBuf>,
    /// Where undo data is kept, if it was put elsewhere
    #[arg(long, value_name = "DIR")]
    pub(crate) undo_dir: Option<PathBuf>,
}

/// A folder, and where its history is.
#[derive(Debug)]
pub(crate) struct Found {
    /// As it is called now; the history may know an earlier name.
    pub(crate) working_dir: PathBuf,
    pub(crate) undo_dir: PathBuf,
}

impl Log {
    pub(crate) fn find(&self) -> Result<Found> {
        if let Some(undo_dir) = self.undo_dir.clone() {
            let Some(recorded) = working_dir_of(&undo_dir)? else { return Err(NoLog(undo_dir)) };
            let working_dir = match &self.working_dir {
                Some(working_dir) => places::canonical(working_dir)?,
                None => recorded,
            };
            return Ok(Found { working_dir, undo_dir });
        }
        let start = self.working_dir.as_deref().unwrap_or(Path::new("."));
        let start = places::canonical(start)?;
        if self.working_dir.is_some() {
            let undo_dir = places::undo_dir_of(&start)?;
            return match undo_dir.is_dir() {
                true => Ok(Found { working_dir: start, undo_dir }),
                false => Err(NoHistory(start)),
            };
        }
        let Some((working_dir, undo_dir)) = places::nearest_with_history(&start) else {
            return Err(NoHistory(start));
        };
        if working_dir != start {
            notice(&text::folder_above(&working_dir));
        }
        Ok(Found { working_dir, undo_dir })
    }

    /// Whoever holds the log; this process, if nobody does.
    pub(crate) fn holder(&self) -> Result<Client> {
        undo_log::holder(&self.find()?)
    }

    /// The process that serves the folder.
    pub(crate) fn served(&self) -> Result<Client> {
        undo_log::served(&self.find()?.undo_dir)
    }
}
