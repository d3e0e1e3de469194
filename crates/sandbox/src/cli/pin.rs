use clap::Args;
use codeagent_common::StepId;
use codeagent_worker::Request;
use serde_json::json;

use super::log::Log;
use super::output::Outcome;
use crate::error::Result;

/// Keep a step, however old it gets
#[derive(Debug, Args)]
pub(crate) struct Pin {
    #[command(flatten)]
    log: Log,
    /// The number of the step
    #[arg(value_name = "STEP", allow_negative_numbers = true)]
    step: i64,
    /// Let it go again when it is old
    #[arg(long)]
    remove: bool,
}

impl Pin {
    pub(crate) fn execute(self) -> Result<Outcome> {
        let (step, pinned) = (StepId(self.step), !self.remove);
        self.log.holder()?.call::<()>(Request::Pin { step, pinned })?;
        let text = match pinned {
            true => format!("step {step} is kept"),
            false => format!("step {step} goes when it is old"),
        };
        Ok(Outcome::new(json!({ "step": step, "pinned": pinned }), text))
    }
}
