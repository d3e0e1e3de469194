use std::io;

use clap::Args;
use codeagent_common::ErrorCode;
use serde_json::json;

use super::hook_message::{Moment, moment};
use super::log::Log;
use super::output::{Outcome, complain};
use super::step::{begin, close};
use crate::error::{Result, SandboxError};

/// What agent clients take as "do not make this call".
const REFUSE: u8 = 2;

/// Make steps of an agent's tool calls: for the hooks of agent clients
///
/// Reads the client's message from standard input. A call that is about to begin begins a step,
/// one that is over ends it; everything else is ignored.
#[derive(Debug, Args)]
pub(crate) struct Hook {
    #[command(flatten)]
    log: Log,
    /// Tell the client to refuse the call (exit code 2) if no step can begin
    #[arg(long)]
    require: bool,
}

impl Hook {
    pub(crate) fn execute(self) -> Result<Outcome> {
        let message = match serde_json::from_reader(io::stdin().lock()) {
            Ok(message) => message,
            Err(error) => return self.refuse(SandboxError::Hook(error)),
        };
        match moment(&message) {
            Moment::Begins(label) => {
                let begun = self.log.served().and_then(|client| begin(&client, label));
                match begun {
                    // Some clients show the agent what a hook says.
                    Ok(begun) => Ok(Outcome { text: String::new(), ..begun }),
                    Err(error) => self.refuse(error),
                }
            }
            // There is nothing left to refuse, and an agent that is told so when it stops goes on,
            // for ever.
            Moment::Ends => {
                let closed = match self.log.served().and_then(|client| close(&client, None)) {
                    // The call was a part of it.
                    Err(error) if error.code() == ErrorCode::TransactionOpen => None,
                    closed => closed?,
                };
                Ok(Outcome::new(json!({ "closed": closed }), ""))
            }
            Moment::Other => Ok(Outcome::new(json!({ "ignored": true }), "")),
        }
    }

    fn refuse(&self, error: SandboxError) -> Result<Outcome> {
        if !self.require {
            return Err(error);
        }
        complain(false, &error);
        let json = json!({ "error": { "code": error.code(), "message": error.to_string() } });
        Ok(Outcome { json, text: String::new(), exit_code: REFUSE })
    }
}
