use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use codeagent_common::{RelPathBuf, StepId};
use serde_json::json;

use super::log::Log;
use super::output::Outcome;
use super::text;
use super::undo_log;
use crate::error::{Result, SandboxError};

/// Bring single paths back to what they were before a step
///
/// Everything else stays as it is. The restore is a step of its own and can be undone.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    #[command(flatten)]
    log: Log,
    /// The number of the step
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    step: i64,
    /// Files or directories
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

impl Restore {
    pub(crate) fn execute(self) -> Result<Outcome> {
        let found = self.log.find()?;
        let paths = self
            .paths
            .iter()
            .map(|path| inside(&found.working_dir, path))
            .collect::<Result<Vec<RelPathBuf>>>()?;
        let report = undo_log::holder(&found)?.restore(StepId(self.step), paths)?;
        Ok(Outcome::new(json!(report), text::restored(&report)))
    }
}

/// A path as it was given: from here, or absolute; from the folder, if here is elsewhere.
fn inside(working_dir: &Path, path: &Path) -> Result<RelPathBuf> {
    let outside = || SandboxError::OutsidePath(path.into());
    let here = std::env::current_dir().and_then(|here| here.canonicalize());
    let base = here.ok().filter(|here| here.starts_with(working_dir));
    let full = base.as_deref().unwrap_or(working_dir).join(path);
    let full = crate::session::lexical(&full).ok_or_else(outside)?;
    let below = full.strip_prefix(working_dir).map_err(|_| outside())?;
    RelPathBuf::new(below.as_os_str().as_bytes()).map_err(|_| outside())
}
