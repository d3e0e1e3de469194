//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Steps of work that can be undone.
#[derive(Debug, Parser)]
#[command(name = "sandbox", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say where a step begins and ends, while a mount serves the folder
    Step {
        #[command(subcommand)]
        action: StepAction,
    },
    /// List the steps, newest first
    History(Log),
    /// Undo the newest steps
    Undo {
        #[command(flatten)]
        log: Log,
        #[command(flatten)]
        how: Backwards,
        /// Say what would change, and change nothing
        #[arg(long, conflicts_with_all = ["force", "skip_conflicts"])]
        preview: bool,
    },
    /// Redo what was undone last
    Redo {
        #[command(flatten)]
        log: Log,
        #[command(flatten)]
        how: Backwards,
    },
    /// Make steps of an agent's tool calls: for the hooks of agent clients
    ///
    /// Reads the client's message from standard input. A call that is about to begin begins a step,
    /// one that is over ends it; everything else is ignored.
    Hook {
        #[command(flatten)]
        log: Log,
        /// Tell the client to refuse the call (exit code 2) if no step can begin
        #[arg(long)]
        require: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum StepAction {
    /// Begin a step; one that is still open ends
    Begin {
        #[command(flatten)]
        log: Log,
        /// What the history will say about it
        #[arg(long, value_name = "TEXT", default_value = "")]
        label: String,
    },
    /// End the step
    End {
        #[command(flatten)]
        log: Log,
        /// How the command in it ended
        #[arg(long, value_name = "N")]
        exit_code: Option<i32>,
    },
}

/// Which undo log.
#[derive(Debug, Clone, Args)]
pub(crate) struct Log {
    /// Where undo data is kept
    #[arg(long, value_name = "DIR")]
    pub(crate) undo_dir: PathBuf,
    /// Print one JSON value
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Backwards {
    /// How many steps
    #[arg(default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// Overwrite what others have changed since
    #[arg(long, conflicts_with = "skip_conflicts")]
    pub(crate) force: bool,
    /// Leave alone what others have changed since
    #[arg(long)]
    pub(crate) skip_conflicts: bool,
}
