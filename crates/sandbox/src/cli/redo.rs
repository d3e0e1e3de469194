use clap::Args;
use serde_json::json;

use super::log::Log;
use super::output::Outcome;
use super::text;
use super::undo::Backwards;
use crate::error::Result;

/// Redo what was undone last
#[derive(Debug, Args)]
pub(crate) struct Redo {
    #[command(flatten)]
    log: Log,
    #[command(flatten)]
    how: Backwards,
}

impl Redo {
    pub(crate) fn execute(self) -> Result<Outcome> {
        let report = self.log.holder()?.redo(self.how.count as usize, self.how.conflicts())?;
        Ok(Outcome::new(json!(report), text::gone_back("redone", &report)))
    }
}
