//! How the folders are served: what the mount lets one choose.

use std::process::Command;

use codeagent_mount::{Cache, MountOptions};

/// The same for both mounts of a run.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Settings {
    /// Requests that the mounts serve at once
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// What the kernel may keep of the mounts
    #[arg(long, value_parser = parse_cache, default_value = "coherent", value_name = "never|coherent|auto")]
    cache: Cache,
    /// Files of so many bytes are read by the kernel itself, through the mount with interception
    #[arg(long, value_name = "BYTES")]
    passthrough_from: Option<u64>,
}

fn parse_cache(text: &str) -> Result<Cache, String> {
    let found = CACHES.iter().find(|(name, _)| *name == text);
    found.map(|(_, cache)| *cache).ok_or_else(|| "never, coherent or auto".to_owned())
}

const CACHES: [(&str, Cache); 3] =
    [("never", Cache::Never), ("coherent", Cache::Coherent), ("auto", Cache::Auto)];

impl Settings {
    /// The same, and the kernel reads every file itself, or none.
    pub(super) fn with_passthrough(&self, every_file: bool) -> Self {
        Self { passthrough_from: every_file.then_some(0), ..self.clone() }
    }

    pub(super) fn apply(&self, options: &mut MountOptions) {
        options.cache = self.cache;
        options.passthrough_from = self.passthrough_from;
        if let Some(threads) = self.threads {
            options.threads = threads;
        }
    }

    /// Hands them to the process that serves.
    pub(super) fn pass_on(&self, command: &mut Command) {
        let cache = CACHES.iter().find(|(_, cache)| *cache == self.cache);
        command.args(cache.map(|(name, _)| format!("--cache={name}")));
        if let Some(threads) = self.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        if let Some(from) = self.passthrough_from {
            command.args(["--passthrough-from", &from.to_string()]);
        }
    }
}
