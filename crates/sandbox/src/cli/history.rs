use clap::Args;
use codeagent_common::StepInfo;
use codeagent_interceptor::HistoryEntry;
use serde_json::json;

use super::log::Log;
use super::output::Outcome;
use super::{text, undo_log};
use crate::error::Result;

/// List the steps, newest first
#[derive(Debug, Args)]
pub(crate) struct History {
    #[command(flatten)]
    log: Log,
}

impl History {
    pub(crate) fn execute(self) -> Result<Outcome> {
        let found = self.log.find()?;
        let client = undo_log::holder(&found)?;
        let (history, redoable) = (client.history()?, client.redoable()?);
        let open = client.status()?.open_step;
        let text = text::history(&history, &redoable, open);
        let newest_first: Vec<&HistoryEntry> = history.iter().rev().collect();
        let redoable: Vec<&StepInfo> = redoable.iter().rev().collect();
        let json = json!({
            "working_dir": found.working_dir, "history": newest_first,
            "redoable": redoable, "open_step": open,
        });
        Ok(Outcome::new(json, text))
    }
}
