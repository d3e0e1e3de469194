use clap::Args;
use codeagent_common::StepInfo;
use codeagent_interceptor::HistoryEntry;
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
        let client = self.log.holder()?;
        let report = client.redo(self.how.count as usize, self.how.conflicts())?;
        let redone: Vec<StepInfo> = client
            .history()?
            .into_iter()
            .filter_map(|entry| match entry {
                HistoryEntry::Step(step) => Some(step),
                HistoryEntry::Barrier(_) => None,
            })
            .collect();
        Ok(Outcome::new(json!(report), text::gone_back("redone", &report, &redone)))
    }
}
