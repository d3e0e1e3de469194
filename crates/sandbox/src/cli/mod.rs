//! The command line. One command, one file; its doc comment is its help text.

mod ask;
mod completions;
mod doctor;
mod guest;
mod history;
mod hook;
mod hook_message;
mod input;
mod kept;
mod log;
mod output;
mod pin;
mod redo;
mod refused;
mod restore;
mod run;
mod serve;
mod session_arguments;
mod setup;
mod shell;
mod show;
mod signals;
mod status;
mod step;
mod text;
mod undo;
mod undo_log;
mod undo_log_command;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::error::{Result, SandboxError};
use output::{Outcome, complain, say};

/// Let programs work in your folder, and take back what they did.
#[derive(Debug, Parser)]
#[command(name = "sandbox", version)]
struct Arguments {
    /// Print one JSON value
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Serve,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Shell(shell::Shell),
    History(history::History),
    Show(show::Show),
    Undo(undo::Undo),
    Redo(redo::Redo),
    Restore(restore::Restore),
    Pin(pin::Pin),
    Status(status::Status),
    Doctor(doctor::Doctor),
    Guest(guest::Guest),
    Setup(setup::Setup),
    UndoLog(undo_log_command::UndoLog),
    Step(step::Step),
    Hook(hook::Hook),
    Completions(completions::Completions),
}

pub fn main() -> ExitCode {
    main_with(std::env::args_os())
}

/// As [`main`], with other arguments than those of this process; the first one is its name.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let parsed = Arguments::command().try_get_matches_from(&arguments).and_then(|matches| {
        Arguments::from_arg_matches(&matches).map(|arguments| (arguments, matches))
    });
    let (Arguments { json, command, serve }, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) if error.use_stderr() => {
            let ours = arguments.iter().take_while(|argument| *argument != "--");
            complain(ours.into_iter().any(|argument| argument == "--json"), &misused(&error));
            return ExitCode::from(MISUSED);
        }
        Err(help) => help.exit(),
    };
    let Some(command) = command else { return serve.execute(json) };
    if let Some(flag) = serve::flag_in(&matches) {
        let message = format!("--{flag} in front of a command is for servers");
        complain(json, &SandboxError::usage(message, "put it behind the command"));
        return ExitCode::from(MISUSED);
    }
    let failure = command.exit_code_of_failure();
    match command.execute(json) {
        Ok(outcome) => say(json, &outcome),
        Err(error) => {
            complain(json, &error);
            ExitCode::from(match error {
                SandboxError::NotStarted(_) => NOT_FOUND,
                _ => failure,
            })
        }
    }
}

/// What the command line's own library says in several lines, as one sentence and a hint.
fn misused(error: &clap::Error) -> SandboxError {
    let text = error.render().to_string();
    let in_one_line = |part: &str| part.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut parts = text.split("\n\n").map(in_one_line);
    let message = parts.next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    let (mut tip, mut usage) = (None, None);
    for part in parts {
        // Nobody who mistypes a flag means a file of that name.
        let is_useful = |tip: &&str| !tip.starts_with("to pass ");
        let first_of = |tips: &str| tips.split(" tip: ").find(is_useful).map(str::to_owned);
        tip = tip.or(part.strip_prefix("tip: ").and_then(first_of));
        usage = usage.or(part.strip_prefix("Usage: ").map(|usage| format!("use it so: {usage}")));
    }
    use clap::error::ErrorKind;
    let (message, hint) = match error.kind() {
        ErrorKind::InvalidSubcommand => (message, tip.or(Some("--help lists them".into()))),
        // What is rendered then is the help itself.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let usage = usage.map(|usage| format!("{usage}; --help lists them"));
            ("it is not said which of its commands is meant", usage)
        }
        _ => (message, tip.or(usage)),
    };
    SandboxError::usage(message, hint.unwrap_or_else(|| "--help says what it takes".into()))
}

/// What programs say that were called wrongly.
const MISUSED: u8 = 2;

/// What shells say of a command that they cannot start.
const NOT_FOUND: u8 = 127;

impl Command {
    fn execute(self, json: bool) -> Result<Outcome> {
        match self {
            Self::Run(command) => command.execute(json),
            Self::Shell(command) => command.execute(),
            Self::History(command) => command.execute(),
            Self::Show(command) => command.execute(),
            Self::Undo(command) => command.execute(),
            Self::Redo(command) => command.execute(),
            Self::Restore(command) => command.execute(),
            Self::Pin(command) => command.execute(),
            Self::Status(command) => command.execute(),
            Self::Doctor(command) => command.execute(),
            Self::Guest(command) => command.execute(),
            Self::Setup(command) => command.execute(),
            Self::UndoLog(command) => command.execute(),
            Self::Step(command) => command.execute(),
            Self::Hook(command) => command.execute(),
            Self::Completions(command) => command.execute(),
        }
    }

    /// Of those that pass on the exit code of another command, one that this rarely has.
    fn exit_code_of_failure(&self) -> u8 {
        match self {
            Self::Run(_) | Self::Shell(_) => run::FAILED,
            _ => 1,
        }
    }
}
