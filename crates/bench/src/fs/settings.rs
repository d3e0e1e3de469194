//! How the folders are served: what the mount lets one choose.

use std::process::Command;

use codeagent_mount::MountOptions;

/// The same for both mounts of a run.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Settings {
    /// Requests that the mounts serve at once
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl Settings {
    pub(super) fn apply(&self, options: &mut MountOptions) {
        if let Some(threads) = self.threads {
            options.threads = threads;
        }
    }

    /// Hands them to the process that serves.
    pub(super) fn pass_on(&self, command: &mut Command) {
        if let Some(threads) = self.threads {
            command.args(["--threads", &threads.to_string()]);
        }
    }
}
