use clap::Args;
use codeagent_interceptor::OnConflict;
use serde_json::json;

use super::log::Log;
use super::output::Outcome;
use super::text;
use crate::error::Result;

/// Undo the newest steps
#[derive(Debug, Args)]
pub(crate) struct Undo {
    #[command(flatten)]
    log: Log,
    #[command(flatten)]
    how: Backwards,
    /// Say what would change, and change nothing
    #[arg(long, conflicts_with_all = ["force", "skip_conflicts"])]
    preview: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Backwards {
    /// How many steps
    #[arg(value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// Overwrite what others have changed since
    #[arg(long, conflicts_with = "skip_conflicts")]
    pub(crate) force: bool,
    /// Leave alone what others have changed since
    #[arg(long)]
    pub(crate) skip_conflicts: bool,
}

impl Backwards {
    pub(crate) fn conflicts(&self) -> OnConflict {
        match self {
            Self { force: true, .. } => OnConflict::Force,
            Self { skip_conflicts: true, .. } => OnConflict::Skip,
            _ => OnConflict::Refuse,
        }
    }
}

impl Undo {
    pub(crate) fn execute(self) -> Result<Outcome> {
        let client = self.log.holder()?;
        let count = self.how.count as usize;
        if self.preview {
            let preview = client.preview(count)?;
            return Ok(Outcome::new(json!(preview), text::preview(&preview)));
        }
        let report = client.undo(count, self.how.conflicts())?;
        let undone = client.redoable()?;
        Ok(Outcome::new(json!(report), text::gone_back("undone", &report, &undone)))
    }
}
