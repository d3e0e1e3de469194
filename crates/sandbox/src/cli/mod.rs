//! The command line. One command, one file; its doc comment is its help text.

mod history;
mod hook;
mod hook_message;
mod log;
mod output;
mod redo;
mod run;
mod session_arguments;
mod step;
mod text;
mod undo;
mod undo_log;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::Result;
use output::{Outcome, complain, say};

/// Let programs work in your folder, and take back what they did.
#[derive(Debug, Parser)]
#[command(name = "sandbox", version)]
struct Arguments {
    /// Print one JSON value
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    History(history::History),
    Undo(undo::Undo),
    Redo(redo::Redo),
    Step(step::Step),
    Hook(hook::Hook),
}

pub fn main() -> ExitCode {
    let Arguments { json, command } = Arguments::parse();
    let failure = command.exit_code_of_failure();
    match command.execute(json) {
        Ok(outcome) => say(json, &outcome),
        Err(error) => {
            complain(json, &error);
            ExitCode::from(match error {
                crate::SandboxError::NotStarted(_) => NOT_FOUND,
                _ => failure,
            })
        }
    }
}

/// What shells say of a command that they cannot start.
const NOT_FOUND: u8 = 127;

impl Command {
    fn execute(self, json: bool) -> Result<Outcome> {
        match self {
            Self::Run(command) => command.execute(json),
            Self::History(command) => command.execute(),
            Self::Undo(command) => command.execute(),
            Self::Redo(command) => command.execute(),
            Self::Step(command) => command.execute(),
            Self::Hook(command) => command.execute(),
        }
    }

    /// Of those that pass on the exit code of another command, one that this rarely has.
    fn exit_code_of_failure(&self) -> u8 {
        match self {
            Self::Run(_) => run::FAILED,
            _ => 1,
        }
    }
}
