use clap::Args;
use serde_json::json;

use super::log::{Found, Log};
use super::output::Outcome;
use super::text::{self, printable};
use super::undo_log;
use crate::error::Result;

/// Say how the history of a folder is, and who holds it
#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    log: Log,
}

impl Status {
    pub(crate) fn execute(self) -> Result<Outcome> {
        let found = self.log.find()?;
        let client = undo_log::holder(&found)?;
        let Found { working_dir, undo_dir } = found;
        let (greeting, store) = (client.hello()?, client.status()?);
        let is_held = greeting.confinement.is_some();
        let mut lines = vec![
            format!("folder     {}", printable(&working_dir.display().to_string())),
            format!("undo data  {}", printable(&undo_dir.display().to_string())),
            match is_held {
                true if greeting.attached => {
                    format!(
                        "held by    process {}, which serves a live view or a mount",
                        greeting.pid
                    )
                }
                true => format!("held by    process {}", greeting.pid),
                false => "held by    nobody: nothing is being recorded right now".into(),
            },
            format!(
                "steps      {} to undo, {} to redo; {} stored, {} held without a copy, {} free",
                store.steps,
                store.redoable,
                text::bytes(store.stored_bytes),
                text::bytes(store.held_bytes),
                text::bytes(store.free_bytes)
            ),
        ];
        if let Some(step) = store.open_step {
            lines.push(format!("open       step {step}"));
        }
        if !store.unprotected.is_empty() {
            let steps: Vec<String> = store.unprotected.iter().map(ToString::to_string).collect();
            lines.push(format!("WARNING    steps that CANNOT be undone: {}", steps.join(", ")));
        }
        if let Some(found) = &store.disabled_by_version {
            lines.push(format!("WARNING    NOTHING IS RECORDED: the history has format {found}"));
        }
        if greeting.confinement.is_some_and(|confinement| !confinement.is_complete()) {
            lines.push("WARNING    the process that holds it is less confined than it should be; see `sandbox doctor`".into());
        }
        let json = json!({
            "working_dir": working_dir, "undo_dir": undo_dir, "store": store,
            "holder": is_held.then_some(&greeting),
        });
        Ok(Outcome::new(json, lines.join("\n")))
    }
}
