use clap::{Args, CommandFactory};
use clap_complete::Shell;
use serde_json::json;

use super::output::Outcome;
use crate::error::Result;

/// Print what makes a shell complete this command
///
/// For bash: sandbox completions bash > ~/.local/share/bash-completion/completions/sandbox
#[derive(Debug, Args)]
pub(crate) struct Completions {
    shell: Shell,
}

impl Completions {
    pub(crate) fn execute(self) -> Result<Outcome> {
        let mut script = Vec::new();
        clap_complete::generate(
            self.shell,
            &mut super::Arguments::command(),
            "sandbox",
            &mut script,
        );
        let script = String::from_utf8_lossy(&script).into_owned();
        Ok(Outcome::new(json!({ "script": script }), script.trim_end()))
    }
}
